"""Fusion of arithmetic that exporters write for one operator: LayerNormalization and Gelu.

Older opsets have no such operators. The chain and the operator compute the same but for rounding; the operator has a
kernel of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from math import isclose, pi, sqrt

from walle.engine_ext.onnx_import.graph import Array, Graph, Node

_FLOATS = {"float32", "float64"}


class _Values:
    """The producer of each value of a graph, and its constants."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers: Mapping[str, Node] = {
            name: node for node in graph.nodes if node.domain == "" for name in node.outputs
        }

    def producer(self, name: str, *ops: str) -> Node | None:
        """Return the node that produces a value if it is one of these operators with all of their inputs."""
        node = self.producers.get(name)
        return node if node is not None and node.op in ops and "" not in node.inputs else None

    def constant(self, name: str) -> Array | None:
        return self.graph.constants.get(name)

    def number(self, name: str) -> float | None:
        value = self.constant(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 and value.ndim <= 1 else None

    def is_number(self, name: str, wanted: float) -> bool:
        found = self.number(name)
        return found is not None and isclose(found, wanted, rel_tol=1e-6)

    def split(self, node: Node, wanted: float) -> str | None:
        """Return the other operand of a commutative node one of whose operands is this number."""
        for one, other in (node.inputs, node.inputs[::-1]):
            if self.is_number(one, wanted):
                return other
        return None

    def factors(self, name: str, whole: str) -> list[str]:
        """Return the factors of a product of products; that one value is not factored."""
        node = self.producer(name, "Mul") if name != whole else None
        return [name] if node is None else [part for one in node.inputs for part in self.factors(one, whole)]

    def triples(self, node: Node) -> Iterator[tuple[str, str, str]]:
        """Return the ways in which a Mul is a product of three."""
        for one, other in (node.inputs, node.inputs[::-1]):
            inner = self.producer(one, "Mul")
            if inner is not None:
                yield inner.inputs[0], inner.inputs[1], other


def fuse_layer_normalization(graph: Graph) -> Graph:
    """Replace by LayerNormalization: (x - mean) / sqrt(variance + epsilon) * scale + shift."""
    values = _Values(graph)
    return replace(graph, nodes=tuple(_layer_normalization(values, node) or node for node in graph.nodes))


def _layer_normalization(values: _Values, node: Node) -> Node | None:
    if node.op != "Add" or node.domain != "":
        return None
    for product, shift in (node.inputs, node.inputs[::-1]):
        scaled = values.producer(product, "Mul")
        for normal, scale in (scaled.inputs, scaled.inputs[::-1]) if scaled else ():
            found = _normalised(values, normal)
            if found is None:
                continue
            x, axes, epsilon = found
            rows = [values.constant(name) for name in (scale, shift)]
            if any(row is None or row.ndim != len(axes) or str(row.dtype) not in _FLOATS for row in rows):
                continue
            attributes = {"axis": -len(axes), "epsilon": epsilon}
            shape = values.graph.shape_of(x)
            if any(row is None or shape is None or row.shape != shape[-len(axes) :] for row in rows):
                continue
            return Node(
                op="LayerNormalization",
                inputs=(x, scale, shift),
                outputs=node.outputs,
                attributes=attributes,
                name=node.name,
            )
    return None


def _normalised(values: _Values, name: str) -> tuple[str, list[int], float] | None:
    """Return x, the axes counted from the last, and epsilon of (x - mean) / sqrt(variance + epsilon)."""
    quotient = values.producer(name, "Div")
    root = values.producer(quotient.inputs[1], "Sqrt") if quotient else None
    padded = values.producer(root.inputs[0], "Add") if root else None
    centred = values.producer(quotient.inputs[0], "Sub") if quotient else None
    if padded is None or quotient is None or centred is None:
        return None
    x, mean_name = centred.inputs
    mean = values.producer(mean_name, "ReduceMean")
    for variance_name, epsilon_name in (padded.inputs, padded.inputs[::-1]):
        variance, epsilon = values.producer(variance_name, "ReduceMean"), values.number(epsilon_name)
        if variance is None or epsilon is None or mean is None or mean.inputs[0] != x:
            continue
        if not _is_square(values, variance.inputs[0], quotient.inputs[0]):
            continue
        axes = _last_axes(values, mean, values.graph.shape_of(x))
        if axes is not None and axes == _last_axes(values, variance, values.graph.shape_of(x)):
            return x, axes, epsilon
    return None


def _is_square(values: _Values, name: str, of: str) -> bool:
    node = values.producer(name, "Pow", "Mul")
    if node is None or node.inputs[0] != of:
        return False
    return node.inputs[1] == of if node.op == "Mul" else values.is_number(node.inputs[1], 2)


def _last_axes(values: _Values, node: Node, shape: tuple[int | None, ...] | None) -> list[int] | None:
    """Return the axes of a reduction that keeps its dimensions, negative and ascending, if they are the last ones."""
    given = node.attributes.get("axes")
    if len(node.inputs) > 1:
        found = values.constant(node.inputs[1])
        given = None if found is None else [int(axis) for axis in found.reshape(-1)]
    if not isinstance(given, list) or shape is None or node.int_attribute("keepdims", 1) != 1:
        return None
    axes = sorted(int(axis) - len(shape) if int(axis) >= 0 else int(axis) for axis in given)
    return axes if axes and axes == list(range(-len(axes), 0)) else None


def fuse_gelu(graph: Graph) -> Graph:
    """Replace by Gelu: x / 2 * (1 + erf(x / sqrt 2)), and its approximation by tanh."""
    values = _Values(graph)
    return replace(graph, nodes=tuple(_gelu(values, node) or node for node in graph.nodes))


def _gelu(values: _Values, node: Node) -> Node | None:
    if node.op != "Mul" or node.domain != "":
        return None
    for factors in values.triples(node):
        for half, x, name in permutations(factors):
            if not values.is_number(half, 0.5) or values.graph.dtype_of(x) not in _FLOATS:
                continue
            total = values.producer(name, "Add")
            inner = values.producer(values.split(total, 1) or "", "Erf", "Tanh") if total else None
            if inner is None:
                continue
            exact = inner.op == "Erf"
            if _is_scaled(values, inner.inputs[0], x) if exact else _is_tanh_argument(values, inner.inputs[0], x):
                approximate = "none" if exact else "tanh"
                return Node(
                    op="Gelu",
                    inputs=(x,),
                    outputs=node.outputs,
                    attributes={"approximate": approximate},
                    name=node.name,
                )
    return None


def _is_scaled(values: _Values, name: str, x: str) -> bool:
    quotient = values.producer(name, "Div")
    if quotient is not None:
        return quotient.inputs[0] == x and values.is_number(quotient.inputs[1], sqrt(2))
    product = values.producer(name, "Mul")
    return product is not None and values.split(product, sqrt(0.5)) == x


def _is_tanh_argument(values: _Values, name: str, x: str) -> bool:
    """Return whether this is sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    product = values.producer(name, "Mul")
    total = values.producer(values.split(product, sqrt(2 / pi)) or "", "Add") if product else None
    for one, other in (total.inputs, total.inputs[::-1]) if total else ():
        factors = values.factors(other, x)
        weights = [factor for factor in factors if values.is_number(factor, 0.044715)]
        powers = [factor for factor in factors if factor not in weights]
        cubed = values.producer(powers[0], "Pow") if len(powers) == 1 else None
        is_cube = powers == [x, x, x] or (
            cubed is not None and cubed.inputs[0] == x and values.is_number(cubed.inputs[1], 3)
        )
        if one == x and len(weights) == 1 and is_cube:
            return True
    return False
