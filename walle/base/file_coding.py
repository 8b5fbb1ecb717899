"""Content codings of shared files on their way to a device: `zstd` (RFC 8878), `dcz` (RFC 9842), and `walle-xor`.

`dcz` is zstd with a file that the device has as its dictionary: most bytes of a new version of a model are those of the
old one. `walle-xor` is for weights that a training nudged everywhere: the exclusive or with the old file of the same
length, whose bytes are sorted by their place in a word, as zstd (docs/protocol.md, page 174). A device names the old
file by its sha256 in `Available-Dictionary`; the answer says by `Content-Encoding` what it is. What comes out is
checked by the sha256 of the signed manifest, so that no coding is trusted.
"""

import base64
import binascii
import hashlib
import re

ZSTD = "zstd"
DCZ = "dcz"
XOR = "walle-xor"
_MAGIC = bytes.fromhex("5e2a4d1820000000")  # RFC 9842 §5: a skippable frame that holds the dictionary's sha256
XOR_BLOCK_BYTES = 1 << 20  # block whose bytes are sorted together
_XOR_MAGIC = b"WALLEXR1"
_WORD_BYTES = 4
HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
ZSTD_WINDOW_BYTES = 8 << 20  # RFC 9659: a decoder of the coding zstd may refuse more
_DICTIONARY = re.compile(r":([A-Za-z0-9+/]{43}=):", re.ASCII)  # a byte sequence of RFC 8941


def dcz_header(dictionary_sha256: str) -> bytes:
    """Return the bytes before the zstd frame of a `dcz` body."""
    return _MAGIC + bytes.fromhex(dictionary_sha256)


def xor_header(base_sha256: str) -> bytes:
    """Return the bytes before the zstd frame of a `walle-xor` body, HEADER_BYTES long."""
    return _XOR_MAGIC + bytes.fromhex(base_sha256)


def xor_encoded(block: bytes, base: bytes) -> bytes:
    """Return a block xor that of the base file, which is as long, with the bytes 0 of its words first, then 1, 2, 3.

    The bytes after the last whole word come last.
    """
    mixed = _xor(block, base)
    whole_bytes = len(mixed) // _WORD_BYTES * _WORD_BYTES
    planes = [mixed[place:whole_bytes:_WORD_BYTES] for place in range(_WORD_BYTES)]
    return b"".join([*planes, mixed[whole_bytes:]])


def xor_decoded(coded: bytes, base: bytes) -> bytes:
    """Return the block of which `xor_encoded` with the same base made `coded`."""
    words = len(coded) // _WORD_BYTES
    mixed = bytearray(coded)
    for place in range(_WORD_BYTES):
        mixed[place : words * _WORD_BYTES : _WORD_BYTES] = coded[place * words : (place + 1) * words]
    return _xor(mixed, base)


def _xor(block: bytes | bytearray, base: bytes) -> bytes:
    value = int.from_bytes(block, "little") ^ int.from_bytes(base, "little")
    return value.to_bytes(len(block), "little")


def window_bytes(dictionary_bytes: int) -> int:
    """Return the largest window that a frame with a dictionary of this length may ask for (RFC 9842 §5)."""
    return min(128 << 20, max(ZSTD_WINDOW_BYTES, dictionary_bytes * 5 // 4))


def format_dictionary(sha256: str) -> str:
    """Return the value of `Available-Dictionary` for a file."""
    return f":{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def parse_dictionary(header: str) -> str:
    """Return the sha256 in a value of `Available-Dictionary` in hex, "" for one that is not well-formed."""
    match = _DICTIONARY.fullmatch(header.strip())
    if match is None:
        return ""
    try:
        return base64.b64decode(match[1], validate=True).hex()
    except binascii.Error:
        return ""
