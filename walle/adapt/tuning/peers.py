"""Models of other devices, run on a device's own samples: the ensemble that teaches its model (§5.1, ii)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from walle import np
from walle.adapt.dataset import Dataset
from walle.engine_ext.nn.functional import softmax
from walle.engine_ext.session import load
from walle.errors import EngineError

_LOG = logging.getLogger(__name__)

_BATCH = 256  # samples of one run
_RUNS_S = 60.0  # limit of opening and running a peer's model, which another device wrote


class Ensemble:
    """Softened probabilities of n peers for all samples, (n, samples, classes), computed once.

    A file that cannot be run on the samples, whose outputs are not logits (samples, classes) or not finite, or that
    takes longer than `runs_s` to be opened and run is left out and logged: it comes from another device. So is one that
    needs more memory than the system gives; where that overcommits, the process may be ended instead.

    Args:
        files: contents of `.walle` files.
        classes: count of classes.
        temperature: divisor of the logits (Hinton et al. 2015).
        runs_s: seconds for one model, from opening it to its last run.
    """

    def __init__(
        self, files: Sequence[bytes], data: Dataset, classes: int, temperature: float, *, runs_s: float = _RUNS_S
    ) -> None:
        self._softened = []
        self.refused: list[str] = []
        for file in files:
            try:
                logits = _logits(file, data, classes, runs_s)
            except (EngineError, ValueError, MemoryError) as error:
                _LOG.warning("a peer's model is left out: %s", error)
                self.refused.append(str(error))
            else:
                self._softened.append(softmax(logits * (1.0 / temperature), -1))

    def __len__(self) -> int:
        return len(self._softened)

    def skipped(self) -> int:
        """Return how many peers each step skips: max(n/10, 1), but never the last one (§5.1, iv)."""
        return min(max(len(self) // 10, 1), len(self) - 1)

    def mean(self, places: Any, random: Any) -> Any:
        """Return the mean probabilities (samples, classes) for these samples, without the skipped peers."""
        kept = random.permutation(len(self))[self.skipped() :].tolist()
        total = self._softened[kept[0]][places]
        for peer in kept[1:]:
            total = total + self._softened[peer][places]
        return total * (1.0 / len(kept))


def _logits(file: bytes, data: Dataset, classes: int, runs_s: float) -> Any:
    end_s = time.monotonic() + runs_s
    session = load(file, deadline=runs_s)
    names = [one.name for one in session.inputs]
    if len(names) != len(data.inputs):
        raise ValueError(f"it has {len(names)} inputs; the data has {len(data.inputs)}")
    parts = []
    for start in range(0, len(data), _BATCH):
        given = {name: one[start : start + _BATCH] for name, one in zip(names, data.inputs, strict=True)}
        output = next(iter(session.run(given, deadline=end_s - time.monotonic()).values()))
        rows = given[names[0]].shape[0]
        shape = getattr(output, "shape", None)  # None of a sequence or an empty optional
        if shape != (rows, classes):
            raise ValueError(f"its outputs have shape {shape}; logits have ({rows}, {classes})")
        parts.append(output.astype("float32"))
    logits = np.concatenate(parts)
    if not bool(np.all(np.isfinite(logits))):
        raise ValueError("its outputs are not finite")
    return logits
