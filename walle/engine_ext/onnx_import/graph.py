"""The importer's graph: the form of a model between ONNX and `.walle`, which steps of conversion rewrite.

Graphs are immutable; a step is a pure function from one to the next. Values are named, as in ONNX.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from walle.engine_ext.errors import ModelError

type Array = NDArray[Any]
# ONNX attributes as Python values; a tensor is an array, a subgraph a Graph.
type Attribute = int | float | str | list[int] | list[float] | list[str] | Array | Graph


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """The known type of a value. `kind` is "tensor", "sequence" or "optional"; `item` is the type of an element.

    A dimension of None is open; a shape of None means that not even the number of dimensions is known.
    """

    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    kind: str = "tensor"
    item: "TypeInfo | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator; "" among `inputs` or `outputs` is an absent one. `version` is the opset of `domain`."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    version: int = 0

    def has_input(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] != ""

    def int_attribute(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise ModelError(f"node {self.name!r} ({self.op}): attribute {name!r} is {value!r}, not an int")
        return value

    def with_subgraphs(self, change: "Callable[[Graph], Graph]") -> "Node":
        """Return the node with each of its subgraphs changed."""
        if not any(True for _ in self.subgraphs()):
            return self
        inner = {key: change(value) if isinstance(value, Graph) else value for key, value in self.attributes.items()}
        return replace(self, attributes=inner)

    def subgraphs(self) -> Iterator["Graph"]:
        return (value for value in self.attributes.values() if isinstance(value, Graph))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes in topological order over named values.

    `inputs` maps names to types, `types` what is known of all other values. A subgraph also reads values of the graphs
    around it.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: Mapping[str, TypeInfo]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    types: Mapping[str, TypeInfo] = field(default_factory=dict)

    def dtype_of(self, value: str) -> str | None:
        """Return NumPy's name of the element type of a value, None where it is not known."""
        if value in self.constants:
            return str(self.constants[value].dtype)
        known = self.inputs.get(value) or self.types.get(value)
        return known.dtype if known else None

    def shape_of(self, value: str) -> tuple[int | None, ...] | None:
        """Return the shape of a value as far as it is known."""
        if value in self.constants:
            return self.constants[value].shape
        known = self.inputs.get(value) or self.types.get(value)
        return known.shape if known else None


class Rewriting:
    """New names and constants that a step adds to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[str, Array] = dict(graph.constants)
        self._taken = all_names(graph)
        self._made = 0

    def fresh(self, hint: str) -> str:
        """Return a name that no value has."""
        while True:
            self._made += 1
            name = f"{hint}#{self._made}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def constant(self, hint: str, value: Array) -> str:
        name = self.fresh(hint)
        self.constants[name] = value
        return name


def all_names(graph: Graph) -> set[str]:
    """Return the names of all values of a graph and its subgraphs, outer values included."""
    names = {*graph.inputs, *graph.constants, *graph.outputs}
    for node in graph.nodes:
        names.update(node.inputs, node.outputs)
        for inner in node.subgraphs():
            names |= all_names(inner)
    return names
