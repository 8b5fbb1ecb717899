"""Coordinator of rounds: joins the state machine with a journal, the bodies of updates and an aggregator.

The order of writes makes it safe to stop at any moment: the body of an update is stored, then the record that accepts
it is journalled, then the device is answered. The model of a round is stored before the record of its end. `resume`
continues from the journal: an aggregation that was cut is done again, from the same bodies in the same order.

Memory is O(model) where the aggregator's is: bodies are read one at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, Self

from walle.federated.aggregation import AggregationReport, Aggregator
from walle.federated.errors import AggregationError, RoundError
from walle.federated.round import Round, RoundSettings, RoundState, begin_round, draw_round, replay
from walle.federated.update_codec import UpdateLimits, decode_update
from walle.federated.weights import Weights


class RoundStore(Protocol):
    """Journal, models and bodies of updates. Each call is durable when it returns."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record after the others."""

    def put_update(self, digest: str, body: bytes) -> None:
        """Store a body; one that is stored stays."""

    def update(self, digest: str) -> bytes:
        """Return the body with this SHA-256."""

    def drop_updates(self) -> None:
        """Remove all bodies: the round that had them is over."""

    def put_model(self, version: int, model: Weights, state: Mapping[str, Any]) -> None:
        """Store the model of a version, 0 for the first, with the state of the aggregator after it; replace another."""

    def model(self, version: int) -> tuple[Weights, Mapping[str, Any]]:
        """Return a stored model, and the state that was stored with it."""


class Coordinator:
    """Rounds one after another, over one model."""

    def __init__(
        self,
        store: RoundStore,
        model: Weights,
        aggregator: Aggregator,
        settings: RoundSettings,
        *,
        seed: str,
        limits: UpdateLimits | None = None,
    ) -> None:
        self.model = model
        self.version = 0  # number of the round that made the model
        self.round: Round | None = None
        self.report: AggregationReport | None = None  # report of the last round that is done
        self._store = store
        self._aggregator = aggregator
        self._settings = settings
        self._seed = seed
        self._limits = limits or UpdateLimits()

    @classmethod
    def resume(
        cls,
        store: RoundStore,
        records: Iterable[Mapping[str, Any]],
        first_model: Weights,
        aggregator: Aggregator,
        settings: RoundSettings,
        *,
        seed: str,
        limits: UpdateLimits | None = None,
    ) -> Self:
        """Return the coordinator that a journal leads to; an empty one begins with `first_model`.

        Raises:
            RoundError: the journal is not possible.
        """
        last = replay(records)
        made = cls(store, first_model, aggregator, settings, seed=seed, limits=limits)
        if last is not None:
            made.round = last
            made.version = last.number if last.state is RoundState.DONE else last.version
            made.model, state = store.model(made.version)
            aggregator.load_state(state)
        return made

    def begin(self, eligible: Iterable[str], at_s: float) -> Round:
        """Begin the next round and return it, with its cohort.

        Raises:
            RoundError: the last round is not over, or too few devices are eligible.
        """
        number = 1 if self.round is None else self.round.number + 1
        if self.round is None:
            self._store.put_model(0, self.model, self._aggregator.state())
        record = draw_round(
            number, self.version, self.model.identity, eligible, self._settings, self._seed, at_s, self.round
        )
        self._store.drop_updates()
        self._store.append(record)
        self.round = begin_round(record)
        return self.round

    def deliver(self, device: str, body: bytes, at_s: float) -> bool:
        """Take an update's body; return False for one that was accepted before. On return the device can forget it.

        Raises:
            UpdateError: the body does not fit the model.
            UpdateRefusedError: the update does not count.
            RoundError: no round has begun.
        """
        current = self._current()
        update = decode_update(body, self.model.layout, self._limits)
        digest = hashlib.sha256(body).hexdigest()
        record = current.accept(device, update.round_number, digest, at_s)
        if record is None:
            return False
        self._store.put_update(digest, body)
        self._write(record)
        return True

    def drop(self, device: str, base: int, reason: str, at_s: float) -> None:
        """Note that a device gives up the round in which it was drawn.

        Raises:
            RoundError: no round has begun.
        """
        record = self._current().drop(device, base, reason, at_s)
        if record is not None:
            self._write(record)

    def advance(self, at_s: float) -> RoundState:
        """End the waiting where that is due, aggregate, and return the round's state.

        Raises:
            RoundError: no round has begun.
        """
        current = self._current()
        record = current.close(at_s)
        if record is not None:
            self._write(record)
        if current.state is RoundState.AGGREGATING:
            self._aggregate(current, at_s)
        return current.state

    def stop(self, reason: str, at_s: float) -> None:
        """Fail the round that is under way.

        Raises:
            RoundError: no round is.
        """
        self._write(self._current().fail(reason, at_s))

    def _aggregate(self, current: Round, at_s: float) -> None:
        aggregator, before = self._aggregator, self._aggregator.state()
        try:
            model, report = self._combined(current)
            self._store.put_model(current.number, model, aggregator.state())
            self._write(current.finish(model.identity, at_s, report.to_plain()))
        except AggregationError as error:
            aggregator.load_state(before)
            self._write(current.fail(str(error), at_s))
        except BaseException:  # the store failed: the next call aggregates again
            aggregator.load_state(before)
            raise
        else:
            self.model, self.version, self.report = model, current.number, report

    def _combined(self, current: Round) -> tuple[Weights, AggregationReport]:
        """Return the next model and the report of the accepted updates.

        Raises:
            AggregationError: the aggregator refuses them or raises something else: it may be a user's own.
        """
        with _aggregation_errors():
            self._aggregator.begin(self.model, current.number)
        for device, digest in current.accepted.items():
            update = decode_update(self._store.update(digest), self.model.layout, self._limits)
            with _aggregation_errors():
                self._aggregator.add(device, update)
        with _aggregation_errors():
            return self._aggregator.finish()

    def _current(self) -> Round:
        if self.round is None:
            raise RoundError("no round has begun")
        return self.round

    def _write(self, record: Mapping[str, Any]) -> None:
        self._store.append(record)
        self._current().apply(record)


@contextlib.contextmanager
def _aggregation_errors() -> Iterator[None]:
    """Convert the errors of an aggregator."""
    try:
        yield
    except AggregationError:
        raise
    except Exception as error:
        raise AggregationError(f"the aggregator raised {type(error).__name__}: {error}") from error
