"""Write-ahead journal of the release service: interface and values. Written before effects run, read at start.

Each transition is one transaction: the release's new state, the event, and the effects still to run.
An effect is deleted when it has run; those left after a crash run again. The journal also holds the signed rows
of the release table, monotonic counters (serials, releases, generations), and the monitor's evidence.

`SqliteJournal` keeps it in a file, `PostgresJournal` in a database; both pass the same tests.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from walle.deploy.releases.release import Effect, Release, ReleaseEvent
from walle.deploy.releases.table import TaskRow


@dataclasses.dataclass(frozen=True)
class PendingEffect:
    """An effect that was journalled and has not run."""

    number: int
    release_id: str
    effect: Effect


@dataclasses.dataclass(frozen=True)
class Transition:
    """One line of a release's history. `event` is its name, `details` its fields, `state` where it led."""

    at_s: float
    event: str
    details: Mapping[str, Any]
    state: str


class Journal(Protocol):
    """The journal, within `async with`. Every call is one transaction; a failed one is rolled back.

    A journal with a grant writes for the holder of that lease (`walle.store.lease`) and for nobody after it.

    Raises, from every call:
        StateError: the journal cannot be read or written, for instance because the disk is full.
        LeaseLostError: from calls that write: another holder has the lease; nothing was written.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def confirm(self) -> None:
        """Return if this journal may write now: call it before an action that leaves no trace in the journal."""

    async def record(
        self, release: Release, event: ReleaseEvent | None, effects: tuple[Effect, ...]
    ) -> tuple[PendingEffect, ...]:
        """Write the release after `event` (None: it was created), and return its effects, numbered."""

    async def releases(self) -> list[Release]:
        """Return every release, oldest first."""

    async def history(self, release_id: str) -> list[Transition]:
        """Return the release's transitions, oldest first."""

    async def pending(self) -> list[PendingEffect]:
        """Return the effects that have not run, in the order they were journalled."""

    async def strike(self, effect: PendingEffect) -> None:
        """Delete an effect that has run."""

    async def draw(self, counter: str, count: int = 1) -> int:
        """Return the first of `count` new numbers of a persistent counter that begins at 1."""

    async def save_row(self, row: TaskRow) -> None:
        """Write a task's signed row, replacing the one before."""

    async def rows(self) -> list[TaskRow]:
        """Return the signed rows, by task."""

    async def save_evidence(
        self, evidence: Mapping[str, Any], batches: Sequence[tuple[str, str]] = (), *, keep: int = 0
    ) -> None:
        """Write the evidence of some releases (release id → plain values), replacing theirs.

        `batches` are the (device id, batch id) of the reports that are new in it; the latest `keep` are kept.
        """

    async def batches(self) -> list[tuple[str, str]]:
        """Return the (device id, batch id) of the latest reports that the evidence counts, oldest first."""

    async def evidence(self) -> dict[str, Any]:
        """Return the evidence of each release."""
