"""Content codings of shared files on their way to a device: `zstd` (RFC 8878), and `dcz` (RFC 9842).

`dcz` is zstd with a file that the device has as its dictionary: most bytes of a new version of a model are those of the
old one. A device names that file by its sha256 in `Available-Dictionary`; the answer says by `Content-Encoding` what it
is. What comes out is checked by the sha256 of the signed manifest, so that neither coding is trusted.
"""

import base64
import binascii
import hashlib
import re

ZSTD = "zstd"
DCZ = "dcz"
_MAGIC = bytes.fromhex("5e2a4d1820000000")  # RFC 9842 §5: a skippable frame that holds the dictionary's sha256
HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
ZSTD_WINDOW_BYTES = 8 << 20  # RFC 9659: a decoder of the coding zstd may refuse more
_DICTIONARY = re.compile(r":([A-Za-z0-9+/]{43}=):", re.ASCII)  # a byte sequence of RFC 8941


def dcz_header(dictionary_sha256: str) -> bytes:
    """Return the bytes before the zstd frame of a `dcz` body."""
    return _MAGIC + bytes.fromhex(dictionary_sha256)


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
