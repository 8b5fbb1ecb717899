"""Profiling of one convolution layer: the median time of each primitive that the engine has for it (003_…, §4.4).

A primitive is an algorithm of a backend with one of its parameters, named as plans print it ("winograd(4)"), or a
change of the layout of the layer's input ("pack", "unpack"). Runs of all primitives alternate, so that other load on
the machine affects all alike. Times are CPU time where another process interrupted a run.
"""

import array
import functools
import math
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.samples_file import Sample

RUNS = 25
CONVERSIONS = ("pack", "unpack")  # names of the rasters between plain and packed layouts in a plan

_LEAST_RUNS = 5
_MOST_S = 2.0  # seconds for one primitive, after which fewer runs than RUNS are enough
_LEAST_US = 20.0  # a run repeats a primitive until it takes this long: a tick of the clock is about 0.03 µs
_MOST_REPEATS = 16
_CONV = "conv"
_PATTERN = 1 << 16  # random values in all; longer inputs and weights repeat them


def profile_layer(layer: Layer, backend: str, *, runs: int = RUNS) -> Sample:
    """Return the medians of `runs` runs of each primitive that the backend has for a layer, one thread.

    A primitive that takes long has fewer runs, five at least.

    Raises:
        BackendError: the backend is unknown, or not available on this machine.
    """
    model = _convolution(layer)
    chosen = _core.Session(model, backend)
    candidates = _candidates(chosen)
    others = [_core.Session(model, backend, algorithms={_CONV: one}) for one in candidates[1:]]
    timed = [_Timed.of(one) for one in (chosen, *others)]
    conversions = _Timed.of(_core.Session(_channelwise(layer.c, layer.im), backend))
    inputs = {"x": _values(layer.c * layer.im**2).reshape(1, layer.c, layer.im, layer.im)}
    sets = _measure([*timed, conversions], inputs, runs)
    names = [f"{name}({parameter})" for name, parameter in candidates]
    us = {name: medians[_CONV] for name, medians in zip(names, sets[:-1], strict=True)}
    us |= {name: sets[-1][name] for name in CONVERSIONS if name in sets[-1]}
    layouts = {name: one.layouts for name, one in zip(names, timed, strict=True)}
    return Sample(layer, {name: _rounded(value) for name, value in us.items()}, layouts)


class _Timed(NamedTuple):
    """A session, and the index in its profile of the steps that are measured."""

    session: _core.Session
    steps: Mapping[str, int]

    @classmethod
    def of(cls, session: _core.Session) -> "_Timed":
        plan = session.plan()
        assert plan is not None, "the model fixes all shapes"
        names = [op[0] for op in plan["ops"]]
        return cls(session, {name: names.index(name) for name in (_CONV, *CONVERSIONS) if name in names})

    @property
    def layouts(self) -> str:
        return f"{'packed' if 'pack' in self.steps else 'plain'}>{'packed' if 'unpack' in self.steps else 'plain'}"


def _candidates(session: _core.Session) -> list[tuple[str, int]]:
    plan = session.plan()
    assert plan is not None, "the model fixes all shapes"
    found = next(op for op in plan["ops"] if op[0] == _CONV)
    return [(name, parameter) for name, parameter, _ in found[-1]]  # the chosen one first


def _measure(timed: list[_Timed], inputs: dict[str, Any], runs: int) -> list[dict[str, float]]:
    """Return the median microseconds of each step of each session; their runs alternate."""
    repeats, counts = [], []
    for session, _ in timed:
        session.run(inputs)  # the first run gets memory
        us = sum(_times(session, inputs, 1))
        repeats.append(min(_MOST_REPEATS, math.ceil(_LEAST_US / max(us, 1e-3))))
        counts.append(min(runs, max(_LEAST_RUNS, int(_MOST_S * 1e6 / max(us, 1e-3)))))
    samples: list[list[list[float]]] = [[] for _ in timed]
    for turn in range(runs):
        for place, (session, _) in enumerate(timed):
            if turn < counts[place]:
                samples[place].append(_times(session, inputs, repeats[place]))
    return [
        {name: statistics.median(row[step] for row in rows) for name, step in one.steps.items()}
        for one, rows in zip(timed, samples, strict=True)
    ]


def _times(session: _core.Session, inputs: dict[str, Any], repeats: int) -> list[float]:
    """Return the microseconds of each step, the mean of `repeats` runs, without the time of other processes."""
    begin_ns = time.thread_time_ns()
    rows = [session.profile(inputs) for _ in range(repeats)]
    cpu_us = (time.thread_time_ns() - begin_ns) / 1e3
    wall_us = sum(map(sum, rows))
    share = min(1.0, cpu_us / wall_us) / repeats
    return [share * sum(column) for column in zip(*rows, strict=True)]


def _convolution(layer: Layer) -> bytes:
    """Return a model of the layer: one Conv with constant seeded weights and no bias."""
    shape = (layer.k, layer.c, layer.f, layer.f)
    graph = GraphBuilder("layer")
    x = graph.input("x", (1, layer.c, layer.im, layer.im))
    w = graph.raw("w", "float32", shape, memoryview(_values(math.prod(shape))).cast("B"))
    pads, strides = [layer.f // 2] * 4, [layer.s] * 2
    graph.output("y", graph.op("Conv", [x, w], pads=pads, strides=strides, name=_CONV))
    return graph.to_bytes()


def _channelwise(channels: int, size: int) -> bytes:
    """Return a model whose input and output change their layout: a 1x1 convolution of each channel alone."""
    graph = GraphBuilder("layouts")
    x = graph.input("x", (1, channels, size, size))
    w = graph.raw("w", "float32", (channels, 1, 1, 1), memoryview(_values(channels)).cast("B"))
    graph.output("y", graph.op("Conv", [x, w], group=channels, name=_CONV))
    return graph.to_bytes()


def _values(count: int) -> Any:
    """Return seeded float32 values between -1 and 1; many repeat the first ones."""
    from walle.engine_ext import np

    some = _pattern()[:count]
    return np.asarray((some * (count // max(1, len(some)) + 1))[:count])


@functools.cache
def _pattern() -> array.array[float]:
    draw = random.Random(0)
    return array.array("f", (draw.uniform(-1, 1) for _ in range(_PATTERN)))


def _rounded(us: float) -> float:
    return float(f"{us:.5g}")
