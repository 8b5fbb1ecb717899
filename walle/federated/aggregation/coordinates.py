"""Coordinate median and trimmed mean: each value of the model by itself, every client with the same weight.

Yin et al., Byzantine-Robust Distributed Learning (ICML 2018), definitions 1 and 2. The updates of the round are held. A
client is not excluded as a whole: the report names those that counted in fewer than half of the values.
"""

from __future__ import annotations

from typing import Any

from walle import np
from walle.errors import ConfigError
from walle.federated.aggregation.held import HeldUpdates
from walle.federated.errors import AggregationError


class CoordinateMedian(HeldUpdates):
    """The median of each value; for an even number of clients the mean of the middle two."""

    def combine(self) -> Any:
        return np.median(self.rows(), axis=0)


class TrimmedMean(HeldUpdates):
    """The mean of each value without its `share` largest and its `share` smallest ones.

    Args:
        share: part of the clients that is cut at each end; the count is rounded down.

    Raises:
        ConfigError: `share` is not from 0 to below 0.5.
        AggregationError: of `finish`: nothing is cut, as there are fewer than 1 / share clients.
    """

    def __init__(self, share: float = 0.1) -> None:
        if not 0.0 <= share < 0.5:
            raise ConfigError(f"share is {share}; it is from 0 to below 0.5")
        self._share = share

    def combine(self) -> Any:
        rows = self.rows()
        clients = self.clients()
        cut = int(self._share * len(clients))
        if self._share and not cut:
            raise AggregationError(
                f"{len(clients)} updates, of which a share of {self._share} is none; {int(1 / self._share) + 1} are"
                " needed, or a larger share"
            )
        ordered = np.sort(rows, axis=0)
        kept = ordered[cut : len(clients) - cut]
        outside = (rows < kept[0]) | (rows > kept[-1])
        for client, part in zip(clients, outside.astype("float32").mean(axis=1).tolist(), strict=True):
            if part > 0.5:
                self.report.limited[client] = f"cut in {part:.0%} of the values"
        return kept.mean(axis=0)
