"""A writer of `.walle` models for the cloud side, in pure Python.

    g = GraphBuilder("encoder")
    x = g.input("x", (1, 16))
    w = g.constant("w", weights)                 # nested lists, or anything with the buffer protocol
    h = g.op("Tanh", [g.op("MatMul", [x, w])])   # ONNX operator names, attributes as keywords
    g.output("h", h)
    g.save("encoder.walle")

A control-flow operator takes subgraphs as attributes:

    body = g.subgraph("then")
    body.output("y", body.op("Neg", [body.outer(x)]))
    y = g.op("If", [condition], then_branch=body, else_branch=other)

The bytes are laid out as `src/graph/load.h` describes; the reader there checks everything again.
"""

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle.base.durable_file import fill_file, write_all
from walle.engine_ext.errors import DTypeError, ModelError, ShapeError

MAGIC = b"WALLE\r\n\x1a"
VERSION = 2
ALIGNMENT = 64
# The number of each dtype is its place (core/dtype.h); with the struct format of one element.
DTYPES = {
    "float32": (0, "f"),
    "float64": (1, "d"),
    "float16": (2, "e"),
    "bfloat16": (3, "H"),
    "int8": (4, "b"),
    "int16": (5, "h"),
    "int32": (6, "i"),
    "int64": (7, "q"),
    "uint8": (8, "B"),
    "uint16": (9, "H"),
    "uint32": (10, "I"),
    "uint64": (11, "Q"),
    "bool": (12, "?"),
    "float8_e4m3fn": (13, "B"),
    "float8_e4m3fnuz": (14, "B"),
    "float8_e5m2": (15, "B"),
    "float8_e5m2fnuz": (16, "B"),
    "float8_e8m0fnu": (17, "B"),
    "float4_e2m1fn": (18, "B"),
    "int4": (19, "b"),
    "uint4": (20, "B"),
    "int2": (21, "b"),
    "uint2": (22, "B"),
}
# Python has no numbers of these, or none of their size: a constant is given by the bits of its elements.
BITS_ONLY = {"bfloat16", *list(DTYPES)[13:]}
_OF_FORMAT = {code: name for name, (_, code) in DTYPES.items() if name not in BITS_ONLY} | {"l": "int64", "L": "uint64"}
_HEAD = struct.Struct("<8sIIQQQQQI")  # all of the 64-byte header but its last field, the checksum of the head
_ABSENT = 0xFFFFFFFF
_PIECE_BYTES = 4 << 20  # bytes of constants written at a time

_ANY = 255  # a dtype or a rank
_RESULT, _CONSTANT, _INPUT, _OUTER, _OBJECT = range(5)

type Bytes = bytes | memoryview
type AttributeValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | GraphBuilder


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph being built: what `input`, `constant` and `op` give and `op` and `output` take."""

    index: int
    name: str


def _numbers(value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape and the numbers of a nested list."""
    if not isinstance(value, list | tuple):
        return (), [value]
    parts = [_numbers(item) for item in value]
    shape = parts[0][0] if parts else ()
    if any(part[0] != shape for part in parts):
        raise ShapeError("a constant's nested lists have different lengths; every row must be as long as the others")
    return (len(parts), *shape), [number for part in parts for number in part[1]]


def tensor_bytes(value: Any, dtype: str | None) -> tuple[str, tuple[int, ...], bytes]:
    """Return dtype, shape and little-endian row-major bytes of an array-like.

    Those of `BITS_ONLY` types (4- and 2-bit ones a byte each) are given as arrays of ml_dtypes, or as whole numbers of
    the same size: their bits.
    Numbers without a dtype become float32 where one of them is a float, else int64, or bool for bools.

    Raises:
        DTypeError: the dtype is unknown, or not that of the given buffer.
    """
    if dtype is not None and dtype not in DTYPES:
        raise DTypeError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
    named = str(getattr(getattr(value, "dtype", None), "name", ""))
    if named in BITS_ONLY:
        if dtype not in (None, named):
            raise DTypeError(f"the array is {named}, {dtype} was asked for; convert it first")
        dtype, value = named, value.view("uint16" if named == "bfloat16" else "uint8")
    try:
        view = memoryview(value)
    except TypeError:
        shape, numbers = _numbers(value)
        if dtype is None:
            kinds = {type(number) for number in numbers}
            dtype = "bool" if kinds == {bool} else "int64" if kinds and kinds <= {int, bool} else "float32"
        try:
            data = struct.pack(f"<{len(numbers)}{DTYPES[dtype][1]}", *numbers)
        except (struct.error, OverflowError) as error:
            raise DTypeError(f"these numbers do not fit {dtype}: {error}") from error
        return dtype, shape, data
    own = _OF_FORMAT.get(view.format.lstrip("<=@"))
    if own is None:
        raise DTypeError(f"a buffer of format {view.format!r} is not an array of numbers; convert it first")
    if dtype in BITS_ONLY and view.itemsize == struct.calcsize(DTYPES[dtype][1]):
        own = dtype
    if dtype not in (None, own):
        raise DTypeError(f"the array is {own}, {dtype} was asked for; convert it first")
    return own, tuple(view.shape or ()), view.tobytes()


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _attribute(op: str, key: str, value: AttributeValue) -> bytes:
    if isinstance(value, int):  # bools too: ONNX writes 0 and 1
        return _text(key) + struct.pack("<Bq", 0, value)
    if isinstance(value, float):
        return _text(key) + struct.pack("<Bd", 1, value)
    if isinstance(value, str):
        return _text(key) + b"\x02" + _text(value)
    if isinstance(value, GraphBuilder):
        return _text(key) + b"\x05" + value.section()
    items = list(value)
    if items and all(isinstance(item, str) for item in items):
        return _text(key) + struct.pack("<BI", 6, len(items)) + b"".join(_text(str(item)) for item in items)
    if all(isinstance(item, int) for item in items):
        return _text(key) + struct.pack(f"<BI{len(items)}q", 3, len(items), *items)
    if all(isinstance(item, int | float) for item in items):
        return _text(key) + struct.pack(f"<BI{len(items)}d", 4, len(items), *items)
    raise ModelError(
        f"attribute {key!r} of {op} is {value!r}; give an int, a float, a str, a list of them or a subgraph"
    )


