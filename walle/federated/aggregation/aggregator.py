"""Interface of an aggregation algorithm, and its report of a round."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from walle import np
from walle.federated.errors import AggregationError
from walle.federated.update import Update
from walle.federated.weights import Weights


@dataclass
class AggregationReport:
    """Updates of one round: those that count, those that were excluded or limited, each with the reason."""

    counted: list[str] = field(default_factory=list)  # clients
    excluded: dict[str, str] = field(default_factory=dict)  # reason by client
    limited: dict[str, str] = field(default_factory=dict)  # reason by client whose update counts in part
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)  # means over the counted, weighted by samples

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "counted": list(self.counted),
            "excluded": dict(self.excluded),
            "limited": dict(self.limited),
            "samples": self.samples,
            "metrics": dict(self.metrics),
        }


class Aggregator(abc.ABC):
    """One algorithm: `begin` with the global model, `add` each update, `finish` with the next model.

    A subclass defines `collect` and `combine`, and `clear` where it holds something of a round.
    """

    def begin(self, model: Weights, round_number: int = 0) -> None:
        """Start a round; what was added to an unfinished one is dropped."""
        self.model = model
        self.round_number = round_number
        self.report = AggregationReport()
        self._given: dict[str, tuple[int, Mapping[str, float]]] = {}
        self.clear()

    def add(self, client: str, update: Update) -> None:
        """Take a client's update, which `walle.federated.update_codec` has checked."""
        self._given[client] = update.samples, update.metrics
        self.collect(client, update)

    def finish(self) -> tuple[Weights, AggregationReport]:
        """Return the next model and the report. Each client that was added is counted or excluded.

        Raises:
            AggregationError: no update counts, or the result is not finite.
        """
        self._check_some()
        vector = self.combine()
        self._check_some()  # some algorithms exclude only when they have all
        next_model = self.model.apply(Weights(self.model.layout, np.asarray(vector, "float32")))
        if not bool(np.isfinite(next_model.vector).all()):
            raise AggregationError(f"the model after round {self.round_number} has values that are not finite")
        self._fill_report()
        return next_model, self.report

    def exclude(self, client: str, reason: str) -> None:
        """Note in the report that a client's update does not count."""
        self.report.excluded[client] = reason

    def clear(self) -> None:  # noqa: B027 -- most of them hold something, some do not
        """Drop what is held of the last round."""

    @abc.abstractmethod
    def collect(self, client: str, update: Update) -> None:
        """Take an update, or `exclude` it."""

    @abc.abstractmethod
    def combine(self) -> Any:
        """Return the vector to add to the model, (values)."""

    # State that outlives a round.

    def state(self) -> Mapping[str, Any]:
        """Return the arrays that later rounds depend on, to be stored with the model of each round."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises:
            AggregationError: it is the state of another algorithm.
        """
        if state:
            raise AggregationError(f"{type(self).__name__} has no state; given were {sorted(state)}")

    def _check_some(self) -> None:
        if not self._given.keys() - self.report.excluded.keys():
            reasons = "; ".join(f"{client}: {why}" for client, why in list(self.report.excluded.items())[:3])
            raise AggregationError(f"round {self.round_number} has no update that counts{reasons and ': ' + reasons}")

    def _fill_report(self) -> None:
        """Add the clients that count, their samples and the means of their metrics."""
        sums: dict[str, tuple[float, int]] = {}
        for client, (samples, metrics) in self._given.items():
            if client in self.report.excluded:
                continue
            self.report.counted.append(client)
            self.report.samples += samples
            for name, value in metrics.items():
                total, weight = sums.get(name, (0.0, 0))
                sums[name] = total + value * samples, weight + samples
        self.report.metrics = {name: total / weight for name, (total, weight) in sums.items()}
