"""Partition of a model's graph: the arrays that pass between its nodes, and its parts as models.

Branches share the part up to a point that one array passes (Mistify, §6); a device and a cloud run the parts before and
after a cut (Neurosurgeon, §4).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from walle.engine_ext import _core
from walle.engine_ext.nn.export import inference_trace
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.onnx_model import FileModel
from walle.engine_ext.nn.operand import Operand
from walle.engine_ext.nn.tracing import Trace

_SHIFTS = ("Add", "Mul")
_NORMALIZATION = "BatchNormalization"

type Shape = tuple[int | None, ...]  # None: free


@dataclass(frozen=True, slots=True)
class Point:
    """A place at which a model can be split: all that comes later depends on the one array with this number."""

    number: int
    node: int  # place of the node that makes it


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array of a graph; `shape` and `size_bytes` are of the example inputs, `free` has the axes whose length a batch
    of another size changes.
    """

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    free: frozenset[int]

    @property
    def free_shape(self) -> Shape:
        """The shape with None for free lengths."""
        return tuple(None if at in self.free else size for at, size in enumerate(self.shape))


class Graph:
    """A model's graph for inference, traced on example inputs; their first length is free where the model allows it,
    unless `free_batch` is False.
    """

    def __init__(self, model: Module, inputs: Sequence[Any], *, free_batch: bool = True) -> None:
        self.free_batch = free_batch
        self._examples = [_core.asarray(one.array() if isinstance(one, Operand) else one) for one in inputs]
        self._trace = inference_trace(model, inputs, free_batch=free_batch)
        self._trained = {name for name, one in model.named_parameters() if one.requires_grad}
        self.input_names = [name for name, _, _ in self._trace.inputs]
        self.output_names = [name for name, _ in self._trace.outputs]
        self._is_file = isinstance(model, FileModel)
        if isinstance(model, FileModel):
            self.input_names, self.output_names = model.input_names, model.output_names
        self._made_by: dict[int, int] = {}  # by number of a result: its node
        self._results: list[list[int]] = []  # by node
        numbers = iter([number for number, (kind, _) in enumerate(self._trace.values) if kind == "result"])
        for place, node in enumerate(self._trace.nodes):
            self._results.append([next(numbers) for _ in range(node[4])])
            self._made_by |= dict.fromkeys(self._results[-1], place)
        self.inputs = [number for number, (kind, _) in enumerate(self._trace.values) if kind == "input"]
        self.outputs = [number for _, number in self._trace.outputs]

    @property
    def node_count(self) -> int:
        return len(self._trace.nodes)

    def node_name(self, place: int) -> str:
        """Return the name of a node: a file's own, or the path of a module with the operator."""
        op, name, *_ = self._trace.nodes[place]
        return name.removesuffix(f".{op}") if self._is_file else name

    def past_normalization(self, place: int) -> int:
        """Return the first place from there on without a normalisation, which the engine does with the node before."""
        while place < self.node_count and self._trace.nodes[place][0] == _NORMALIZATION:
            place += 1
        return place

    def is_made_before(self, number: int, place: int) -> bool:
        """Return whether this value is an input, a constant, or the result of a node before that place."""
        return self._made_by.get(number, -1) < place

    def frontiers(self, fixed: Container[int] = ()) -> list[list[int]]:
        """Return for each place 0 to `node_count` the values that nodes from there on read of inputs and nodes before.

        Values that depend on no input, and fixed ones, are not among them: each part has them for itself.
        """
        moving = set(self.inputs)
        last_read: dict[int, int] = {}
        for place, node in enumerate(self._trace.nodes):
            if not moving.isdisjoint(node[2]):
                moving.update(number for number in self._results[place] if number not in fixed)
            last_read |= dict.fromkeys((number for number in node[2] if number in moving), place)
        waiting = [number for number in self.inputs if number in last_read]
        found = [waiting]
        for place, results in enumerate(self._results):
            waiting = [*waiting, *(number for number in results if number in moving)]
            waiting = [number for number in waiting if last_read.get(number, -1) > place]
            found.append(waiting)
        return found

    def points(self) -> list[Point]:
        """Return the places that one array passes, from the first to the last; of those between the same weights the
        last.
        """
        trace = self._trace
        moving_ends = [number for number in self.outputs if trace.values[number][0] != "constant"]
        found = []
        for place, waiting in enumerate(self.frontiers()[1:]):
            if len(waiting) != 1 or waiting[0] not in self._results[place]:
                continue
            if not any(self.is_made_before(number, place + 1) for number in moving_ends):
                found.append(Point(waiting[0], place))
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

    def arrays(self) -> list[ArrayInfo]:
        """Return each value by its number, computed on the example inputs without their contents."""
        return [
            ArrayInfo(
                str(one.dtype),
                tuple(one.shape),
                one.nbytes,
                frozenset(at for at, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b),
            )
            for (one, _), (two, _) in zip(*self._two_batches, strict=True)
        ]

    def fixed(self) -> dict[int, Any]:
        """Return the results, by number, that only shapes of inputs decide and another batch does not change."""
        own, other = self._two_batches
        return {
            number: own[number][0]
            for number in self.known
            if own[number][0].shape == other[number][0].shape and own[number][0].tobytes() == other[number][0].tobytes()
        }

    @property
    def known(self) -> set[int]:
        """Results that only shapes of inputs decide, by number; those of constants alone are not among them."""
        moving = set(self.inputs)
        for place, node in enumerate(self._trace.nodes):
            if not moving.isdisjoint(node[2]):
                moving.update(self._results[place])
        return {number for number in moving if number in self._made_by and self._two_batches[0][number][1]}

    @cached_property
    def _two_batches(self) -> tuple[list[tuple[Any, bool]], list[tuple[Any, bool]]]:
        """All values on the example inputs and on inputs of one more sample, where the batch is free."""
        own = self._forecast(self._examples)
        if not self._examples or any(shape[:1] != (None,) for _, _, shape in self._trace.inputs):
            return own, own
        more = [
            _core.broadcast_to(_core.zeros((), one.dtype), (one.shape[0] + 1, *one.shape[1:])) for one in self._examples
        ]
        return own, self._forecast(more)

    def _forecast(self, inputs: Sequence[Any]) -> list[tuple[Any, bool]]:
        """Return an array of the dtype and shape of each value, and whether it has the value's contents."""
        trace = self._trace
        given = iter(inputs)
        constants = iter([array for _, array in trace.constants])
        found: list[Any] = [None] * len(trace.values)
        known = [kind == "constant" for kind, _ in trace.values]
        for number, (kind, _) in enumerate(trace.values):
            if kind != "result":
                found[number] = _core.asarray(next(given if kind == "input" else constants))
        for (op, _, operands, attributes, count), results in zip(trace.nodes, self._results, strict=True):
            arrays = [None if number < 0 else found[number] for number in operands]
            are_known = [number < 0 or known[number] for number in operands]
            for number, (array, is_known) in zip(
                results, _core.forecast(op, arrays, are_known, attributes, count), strict=True
            ):
                found[number], known[number] = array, is_known
        return list(zip(found, known, strict=True))

    def base(self, point: Point) -> FileModel:
        """Return the part up to a point: a model that gives the array there."""
        return self.part(self._trace.inputs, self.inputs, [("base", point.number)])

    def rest(self, point: Point, features: Any) -> FileModel:
        """Return the part after a point, for arrays like `features`, the first axis the batch."""
        given = [("base", str(features.dtype), (None, *features.shape[1:]))]
        return self.part(given, [point.number], self._trace.outputs)

    def numbered(self) -> _core.Graph:
        """Return the whole graph, each node named by its place: a plan's steps have the names of their last nodes."""
        return self._native(self._trace.inputs, self.inputs, self._trace.outputs, numbered=True)

    def part(
        self,
        inputs: Iterable[tuple[str, str, Shape]],
        given: Sequence[int],
        outputs: Iterable[tuple[str, int]],
        fixed: Mapping[int, Any] = MappingProxyType({}),
    ) -> FileModel:
        """Return what makes these outputs of the given values; weights are trained that were in the whole model.

        Results that are `fixed` become constants.
        """
        part = FileModel(self._native(inputs, given, outputs, fixed))
        statistics = self._statistics(self._trace)
        for name, parameter in part.named_parameters():
            parameter.requires_grad = name in self._trained and name not in statistics
        return part

    def _native(
        self,
        inputs: Iterable[tuple[str, str, Shape]],
        given: Sequence[int],
        outputs: Iterable[tuple[str, int]],
        fixed: Mapping[int, Any] = MappingProxyType({}),
        *,
        numbered: bool = False,
    ) -> _core.Graph:
        trace, inputs, outputs = self._trace, list(inputs), list(outputs)
        nodes: set[int] = set()
        constants: list[int] = []
        seen = set(given)
        waiting = [number for _, number in outputs]
        while waiting:
            number = waiting.pop()
            if number in seen or number < 0:
                continue
            seen.add(number)
            if number in fixed:
                constants.append(number)
            elif number in self._made_by:
                nodes.add(self._made_by[number])
                waiting += trace.nodes[self._made_by[number]][2]
            elif trace.values[number][0] == "constant":
                constants.append(number)
        constants.sort()
        places = {number: place for place, number in enumerate([*given, *constants])}
        first = len(places)  # number of the next result in the part
        made: list[Any] = []
        for node in sorted(nodes):
            op, _, operands, attributes, count = trace.nodes[node]
            name = str(node) if numbered else self.node_name(node)
            made.append((op, name, [places.get(number, -1) for number in operands], attributes, count))
            for at, number in enumerate(self._results[node]):
                places[number] = first + at
            first += count
        arrays = [
            (f"fixed {number}", fixed[number]) if number in fixed else trace.constants[trace.values[number][1]]
            for number in constants
        ]
        return _core.Graph(trace.name, inputs, arrays, made, [(name, places[number]) for name, number in outputs])

    @staticmethod
    def _statistics(trace: Trace) -> set[str]:
        """Return the names of running statistics, which a file has as weights like others."""
        numbers = {number for node in trace.nodes if node[0] == _NORMALIZATION for number in node[2][3:5]}
        return {
            trace.constants[trace.values[number][1]][0] for number in numbers if trace.values[number][0] == "constant"
        }
