"""Federations in this process: functions as clients, and the codec, rounds and aggregation of the service.

Time is simulated: a client's answer takes no time, and one that drops out is known at the deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from walle.errors import ConfigError
from walle.federated.aggregation import AggregationReport, Aggregator
from walle.federated.cohort import draw_number
from walle.federated.coordinator import Coordinator
from walle.federated.errors import UpdateError, UpdateRefusedError
from walle.federated.memory_store import MemoryStore
from walle.federated.round import RoundSettings, RoundState
from walle.federated.update import Trained, Update
from walle.federated.update_codec import Encoding, UpdateLimits, encode_update
from walle.federated.weights import Weights

type Client = Callable[[Weights, int], Trained]  # trains from the global model of a round
type Poison = Callable[[Update], Update]  # changes a hostile client's update before it is sent
type Delay = Callable[[str, int], int]  # rounds by which a client's answer is late

_DRAWS = 1 << 64


def flip_sign(update: Update) -> Update:
    """Return the update with the sign of its difference flipped."""
    return scale_by(-1.0)(update)


def scale_by(factor: float) -> Poison:
    """Return the poison that multiplies the difference."""

    def scale(update: Update) -> Update:
        return replace(update, difference=Weights(update.difference.layout, update.difference.vector * factor))

    return scale


@dataclass(frozen=True)
class SimulatedRound:
    """Outcome of one round."""

    number: int
    state: RoundState
    reason: str
    counts: Mapping[str, int]
    refused: Mapping[str, str]  # cause by client; "invalid: ..." for a body that does not fit
    report: AggregationReport | None  # None for a round that failed
    model: Weights  # the global model after the round


class Federation:
    """Rounds over clients of this process, one after another; the same arguments give the same models.

    Args:
        model: the first global model.
        clients: the function of each client by name; it is called once for each round in which it is drawn.
        aggregator: the algorithm.
        settings: size of a round; by default all clients, of which one is enough.
        seed: seed of cohorts and drop-outs.
        encoding: type of the updates' values on the wire.
        drop_outs: part of the drawn clients that never answer, from 0 to below 1.
        poisons: what hostile clients do to their updates, by name.
        delay: rounds by which a client's answer is late; with `max_staleness` of the settings.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        model: Weights,
        clients: Mapping[str, Client],
        aggregator: Aggregator,
        *,
        settings: RoundSettings | None = None,
        seed: int = 0,
        encoding: Encoding = Encoding.FLOAT32,
        drop_outs: float = 0.0,
        poisons: Mapping[str, Poison] | None = None,
        delay: Delay | None = None,
        limits: UpdateLimits | None = None,
    ) -> None:
        if not clients:
            raise ConfigError("a federation has at least one client")
        if not 0.0 <= drop_outs < 1.0:
            raise ConfigError(f"drop_outs is {drop_outs}; it is from 0 to below 1")
        if unknown := sorted(set(poisons or ()) - set(clients)):
            raise ConfigError(f"the poisoned client {unknown[0]!r} is not one of the clients")
        self._settings = settings or RoundSettings(target=len(clients))
        self.store = MemoryStore()
        self.coordinator = Coordinator(self.store, model, aggregator, self._settings, seed=str(seed), limits=limits)
        self._clients = dict(clients)
        self._seed = str(seed)
        self._encoding = encoding
        self._drop_outs = drop_outs
        self._poisons = dict(poisons or {})
        self._delay = delay
        self._now_s = 0.0
        self._under_way: list[tuple[int, str, bytes]] = []  # round of arrival, client, body

    @property
    def model(self) -> Weights:
        """The global model."""
        return self.coordinator.model

    def run(self, rounds: int) -> list[SimulatedRound]:
        """Run rounds and return their outcomes."""
        return [self.run_round() for _ in range(rounds)]

    def run_round(self) -> SimulatedRound:
        """Run one round and return its outcome.

        Raises:
            RoundError: too few clients.
        """
        current = self.coordinator.begin(self._clients, self._now_s)
        file = self.model.to_bytes()
        for client, base in current.cohort.items():
            if base == current.number and not self._drops_out(client, base):
                late = 0 if self._delay is None else self._delay(client, base)
                body = self._answer(client, Weights.of_bytes(file), base)
                self._under_way.append((base + late, client, body))
        refused: dict[str, str] = {}
        arrived = [one for one in self._under_way if one[0] <= current.number]
        self._under_way = [one for one in self._under_way if one[0] > current.number]
        for _, client, body in arrived:
            try:
                self.coordinator.deliver(client, body, self._now_s)
            except UpdateRefusedError as error:
                refused[client] = error.cause
            except UpdateError as error:
                refused[client] = f"invalid: {error}"
        state = self.coordinator.advance(self._now_s)
        if not state.terminal:
            self._now_s = current.deadline_s
            state = self.coordinator.advance(self._now_s)
        self._now_s += 1.0
        return SimulatedRound(
            current.number,
            state,
            current.reason,
            current.counts(),
            refused,
            self.coordinator.report if state is RoundState.DONE else None,
            self.model,
        )

    def _drops_out(self, client: str, number: int) -> bool:
        return draw_number(self._seed, number, client, "drop-out") < self._drop_outs * _DRAWS

    def _answer(self, client: str, model: Weights, number: int) -> bytes:
        """Return the body that a client sends after training."""
        update = self._clients[client](model, number).update(model, number)
        poison = self._poisons.get(client)
        return encode_update(update if poison is None else poison(update), self._encoding)
