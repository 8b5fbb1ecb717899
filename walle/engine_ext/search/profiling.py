"""Profiling of convolution layers: the median time of each primitive of the engine (Mulder et al., §4.4).

A primitive is an algorithm of a backend with one of its parameters, named as plans print it ("winograd(4)"), or a
change of the layout of a layer's input ("pack", "unpack"). Runs of all primitives alternate, so that other load on
the machine affects all alike, and runs that another process interrupted do not count, or in CPU time.
"""

import array
import functools
import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from walle.engine_ext import _core, np
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.samples_file import Sample

RUNS = 25
CONVERSIONS = ("pack", "unpack")  # names of the rasters between plain and packed layouts in a plan

_LEAST_RUNS = 5
_MOST_S = 0.5  # seconds for one primitive, after which fewer runs than RUNS are enough
_MOST_TIMES = 20.0  # predicted cost of the slowest primitive that is measured, relative to the least
_LEAST_US = 20.0  # a run repeats a primitive until it takes this long: a tick of the clock is about 0.03 µs
_MOST_REPEATS = 16
_LEAST_TIME_US = 1e-3  # time of a step that ends within a tick of the clock
_CPU_SHARE = 0.99  # least share of a run that no other process interrupted
_CONV = "conv"
_PATTERN = 1 << 16  # random values in all; longer inputs and weights repeat them


def profile_layers(layers: Sequence[Layer], backend: str, *, runs: int = RUNS) -> list[Sample]:
    """Return the medians of `runs` runs of each primitive that the backend has for each layer, one thread.

    A primitive that takes long has fewer runs, five at least. Runs of all layers alternate: of several layers, those
    of one are spread over a longer time, and find its weights in no near cache, as in a network.

    Raises:
        BackendError: the backend is unknown, or not available on this machine.
    """
    profiles = [_LayerProfile.of(layer, backend) for layer in layers]
    medians = iter(_measure([timed for one in profiles for timed in one.timed], runs))
    return [one.sample([next(medians) for _ in one.timed]) for one in profiles]


class _Timed(NamedTuple):
    """A session with its inputs, and the index in its profile of the steps that are measured."""

    session: _core.Session
    inputs: dict[str, Any]
    steps: Mapping[str, int]

    @classmethod
    def of(cls, session: _core.Session, inputs: dict[str, Any]) -> "_Timed":
        plan = session.plan()
        assert plan is not None, "the model fixes all shapes"
        names = [op[0] for op in plan["ops"]]
        return cls(session, inputs, {name: names.index(name) for name in (_CONV, *CONVERSIONS) if name in names})

    @property
    def layouts(self) -> str:
        return f"{'packed' if 'pack' in self.steps else 'plain'}>{'packed' if 'unpack' in self.steps else 'plain'}"


class _LayerProfile(NamedTuple):
    """A layer's primitives, and their sessions; the last session changes layouts."""

    layer: Layer
    names: list[str]
    timed: list[_Timed]

    @classmethod
    def of(cls, layer: Layer, backend: str) -> "_LayerProfile":
        model, inputs = convolution_model(layer), {"x": _values((1, layer.c, layer.im, layer.im))}
        chosen = _core.Session(model, backend)
        candidates = _candidates(chosen)
        others = [_core.Session(model, backend, algorithms={_CONV: one}) for one in candidates[1:]]
        conversions = _conversions(layer, backend)
        names = [f"{name}({parameter})" for name, parameter in candidates]
        return cls(layer, names, [_Timed.of(one, inputs) for one in (chosen, *others, conversions)])

    def sample(self, medians: Sequence[Mapping[str, float]]) -> Sample:
        us = {name: one[_CONV] for name, one in zip(self.names, medians[:-1], strict=True)}
        us |= {name: medians[-1][name] for name in CONVERSIONS if name in medians[-1]}
        layouts = {name: one.layouts for name, one in zip(self.names, self.timed[:-1], strict=True)}
        return Sample(self.layer, {name: _rounded(value) for name, value in us.items()}, layouts)


def _conversions(layer: Layer, backend: str) -> _core.Session:
    """Return a session that packs a value of the layer's input shape and unpacks it, where one does."""
    model = _channelwise(layer.c, layer.im)
    chosen = _core.Session(model, backend)
    sessions = (_core.Session(model, backend, algorithms={_CONV: one}) for one in _candidates(chosen))
    return next((one for one in sessions if _Timed.of(one, {}).layouts == "packed>packed"), chosen)


