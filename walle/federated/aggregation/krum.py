"""Multi-Krum: the mean of the updates that are closest to their neighbours; the others are excluded by name.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent (NeurIPS 2017), sections 4 and
6. The updates of the round are held.
"""

from __future__ import annotations

from typing import Any

from walle import np
from walle.errors import ConfigError
from walle.federated.aggregation.held import HeldUpdates
from walle.federated.errors import AggregationError


class MultiKrum(HeldUpdates):
    """The mean of `keep` updates with the lowest scores, every client with the same weight.

    The score of an update is the sum of its squared distances to the n - hostile - 2 nearest others.

    Args:
        hostile: the largest number of hostile clients in a round; the proof needs n >= 2 * hostile + 3.
        keep: None for n - hostile.

    Raises:
        ConfigError: a number is out of its range.
        AggregationError: of `finish`: there are too few updates.
    """

    def __init__(self, hostile: int, keep: int | None = None) -> None:
        if hostile < 0 or (keep is not None and keep < 1):
            raise ConfigError(f"hostile is {hostile} and keep is {keep}; they are from 0 and from 1")
        self._hostile, self._keep = hostile, keep

    def combine(self) -> Any:
        clients = self.clients()
        count = len(clients)
        if count < 2 * self._hostile + 3:
            raise AggregationError(
                f"{count} updates; multi-Krum needs {2 * self._hostile + 3} against {self._hostile} hostile clients"
            )
        rows = self.rows()
        distances = _squared_distances(rows)
        nearest = np.sort(distances, axis=1)[:, : count - self._hostile - 2]
        scores = nearest.sum(axis=1).tolist()
        keep = min(self._keep or count - self._hostile, count)
        ranked = sorted(range(count), key=lambda place: (scores[place], place))
        for rank, place in enumerate(ranked[keep:], keep + 1):
            reason = f"score {scores[place]:.6g} is number {rank} of {count}; {keep} are kept, up to"
            self.exclude(clients[place], f"{reason} {scores[ranked[keep - 1]]:.6g}")
        return rows[np.asarray(sorted(ranked[:keep]))].mean(axis=0)


def _squared_distances(rows: Any) -> Any:
    """Return the squared distances between rows, float64 (rows, rows); infinite between a row and itself."""
    count = rows.shape[0]
    found = np.full((count, count), float("inf"), "float64")
    for place in range(count - 1):
        apart = rows[place + 1 :] - rows[place]
        squares = (apart * apart).sum(axis=1)
        found[place, place + 1 :] = squares
        found[place + 1 :, place] = squares
    return found
