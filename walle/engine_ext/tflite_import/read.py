"""Reader of float32 TFLite models: the operators of the first subgraph, in order, and their constants.

A TFLite file is a FlatBuffer. Only the fields that convolutional networks need are read, by their numbers in
TensorFlow's schema.fbs. Constants of float16 are given as float32. What an operator's options say and is not supported
is an error, never ignored.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.tflite_import.flatbuffer import Table

MAX_RANK = 8
MAX_INPUTS = 256  # limit of one operator
MAX_NAME_CHARS = 1_000
_CONSTANTS_FACTOR = 4  # bytes of all constants, for each byte of the file: several tensors may have one buffer
_DEQUANTIZE = "Dequantize"
_OPERATORS = {
    0: "Add", 1: "AveragePool", 2: "Concat", 3: "Conv", 4: "DepthwiseConv", 6: _DEQUANTIZE, 17: "MaxPool",
    22: "Reshape", 23: "ResizeBilinear", 25: "Softmax", 34: "Pad", 54: "PRelu",
}  # fmt: skip
_CUSTOM = 32
# Names of TFLite's operators by their numbers, for errors; those of later versions of the schema have their numbers.
_NAMES_TEXT = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2
GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT
UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE
MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
"""
_NAMES = tuple(_NAMES_TEXT.split())
_FLOAT32 = 0
_DTYPES: dict[int, Any] = {_FLOAT32: np.float32, 1: np.float16, 2: np.int32}
_TYPES = ["float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64"]
_ACTIVATIONS = {0: "", 1: "Relu", 3: "Relu6"}
_PADDINGS = {0: "SAME", 1: "VALID"}
# The numbers of the fields stride width, stride height and activation in the options of each operator.
_WINDOW_FIELDS = {"Conv": (1, 2, 3), "DepthwiseConv": (1, 2, 4), "AveragePool": (1, 2, 5), "MaxPool": (1, 2, 5)}
_DILATION_FIELDS = {"Conv": (4, 5), "DepthwiseConv": (5, 6)}
_POOL_SIDES = (3, 4)  # width and height of a pool's window
_ACTIVATION_FIELDS = {"Add": 0, "Concat": 1}
_RESIZE_FIELDS = (2, 3)  # align_corners, half_pixel_centers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TfliteOperator:
    """An operator on tensors, named by their numbers, in TFLite's layout: images and weights end with the channels."""

    kind: str
    inputs: tuple[int, ...]  # -1: absent
    result: int
    result_shape: tuple[int, ...]
    padding: str = "VALID"
    strides: tuple[int, int] = (1, 1)
    window: tuple[int, int] = (1, 1)  # window of a pool
    activation: str = ""
    axis: int = 0  # axis of Concat


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TfliteModel:
    """Operators in order, with one input; `constants` and `names` are by the tensors' numbers."""

    source: int
    input_shape: tuple[int, ...]
    operators: tuple[TfliteOperator, ...]
    constants: Mapping[int, NDArray[Any]]
    results: tuple[int, ...]
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)  # names of the input and the results


def read_tflite(data: bytes | memoryview, *, value_bytes: int = 16 << 30, operators: int = 200_000) -> TfliteModel:
    """Return the model in the bytes of a .tflite file. Constants of float32 refer to `data`.

    No value that an operator makes is larger than `value_bytes`; at most `operators` are read.

    Raises:
        ModelError: it is damaged, or asks for more than it may.
        UnsupportedError: it is not float32, has several inputs, or has an operator that is not supported.
    """
    view = memoryview(data)
    if bytes(view[4:8]) != b"TFL3":
        raise ModelError("is not a TFLite file: the mark TFL3 is missing")
    return _Reader(Table.root(view), _CONSTANTS_FACTOR * len(view), value_bytes).model(operators)


