"""The channels of a network that can be removed, found by tracing it once.

A channel is a set of positions along axes of parameters that only make sense together: an output of a convolution,
what normalises it, and the inputs of all convolutions that read it. Channels of the same parameters form a `Group`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walle import nn, np
from walle.adapt.structure.axes import Axis, Positions
from walle.adapt.structure.rules import Call, Operand, Product, carry
from walle.engine_ext.nn.traced_buffers import TracedBuffers
from walle.engine_ext.nn.tracing import Trace, Traced

type AxisName = tuple[str, int]  # path of a parameter or buffer, and one of its axes


@dataclass(frozen=True, slots=True)
class Group:
    """Channels of the same axes: any of them can be removed, but not all.

    `places[axis]` has, for each channel, its places along that axis. `consumers` are the axes that products sum over:
    a factor at these places acts as one on the channel, for nothing else sums over it: what a layer's normalisation or
    a product of two activations sums over stays whole.
    """

    name: str
    count: int
    places: dict[AxisName, tuple[tuple[int, ...], ...]]
    consumers: tuple[AxisName, ...]


@dataclass(frozen=True, slots=True)
class Length:
    """The length of an axis: `fixed`, and the number of channels that are left in each group, times a factor."""

    fixed: int
    factors: tuple[tuple[int, int], ...]  # number of the group, places of a channel

    def of(self, widths: Sequence[Any]) -> Any:
        """Return the length for widths of all groups: whole numbers, floats or traced values."""
        total: Any = self.fixed
        for group, factor in self.factors:
            total = total + widths[group] * factor if factor != 1 else total + widths[group]
        return total


@dataclass(frozen=True, slots=True)
class Term:
    """A product of lengths, times a factor."""

    factor: int
    lengths: tuple[Length, ...]

    def of(self, widths: Sequence[Any]) -> Any:
        total: Any = self.factor
        for length in self.lengths:
            total = total * length.of(widths)
        return total


@dataclass(frozen=True, slots=True)
class Structure:
    """Channels that can be removed from a network, and its costs at each width.

    `operations` are the multiply-adds of one sample, a term for each product; `parameters` has a term for each array.
    `kept` says why the other axes stay whole. `reshaped` has, by name of the node, the lengths that a reshape gives
    axes of channels; None for its other axes.
    """

    groups: tuple[Group, ...]
    operations: tuple[Term, ...]
    parameters: tuple[Term, ...]
    kept: dict[AxisName, str]
    reshaped: dict[str, tuple[Length | None, ...]]

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each group."""
        return tuple(group.count for group in self.groups)


def find_structure(model: nn.Module, inputs: Sequence[Any]) -> Structure:
    """Return the structure of a model for inputs like these, the first axis of each the batch (§4.2: Init)."""
    return _Search(model, [np.asarray(one) for one in inputs]).structure()


