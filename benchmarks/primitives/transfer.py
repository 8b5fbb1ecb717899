"""Transfer of a performance model to another backend by few samples (Mulder et al., §5.4, Fig. 6)."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.primitives.accuracy import ALL, median_errors, regret
from benchmarks.primitives.data import Data
from walle.engine_ext.search.sample_choice import choose_samples
from walle.search import PerformanceModel

FRACTIONS = (0.001, 0.01, 0.025, 0.05, 0.1, 0.25)
ACTIVE_FRACTION = 0.02  # share that, chosen actively, should be as good as 10 % at random


class Transferred(NamedTuple):
    """Error and mean pick regret on the target's test layers after fine-tuning on this many samples."""

    fraction: float
    samples: int
    how: str  # "random", "active" or "from scratch"
    error: float
    regret: float


def transfers(
    source: Data,
    target: Data,
    test: Data,
    *,
    fractions: Sequence[float],
    repeats: int,
    seed: int,
    on_done: Callable[[str], object] = lambda _: None,
) -> list[Transferred]:
    """Return what fine-tuning by each fraction of the target's samples gives: means of `repeats` draws.

    The last row is a model of the target alone, by all its samples. `source` and `target` have the same primitives.
    """
    trained = PerformanceModel.fit(source.layers, source.times, seed=seed)
    rows = []
    for fraction in sorted({*fractions, ACTIVE_FRACTION}):
        count = max(1, round(fraction * len(target)))
        for how in ("random", "active"):
            results = []
            for repeat in range(repeats):
                chosen = _chosen(trained, target, count, how, seed + repeat)
                model = trained.transfer(target.layers[chosen], target.times[chosen])
                results.append(_judged(model, test))
                on_done(f"transfer: {100 * fraction:g} %, {how}, {repeat + 1} of {repeats}")
            errors, regrets = zip(*results, strict=True)
            rows.append(Transferred(fraction, count, how, statistics.mean(errors), statistics.mean(regrets)))
    alone = PerformanceModel.fit(target.layers, target.times, seed=seed)
    rows.append(Transferred(1.0, len(target), "from scratch", *_judged(alone, test)))
    return rows


def _chosen(model: PerformanceModel, target: Data, count: int, how: str, seed: int) -> list[int]:
    if how == "active":
        return [int(row) for row in choose_samples(model, target.layers, count, seed=seed)]
    return [int(row) for row in np.random.default_rng(seed).permutation(len(target))[:count]]


def _judged(model: PerformanceModel, test: Data) -> tuple[float, float]:
    predicted = np.asarray(model.predict(test.layers), float)
    return median_errors(predicted, test)[ALL], regret(predicted, test).mean
