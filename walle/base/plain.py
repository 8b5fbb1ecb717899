"""Plain data: the values that cross every boundary, and their encoding as bytes for the tunnel and the feature store.

Plain data is None, bool, int from -2^63 to 2^64 - 1, float (NaN and infinities too), str without lone surrogates,
bytes, list, tuple, dict with str keys, and arrays: any object with the buffer protocol and a numeric format
(`walle.np.ndarray`, `numpy.ndarray`, `array.array`). Containers are at most MAX_LEVELS deep. An array without axes, a
scalar of NumPy's or of `walle.np`, is a number. Instances of subclasses count as the plain type. Everything else is
refused with its place in the value. The rules are those of C++ too (docs/adr/0002-folders-layers-and-plain-data.md).

The encoding is MessagePack. Tuples are decoded as lists. An array is extension type 1; it is decoded as a shaped,
read-only `memoryview` on the received bytes, which `walle.np.asarray` and `numpy.asarray` take without a copy. An array
without elements is decoded flat.
"""

import math
import struct
from typing import Any

import msgpack

_ARRAY = 1
_FORMATS = {"?", "b", "B", "h", "H", "i", "I", "q", "Q", "l", "L", "e", "f", "d"}
_HEAD = struct.Struct("<cBxx")
_SIMPLE = frozenset({type(None), bool, int, float, str, bytes})
MAX_LEVELS = 100  # containers in containers; a VM and the readers in C++ have the same limit
_SHOWN_CHARS = 40
_BYTES_IN_DISGUISE = frozenset({"datetime64", "timedelta64"})  # scalars that lend a buffer of eight bytes
_ADVICE = {
    "set": "send a list: sorted(value)",
    "frozenset": "send a list: sorted(value)",
    "date": "send text: value.isoformat()",
    "datetime": "send text: value.isoformat()",
    "time": "send text: value.isoformat()",
    "Decimal": "send float(value) or str(value)",
    "Fraction": "send float(value) or str(value)",
    "datetime64": "send text: str(value)",
    "timedelta64": "send text: str(value)",
    "complex": "send a list: [value.real, value.imag]",
}


class PlainDataError(TypeError):
    """A value that is not plain data, or bytes that do not encode plain data."""


def _body_offset(ndim: int) -> int:
    """Return the offset of an array's elements: aligned, so that they can be used without a copy."""
    return (_HEAD.size + 4 * ndim + 7) // 8 * 8


def array_view(value: object) -> memoryview:
    """Return the elements of an array.

    Raises:
        PlainDataError: it is not an array of numbers.
    """
    kind = type(value).__name__[:_SHOWN_CHARS]
    try:
        if kind in _BYTES_IN_DISGUISE:
            raise TypeError(kind)  # noqa: TRY301 -- refused as any other
        view = memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # ValueError: an array of dates
        advice = _ADVICE.get(kind, "send None, bool, int, float, str, bytes, list, tuple, dict or an array")
        raise PlainDataError(f"is of type {kind}, which is not plain data; {advice}") from None
    if view.format.lstrip("<=@") not in _FORMATS:
        raise PlainDataError(f"is an array of format {view.format!r}; convert it to a number dtype")
    return view


def _is_shaped(value: object, levels: int) -> bool:
    """Return whether containers are at most `levels` deep, and keys are str: what MessagePack itself does not ask."""
    if isinstance(value, dict):
        if not levels:
            return False
        for key, item in value.items():
            if not isinstance(key, str) or (type(item) not in _SIMPLE and not _is_shaped(item, levels - 1)):
                return False
    elif isinstance(value, list | tuple):
        if not levels:
            return False
        for item in value:
            if type(item) not in _SIMPLE and not _is_shaped(item, levels - 1):
                return False
    elif (to_plain := getattr(value, "__plain__", None)) is not None:
        return _is_shaped(to_plain(), levels)
    return True


