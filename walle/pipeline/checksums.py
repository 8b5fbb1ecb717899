"""Checksums of uploads, and the chain over a stream of them: both sides of the tunnel compute the same values.

A row's checksum is a CRC-32 over its topic, time and payload. The chain value at number n of an epoch is the CRC-32 of
row n's checksum, started from the chain value at n - 1; the value at 0 is the CRC-32 of the epoch. Two sides whose
values at n agree had the same rows up to n, but for one case in 2**32 (docs/adr/0094).
"""

import struct
from zlib import crc32

_HEADER = struct.Struct(">qI")
_LINK = struct.Struct(">I").pack
_POSITION = struct.Struct(">q").pack


def header_checksum(topic: str, ts_ms: int) -> int:
    """Return the checksum of a row's topic and time; `crc32(payload, header)` is the row's checksum."""
    name = topic.encode()
    return crc32(_HEADER.pack(ts_ms, len(name)) + name)


def row_checksum(topic: str, payload: bytes, ts_ms: int) -> int:
    """Return the checksum of one upload."""
    return crc32(payload, header_checksum(topic, ts_ms))


def feature_checksum(checksum: int, position: int) -> int:
    """Return the checksum of a stored feature: that of its topic, time and payload, continued with its position."""
    return crc32(_POSITION(position), checksum)


def first_link(epoch: str) -> int:
    """Return the chain value before the first row of an epoch."""
    return crc32(epoch.encode())


def next_link(chain: int, checksum: int) -> int:
    """Return the chain value after a row with this checksum."""
    return crc32(_LINK(checksum), chain)
