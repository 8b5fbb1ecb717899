"""More channels: a wider network that computes the same (Chen, Goodfellow and Shlens 2016, Net2WiderNet).

New channels are copies, and what reads them divides its weights by the number of copies. Noise on the copies lets
training tell them apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from walle import nn, np
from walle.adapt.structure.cut import resize_layers
from walle.adapt.structure.network import AxisName, Group, Structure
from walle.engine_ext.errors import ModelError

_NUMBER = "float32"


def can_widen(group: Group) -> bool:
    """Return whether the places of copies along each axis are clear."""
    return group.count > 1 or all(len(one[0]) == 1 for one in group.places.values())


def widen(
    model: nn.Module, structure: Structure, widths: Sequence[int], *, noise: float = 0.0, seed: int = 0
) -> nn.Module:
    """Return a copy of the model with these channels in each group, at least as many as it has.

    Channels are copied in turn, so that each has as many copies as the others, or one more. `noise` is the deviation of
    the normal noise on weights of copies, as a share of the deviation of their array; with none the outputs are those
    of the model, but for rounding.

    Raises:
        ModelError: a group would have fewer channels, or is one whose channels cannot be copied.
    """
    if len(widths) != len(structure.groups):
        raise ModelError(f"widths of {len(widths)} groups; the network has {len(structure.groups)}")
    taken: dict[AxisName, list[int]] = {}  # by axis that grows: its old place for each new one
    factors: dict[AxisName, list[float]] = {}  # by axis that a product sums over: one by the number of copies
    fresh: dict[AxisName, list[bool]] = {}  # by axis: whether a new place is a copy
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    for group, width in zip(structure.groups, widths, strict=True):
        if width < group.count:
            raise ModelError(f"{group.name}: {width} channels; it has {group.count}, and cut() removes some")
        if width == group.count:
            continue
        if not can_widen(group):
            raise ModelError(
                f"{group.name} cannot have more channels: the places of its only one are not those of copies"
            )
        copies = [width // group.count + (at < width % group.count) for at in range(group.count)]
        for axis in group.places:
            length = values[axis[0]].shape[axis[1]]
            before = taken.get(axis, list(range(length)))
            taken[axis], fresh[axis], kept = _grown(before, fresh.get(axis), group.places[axis], copies)
            if axis in group.consumers:
                own = factors.get(axis, [1.0] * len(before))
                shares = {place: 1.0 / copies[at] for at, places in enumerate(group.places[axis]) for place in places}
                factors[axis] = [own[at] * shares.get(before[at], 1.0) for at in kept]
            elif axis in factors:
                factors[axis] = [factors[axis][at] for at in kept]
    wider: nn.Module = copy.deepcopy(model)
    change = _Change(taken, factors, fresh, noise, seed)
    resize_layers(wider, structure, widths, change)
    return wider


def _grown(
    before: list[int], fresh: list[bool] | None, places: Sequence[tuple[int, ...]], copies: list[int]
) -> tuple[list[int], list[bool], list[int]]:
    """Return old places of an axis whose channels are copied, whether each is a copy, and its place in `before`.

    A channel's places that lie side by side are one block (the pixels of a channel, say), copied right behind itself.
    """
    of_channel = {place: channel for channel, own in enumerate(places) for place in own}
    old: list[int] = []
    is_copy: list[bool] = []
    kept: list[int] = []
    at = 0
    while at < len(before):
        channel = of_channel.get(before[at])
        end = at + 1
        while channel is not None and end < len(before) and of_channel.get(before[end]) == channel:
            end += 1
        for number in range(1 if channel is None else copies[channel]):
            old += before[at:end]
            kept += range(at, end)
            is_copy += [number > 0 or (fresh is not None and fresh[one]) for one in range(at, end)]
        at = end
    return old, is_copy, kept


class _Change:
    """The wider array of each parameter."""

    def __init__(self, taken: dict[AxisName, list[int]], factors: dict[AxisName, list[float]],
                 fresh: dict[AxisName, list[bool]], noise: float, seed: int) -> None:  # fmt: skip
        self._taken, self._factors, self._fresh, self._noise = taken, factors, fresh, noise
        self._random = np.random.default_rng(seed)

    def __call__(self, array: Any, name: str) -> Any:
        deviation = float(np.std(array)) * self._noise if array.ndim > 1 else 0.0
        noisy: Any = None
        for at in range(array.ndim):
            old = self._taken.get((name, at))
            if old is None:
                continue
            shape = [1] * array.ndim
            shape[at] = -1
            array = np.take(array, old, axis=at)
            if (name, at) in self._factors:
                array = array * np.asarray(self._factors[name, at], _NUMBER).reshape(tuple(shape))
            else:
                noisy = np.asarray(self._fresh[name, at], _NUMBER).reshape(tuple(shape))
        if noisy is not None and deviation > 0:
            array = array + self._random.normal(0.0, deviation, array.shape).astype(_NUMBER) * noisy
        return array
