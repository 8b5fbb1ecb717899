"""Calibration of a performance model: layers profiled on this machine, a model fitted to them, and its scores.

A tenth of the layers is held out. On them the model is compared with the rates (eq. 3), by the regret of the primitive
that each would pick: a model that picks no better is not for use.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from walle.engine_ext import _core
from walle.engine_ext.rates import cache_path, identity
from walle.engine_ext.search.layers import Layer, LayerDraw
from walle.engine_ext.search.performance_model import FITTING, PerformanceModel
from walle.engine_ext.search.portable_model import portable
from walle.engine_ext.search.profiling import CONVERSIONS, convolution_model, profile_layers
from walle.engine_ext.search.samples_file import Sample, SampleSet, SamplesFile, SamplesFileError, SamplesHead

HIDDEN = (64, 128, 64)
FEWEST_LAYERS = 100  # a tenth of them is held out
_FEWEST_TIMES = 16  # times of a primitive below which the model does not have it
_HELD_OUT = 10  # one layer of this many is held out
_AT_ONCE = 16  # layers whose runs alternate
_SEED = 0

type Times = Sequence[Mapping[str, float]]  # microseconds of each primitive, by layer


class Score(NamedTuple):
    """Quality of predictions on held-out layers, all relative: 0.01 is 1 %.

    The regret of a layer is the excess of the time of the primitive that is predicted to be the fastest over the
    fastest one's; the error is |predicted - time| / time of all primitives.
    """

    mean_regret: float
    worst_regret: float
    median_error: float


class ModelFit(NamedTuple):
    """A model in its portable form, the number of layers, and the scores of rates and model on those held out."""

    model: bytes
    layers: int
    held_out: int
    rates: Score
    learned: Score

    @property
    def is_better(self) -> bool:
        return self.learned.mean_regret < self.rates.mean_regret


def samples_path(backend: str) -> Path:
    """Return this user's file of a backend's samples, which `walle model profile-primitives` writes too."""
    return cache_path().with_name(f"primitives-{backend}.jsonl")


def profile(
    backend: str, path: Path, total_s: float, *, passed_s: float = 0.0, on_layers: Callable[[float], None]
) -> None:
    """Profile further layers and append them to the file, until `total_s` seconds have passed.

    `passed_s` are those of an earlier run, which count. `on_layers` is called with the seconds so far after some
    layers. What was measured is in the file but for the last 16 layers, also where an exception, such as that of
    Ctrl-C, ends this.

    Raises:
        SamplesFileError: the file is broken, in use, or was measured on another CPU or by another engine version.
        OSError: the file cannot be written.
    """
    _core.set_performance_model(backend, None)  # primitives are chosen for profiling by their costs by rates
    head = _head_to_continue(backend, path)
    with SamplesFile.open(path, head) as file:
        known = {sample.layer for sample in file.samples}
        draw = (layer for layer in LayerDraw(head.seed) if layer not in known)
        begin = time.perf_counter() - passed_s
        while passed_s < total_s:
            for sample in profile_layers(list(itertools.islice(draw, _AT_ONCE)), backend):
                file.append(sample)
            passed_s = time.perf_counter() - begin
            on_layers(passed_s)


def read_samples(backend: str, path: Path) -> list[Sample] | None:
    """Return the samples of a file for this CPU and engine version; None where it has none for them, or does not exist.

    Raises:
        SamplesFileError: the file is broken.
        OSError: it cannot be read.
    """
    if not path.exists():
        return None
    found = SampleSet.read(path)
    head = _head(backend)._replace(seed=found.head.seed)
    return found.samples if found.head == head else None


def fit(backend: str, samples: Sequence[Sample]) -> ModelFit:
    """Return a model of these samples, at least `FEWEST_LAYERS`; equal samples give equal models on one machine.

    The scores of rates are of those that are set in this process.
    """
    _core.set_performance_model(backend, None)
    held_out = samples[::_HELD_OUT]
    kept = [sample for place, sample in enumerate(samples) if place % _HELD_OUT]
    counts = {name: sum(name in sample.us for sample in kept) for name in {name for one in kept for name in one.us}}
    names = sorted(name for name, count in counts.items() if count >= _FEWEST_TIMES)
    layers = [sample.layer for sample in kept]
    times = [[sample.us.get(name, math.nan) for name in names] for sample in kept]
    model = PerformanceModel.fit(layers, times, seed=_SEED, primitives=names, hidden=HIDDEN, schedule=FITTING)
    data = portable(model, layers)
    by_rates = [costs_by_rates(sample.layer, backend) for sample in held_out]
    rows = _core.predicted_times(data, [sample.layer for sample in held_out]).tolist()
    predicted = [dict(zip(names, row, strict=True)) for row in rows]
    numbers = list(zip(*layers, strict=True))
    weighed = [
        _weighed(times, rates) if _is_within(sample.layer, numbers) else rates
        for sample, times, rates in zip(held_out, predicted, by_rates, strict=True)
    ]
    return ModelFit(data, len(samples), len(held_out), _score(held_out, by_rates), _score(held_out, weighed))


def _head(backend: str) -> SamplesHead:
    one = identity()
    return SamplesHead(one["cpu"], backend, one["engine"], _SEED)


def _head_to_continue(backend: str, path: Path) -> SamplesHead:
    """Return the head of a file that this machine continues, with the seed that the file has."""
    head = _head(backend)
    if not path.exists() or b"\n" not in path.read_bytes():
        return head
    found = SampleSet.read(path).head
    if found._replace(seed=head.seed) != head:
        by = f"was measured on {found.cpu} by engine {found.engine}, backend {found.backend}"
        raise SamplesFileError(path, f"{by}; move it away, then calibrate again")
    return found


def costs_by_rates(layer: Layer, backend: str) -> dict[str, float]:
    """Return the cost of each primitive of a layer by the rates."""
    plan = _core.Session(convolution_model(layer), backend).plan()
    assert plan is not None, "the model fixes all shapes"
    candidates = next(op[-1] for op in plan["ops"] if op[-1])
    return {f"{name}({parameter})": us for name, parameter, us in candidates}


def _is_within(layer: Layer, numbers: Sequence[Sequence[int]]) -> bool:
    """Return whether the layer is in the range of others, whose k, c, im, s and f these are; sessions ask no other."""
    return all(min(known) <= one <= max(known) for one, known in zip(layer, numbers, strict=True))


def _weighed(predicted: Mapping[str, float], by_rates: Mapping[str, float]) -> dict[str, float]:
    """Return the costs as sessions weigh them: those by rates, scaled, of primitives without a prediction."""
    known = {name: predicted[name] for name in by_rates if math.isfinite(predicted.get(name, math.nan))}
    ratios = sorted(us / by_rates[name] for name, us in known.items())
    ratio = ratios[len(ratios) // 2] if ratios else 1.0
    return {name: known.get(name, us * ratio) for name, us in by_rates.items()}


def _score(samples: Sequence[Sample], predicted: Times) -> Score:
    regrets, errors = [], []
    for sample, costs in zip(samples, predicted, strict=True):
        us = {name: one for name, one in sample.us.items() if name in costs and name not in CONVERSIONS}
        if us:
            picked = min(us, key=lambda name: (costs[name], name))
            regrets.append(us[picked] / min(us.values()) - 1)
            errors += [abs(costs[name] - one) / one for name, one in us.items()]
    return Score(statistics.fmean(regrets), max(regrets), statistics.median(errors))
