"""A round of federated learning as a pure state machine (§1, §8: devices send model updates).

    draw ─► waiting ─enough updates, nobody left, or the deadline─► aggregating ─► done
               └─deadline with fewer than the minimum─► failed ◄─no result─┘

A transition has two halves: a method checks it and returns its record, a dict of plain values; `apply` performs the
record. A journal writes the record between the two, and only then is a device answered: after a crash `replay` of the
journal gives the same round, which has every acknowledged update once.

More devices are drawn than are needed, since some never answer (Bonawitz et al., Towards Federated Learning at Scale,
MLSys 2019, section 2.2). In an asynchronous algorithm (`max_staleness` above 0) devices that did not answer in time are
carried to the next round, and answer for the round in which they were drawn.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from walle.errors import ConfigError
from walle.federated.cohort import draw_cohort
from walle.federated.errors import RoundError, UpdateRefusedError
from walle.protocol.fields import shorten

REFUSALS = ("other round", "not drawn", "second update", "late", "enough")
_MAX_REASON_CHARS = 500


class RoundState(enum.StrEnum):
    WAITING = "waiting"
    AGGREGATING = "aggregating"
    DONE = "done"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        return self in {RoundState.DONE, RoundState.FAILED}


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Size and time of a round.

    Raises:
        ConfigError: a number is out of its range.
    """

    target: int  # updates that are aggregated; FedBuff's K
    minimum: int = 1  # fewest updates at the deadline
    timeout_s: float = 600.0
    over_selection: float = 1.0  # devices drawn for each update that is needed
    max_staleness: int = 0  # rounds for which a device that did not answer is carried

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.target:
            raise ConfigError(f"minimum is {self.minimum}; it is from 1 to the target, {self.target}")
        if not self.timeout_s > 0.0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; it is above 0")
        if not 1.0 <= self.over_selection <= 10.0:
            raise ConfigError(f"over_selection is {self.over_selection}; it is from 1 to 10")
        if self.max_staleness < 0:
            raise ConfigError(f"max_staleness is {self.max_staleness}; it is 0 or more")

    @property
    def drawn(self) -> int:
        """Number of devices to draw."""
        return math.ceil(self.target * self.over_selection - 1e-9)


def draw_round(
    number: int,
    version: int,
    model: str,
    eligible: Iterable[str],
    settings: RoundSettings,
    seed: str,
    at_s: float,
    last: Round | None = None,
) -> dict[str, Any]:
    """Return the record that begins a round of a model: the round that made it, 0 for the first, and its identity.

    Devices of `last` that may still answer are carried, count as drawn, and are not drawn again.

    Raises:
        RoundError: the last round is not over, or has this number or a higher one; too few devices are eligible.
    """
    if last is not None and (not last.state.terminal or last.number >= number):
        raise RoundError(f"round {number} cannot begin: round {last.number} is {last.state}")
    carried: dict[str, int] = {}
    if last is not None:
        oldest = number - settings.max_staleness
        carried = {device: base for device, base in last.outstanding().items() if base >= oldest}
    free = set(eligible) - carried.keys()
    drawn = draw_cohort(free, max(settings.drawn - len(carried), 0), seed, number)
    if len(drawn) + len(carried) < settings.minimum:
        raise RoundError(
            f"round {number} cannot begin: {len(drawn) + len(carried)} devices are eligible, at least"
            f" {settings.minimum} are needed"
        )
    return {
        "event": "drawn",
        "round": number,
        "version": version,
        "model": model,
        "at_s": at_s,
        "deadline_s": at_s + settings.timeout_s,
        "target": settings.target,
        "minimum": settings.minimum,
        "devices": drawn,
        "carried": carried,
    }


