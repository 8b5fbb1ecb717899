"""Reader of float32 TFLite models: the operators of the first subgraph, in order, and their constants.

A TFLite file is a FlatBuffer. Only the fields that convolutional networks need are read, by their numbers in
TensorFlow's schema.fbs. Constants of float16 are given as float32.
"""

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walle.errors import ConfigError

_DEQUANTIZE = "Dequantize"
_OPERATORS = {
    0: "Add", 1: "AveragePool", 2: "Concat", 3: "Conv", 4: "DepthwiseConv", 6: _DEQUANTIZE, 17: "MaxPool",
    22: "Reshape", 23: "ResizeBilinear", 25: "Softmax", 34: "Pad", 54: "PRelu",
}  # fmt: skip
_DTYPES: dict[int, Any] = {0: np.float32, 1: np.float16, 2: np.int32}
_ACTIVATIONS = {0: "", 1: "Relu", 3: "Relu6"}
_PADDINGS = {0: "SAME", 1: "VALID"}
# The numbers of the fields stride width, stride height and activation in the options of each operator.
_WINDOW_FIELDS = {"Conv": (1, 2, 3), "DepthwiseConv": (1, 2, 4), "AveragePool": (1, 2, 5), "MaxPool": (1, 2, 5)}
_POOL_SIDES = (3, 4)  # width and height of a pool's window
_ACTIVATION_FIELDS = {"Add": 0, "Concat": 1}
_RESIZE_FIELDS = (2, 3)  # align_corners, half_pixel_centers


class TfliteError(ConfigError):
    """A file that is not a TFLite model, or has something that is not supported."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TfliteOperator:
    """An operator on tensors, named by their numbers, in TFLite's layout: images and weights end with the channels."""

    kind: str
    inputs: tuple[int, ...]
    result: int
    result_shape: tuple[int, ...]
    padding: str = "VALID"
    strides: tuple[int, int] = (1, 1)
    window: tuple[int, int] = (1, 1)  # window of a pool
    activation: str = ""
    axis: int = 0  # axis of Concat


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TfliteModel:
    """Operators in order, with one input; `constants` and `shapes` are by the tensors' numbers."""

    source: int
    input_shape: tuple[int, ...]
    operators: tuple[TfliteOperator, ...]
    constants: Mapping[int, NDArray[Any]]
    results: tuple[int, ...]


def read_tflite(data: bytes) -> TfliteModel:
    """Return the model in the bytes of a .tflite file.

    Raises:
        TfliteError: it is damaged, is not float32, has several inputs, or has an operator that is not supported.
    """
    try:
        if data[4:8] != b"TFL3":
            raise TfliteError("is not a TFLite file: the mark TFL3 is missing")
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
            raise TfliteError(f"is a damaged TFLite file: field {field} is missing at byte {self._place}")
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
    sources, results = graph.numbers(1), graph.numbers(2)
    if len(sources) != 1:
        raise TfliteError(f"has {len(sources)} inputs; one is supported")
    (source,) = sources
    known = {source}
    operators: list[TfliteOperator] = []
    constants: dict[int, NDArray[Any]] = {}
    for table in graph.tables(3):
        kind = _OPERATORS.get(codes[table.number(0, "I")])
        if kind is None:
            raise TfliteError(f"operator {codes[table.number(0, 'I')]} of TFLite is not supported")
        inputs, (result,) = table.numbers(1), table.numbers(2)
        for number in inputs:
            if number not in known and number not in constants:
                constants[number] = _constant(_at(tensors, number), buffers)
        if kind == _DEQUANTIZE:
            if inputs[0] not in constants:
                raise TfliteError("Dequantize of a computed tensor is not supported; the model must be float32")
            constants[result] = constants.pop(inputs[0]).astype(np.float32)
            continue
        known.add(result)
        operators.append(_operator(kind, table, inputs, result, _at(tensors, result).numbers(0)))
    if not results or not known.issuperset(results):
        raise TfliteError("has no result, or one that no operator makes")
    shape = _at(tensors, source).numbers(0)
    return TfliteModel(
        source=source, input_shape=shape, operators=tuple(operators), constants=constants, results=results
    )


def _at(tensors: list[_Table], number: int) -> _Table:
    if not 0 <= number < len(tensors):
        raise TfliteError(f"is a damaged TFLite file: tensor {number} of {len(tensors)}")
    return tensors[number]


def _constant(tensor: _Table, buffers: list[memoryview]) -> NDArray[Any]:
    dtype = _DTYPES.get(tensor.number(1, "b"))
    if dtype is None:
        raise TfliteError(f"tensor type {tensor.number(1, 'b')} of TFLite is not supported; the model must be float32")
    return np.frombuffer(buffers[tensor.number(2, "I")], dtype).reshape(tensor.numbers(0))


def _operator(kind: str, table: _Table, inputs: tuple[int, ...], result: int, shape: tuple[int, ...]) -> TfliteOperator:
    found: dict[str, Any] = {}
    if kind in _WINDOW_FIELDS:
        options = table.table(4)
        width, height, fused = _WINDOW_FIELDS[kind]
        found["padding"] = _PADDINGS[options.number(0, "b")]
        found["strides"] = (options.number(height, "i", 1), options.number(width, "i", 1))
        found["activation"] = _activation(options.number(fused, "b"))
        if kind.endswith("Pool"):
            across, down = (options.number(field, "i") for field in _POOL_SIDES)
            found["window"] = (down, across)
        if min(*found["strides"], *found.get("window", (1,))) < 1:
            raise TfliteError(f"{kind} {result} has a stride or a window of less than 1")
    elif kind in _ACTIVATION_FIELDS:
        options = table.table(4)
        found["activation"] = _activation(options.number(_ACTIVATION_FIELDS[kind], "b"))
        if kind == "Concat":
            found["axis"] = options.number(0, "i")
    elif kind == "ResizeBilinear":
        options = table.table(4)
        if [options.number(field, "b") for field in _RESIZE_FIELDS] != [0, 1]:
            raise TfliteError("ResizeBilinear is supported with half_pixel_centers and without align_corners only")
    return TfliteOperator(kind=kind, inputs=inputs, result=result, result_shape=shape, **found)


def _activation(code: int) -> str:
    if code not in _ACTIVATIONS:
        raise TfliteError(f"activation {code} of TFLite is not supported")
    return _ACTIVATIONS[code]