def _fault(value: object, levels: int) -> tuple[str, str] | None:
    """Return the place of the first part that is not plain data, and what it is; None if there is none."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            advice = "send text.encode('utf-8', 'replace').decode()"
            return "", f"is text with a lone surrogate, which UTF-8 cannot express; {advice}"
        return None
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**64
        return None if fits else ("", "is an int of more than 64 bits; send it as a float, or as text: str(value)")
    if value is None or isinstance(value, float | bytes):
        return None
    if not isinstance(value, dict | list | tuple):
        if getattr(value, "__plain__", None) is not None:
            return None
        try:
            array_view(value)
        except PlainDataError as error:
            return "", str(error)
        return None
    if not levels:
        return "", f"is nested deeper than {MAX_LEVELS} levels, or refers to itself"
    for step, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(step, str):
            advice = "keys of plain data are str: use str(key), or a list of pairs"
            return "", f"has the key {_shown(step)} of type {type(step).__name__[:_SHOWN_CHARS]}; {advice}"
        found = (_fault(step, levels) if isinstance(step, str) else None) or _fault(item, levels - 1)
        if found is not None:
            return f"{place_step(step)}{found[0]}", found[1]
    return None


def _shown(key: object) -> str:
    if type(key) not in _SIMPLE and type(key) is not tuple:
        return "..."
    try:
        return repr(key)[:_SHOWN_CHARS]
    except ValueError:  # an int of more digits than Python turns into text
        return "..."


def place_step(step: object) -> str:
    """Return how a place names an item: `.prices`, `["list price"]`, `[3]`."""
    if isinstance(step, int):
        return f"[{step}]"
    text = str(step).encode(errors="backslashreplace").decode()
    shown = text if len(text) <= 2 * _SHOWN_CHARS else f"{text[: 2 * _SHOWN_CHARS]}..."
    return f".{shown}" if text.isascii() and text.isidentifier() else f'["{shown}"]'


def _pack_other(value: object) -> Any:
    if (to_plain := getattr(value, "__plain__", None)) is not None:  # an Encoded, which the native core copies
        return to_plain()
    view = array_view(value)
    if view.ndim == 0:
        return view.tolist()
    code = view.format.lstrip("<=@")
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


def encode(value: Any, root: str = "value") -> bytes:
    """Return the bytes of a plain value.

    Raises:
        PlainDataError: something in it is not plain data; the message has its place, which begins with `root`.
    """
    cause: Exception | None = None
    if _is_shaped(value, MAX_LEVELS):
        try:
            return bytes(msgpack.packb(value, default=_pack_other, use_bin_type=True))
        except (PlainDataError, TypeError, OverflowError, ValueError, RecursionError) as error:
            cause = error
    place, what = _fault(value, MAX_LEVELS) or ("", f"cannot be encoded: {cause or 'its nested value is too deep'}")
    raise PlainDataError(f"{root}{place} {what}") from cause


def decode(data: bytes | memoryview, *, strict: bool = False) -> Any:
    """Return the value that `encode` was given, tuples as lists and arrays as shaped memoryviews.

    A map of keys that are bytes, or more than MAX_LEVELS levels, as a walle before these rules may have stored them,
    are refused if `strict`: where the value is passed to a task. Asking costs as much as decoding.

    Raises:
        PlainDataError: the bytes are truncated, followed by others, or not in this encoding.
    """
    try:
        value = msgpack.unpackb(data, ext_hook=_unpack_array, raw=False, strict_map_key=True)
    except PlainDataError:
        raise
    except (ValueError, TypeError, struct.error, msgpack.exceptions.UnpackException) as error:
        raise PlainDataError(f"these {len(data)} bytes are not plain data: {error}") from error
    if strict and not _is_shaped(value, MAX_LEVELS):
        raise PlainDataError(f"the bytes have a key that is not str, or more than {MAX_LEVELS} levels")
    return value