class _Search:
    """One trace of a model, followed operator by operator."""

    def __init__(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        self._positions = Positions()
        self._own: dict[AxisName, tuple[int, ...]] = {}  # axes of parameters and buffers
        self._shapes: dict[str, tuple[int, ...]] = {}  # shapes of parameters
        self._consumed: set[int] = set()
        self._products: list[Product] = []
        self._axes: dict[int, list[Axis]] = {}  # by number of a traced value
        self._reshaped: dict[str, list[Axis]] = {}  # by name of the node
        self._of_input: set[int] = set()  # numbers of values that depend on an input
        with _Recording(type(model).__name__) as trace:
            self._trace(trace, model, inputs)

    def structure(self) -> Structure:
        """Return what was found."""
        products = [axis for product in self._products for axis in product.axes]
        names: list[Any] = [*self._own.items(), *((at, axis) for at, axis in enumerate(products))]
        groups: dict[Any, list[list[tuple[Any, int]]]] = {}
        kept: dict[AxisName, str] = {}
        for root, members in self._positions.sets(names).items():
            reason = self._positions.reason(root)
            if reason is None and any(self._own[name][place] in self._consumed for name, place in members
                                      if not isinstance(name, int)):  # fmt: skip
                signature = tuple(sorted(Counter(name for name, _ in members).items(), key=repr))
                groups.setdefault(signature, []).append(members)
            elif reason is not None:
                kept |= {name: reason for name, _ in members if not isinstance(name, int)}
        made = [self._group(sets) for sets in groups.values()]
        of_set: dict[int, int] = {}  # by position: the number of its group
        for number, group in enumerate(made):
            for name, channels in group.places.items():
                for places in channels:
                    of_set |= {self._positions.find(self._own[name][place]): number for place in places}
        return Structure(
            tuple(made),
            tuple(Term(one.factor, self._lengths(one.axes, of_set, made)) for one in self._products),
            tuple(
                Term(1, self._lengths(tuple(self._own[name, at] for at in range(len(shape))), of_set, made))
                for name, shape in self._shapes.items()
            ),
            kept,
            {
                node: tuple(None if axis is None else self._lengths((axis,), of_set, made)[0] for axis in axes)
                for node, axes in self._reshaped.items()
            },
        )

    def _group(self, sets: list[list[tuple[Any, int]]]) -> Group:
        places: dict[AxisName, list[tuple[int, ...]]] = {}
        for members in sets:
            own: dict[AxisName, list[int]] = {}
            for name, place in members:
                if not isinstance(name, int):
                    own.setdefault(name, []).append(place)
            for name, found in own.items():
                places.setdefault(name, []).append(tuple(found))
        consumers = tuple(
            name for name, channels in places.items() if self._own[name][channels[0][0]] in self._consumed
        )
        made_by = next((name for name in places if name not in consumers), consumers[0])
        return Group(
            made_by[0].rpartition(".")[0] or made_by[0],
            len(sets),
            {name: tuple(channels) for name, channels in places.items()},
            consumers,
        )

    def _lengths(
        self, axes: tuple[tuple[int, ...], ...], of_set: dict[int, int], groups: list[Group]
    ) -> tuple[Length, ...]:
        lengths = []
        for axis in axes:
            counts = Counter(of_set.get(self._positions.find(position), -1) for position in axis)
            fixed = counts.pop(-1, 0)
            lengths.append(
                Length(fixed, tuple((at, count // groups[at].count) for at, count in sorted(counts.items())))
            )
        return tuple(lengths)

    def _trace(self, trace: _Recording, model: nn.Module, inputs: Sequence[Any]) -> None:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            given = [trace.input(f"input {at}", one) for at, one in enumerate(inputs)]
            self._of_input = {one.number for one in given}
            for path, parameter in model.named_parameters():
                traced = self._begin(path, trace.input(f"parameter {path}", parameter.data))
                trace.bind(parameter, traced)
                self._shapes[path] = traced.shape
            with TracedBuffers(model, lambda path, array: self._begin(path, trace.input(f"buffer {path}", array))):
                results = model(*given)
        finally:
            for module, mode in modes:
                module.training = mode
        for operator in trace.operators:
            self._follow(operator)
        for one in results if isinstance(results, list | tuple) else [results]:
            for axis in self._axes.get(one.number, ()):
                self._positions.fix(axis, "an output of the network")

    def _begin(self, path: str, traced: Traced) -> Traced:
        own = [self._positions.make(length) for length in traced.shape]
        self._axes[traced.number] = list(own)
        self._own |= {(path, at): axis for at, axis in enumerate(own)}
        return traced

    def _follow(self, operator: _Operator) -> None:
        operands = [self._operand(one) for one in operator.inputs]
        call = Call(self._positions, operator.op, operator.node, operator.attributes, operands,
                    [one.shape for one in operator.results])  # fmt: skip
        for traced, axes in zip(operator.results, carry(call), strict=True):
            self._axes[traced.number] = axes
        if operator.op == "Reshape" and operator.is_named:  # node of a file, which has the shape written down
            axes = self._axes[operator.results[0].number]
            if operator.node in self._reshaped:
                for axis in [*axes, *self._reshaped[operator.node]]:
                    self._positions.fix(axis, f"two reshapes are named {operator.node}")
            self._reshaped[operator.node] = axes
        if any(one.of_input for one in operands):
            self._of_input |= {one.number for one in operator.results}
        self._consumed |= call.consumed
        self._products += call.products

    def _operand(self, one: Any) -> Operand:
        if one is None:
            return Operand((), [], None, of_input=False)
        if isinstance(one, Traced):
            axes = self._axes.get(one.number, [None] * one.ndim)
            known = one.value if one.is_known and one.ndim <= 1 else None
            return Operand(one.shape, axes, known, of_input=one.number in self._of_input)
        array = np.asarray(one)
        return Operand(array.shape, [None] * array.ndim, array if array.ndim <= 1 else None, of_input=False)


@dataclass(frozen=True, slots=True)
class _Operator:
    op: str
    node: str
    inputs: list[Any]
    attributes: dict[str, Any]
    results: list[Traced]
    is_named: bool


class _Recording(Trace):
    """A trace that keeps the operators with their values."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.operators: list[_Operator] = []

    def node(self, op: str, inputs: Sequence[Any], attributes: dict[str, Any], values: Sequence[Any]) -> list[Traced]:
        results = super().node(op, inputs, attributes, values)
        self.operators.append(_Operator(op, self.path or op, list(inputs), attributes, results, bool(self.path)))
        return results
