"""The file of a model with branches: one graph, whose input "branch" chooses among them (§6: the case operator).

ONNX's If has two ways, so that k branches are a tree of k - 1 of them. Each is a graph within the graph: the base and
the end, and their weights, exist once. The constant "branch costs" has a row for each branch: multiply-adds, weights,
accuracy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walle import nn, np
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.nn.export import add_nodes, inference_trace

BRANCH = "branch"
_COSTS = "branch costs"


@dataclass(frozen=True, slots=True)
class Branch:
    """Costs of one run with this branch: multiply-adds of a sample, weights that are read, accuracy on test data."""

    operations: float
    parameters: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a model with branches, each with inputs of a few samples; `end` is None where branches give the outputs.

    `names` are those of the inputs and of the outputs.
    """

    base: nn.Module
    middles: Sequence[nn.Module]
    end: nn.Module | None
    names: tuple[Sequence[str], Sequence[str]]


def write_branches(
    path: str | os.PathLike[str], parts: Parts, inputs: Sequence[Any], branches: Sequence[Branch]
) -> None:
    """Write one `.walle` file of all parts; its input "branch" is a whole number from 0, the cheapest.

    Raises:
        ModelError: the model has an input of that name.
        OSError: the file cannot be written.
    """
    names, outputs = parts.names
    if BRANCH in names:
        raise ModelError(f"the model has an input {BRANCH!r}, which would choose the branch; rename it")
    graph = GraphBuilder("branches")
    traced = inference_trace(parts.base, inputs)
    given = [graph.input(name, shape, dtype) for name, (_, dtype, shape) in zip(names, traced.inputs, strict=True)]
    chosen = graph.input(BRANCH, (), "int64")
    rows = [[one.operations, one.parameters, one.accuracy] for one in branches]
    graph.constant(_COSTS, rows, "float64")
    below = [
        graph.op("Less", [chosen, graph.constant(f"{BRANCH} {at}", at, "int64")], name=f"below {at}")
        for at in range(1, len(parts.middles))
    ]
    features = np.asarray(parts.base(*inputs))
    middle = _Choice([inference_trace(one, [features]) for one in parts.middles])
    results = middle.add(graph, add_nodes(graph, traced, given)[0], below)
    if parts.end is not None:
        reached = np.asarray(parts.middles[0](features))
        results = add_nodes(graph, inference_trace(parts.end, [reached]), results)
    for name, value in zip(outputs, results, strict=True):
        graph.output(name, value)
    graph.save(str(path))


class _Choice:
    """Branches as nested Ifs."""

    def __init__(self, traces: Sequence[Any]) -> None:
        self._traces = traces
        self._count = len(traces[0].outputs)

    def add(self, graph: GraphBuilder, features: Value, below: Sequence[Value]) -> list[Value]:
        """Return the outputs of the branch that is chosen; `below[i]` says that its number is at most i."""
        return self._add(graph, features, below, 0, len(self._traces))

    def _add(self, graph: GraphBuilder, features: Value, below: Sequence[Value], first: int, end: int) -> list[Value]:
        if end - first == 1:
            return add_nodes(graph, self._traces[first], [features])
        middle = (first + end) // 2
        ways = [self._way(graph, features, below, *part) for part in ((first, middle), (middle, end))]
        name = f"branch {first} to {middle - 1}, or {middle} to {end - 1}"
        attributes = {"then_branch": ways[0], "else_branch": ways[1]}
        return graph.node("If", [below[middle - 1]], self._count, name, attributes)

    def _way(self, around: GraphBuilder, features: Value, below: Sequence[Value], first: int, end: int) -> GraphBuilder:
        graph = around.subgraph(f"branches {first} to {end - 1}" if end - first > 1 else f"branch {first}")
        inner = below if end - first == 1 else [graph.outer(one) for one in below]
        for place, value in enumerate(self._add(graph, graph.outer(features), inner, first, end)):
            graph.output(f"output {place}", value)
        return graph


def read_branches(path: str | os.PathLike[str]) -> list[Branch]:
    """Return the costs of a file's branches.

    Raises:
        ModelError: the file is broken, or has no branches.
    """
    for name, _, _, _, array in _core.Graph.open(str(path)).values():
        if name == _COSTS and array is not None and array.ndim == 2 and array.shape[1] == 3:
            return [Branch(*row) for row in array.tolist()]
    raise ModelError(f"{path} has no branches: walle adapt branches makes such a file")
