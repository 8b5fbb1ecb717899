"""Skeleton of a serialised ONNX model: the same protobuf message without the bytes of large tensors.

Protobuf's parser copies every field. Here the bytes of large tensors stay in the file, and their places in it take
their place in the message, as external data under the key SPAN: what is parsed, inlined and inferred is small.
"""

from collections.abc import Iterator
from typing import NamedTuple

from walle.engine_ext.errors import ModelError

# Tensors up to here stay in the message: shape inference reads the values of shapes, axes and the like.
_KEPT_BYTES = 4096
_MAX_DEPTH = 100  # messages within messages; protobuf's own parser has this limit
SPAN = "walle.span"  # the key of an entry of `external_data` whose value is a number of `Skeleton.spans`

# Messages that have tensors, by their fields (onnx.proto); "tensor" is a TensorProto.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_RAW, _PACKED = 9, {4: 4, 10: 8}  # TensorProto: raw_data; float_data and double_data, whose bytes are raw_data's too
_EXTERNAL = b"\x70\x01"  # data_location = EXTERNAL
_EXTERNAL_DATA = b"\x6a"  # the tag of an entry of external_data


class Span(NamedTuple):
    """A place in the serialised model."""

    offset: int
    size: int


class Skeleton(NamedTuple):
    """A serialised model without the bytes of large tensors, which are at `spans`."""

    message: bytes
    spans: list[Span]


def skeleton(data: memoryview) -> Skeleton:
    """Return the skeleton of a serialised ModelProto.

    Raises:
        ModelError: the bytes are not a protobuf message, or its messages are nested too deeply.
    """
    spans: list[Span] = []
    return Skeleton(_message(data, 0, len(data), "model", spans, 0), spans)


def _message(data: memoryview, start: int, end: int, kind: str, spans: list[Span], depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise ModelError(f"its messages are nested more than {_MAX_DEPTH} deep")
    if kind == "tensor":
        return _tensor(data, start, end, spans)
    fields = _FIELDS[kind]
    parts: list[bytes | memoryview] = []
    kept = start  # what begins here is copied unchanged
    for number, wire_type, field_start, value, field_end in _fields(data, start, end):
        inner = fields.get(number)
        if inner is None or wire_type != 2 or field_end - value <= _KEPT_BYTES:
            continue
        parts.append(data[kept:field_start])
        made = _message(data, value, field_end, inner, spans, depth + 1)
        parts += (_varint(number << 3 | 2), _varint(len(made)), made)
        kept = field_end
    parts.append(data[kept:end])
    return b"".join(parts)


def _tensor(data: memoryview, start: int, end: int, spans: list[Span]) -> bytes:
    fields = list(_fields(data, start, end))
    large = [one for one in fields if _is_large(one)]
    if len(large) != 1 or sum(one[0] == large[0][0] for one in fields) != 1:
        return bytes(data[start:end])  # nothing to leave out, or a field in several parts
    _, _, field_start, value, field_end = large[0]
    key, number = SPAN.encode(), str(len(spans)).encode()
    entry = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(number)) + number
    spans.append(Span(value, field_end - value))
    return b"".join(
        (data[start:field_start], data[field_end:end], _EXTERNAL, _EXTERNAL_DATA, _varint(len(entry)), entry)
    )


def _is_large(field: tuple[int, int, int, int, int]) -> bool:
    number, wire_type, _, value, end = field
    return wire_type == 2 and end - value > _KEPT_BYTES and (number == _RAW or number in _PACKED)


def _fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, start, start of the value, and end of each field of a message."""
    at = start
    while at < end:
        tag, value = _read_varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            _, stop = _read_varint(data, value, end)
        elif wire_type == 1:
            stop = value + 8
        elif wire_type == 2:
            size, value = _read_varint(data, value, end)
            stop = value + size
        elif wire_type == 5:
            stop = value + 4
        else:
            raise ModelError(f"byte {at} of it begins no field of a protobuf message")
        if number == 0 or stop > end:
            raise ModelError(f"the protobuf field at byte {at} is broken: the file is cut off, or not an ONNX model")
        yield number, wire_type, at, value, stop
        at = stop


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    for place in range(at, min(end, at + 10)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise ModelError(f"the protobuf number at byte {at} is broken: the file is cut off, or not an ONNX model")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
