"""Reader of float32 TFLite models: the operators of the first subgraph, in order, with their constants.

A TFLite file is a FlatBuffer. Only the fields that a chain of convolutions needs are read, by their numbers in
TensorFlow's schema.fbs.
"""

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walle.errors import ConfigError

_OPERATORS = {1: "AveragePool", 3: "Conv", 4: "DepthwiseConv", 22: "Reshape", 25: "Softmax"}
_DTYPES: dict[int, Any] = {0: np.float32, 2: np.int32}
_ACTIVATIONS = {0: "", 1: "Relu", 3: "Relu6"}
_PADDINGS = {0: "SAME", 1: "VALID"}
# The numbers of the fields stride width, stride height and activation in the options of each operator.
_OPTION_FIELDS = {"Conv": (1, 2, 3), "DepthwiseConv": (1, 2, 4), "AveragePool": (1, 2, 5)}


class TfliteError(ConfigError):
    """A file that is not a TFLite model, or has something that is not supported."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TfliteOperator:
    """An operator with constant inputs as arrays, in TFLite's layout: images and weights end with the channels."""

    kind: str
    constants: tuple[NDArray[Any], ...]
    result_shape: tuple[int, ...]
    padding: str
    strides: tuple[int, int]
    activation: str


@dataclasses.dataclass(frozen=True, slots=True)
class TfliteModel:
    """A chain of operators, and the shape of its one input."""

    input_shape: tuple[int, ...]
    operators: tuple[TfliteOperator, ...]


def read_tflite(data: bytes) -> TfliteModel:
    """Return the model in the bytes of a .tflite file.

    Raises:
        TfliteError: it is damaged, is not float32, or is not a chain of convolutions, pools, Reshape and Softmax.
    """
    try:
        if data[4:8] != b"TFL3":
            raise TfliteError("is not a TFLite file: it lacks the mark TFL3")
        return _model(_Table(data, struct.unpack_from("<I", data)[0]))
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise TfliteError(f"is a damaged TFLite file: {error}") from error


class _Table:
    """A table of the FlatBuffer; fields are read by their number, a field that is absent has its default."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - struct.unpack_from("<i", data, place)[0]
        self._end = struct.unpack_from("<H", data, self._fields)[0]

    def _at(self, field: int) -> int:
        offset = 4 + 2 * field
        found = struct.unpack_from("<H", self._data, self._fields + offset)[0] if offset < self._end else 0
        return self._place + found if found else 0

    def number(self, field: int, code: str, default: int = 0) -> int:
        place = self._at(field)
        return int(struct.unpack_from(f"<{code}", self._data, place)[0]) if place else default

    def table(self, field: int) -> "_Table":
        place = self._at(field)
        if not place:
            raise TfliteError(f"is a damaged TFLite file: it lacks field {field} at byte {self._place}")
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def _vector(self, field: int) -> tuple[int, int]:
        """Return where a vector's elements begin, and how many it has."""
        place = self._at(field)
        if not place:
            return 0, 0
        place += struct.unpack_from("<I", self._data, place)[0]
        return place + 4, struct.unpack_from("<I", self._data, place)[0]

    def numbers(self, field: int) -> tuple[int, ...]:
        start, count = self._vector(field)
        return struct.unpack_from(f"<{count}i", self._data, start) if count else ()

    def contents(self, field: int) -> memoryview:
        start, count = self._vector(field)
        if start + count > len(self._data):
            raise TfliteError("is a damaged TFLite file: it is cut off")
        return memoryview(self._data)[start : start + count]

    def tables(self, field: int) -> "Iterator[_Table]":
        start, count = self._vector(field)
        for place in range(start, start + 4 * count, 4):
            yield _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])


def _model(root: _Table) -> TfliteModel:
    codes = [table.number(0, "b") or table.number(3, "i") for table in root.tables(1)]
    graph = next(root.tables(2), None)
    if graph is None:
        raise TfliteError("has no subgraph")
    tensors, buffers = list(graph.tables(0)), [table.contents(0) for table in root.tables(4)]
    (source,) = graph.numbers(1)
    operators: list[TfliteOperator] = []
    current = source
    for table in graph.tables(3):
        kind = _OPERATORS.get(codes[table.number(0, "I")])
        if kind is None:
            raise TfliteError(f"operator {codes[table.number(0, 'I')]} of TFLite is not supported")
        (first, *others), (result,) = table.numbers(1), table.numbers(2)
        if first != current:
            raise TfliteError(f"{kind} {len(operators)} does not take the result before it: it is not a chain")
        operators.append(_operator(kind, table, [_constant(tensors[k], buffers) for k in others], tensors[result]))
        current = result
    return TfliteModel(tensors[source].numbers(0), tuple(operators))


def _constant(tensor: _Table, buffers: list[memoryview]) -> NDArray[Any]:
    dtype = _DTYPES.get(tensor.number(1, "b"))
    if dtype is None:
        raise TfliteError(f"tensor type {tensor.number(1, 'b')} of TFLite is not supported; the model must be float32")
    return np.frombuffer(buffers[tensor.number(2, "I")], dtype).reshape(tensor.numbers(0))


def _operator(kind: str, table: _Table, constants: list[NDArray[Any]], result: _Table) -> TfliteOperator:
    padding, strides, activation = "VALID", (1, 1), ""
    if kind in _OPTION_FIELDS:
        options = table.table(4)
        width, height, fused = _OPTION_FIELDS[kind]
        padding = _PADDINGS[options.number(0, "b")]
        strides = (options.number(height, "i", 1), options.number(width, "i", 1))
        code = options.number(fused, "b")
        if code not in _ACTIVATIONS:
            raise TfliteError(f"activation {code} of TFLite is not supported")
        activation = _ACTIVATIONS[code]
    return TfliteOperator(
        kind=kind,
        constants=tuple(constants),
        result_shape=result.numbers(0),
        padding=padding,
        strides=strides,
        activation=activation,
    )
