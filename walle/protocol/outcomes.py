"""Outcomes of task versions, which devices report in batches (§6)."""

import dataclasses
import enum
from typing import Any, Self

from walle.protocol.fields import ProtocolError, take, take_id, take_optional


class OutcomeKind(enum.StrEnum):
    """The kinds of outcome of a task version on a device."""

    INSTALLED = "installed"  # pulled, verified, checked and activated
    REJECTED = "rejected"  # refused before activation: signature, hash, check
    RUN = "run"  # executions since the last report: `ok` and `failed` of them
    REVERTED = "reverted"  # activated, failed here, and left for the version before it
    REMOVED = "removed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a task version on a device. `error`, `place` and `log` are of the last failure.

    Their text comes from task code and is hostile: escape control characters before a terminal or a log file gets it.
    """

    task: str
    version: str
    release: str
    kind: OutcomeKind
    ok: int = 0
    failed: int = 0
    error: str = ""  # its first MAX_ERROR_CHARS
    place: str = ""  # file:line of the task's code, empty if it is unknown
    log: str = ""  # the last lines that the failing run logged, its last MAX_LOG_CHARS

    MAX_ERROR_CHARS = 2000
    MAX_PLACE_CHARS = 200
    MAX_LOG_CHARS = 2000
    MAX_COUNT = 10**9  # a report of more executions is forged


@dataclasses.dataclass(frozen=True)
class OutcomeBatch:
    """One report of a device. `batch_id` is unique to it, so that a repeated report counts once."""

    device_id: str
    batch_id: str
    outcomes: tuple[Outcome, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse a report. Raises ProtocolError, which names the part."""
        if not isinstance(value, dict):
            raise ProtocolError("outcomes", f"must be an object, is {type(value).__name__}")
        outcomes = []
        for index, entry in enumerate(take(value, "outcomes", list, "batch")):
            where = f"batch.outcomes[{index}]"
            if not isinstance(entry, dict):
                raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
            try:
                kind = OutcomeKind(take(entry, "kind", str, where))
            except ValueError as error:
                raise ProtocolError(f"{where}.kind", str(error)) from error
            ok, failed = (take(entry, key, int, where) for key in ("ok", "failed"))
            if ok < 0 or failed < 0:
                raise ProtocolError(where, "ok and failed count executions and cannot be negative")
            if max(ok, failed) > Outcome.MAX_COUNT:
                raise ProtocolError(where, f"ok and failed count executions of one report, {Outcome.MAX_COUNT} at most")
            outcomes.append(
                Outcome(
                    task=take(entry, "task", str, where),
                    version=take(entry, "version", str, where),
                    release=take(entry, "release", str, where),
                    kind=kind,
                    ok=ok,
                    failed=failed,
                    error=take(entry, "error", str, where)[: Outcome.MAX_ERROR_CHARS],
                    place=take_optional(entry, "place", where)[: Outcome.MAX_PLACE_CHARS],
                    log=take_optional(entry, "log", where)[-Outcome.MAX_LOG_CHARS :],
                )
            )
        return cls(take_id(value, "device_id", "batch"), take_id(value, "batch_id", "batch"), tuple(outcomes))
