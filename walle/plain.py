"""Encoding of plain data and arrays as bytes, for the tunnel and the feature store.

Plain data is None, bool, int (64 bits), float, str, bytes, list, tuple, dict with str keys, and arrays: any object with
the buffer protocol and a numeric format (`walle.np.ndarray`, `numpy.ndarray`, `array.array`). The encoding is
MessagePack. Tuples are decoded as lists. An array is extension type 1; it is decoded as a shaped, read-only
`memoryview` on the received bytes, which `walle.np.asarray` and `numpy.asarray` take without a copy. An array without
elements is decoded flat.
"""

import math
import struct
from typing import Any

import msgpack

_ARRAY = 1
_FORMATS = {"?", "b", "B", "h", "H", "i", "I", "q", "Q", "l", "L", "e", "f", "d"}
_HEAD = struct.Struct("<cBxx")


class PlainDataError(TypeError):
    """A value that is not plain data, or bytes that do not encode plain data."""


def _body_offset(ndim: int) -> int:
    """Return the offset of an array's elements: aligned, so that they can be used without a copy."""
    return (_HEAD.size + 4 * ndim + 7) // 8 * 8


def _pack_other(value: object) -> Any:
    if (to_plain := getattr(value, "__plain__", None)) is not None:  # an Encoded, which the native core copies
        return to_plain()
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        raise PlainDataError(
            f"{type(value).__name__} is not plain data; send None, bool, int, float, str, bytes, list, dict or an array"
        ) from None
    code = view.format.lstrip("<=@")
    if code not in _FORMATS:
        raise PlainDataError(f"an array of format {view.format!r} cannot be sent; convert it to a number dtype")
    shape = struct.pack(f"<{view.ndim}I", *(view.shape or ()))
    head = (_HEAD.pack(code.encode(), view.ndim) + shape).ljust(_body_offset(view.ndim), b"\0")
    return msgpack.ExtType(_ARRAY, head + view.tobytes())


def _unpack_array(kind: int, data: bytes) -> memoryview:
    if kind != _ARRAY:
        raise PlainDataError(f"unknown extension type {kind}")
    code, ndim = _HEAD.unpack_from(data)
    format_ = code.decode("latin-1")
    if format_ not in _FORMATS:
        raise PlainDataError(f"unknown array format {format_!r}")
    shape = struct.unpack_from(f"<{ndim}I", data, _HEAD.size)
    body = memoryview(data)[_body_offset(ndim) :]
    if len(body) != math.prod(shape) * struct.calcsize(format_):
        raise PlainDataError(f"array of shape {shape} and format {format_!r} does not fit its {len(body)} bytes")
    if ndim == 0 or 0 in shape:  # memoryview.cast supports neither; the flat view has the same elements
        return body.cast(format_)
    return body.cast(format_, shape)


def encode(value: Any) -> bytes:
    """Return the bytes of a plain value.

    Raises:
        PlainDataError: something in it is not plain data, or an int needs more than 64 bits.
    """
    try:
        return bytes(msgpack.packb(value, default=_pack_other, use_bin_type=True))
    except (OverflowError, ValueError, RecursionError) as error:
        raise PlainDataError(f"this value cannot be sent: {error}") from error


def decode(data: bytes | memoryview) -> Any:
    """Return the value that `encode` was given, tuples as lists and arrays as shaped memoryviews.

    Raises:
        PlainDataError: the bytes are truncated, followed by others, or not in this encoding.
    """
    try:
        return msgpack.unpackb(data, ext_hook=_unpack_array, raw=False, strict_map_key=True)
    except PlainDataError:
        raise
    except (ValueError, TypeError, struct.error, msgpack.exceptions.UnpackException) as error:
        raise PlainDataError(f"these {len(data)} bytes are not plain data: {error}") from error