def _candidates(session: _core.Session) -> list[tuple[str, int]]:
    plan = session.plan()
    assert plan is not None, "the model fixes all shapes"
    found = next(op for op in plan["ops"] if op[0] == _CONV)[-1]
    most_us = _MOST_TIMES * min(us for _, _, us in found)
    return [(name, parameter) for name, parameter, us in found if us <= most_us]  # the chosen one first


def _measure(timed: Sequence[_Timed], runs: int) -> list[dict[str, float]]:
    """Return the median microseconds of each step of each session; their runs alternate."""
    repeats, counts = [], []
    for session, inputs, _ in timed:
        session.run(inputs)  # the first run gets memory
        first = _run(session, inputs, 1)
        us = first.cpu_share * sum(first.us)
        repeats.append(min(_MOST_REPEATS, math.ceil(_LEAST_US / max(us, 1e-3))))
        counts.append(min(runs, max(_LEAST_RUNS, int(_MOST_S * 1e6 / max(us, 1e-3)))))
    samples: list[list[_Run]] = [[] for _ in timed]
    for turn in range(runs):
        for place, (session, inputs, _) in enumerate(timed):
            if turn < counts[place]:
                samples[place].append(_run(session, inputs, repeats[place]))
    return [
        {name: statistics.median(us[step] for us in kept) for name, step in one.steps.items()}
        for one, kept in zip(timed, map(_undisturbed, samples), strict=True)
    ]


class _Run(NamedTuple):
    """Microseconds of each step, the mean of some runs, and the part of them in which the thread had a core."""

    us: list[float]
    cpu_share: float


def _run(session: _core.Session, inputs: dict[str, Any], repeats: int) -> _Run:
    begin_ns = time.thread_time_ns()
    rows = [session.profile(inputs) for _ in range(repeats)]
    cpu_us = (time.thread_time_ns() - begin_ns) / 1e3
    share = min(1.0, cpu_us / max(sum(map(sum, rows)), 1e-3))
    return _Run([sum(column) / repeats for column in zip(*rows, strict=True)], share)


def _undisturbed(runs: list[_Run]) -> list[list[float]]:
    """Return the steps' times of the runs that no other process interrupted; where all are long, of all in CPU time."""
    kept = [run.us for run in runs if run.cpu_share > _CPU_SHARE]
    if len(kept) >= min(_LEAST_RUNS, len(runs)):
        return kept
    least = [min(column) for column in zip(*(run.us for run in runs), strict=True)]
    return [_in_cpu_time(run, least) for run in runs]


def _in_cpu_time(run: _Run, least: Sequence[float]) -> list[float]:
    """Return the steps' times of a run without interruptions, which are taken to be in steps far above the least."""
    us, lost_us = list(run.us), (1 - run.cpu_share) * sum(run.us)
    for step in sorted(range(len(us)), key=lambda step: least[step] - us[step]):
        cut_us = min(lost_us, us[step] - least[step])
        us[step] -= cut_us
        lost_us -= cut_us
    cpu_us = sum(us) - lost_us  # less than the sum where long steps are interrupted in every run
    return [one * cpu_us / sum(us) for one in us]


def convolution_model(layer: Layer) -> bytes:
    """Return a model of the layer: one Conv with constant seeded weights and no bias."""
    shape = (layer.k, layer.c, layer.f, layer.f)
    graph = GraphBuilder("layer")
    x = graph.input("x", (1, layer.c, layer.im, layer.im))
    w = graph.raw("w", "float32", shape, memoryview(_values(shape)).cast("B"))
    pads, strides = [layer.f // 2] * 4, [layer.s] * 2
    graph.output("y", graph.op("Conv", [x, w], pads=pads, strides=strides, name=_CONV))
    return graph.to_bytes()


def _channelwise(channels: int, size: int) -> bytes:
    """Return a model whose input and output change their layout: a 1x1 convolution of each channel alone."""
    graph = GraphBuilder("layouts")
    x = graph.input("x", (1, channels, size, size))
    shape = (channels, 1, 1, 1)
    w = graph.raw("w", "float32", shape, memoryview(_values(shape)).cast("B"))
    graph.output("y", graph.op("Conv", [x, w], group=channels, name=_CONV))
    return graph.to_bytes()


def _values(shape: tuple[int, ...]) -> np.ndarray:
    """Return seeded float32 values between -1 and 1; many repeat the first ones."""
    count = math.prod(shape)
    some = _pattern()[:count]
    return np.asarray((some * (count // len(some) + 1))[:count]).reshape(shape)


@functools.cache
def _pattern() -> array.array[float]:
    draw = random.Random(0)
    return array.array("f", (draw.uniform(-1, 1) for _ in range(_PATTERN)))


def _rounded(us: float) -> float:
    return float(f"{max(us, _LEAST_TIME_US):.5g}")