class _Reader:
    """The tables of a model while it is read."""

    def __init__(self, root: Table, constant_bytes: int, value_bytes: int) -> None:
        graph = next(iter(root.tables(2)), None)
        if graph is None:
            raise ModelError("has no subgraph")
        self._graph = graph
        self._codes = root.tables(1)
        self._tensors = graph.tables(0)
        self._buffers = root.tables(4)
        self._left_bytes = constant_bytes
        self._value_bytes = value_bytes
        self._constants: dict[int, NDArray[Any]] = {}

    def model(self, max_operators: int) -> TfliteModel:
        sources, results = self._graph.numbers(1), self._graph.numbers(2)
        if len(sources) != 1:
            raise UnsupportedError(f"has {len(sources)} inputs; one is supported")
        (source,) = sources
        known = {source}
        input_shape = self._computed_shape(source)
        operators: list[TfliteOperator] = []
        tables = self._graph.tables(3)
        if len(tables) > max_operators:
            raise ModelError(f"has {len(tables)} operators, more than {max_operators}")
        for table in tables:
            kind = self._kind(table)
            inputs, made = table.numbers(1), table.numbers(2)
            if len(inputs) > MAX_INPUTS:
                raise ModelError(f"{kind} has {len(inputs)} inputs, more than {MAX_INPUTS}")
            if len(made) != 1 or made[0] in known or made[0] in self._constants:
                raise ModelError(f"is damaged: {kind} makes the tensors {list(made[:10])}")
            for number in inputs:
                if number not in known and number not in self._constants and number != -1:
                    self._constants[number] = self._constant(number)
            if kind == _DEQUANTIZE:
                self._constants[made[0]] = self._dequantized(inputs, made[0])
                continue
            known.add(made[0])
            operators.append(_operator(kind, table, inputs, made[0], self._computed_shape(made[0])))
        if not results or not known.issuperset(results):
            raise ModelError("has no result, or one that no operator makes")
        return TfliteModel(
            source=source,
            input_shape=input_shape,
            operators=tuple(operators),
            constants=self._constants,
            results=results,
            names={number: self._tensor(number).text(3)[:MAX_NAME_CHARS] for number in (source, *results)},
        )

    def _kind(self, table: Table) -> str:
        index = table.number(0, "I")
        if index >= len(self._codes):
            raise ModelError(f"is damaged: operator code {index} of {len(self._codes)}")
        code = self._codes[index]
        number = max(int(code.number(0, "b")), int(code.number(3, "i")))  # the first is an int8, of older files
        if number in _OPERATORS:
            return _OPERATORS[number]
        name = _NAMES[number] if 0 <= number < len(_NAMES) else str(number)
        if number == _CUSTOM:
            name = f"CUSTOM ({code.text(1)[:80]!r})"
        raise UnsupportedError(f"operator {name} of TFLite is not supported")

    def _tensor(self, number: int) -> Table:
        if not 0 <= number < len(self._tensors):
            raise ModelError(f"is damaged: tensor {number} of {len(self._tensors)}")
        return self._tensors[number]

    def _shape(self, number: int) -> tuple[int, ...]:
        shape = self._tensor(number).numbers(0)
        if len(shape) > MAX_RANK or any(size < 1 for size in shape):
            raise UnsupportedError(f"tensor {number} has the shape {list(shape[:10])}; sizes must be known, and not 0")
        return shape

    def _computed_shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of the input or of an operator's result, which must be float32."""
        kind = self._tensor(number).number(1, "b")
        if kind != _FLOAT32:
            raise UnsupportedError(f"tensor {number} is {_type_name(kind)}; the model must be float32")
        shape = self._shape(number)
        if 4 * math.prod(shape) > self._value_bytes:
            raise ModelError(f"tensor {number} of shape {list(shape)} has more than {self._value_bytes} bytes")
        return shape

    def _constant(self, number: int) -> NDArray[Any]:
        tensor = self._tensor(number)
        kind = tensor.number(1, "b")
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise UnsupportedError(f"tensor {number} is {_type_name(kind)}; the model must be float32")
        index = tensor.number(2, "I")
        if index >= len(self._buffers):
            raise ModelError(f"is damaged: buffer {index} of {len(self._buffers)}")
        data, shape = self._buffers[index].contents(0), self._shape(number)
        if len(data) != np.dtype(dtype).itemsize * math.prod(shape):
            raise ModelError(
                f"tensor {number} of shape {list(shape)} has {len(data)} bytes: not a constant, or damaged"
            )
        self._take(len(data))
        return np.frombuffer(data, dtype).reshape(shape)

    def _dequantized(self, inputs: tuple[int, ...], result: int) -> NDArray[Any]:
        if len(inputs) != 1 or inputs[0] not in self._constants:
            raise UnsupportedError("DEQUANTIZE of a computed tensor is not supported; the model must be float32")
        source = self._constants[inputs[0]]
        if source.dtype != np.float16:
            raise UnsupportedError(f"DEQUANTIZE of {source.dtype} is not supported; float16 is")
        shape = self._computed_shape(result)
        if shape != source.shape:
            raise ModelError(
                f"is damaged: DEQUANTIZE of {list(source.shape)} makes tensor {result} of shape {list(shape)}"
            )
        self._take(2 * source.nbytes)
        return source.astype(np.float32)

    def _take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise ModelError(f"its constants have more than {_CONSTANTS_FACTOR} times the bytes of the file")


def _type_name(kind: int) -> str:
    return _TYPES[kind] if 0 <= kind < len(_TYPES) else f"of type {kind}"


def _operator(kind: str, table: Table, inputs: tuple[int, ...], result: int, shape: tuple[int, ...]) -> TfliteOperator:
    found: dict[str, Any] = {}
    what = f"{kind} {result}"
    if kind in _WINDOW_FIELDS:
        options = table.table(4)
        width, height, fused = _WINDOW_FIELDS[kind]
        found["padding"] = _choice(_PADDINGS, options.number(0, "b"), f"{what}: padding")
        found["strides"] = (options.number(height, "i", 1), options.number(width, "i", 1))
        found["activation"] = _choice(_ACTIVATIONS, options.number(fused, "b"), f"{what}: activation")
        if kind.endswith("Pool"):
            across, down = (options.number(field, "i") for field in _POOL_SIDES)
            found["window"] = (down, across)
        elif any(options.number(field, "i", 1) != 1 for field in _DILATION_FIELDS[kind]):
            raise UnsupportedError(f"{what}: dilation is not supported")
        if min(*found["strides"], *found.get("window", (1,))) < 1:
            raise ModelError(f"{what} has a stride or a window of less than 1")
    elif kind in _ACTIVATION_FIELDS:
        options = table.table(4)
        found["activation"] = _choice(
            _ACTIVATIONS, options.number(_ACTIVATION_FIELDS[kind], "b"), f"{what}: activation"
        )
        if kind == "Concat":
            found["axis"] = options.number(0, "i")
    elif kind == "Softmax":
        if (beta := table.table(4).number(0, "f")) != 1:
            raise UnsupportedError(f"{what}: beta {beta} is not supported; 1 is")
    elif kind == "ResizeBilinear":
        options = table.table(4)
        if [options.number(field, "b") for field in _RESIZE_FIELDS] != [0, 1]:
            raise UnsupportedError(f"{what} is supported with half_pixel_centers and without align_corners only")
    return TfliteOperator(kind=kind, inputs=inputs, result=result, result_shape=shape, **found)


def _choice(known: Mapping[int, str], code: int, what: str) -> str:
    if code not in known:
        raise UnsupportedError(f"{what} {code} of TFLite is not supported")
    return known[code]