class _Data:
    """The data section, which a model's graph and its subgraphs share."""

    def __init__(self) -> None:
        self.size = 0
        self.parts: list[Bytes] = []

    def add(self, data: Bytes) -> int:
        """Append `data`, of which no copy is made, and return its offset."""
        offset, padding = self.size, -len(data) % ALIGNMENT
        self.parts += (data, bytes(padding))
        self.size += len(data) + padding
        return offset


class GraphBuilder:
    """A graph under construction; `to_bytes` may be called at any time and changes nothing."""

    def __init__(self, name: str, *, _around: "GraphBuilder | None" = None) -> None:
        self.name = name
        self._around = _around
        self._values: list[bytes] = []
        self._names: set[str] = set()
        self._nodes: list[bytes] = []
        self._outputs: list[tuple[str, int]] = []
        self._data: _Data = _around._data if _around else _Data()

    def _value(self, name: str, rest: bytes) -> Value:
        if name in self._names:
            raise ModelError(f"graph {self.name!r} has two tensors named {name!r}; give each its own name")
        self._names.add(name)
        self._values.append(_text(name) + rest)
        return Value(len(self._values) - 1, name)

    def subgraph(self, name: str) -> "GraphBuilder":
        """Return a new graph within this one, to be an attribute of one of its control-flow operators."""
        return GraphBuilder(name, _around=self)

    def outer(self, value: Value) -> Value:
        """Return, in a subgraph, a value of the graph around it."""
        if self._around is None or value.index >= len(self._around._values):
            raise ModelError(f"{value.name!r} is not a value of the graph around {self.name!r}")
        return self._value(f"^{value.name}", struct.pack("<BI", _OUTER, value.index))

    def object_input(self, name: str) -> Value:
        """Return a new input that is a sequence or an optional."""
        return self._value(name, struct.pack("<B", _OBJECT))

    def input(self, name: str, shape: Iterable[int | None] | None, dtype: str | None = "float32") -> Value:
        """Return a new input; a dimension of None, a shape of None and a dtype of None are known at run time only."""
        if dtype is not None and dtype not in DTYPES:
            raise DTypeError(f"unknown dtype {dtype!r} of input {name!r}; known are {', '.join(DTYPES)}")
        number = _ANY if dtype is None else DTYPES[dtype][0]
        if shape is None:
            return self._value(name, struct.pack("<BBB", _INPUT, number, _ANY))
        dims = [-1 if dim is None else dim for dim in shape]
        if any(dim < -1 for dim in dims):
            raise ShapeError(f"input {name!r} has a negative dimension: {tuple(dims)}")
        return self._value(name, struct.pack(f"<BBB{len(dims)}q", _INPUT, number, len(dims), *dims))

    def constant(self, name: str, value: Any, dtype: str | None = None) -> Value:
        """Return a new constant from nested lists, a number, or any object with the buffer protocol."""
        return self.raw(name, *tensor_bytes(value, dtype))

    def raw(self, name: str, dtype: str, shape: Sequence[int], data: Bytes) -> Value:
        """Return a new constant from its row-major little-endian bytes; a view is read when the file is written."""
        head = struct.pack(f"<BBB{len(shape)}q", _CONSTANT, DTYPES[dtype][0], len(shape), *shape)
        return self._value(name, head + struct.pack("<QQ", self._data.add(data), len(data)))

    def op(
        self,
        op: str,
        inputs: Sequence[Value | None],
        *,
        outputs: int | None = None,
        name: str | None = None,
        **attributes: AttributeValue,
    ) -> Any:
        """Return the output of one operator, or a list of them where it has several.

        `op` is an ONNX operator name; None stands for an optional input that is left out. `outputs` says how many are
        wanted if that is neither 1 nor given by the attributes `split` or `num_outputs`. That the operator exists and
        that shapes fit is checked when a Session loads the model.
        """
        if outputs is None:
            split, parts = attributes.get("split"), attributes.get("num_outputs")
            outputs = len(split) if isinstance(split, Sequence) else parts if isinstance(parts, int) else 1
        if not isinstance(outputs, int) or outputs < 1:
            raise ModelError(f"{op} needs at least one output, not {outputs!r}")
        name = name or f"{op}_{len(self._nodes)}"
        results = self.node(op, inputs, outputs, name, attributes)
        return results[0] if outputs == 1 else results

    def node(
        self, op: str, inputs: Sequence[Value | None], outputs: int, name: str, attributes: Mapping[str, AttributeValue]
    ) -> list[Value]:
        """Return the outputs of one operator; `op` says what the arguments are, `name` need not be the node's alone."""
        for value in inputs:
            if value is not None and value.index >= len(self._values):
                raise ModelError(f"input {value.name!r} of {op} {name!r} belongs to another graph")
        first = f"{name}:" if f"{name}:0" not in self._names else f"{name}~{len(self._nodes)}:"
        results = [self._value(f"{first}{i}", struct.pack("<B", _RESULT)) for i in range(outputs)]
        node = _text(op) + _text(name) + struct.pack("<I", len(inputs))
        node += b"".join(struct.pack("<I", _ABSENT if value is None else value.index) for value in inputs)
        node += struct.pack(f"<I{outputs}I", outputs, *(value.index for value in results))
        node += struct.pack("<I", len(attributes))
        node += b"".join(_attribute(op, key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return results

    def output(self, name: str, value: Value) -> None:
        """Make a value an output of the graph under a public name."""
        if any(name == other for other, _ in self._outputs):
            raise ModelError(f"graph {self.name!r} has two outputs named {name!r}")
        self._outputs.append((name, value.index))

    def section(self) -> bytes:
        """Return the graph's section of the file; raises ModelError where it has no output."""
        if not self._outputs:
            raise ModelError(f"graph {self.name!r} has no output; call output(name, value)")
        graph = _text(self.name)
        graph += struct.pack("<I", len(self._values)) + b"".join(self._values)
        graph += struct.pack("<I", len(self._nodes)) + b"".join(self._nodes)
        graph += struct.pack("<I", len(self._outputs))
        return graph + b"".join(_text(name) + struct.pack("<I", index) for name, index in self._outputs)

    def to_bytes(self) -> bytes:
        """Return the whole `.walle` file.

        Raises:
            ModelError: the graph has no output, or is a subgraph.
        """
        graph = self._file_graph()
        checksum = 0
        for part in self._data.parts:
            checksum = zlib.crc32(part, checksum)
        return b"".join((self._head(graph, checksum), *self._data.parts))

    def write_to(self, handle: int, *, on_written: Callable[[], object] = lambda: None) -> None:
        """Write the file to an open, empty and seekable one, constants in pieces and without a copy of them.

        `on_written` is called after each 4 MiB. Raises as `to_bytes`, and OSError.
        """
        graph = self._file_graph()
        os.lseek(handle, len(self._head(graph, 0)), os.SEEK_SET)
        checksum, waiting, waiting_bytes = 0, list[Bytes](), 0
        for part in _pieces(self._data.parts):
            checksum = zlib.crc32(part, checksum)
            waiting.append(part)
            waiting_bytes += len(part)
            if waiting_bytes >= _PIECE_BYTES:
                write_all(handle, b"".join(waiting) if len(waiting) > 1 else part)
                waiting, waiting_bytes = [], 0
                on_written()
        write_all(handle, b"".join(waiting))
        os.lseek(handle, 0, os.SEEK_SET)
        write_all(handle, self._head(graph, checksum))

    def _file_graph(self) -> bytes:
        if self._around is not None:
            raise ModelError(f"graph {self.name!r} is a part of {self._around.name!r}; write that one")
        return self.section()

    def _head(self, graph: bytes, checksum: int) -> bytes:
        """Return what precedes the data section, whose checksum is given."""
        data_offset = math.ceil((ALIGNMENT + len(graph)) / ALIGNMENT) * ALIGNMENT
        size = data_offset + self._data.size
        head = _HEAD.pack(MAGIC, VERSION, 0, size, ALIGNMENT, len(graph), data_offset, self._data.size, checksum)
        body = graph + bytes(data_offset - ALIGNMENT - len(graph))
        return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body

    def save(self, path: str | Path) -> None:
        """Write the file; a reader sees the old one or the new one, whole."""
        fill_file(Path(path), self.write_to, mode=0o644)


def _pieces(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    """Yield the parts, long ones in pieces."""
    for part in parts:
        if len(part) <= _PIECE_BYTES:
            yield part
            continue
        view = memoryview(part)
        for start in range(0, len(view), _PIECE_BYTES):
            yield view[start : start + _PIECE_BYTES]
