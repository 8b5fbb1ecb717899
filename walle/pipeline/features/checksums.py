"""Checksums of uploads, and the chain over a stream of them: both sides of the tunnel compute the same values.

A row's checksum is a CRC-32 over its topic, time and payload. The chain value at number n of an epoch is a polynomial
hash of the checksums up to row n's: `chain(n) = (chain(n - 1) * CHAIN_FACTOR + checksum(n)) % CHAIN_MODULUS`, and
chain(0) is the CRC-32 of the epoch. Two sides whose values at n agree had the same rows up to n, but for about one case
in 2**32 (docs/adr/0022).
"""

import struct
from zlib import crc32

_HEADER = struct.Struct(">qI")
_POSITION = struct.Struct(">q").pack
CHAIN_FACTOR = 0x9E3779B1  # prime, so that a checksum's place in the chain matters
CHAIN_MODULUS = 2**61 - 1


def header_checksum(topic: str, ts_ms: int) -> int:
    """Return the checksum of a row's topic and time; `crc32(payload, header)` is the row's checksum."""
    name = topic.encode()
    return crc32(_HEADER.pack(ts_ms, len(name)) + name)


def row_checksum(topic: str, payload: bytes, ts_ms: int) -> int:
    """Return the checksum of one upload."""
    return crc32(payload, header_checksum(topic, ts_ms))


def position_checksum(position: int) -> int:
    """Return the checksum of a feature's position. A stored feature's checksum is its row's, xor this."""
    return crc32(_POSITION(position))


def feature_checksum(checksum: int, position: int) -> int:
    """Return the checksum of a stored feature, from that of its topic, time and payload."""
    return checksum ^ position_checksum(position)


def first_link(epoch: str) -> int:
    """Return the chain value before the first row of an epoch."""
    return crc32(epoch.encode())


def next_link(chain: int, checksum: int) -> int:
    """Return the chain value after a row with this checksum."""
    return (chain * CHAIN_FACTOR + checksum) % CHAIN_MODULUS
