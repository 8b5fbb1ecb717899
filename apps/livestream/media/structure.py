"""Bytes that are missing from a file, by the lengths in its container's own structure.

FFmpeg ends a truncated file as it ends a whole one, so the lengths are read here: boxes of MP4 (ISO/IEC 14496-12),
the Segment of Matroska and WebM (RFC 9559), chunks of RIFF, packets of MPEG-TS, tags of FLV, and pages of Ogg
(RFC 3533).
"""

from typing import BinaryIO

_MAX_BOXES = 100_000  # a hostile file has boxes of 8 bytes, and elements of 2
_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"
_TS_PACKET = 188
_OGG_TAIL = 1 << 17  # two pages at most fit, so that one whole page header is in it


def missing_bytes(file: BinaryIO, size: int) -> int | None:
    """Return how many bytes should follow the end of the file, at least; 0 if it is whole, None if it does not say.

    Reads some headers, and leaves the file at its beginning. `size` is the file's length in bytes.
    """
    try:
        file.seek(0)
        head = file.read(2 * _TS_PACKET + 1)
        if head[4:8] in {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp"}:
            return _boxes(file, size)
        if head[:4] == _EBML:
            return _ebml(file, size)
        if head[:4] == b"RIFF":
            return _riff(head, size)
        if head[:4] == b"OggS":
            return _ogg(file, size)
        if head[:4] == b"FLV\x01":
            return _flv(file, size)
        if len(head) > 2 * _TS_PACKET and all(head[at] == 0x47 for at in (0, _TS_PACKET, 2 * _TS_PACKET)):
            return -size % _TS_PACKET or None  # a stream has no end of its own: only a partial packet shows
        return None
    finally:
        file.seek(0)


def _boxes(file: BinaryIO, size: int) -> int | None:
    at, names = 0, set()
    for _ in range(_MAX_BOXES):
        if at == size:
            return 0 if "moov" in names else 1
        file.seek(at)
        header = file.read(16)
        if len(header) < 8:
            return 8 - len(header)
        length = int.from_bytes(header[:4])
        if length == 1:
            if len(header) < 16:
                return 16 - len(header)
            length = int.from_bytes(header[8:16])
        if length < 8:
            return None  # 0: the rest of the file, of any length; less is damage
        names.add(header[4:8].decode("latin-1"))
        at += length
        if at > size:
            return at - size
    return None


def _ebml(file: BinaryIO, size: int) -> int | None:
    at = 4
    length = _vint(file, at)
    if length is None:
        return None
    at += length[0] + length[1]
    for _ in range(_MAX_BOXES):  # Void elements may stand before the Segment
        file.seek(at)
        name = file.read(4)
        if len(name) < 4:
            return 4 - len(name)
        width = 4 if name == _SEGMENT else 1
        if name != _SEGMENT and name[:1] != b"\xec":
            return None
        length = _vint(file, at + width)
        if length is None:
            return None
        at += width + length[0] + length[1]
        if name == _SEGMENT:
            return max(0, at - size)
    return None


def _vint(file: BinaryIO, at: int) -> tuple[int, int] | None:
    """Return the width and the value of the EBML length at `at`; None if it is missing, damaged or "unknown"."""
    file.seek(at)
    raw = file.read(8)
    if not raw or raw[0] == 0:
        return None
    width = 9 - raw[0].bit_length()
    if len(raw) < width:
        return None
    value = int.from_bytes(raw[:width]) & ((1 << 7 * width) - 1)
    return None if value == (1 << 7 * width) - 1 else (width, value)


def _riff(head: bytes, size: int) -> int | None:
    length = int.from_bytes(head[4:8], "little")
    if length in {0, 0xFFFFFFFF}:  # written by a program that could not go back to the header
        return None
    return max(0, length + 8 - size)


def _flv(file: BinaryIO, size: int) -> int | None:
    """A tag is followed by its own length: where that does not fit, a part of one is missing."""
    file.seek(size - 4)
    length = int.from_bytes(file.read(4))
    if 11 <= length <= size - 13:
        file.seek(size - 4 - length)
        header = file.read(4)
        if header[0] & 31 in {8, 9, 18} and int.from_bytes(header[1:]) == length - 11:
            return None
    return 1


def _ogg(file: BinaryIO, size: int) -> int:
    file.seek(max(0, size - _OGG_TAIL))
    tail = file.read(_OGG_TAIL)
    at = len(tail)
    while (at := tail.rfind(b"OggS", 0, at)) >= 0:
        page = tail[at:]
        if len(page) < 27:
            return 27 - len(page)
        segments = page[27 : 27 + page[26]]
        missing = 27 + page[26] + sum(segments) - len(page)
        if missing == 0:
            return 0 if page[5] & 4 else 1  # the page that ends a stream has this flag
        if missing > 0:
            return missing
        # shorter than what follows it: these four bytes are within a page, or after the last one
    return 1
