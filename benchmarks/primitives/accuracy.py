"""Accuracy of predicted times: error by class of primitive (Mulder et al., Fig. 4), and what a wrong pick costs."""

from typing import NamedTuple

import numpy as np

from benchmarks.primitives.data import Data, Floats, class_of, is_conversion

ALL = "all"


class Regret(NamedTuple):
    """Excess of the predicted best primitive's time over the measured best's, over the layers that have a choice."""

    mean: float
    p99: float
    worst: float
    layers: int


def median_errors(predicted: Floats, data: Data) -> dict[str, float]:
    """Return the median relative absolute error (MdRAE, §4.2) of each class of primitives, and of all.

    A class that the test layers do not have is left out; one that no training layer had is infinite.
    """
    errors = np.where(np.isnan(predicted), np.inf, np.abs(predicted - data.times) / data.times)
    defined = np.isfinite(data.times)
    found = {}
    for name in sorted({class_of(one) for one in data.primitives}):
        columns = [place for place, one in enumerate(data.primitives) if class_of(one) == name]
        if defined[:, columns].any():
            found[name] = float(np.median(errors[:, columns][defined[:, columns]]))
    return found | {ALL: float(np.median(errors[defined]))}


def regret(predicted: Floats, data: Data) -> Regret:
    """Return the regret of picking by predicted times; changes of layout are not picked."""
    columns = [place for place, name in enumerate(data.primitives) if not is_conversion(name)]
    times = data.times[:, columns]
    guesses = np.where(np.isfinite(times) & np.isfinite(predicted[:, columns]), predicted[:, columns], np.inf)
    rows = np.flatnonzero(np.isfinite(times).sum(axis=1) > 1)
    if not rows.size:
        return Regret(0.0, 0.0, 0.0, 0)
    picked = times[rows, np.argmin(guesses[rows], axis=1)]
    excess = picked / np.nanmin(times[rows], axis=1) - 1
    return Regret(float(excess.mean()), float(np.percentile(excess, 99)), float(excess.max()), int(rows.size))
