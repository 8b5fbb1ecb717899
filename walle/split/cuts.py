"""Cuts of a model between two steps of its plan: what passes there, and the time of the parts before and after.

Neurosurgeon (§4.1) predicts a layer's time from its kind and sizes. Here a step of the plan has its own time in
profiled runs, or the time that the engine predicts from rates, where nothing shall run. A part's time is the sum of its
steps': plans of both parts for each cut predict no better (benchmarks/split.py), and take seconds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from walle import nn, np
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.onnx_model import FileModel
from walle.engine_ext.nn.partition import ArrayInfo, Graph
from walle.engine_ext.session_info import plan_of
from walle.split.cut import Cut
from walle.split.quantised import quantised_bytes

_PROFILED_RUNS = 15

type Times = Literal["steps", "rates"]


@dataclass(frozen=True, slots=True)
class CutModel:
    """A model's graph with its cuts, the first all there, the last all here, and the example inputs of their bytes."""

    name: str
    graph: Graph
    cuts: tuple[Cut, ...]
    inputs: tuple[Any, ...]
    arrays: tuple[ArrayInfo, ...]
    fixed: Mapping[int, Any]  # results that only shapes decide: each part has them as constants

    @property
    def input_types(self) -> list[tuple[str, tuple[int | None, ...]]]:
        """Dtype and shape of each input; None where the length is free."""
        infos = [self.arrays[number] for number in self.graph.inputs]
        return [(one.dtype, one.free_shape) for one in infos]

    def worthwhile(self, *, is_quantised: bool = False) -> tuple[Cut, ...]:
        """Return both fixed cuts and those between that some conditions make the fastest, in order.

        The others compute more on the device for no fewer bytes: no link makes up for that where the cloud is faster,
        and where it is slower, all here is the fastest.
        """
        found = [self.all_there]
        least_bytes = math.inf
        for one in self.cuts[1:-1]:
            passed = (one.quantised_bytes if is_quantised else one.up_bytes) + one.down_bytes
            if passed < least_bytes and passed < self.all_there.up_bytes + self.all_there.down_bytes:
                found.append(one)
                least_bytes = passed
        return (*found, self.all_here)

    @property
    def all_there(self) -> Cut:
        return self.cuts[0]

    @property
    def all_here(self) -> Cut:
        return self.cuts[-1]


def find_cuts(
    model: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | None = None, *, times: Times = "steps"
) -> CutModel:
    """Return the cuts of a `.walle` or `.onnx` file for one sample, or for inputs of the given shapes.

    `times` are those of the plan's steps in profiled runs, or predicted by rates; shares of both are the device's and
    the cloud's.

    Raises:
        UnsupportedError: the model has control flow, or an operator that is not supported.
        ModelError: a shape is given for an unknown input, or is needed for one of unknown rank.
    """
    path = Path(model)
    given = nn.from_onnx(path)
    inputs = _examples(path, given, dict(shapes or {}))
    graph = Graph(given, inputs)
    if graph.known - graph.fixed().keys() and all(shape and shape[0] for shape, _ in given.input_types):
        graph = Graph(given, inputs, free_batch=False)  # shapes of this batch, the file's, are then constants
    arrays = graph.arrays()
    before_us = _times_before(graph, inputs, times)
    total_us = before_us[max(before_us)]
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    fixed = graph.fixed()
    frontiers = graph.frontiers(fixed)
    found = [
        Cut(
            place=place,
            after=graph.node_name(place - 1) if place else "",
            values=() if place == graph.node_count else tuple(frontiers[place]),
            up_bytes=sum(arrays[number].size_bytes for number in frontiers[place]),
            quantised_bytes=sum(quantised_bytes(arrays[number]) for number in frontiers[place]),
            down_bytes=sum(
                arrays[number].size_bytes for number in outputs.values() if not graph.is_made_before(number, place)
            ),
            device_us=us,
            cloud_us=total_us - us,
        )
        for place, us in sorted(before_us.items())
        if place in {0, graph.node_count} or (frontiers[place] and graph.known.isdisjoint(frontiers[place]))
    ]
    return CutModel(path.stem, graph, tuple(found), tuple(inputs), tuple(arrays), fixed)


def _examples(path: Path, model: FileModel, shapes: dict[str, Sequence[int]]) -> list[Any]:
    """Return inputs of zeros; a free length without a given shape is 1."""
    if unknown := sorted(shapes.keys() - set(model.input_names)):
        known = ", ".join(model.input_names)
        raise ModelError(f"{path}: no input {', '.join(unknown)}; the model takes {known}")
    found = []
    for name, (shape, dtype) in zip(model.input_names, model.input_types, strict=True):
        if shape is None and name not in shapes:
            raise ModelError(f"{path}: the shape of input {name!r} is not in the file; give it")
        found.append(np.zeros(tuple(shapes.get(name) or (size or 1 for size in shape)), dtype or "float32"))
    return found


def _times_before(graph: Graph, inputs: Sequence[Any], times: Times) -> dict[int, float]:
    """Return the microseconds of all steps before each place between two steps, 0 and the end included."""
    session = _core.Session(graph.numbered(), "auto")
    given = dict(zip(graph.input_names, inputs, strict=True))
    session.run(given)
    native = session.plan()
    assert native is not None  # the plan of the run
    plan = plan_of(native)
    if times == "steps":
        runs = [session.profile(given) for _ in range(_PROFILED_RUNS)]
        each = [min(one) for one in zip(*runs, strict=True)]  # the least: other programs only add time
        run_us = min(_run_us(session, given) for _ in range(_PROFILED_RUNS))
        scale = run_us / max(sum(each), 1e-9)  # a run takes time outside of its steps too
        each = [one * scale for one in each]
    else:
        each = [step.predicted_us for step in plan.ops]
    spent = {0: 0.0, graph.node_count: 0.0}
    place = 0
    for step, us in zip(plan.ops, each, strict=True):
        # Steps without a node change the layout of an array: they count with the step before.
        place = graph.past_normalization(int(step.name) + 1) if step.name.isdecimal() else place
        spent[place] = spent.get(place, 0.0) + us
    places = sorted(spent)
    spent[places[1]] += spent[0]  # steps before the first node run with it
    spent[0] = 0.0
    return dict(zip(places, accumulate(spent[one] for one in places), strict=True))


def _run_us(session: _core.Session, inputs: dict[str, Any]) -> float:
    begin_ns = time.thread_time_ns()
    session.run(inputs)
    return (time.thread_time_ns() - begin_ns) / 1e3