@dataclass
class Round:
    """State of a round; only `apply` changes it."""

    number: int
    version: int  # number of the round that made the global model
    model: str  # identity of the global model
    begun_s: float
    deadline_s: float
    target: int
    minimum: int
    cohort: dict[str, int]  # by device the round in which it was drawn
    accepted: dict[str, str] = field(default_factory=dict)  # SHA-256 of the update by device, in order of arrival
    dropped: dict[str, str] = field(default_factory=dict)  # reason by device that told that it gives up
    state: RoundState = RoundState.WAITING
    reason: str = ""  # reason of the last change of the state
    next_model: str = ""
    ended_s: float | None = None

    def outstanding(self) -> dict[str, int]:
        """Return the devices that have not answered, with the round in which each was drawn."""
        gone = self.accepted.keys() | self.dropped.keys()
        return {device: base for device, base in self.cohort.items() if device not in gone}

    def accept(self, device: str, base: int, digest: str, at_s: float) -> dict[str, Any] | None:
        """Return the record of a device's update; None for one that is accepted already.

        `base` is the round of the model from which the device trained, `digest` the SHA-256 of the update's body.

        Raises:
            UpdateRefusedError: the update does not count.
        """
        drawn = self.cohort.get(device)
        if drawn is None or drawn != base:
            if drawn is None and base == self.number:
                raise UpdateRefusedError(device, base, "not drawn", "the device is not in the cohort")
            its = "" if drawn is None else f", in which the device answers for round {drawn}"
            raise UpdateRefusedError(device, base, "other round", f"this is round {self.number}{its}")
        if device in self.accepted:
            if self.accepted[device] != digest:
                raise UpdateRefusedError(device, base, "second update", "another update of the device is accepted")
            return None
        if self.state is not RoundState.WAITING:
            raise UpdateRefusedError(device, base, "late", f"the round is {self.state}")
        if at_s >= self.deadline_s:
            raise UpdateRefusedError(device, base, "late", f"the deadline was {at_s - self.deadline_s:.3f} s ago")
        if len(self.accepted) >= self.target:
            raise UpdateRefusedError(device, base, "enough", f"the round has its {self.target} updates")
        return self._record("accepted", at_s, device=device, digest=digest)

    def drop(self, device: str, base: int, reason: str, at_s: float) -> dict[str, Any] | None:
        """Return the record of a device that gives up; None where that changes nothing."""
        if self.state is not RoundState.WAITING or self.outstanding_base(device) != base:
            return None
        return self._record("dropped", at_s, device=device, reason=reason[:_MAX_REASON_CHARS])

    def outstanding_base(self, device: str) -> int | None:
        """Return the round for which a device has yet to answer; None where it has answered or is not drawn."""
        return None if device in self.accepted or device in self.dropped else self.cohort.get(device)

    def close(self, at_s: float) -> dict[str, Any] | None:
        """Return the record that ends the waiting; None while the round has to wait."""
        if self.state is not RoundState.WAITING:
            return None
        count, is_over = len(self.accepted), at_s >= self.deadline_s
        is_answered = len(self.cohort) == count + len(self.dropped)
        if count < self.target and not is_answered and not is_over:
            return None
        if count < self.minimum:
            why = "at the deadline" if is_over else "and no device is left"
            return self._record("failed", at_s, reason=f"{count} updates {why}; the minimum is {self.minimum}")
        why = "target reached" if count >= self.target else "deadline" if is_over else "all devices answered"
        return self._record("aggregating", at_s, reason=why)

    def finish(self, next_model: str, at_s: float, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of the round's result.

        Raises:
            RoundError: the round is not aggregating.
        """
        if self.state is not RoundState.AGGREGATING:
            raise RoundError(f"round {self.number} cannot finish: it is {self.state}")
        return self._record("done", at_s, next_model=next_model, report=dict(report))

    def fail(self, reason: str, at_s: float) -> dict[str, Any]:
        """Return the record of a round that is stopped or whose updates cannot be aggregated.

        Raises:
            RoundError: the round is over.
        """
        if self.state.terminal:
            raise RoundError(f"round {self.number} cannot fail: it is {self.state}")
        return self._record("failed", at_s, reason=reason[:_MAX_REASON_CHARS])

    def counts(self) -> dict[str, int]:
        """Return the numbers of devices by what they did; drop-outs include those that never answered."""
        return {
            "drawn": len(self.cohort),
            "carried": sum(base < self.number for base in self.cohort.values()),
            "accepted": len(self.accepted),
            "dropped": len(self.cohort) - len(self.accepted) if self.state is not RoundState.WAITING else 0,
            "gave_up": len(self.dropped),
        }

    def apply(self, record: Mapping[str, Any]) -> None:
        """Perform a record.

        Raises:
            RoundError: it is of another round, or the state does not allow it.
        """
        event = record["event"]
        allowed = _ALLOWED.get(event, ())
        if record["round"] != self.number or self.state not in allowed:
            raise RoundError(f"round {self.number} is {self.state}; the record is {shorten(dict(record))}")
        if event == "accepted":
            device = record["device"]
            if device not in self.cohort or device in self.accepted:
                raise RoundError(f"round {self.number} cannot accept an update of device {device!r}")
            self.dropped.pop(device, None)
            self.accepted[device] = record["digest"]
            return
        if event == "dropped":
            self.dropped[record["device"]] = record["reason"]
            return
        self.state = RoundState(event)
        self.reason = record.get("reason", self.reason)
        self.next_model = record.get("next_model", "")
        self.ended_s = record["at_s"] if self.state.terminal else None

    def _record(self, event: str, at_s: float, **values: Any) -> dict[str, Any]:
        return {"event": event, "round": self.number, "at_s": at_s} | values


_ALLOWED: Mapping[str, tuple[RoundState, ...]] = {
    "accepted": (RoundState.WAITING,),
    "dropped": (RoundState.WAITING,),
    "aggregating": (RoundState.WAITING,),
    "done": (RoundState.AGGREGATING,),
    "failed": (RoundState.WAITING, RoundState.AGGREGATING),
}


def begin_round(record: Mapping[str, Any]) -> Round:
    """Return the round that a record of `draw_round` begins.

    Raises:
        RoundError: the record is of another event.
    """
    if record["event"] != "drawn":
        raise RoundError(f"a round begins with a draw; the record is {shorten(dict(record))}")
    return Round(
        number=record["round"],
        version=record["version"],
        model=record["model"],
        begun_s=record["at_s"],
        deadline_s=record["deadline_s"],
        target=record["target"],
        minimum=record["minimum"],
        cohort=dict(record["carried"]) | dict.fromkeys(record["devices"], record["round"]),
    )


def replay(records: Iterable[Mapping[str, Any]]) -> Round | None:
    """Return the last round of a journal, as it was when the last record was written; None for an empty journal.

    Raises:
        RoundError: a record does not follow from those before it.
    """
    last: Round | None = None
    for record in records:
        if record["event"] == "drawn":
            if last is not None and (not last.state.terminal or last.number >= record["round"]):
                raise RoundError(f"round {record['round']} is drawn while round {last.number} is {last.state}")
            last = begin_round(record)
        elif last is None:
            raise RoundError(f"the journal begins with {shorten(dict(record))}")
        else:
            last.apply(record)
    return last
