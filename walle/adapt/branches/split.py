"""A model's graph, split where one array passes: branches have a base in common, and may have an end too (§6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walle import nn, np
from walle.engine_ext import _core
from walle.engine_ext.nn.export import inference_trace
from walle.engine_ext.nn.onnx_model import FileModel
from walle.engine_ext.nn.tracing import Trace

_FLOATS = ("float32", "float64")
_SHIFTS = ("Add", "Mul")
_NORMALIZATION = "BatchNormalization"


@dataclass(frozen=True, slots=True)
class Point:
    """A place at which a model can be split: all that comes later depends on the one array with this number."""

    number: int
    node: int  # place of the node that makes it


class Graph:
    """A model's graph for inference, which is split at one of its points."""

    def __init__(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        self._trace = inference_trace(model, inputs)
        self._trained = {name for name, one in model.named_parameters() if one.requires_grad}
        self.input_names = [name for name, _, _ in self._trace.inputs]
        self.output_names = [name for name, _ in self._trace.outputs]
        if isinstance(model, FileModel):
            self.input_names, self.output_names = model.input_names, model.output_names
        self._made_by: dict[int, int] = {}  # by number of a result: its node
        self._results: list[list[int]] = []  # by node
        numbers = iter([number for number, (kind, _) in enumerate(self._trace.values) if kind == "result"])
        for place, node in enumerate(self._trace.nodes):
            self._results.append([next(numbers) for _ in range(node[4])])
            self._made_by |= dict.fromkeys(self._results[-1], place)

    def points(self) -> list[Point]:
        """Return the places that one array passes, from the first to the last; of those between the same weights the
        last.
        """
        trace = self._trace
        ends = {number for _, number in trace.outputs}
        moving = {number for number, (kind, _) in enumerate(trace.values) if kind == "input"}
        last_read: dict[int, int] = {}
        for place, node in enumerate(trace.nodes):
            if not moving.isdisjoint(node[2]):
                moving.update(self._results[place])
            last_read |= dict.fromkeys((number for number in node[2] if number in moving), place)
        last_read |= dict.fromkeys(ends, len(trace.nodes))
        waiting = {number for number, (kind, _) in enumerate(trace.values) if kind == "input" and number in last_read}
        found = []
        for place in range(len(trace.nodes)):
            waiting |= {number for number in self._results[place] if number in moving and number in last_read}
            waiting = {number for number in waiting if last_read[number] > place}
            if len(waiting) == 1 and not waiting & ends and waiting <= set(self._results[place]):
                found.append(Point(next(iter(waiting)), place))
        ends_at = [one.node for one in found[1:]] + [len(trace.nodes)]
        last = [one for one, end in zip(found, ends_at, strict=True) if self._has_weights(one.node + 1, end + 1)]
        return [one for one in last if not self._is_scaled_next(one)]

    def _is_scaled_next(self, point: Point) -> bool:
        """Return whether weights scale or shift the array, which the engine does together with what makes it."""
        return any(
            point.number in node[2]
            and (node[0] == _NORMALIZATION or (node[0] in _SHIFTS and not self._made_by.keys() >= set(node[2])))
            for node in self._trace.nodes[point.node + 1 :]
        )

    def _has_weights(self, first: int, end: int) -> bool:
        """Return whether one of these nodes reads a weight."""
        return any(
            self._trace.values[number][0] == "constant"
            for node in self._trace.nodes[first:end]
            for number in node[2]
            if number >= 0
        )

    def base(self, point: Point) -> FileModel:
        """Return the part up to a point: a model that gives the array there."""
        given = [number for number, (kind, _) in enumerate(self._trace.values) if kind == "input"]
        return self._part(list(self._trace.inputs), given, [("base", point.number)])

    def rest(self, point: Point, features: Any) -> FileModel:
        """Return the part after a point, for arrays like `features`, the first axis the batch."""
        given = [("base", str(features.dtype), (None, *features.shape[1:]))]
        return self._part(given, [point.number], list(self._trace.outputs))

    def _part(self, inputs: list[Any], given: list[int], outputs: list[tuple[str, int]]) -> FileModel:
        """Return what makes these outputs of those values; weights are trained that were in the whole model."""
        trace = self._trace
        nodes: set[int] = set()
        constants: list[int] = []
        seen = set(given)
        waiting = [number for _, number in outputs]
        while waiting:
            number = waiting.pop()
            if number in seen or number < 0:
                continue
            seen.add(number)
            if number in self._made_by:
                nodes.add(self._made_by[number])
                waiting += trace.nodes[self._made_by[number]][2]
            elif trace.values[number][0] == "constant":
                constants.append(number)
        constants.sort()
        places = {number: place for place, number in enumerate([*given, *constants])}
        made: list[Any] = []
        for node in sorted(nodes):
            op, name, operands, attributes, count = trace.nodes[node]
            made.append((op, name, [places.get(number, -1) for number in operands], attributes, count))
            for number in self._results[node]:
                places[number] = len(places)
        arrays = [trace.constants[trace.values[number][1]] for number in constants]
        graph = _core.Graph(trace.name, inputs, arrays, made, [(name, places[number]) for name, number in outputs])
        part = FileModel(graph)
        statistics = self._statistics(trace)
        for name, parameter in part.named_parameters():
            parameter.requires_grad = name in self._trained and name not in statistics
        return part

    @staticmethod
    def _statistics(trace: Trace) -> set[str]:
        """Return the names of running statistics, which a file has as weights like others."""
        numbers = {number for node in trace.nodes if node[0] == _NORMALIZATION for number in node[2][3:5]}
        return {
            trace.constants[trace.values[number][1]][0] for number in numbers if trace.values[number][0] == "constant"
        }


def features_of(base: nn.Module, inputs: Sequence[Any]) -> Any | None:
    """Return what a part gives for two samples; None where its first axis is not the batch, or it gives no numbers."""
    found = np.asarray(base(*(one[:2] for one in inputs)))
    if found.ndim < 2 or found.shape[0] != 2 or str(found.dtype) not in _FLOATS:
        return None
    return found
