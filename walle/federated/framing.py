"""Frame of models and updates: magic number, header in MessagePack, raw arrays.

    4 bytes   magic number
    4 bytes   length of the header, little-endian
    n bytes   header: a map
    0-63      zeros, up to a multiple of 64
    rest      arrays, one after another, little-endian

The same values give the same bytes, so the SHA-256 of a frame identifies them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack

from walle.engine_ext._core import packed_values

MAX_HEADER_BYTES = 4 << 20  # 65,536 arrays with names of 40 characters
_MAX_HEADER_VALUES = 1 << 19  # nested values too: an empty map has 1 byte, in Python 64
_ALIGNMENT = 64
_START = struct.Struct("<4sI")


def frame(magic: bytes, header: Mapping[str, Any], arrays: Iterable[bytes]) -> bytes:
    """Return the bytes of a header and arrays."""
    packed = msgpack.packb(header, use_bin_type=True)
    start = _START.pack(magic, len(packed)) + packed
    return b"".join((start, bytes(-len(start) % _ALIGNMENT), *arrays))


def parse_frame(magic: bytes, body: bytes, fail: Callable[[str], Exception]) -> tuple[dict[str, Any], int]:
    """Return the header and the place of the first array. Memory is bounded by the header's length.

    Raises:
        Exception: what `fail` makes of the message, where the bytes are not such a frame.
    """
    if len(body) < _START.size:
        raise fail(f"{len(body)} bytes are no frame; the shortest has {_START.size}")
    found, length = _START.unpack_from(body)
    if found != magic:
        raise fail(f"the magic number is {found!r}, expected {magic!r}")
    end = _START.size + length
    first = end + -end % _ALIGNMENT
    if length > MAX_HEADER_BYTES or first > len(body):
        raise fail(f"the header has {length} bytes by its length; {min(len(body), MAX_HEADER_BYTES)} are possible")
    if any(body[end:first]):
        raise fail("the padding after the header is not zero")
    if (values := packed_values(body[_START.size : end])) > _MAX_HEADER_VALUES:
        raise fail(f"the header has {values} values, more than {_MAX_HEADER_VALUES}")
    try:
        header = msgpack.unpackb(body[_START.size : end], raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise fail(f"the header is not MessagePack: {type(error).__name__}: {error}") from error
    if not isinstance(header, dict):
        raise fail(f"the header is {type(header).__name__}, expected a map")
    return header, first
