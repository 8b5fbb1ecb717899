"""Maker of one random ONNX graph: named values with known types and shapes, to which steps add nodes."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper
from onnx.shape_inference import infer_node_outputs

type Array = NDArray[Any]
# The element type and the shape of a result.
type Like = tuple[str, tuple[int, ...]]

_MAKE_NODE: Any = helper.make_node  # Any: the attributes are keywords of any kind
# No value of a graph has more elements.
MOST_ELEMENTS = 1 << 15


class Unsuitable(Exception):  # noqa: N818 — not an error: the step does not apply to this value, and another one is drawn
    """A step that does not apply to a value."""


class GraphMaker:
    """A graph being made, with the arrays for its inputs.

    `dtype` is NumPy's or ml_dtypes' name of the floating type of new inputs and constants. `exact` states that steps
    with jumps (rounding, comparisons, selection) are welcome: in 16-bit floats each rounding may cross one.
    """

    def __init__(self, rng: np.random.Generator, *, opset: int, dtype: str = "float32") -> None:
        self.rng = rng
        self.opset = opset
        self.dtype = dtype
        self.exact = dtype in {"float32", "float64"}
        self.feeds: dict[str, Array] = {}
        self._types: dict[str, onnx.TypeProto] = {}
        self._inputs: list[str] = []
        self._constants: dict[str, Array] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._read: set[str] = set()
        self._count = 0

    def name(self, stem: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{stem}{self._count}"

    def input(self, array: Array) -> str:
        """Return a new input of the graph, which is fed this array."""
        name, array = self.name("x"), np.asarray(array)
        self.feeds[name] = array
        self._inputs.append(name)
        self._types[name] = _type_of(array)
        return name

    def normal(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Return random numbers of the graph's floating type."""
        values: Array = np.asarray(self.rng.standard_normal(tuple(shape)) * scale, dtype=numpy_type(self.dtype))
        return values

    def weights(self, shape: Sequence[int], fan_in: int) -> str:
        """Return a constant whose products with values of unit size have unit size."""
        return self.constant(self.normal(shape, 1 / max(1, fan_in) ** 0.5))

    def positive(self, shape: Sequence[int]) -> str:
        """Return a constant of the floating type between 0.5 and 1.5."""
        return self.constant((self.rng.random(tuple(shape)) + 0.5).astype(numpy_type(self.dtype)))

    def constant(self, array: Array) -> str:
        """Return a new constant: an initializer, or the output of a Constant node."""
        name, array = self.name("c"), np.asarray(array)
        self._types[name] = _type_of(array)
        if self.chance(0.15) and array.size < 4096:
            self._nodes.append(_MAKE_NODE("Constant", [], [name], value=numpy_helper.from_array(array)))
            self._constants[name] = array
            return name
        self._constants[name] = array
        return name

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, dtype=numpy_type(self.dtype)))

    def kinds_number(self) -> int:
        """Return ONNX's number of the floating type."""
        return int(helper.np_dtype_to_tensor_dtype(numpy_type(self.dtype)))

    def value_of(self, name: str) -> Array | None:
        return self._constants.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(one.dim_value for one in self._types[name].tensor_type.shape.dim)

    def kind(self, name: str) -> str:
        """Return the name of a value's element type."""
        return str(helper.tensor_dtype_to_np_dtype(self._types[name].tensor_type.elem_type))

    def floating(self, name: str) -> bool:
        return self.kind(name) in {"float16", "bfloat16", "float32", "float64"}

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def draw[T](self, values: Sequence[T]) -> T:
        """Return one of the values."""
        return values[int(self.rng.integers(len(values)))]

    def between(self, least: int, greatest: int) -> int:
        """Return a whole number, both ends included."""
        return int(self.rng.integers(least, greatest + 1))

    def op(self, op: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        """Return the only output of a new node."""
        return self.ops(op, inputs, 1, domain=domain, **attributes)[0]

    def ops(self, op: str, inputs: Sequence[str], outputs: int, *, domain: str = "", **attributes: Any) -> list[str]:
        """Return the outputs of a new node, whose types and shapes ONNX's own inference finds.

        Raises:
            Unsuitable: the operator is not in this opset, not defined for these types or shapes, or the result is too
                large.
        """
        if any(isinstance(value, list) and not value for value in attributes.values()):
            raise Unsuitable(f"{op}: no axes")
        names = [self.name("v") for _ in range(outputs)]
        node = _MAKE_NODE(op, list(inputs), names, name=self.name(op), domain=domain, **attributes)
        types = self._inferred(node)
        for name in names:
            shape = [one.dim_value for one in types[name].tensor_type.shape.dim]
            known = all(one.HasField("dim_value") for one in types[name].tensor_type.shape.dim)
            if not types[name].tensor_type.HasField("shape") or not known:
                raise Unsuitable(f"{op}: the shape is not known")
            if np.prod(shape) > MOST_ELEMENTS or 0 in shape:
                raise Unsuitable(f"{op}: {shape}")
        self._add(node, {name: types[name] for name in names})
        return names

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[Like], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Return the outputs, of these types and shapes, of a new node that ONNX's inference does not know."""
        names = [self.name("v") for _ in outputs]
        node = _MAKE_NODE(op, list(inputs), names, name=self.name(op), domain=domain, **attributes)
        kinds = [helper.np_dtype_to_tensor_dtype(numpy_type(kind)) for kind, _ in outputs]
        types = [helper.make_tensor_type_proto(kind, shape) for kind, (_, shape) in zip(kinds, outputs, strict=True)]
        self._add(node, dict(zip(names, types, strict=True)))
        return names

    def _add(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
        self._nodes.append(node)
        self._types.update(types)
        self._read.update(node.input)

    def _inferred(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        try:
            schema = defs.get_schema(node.op_type, self.opset, node.domain)
        except defs.SchemaError as error:
            raise Unsuitable(str(error)) from error
        if schema.deprecated:
            raise Unsuitable(f"{node.op_type} is deprecated")
        for index, name in enumerate(node.input):
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            if name and self._text(name) not in formal.types:
                raise Unsuitable(f"{node.op_type} of {self.kind(name)}")
        given = {name: self._types[name] for name in node.input if name}
        data = {name: numpy_helper.from_array(self._constants[name], name) for name in given if name in self._constants}
        imports = [helper.make_opsetid("", self.opset)]
        try:
            return dict(infer_node_outputs(schema, node, given, data, opset_imports=imports, ir_version=10))
        except Exception as error:  # onnx raises errors of several families
            raise Unsuitable(str(error)) from error

    def _text(self, name: str) -> str:
        kind = self.kind(name)
        names = {"float32": "float", "float64": "double"}
        return f"tensor({names.get(kind, kind)})"

    def values(self) -> list[str]:
        """Return the results of all nodes in order, constants left out."""
        return [name for node in self._nodes for name in node.output if name not in self._constants]

    def model(self, outputs: Sequence[str] = ()) -> onnx.ModelProto:
        """Return the graph: its outputs are all results that no node reads, and the given ones.

        Raises:
            Unsuitable: it has no node.
        """
        made = self.values()
        if not made:
            raise Unsuitable("no node")
        wanted = [name for name in made if name not in self._read or name in outputs]
        inputs = [helper.make_value_info(name, self._types[name]) for name in self._inputs]
        results = [helper.make_value_info(name, self._types[name]) for name in wanted]
        inner = {name for node in self._nodes for name in node.output}
        weights = [numpy_helper.from_array(array, name) for name, array in self._constants.items() if name not in inner]
        graph = helper.make_graph(self._nodes, "random", inputs, results, weights)
        imports = [helper.make_opsetid("", self.opset)]
        if any(node.domain == "com.microsoft" for node in self._nodes):
            imports.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(graph, ir_version=10, opset_imports=imports)


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the dtype of a name of NumPy or ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def _type_of(array: Array) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
