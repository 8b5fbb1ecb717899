"""Write-ahead journal of the release service, written before effects run, read at start.

Each transition is one transaction: the release's new state, the event, and the effects still to run.
An effect is deleted when it has run; those left after a crash run again. The journal also holds the signed rows
of the release table, monotonic counters (serials, releases, generations), and the monitor's evidence.

It is in a file, or in a database. A rollback must be written also when the disk is full. So a file and its write-ahead
log are made larger than they are when they are opened: what is freed within them takes no more of the disk.
"""

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from walle.deploy.releases.release import Effect, Release, ReleaseEvent
from walle.deploy.releases.table import TaskRow
from walle.errors import ConfigError
from walle.store.file_connection import connect_present
from walle.store.lease import Grant
from walle.store.sql import Action, Connection, Database
from walle.store.sqlite_database import SqliteDatabase
from walle.store.tables import BATCHES, EFFECTS, EVIDENCE, JOURNAL, RELEASES, TABLE_ROWS, TRANSITIONS

RESERVE_BYTES = 2 << 20  # a rollback takes about 50 KiB


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


class Journal:
    """The journal in an open database, within `async with`. Every call is one transaction; a failed one is rolled back.

    A journal with a grant writes for the holder of that lease (`walle.store.lease`), which is in the same database, and
    for nobody after it.

    Raises, from every call:
        StateError: the journal cannot be read or written, for instance because the disk is full.
        LeaseLostError: from calls that write: another holder has the lease; nothing was written.
    """

    def __init__(self, database: Database, *, grant: Grant | None = None) -> None:
        self._database = database
        self._grant = grant
        self._file: SqliteDatabase | None = None

    @classmethod
    def in_file(cls, path: Path, *, grant: Grant | None = None, reserve_bytes: int = RESERVE_BYTES) -> Self:
        """Return the journal in the file at `path`, which entering the journal opens, and makes where it is missing."""
        file = SqliteDatabase(path, JOURNAL, reserve_bytes=reserve_bytes)
        journal = cls(file, grant=grant)
        journal._file = file
        return journal

    async def __aenter__(self) -> Self:
        if self._file is not None:
            await self._file.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._file is not None:
            await self._file.__aexit__()

    async def confirm(self) -> None:
        """Return if this journal may write now: call it before an action that leaves no trace in the journal."""

        async def write(connection: Connection) -> None:
            pass

        await self._write(write)

    # --- releases ---

    async def record(
        self, release: Release, event: ReleaseEvent | None, effects: tuple[Effect, ...]
    ) -> tuple[PendingEffect, ...]:
        """Write the release after `event` (None: it was created), and return its effects, numbered."""
        created = {"by": release.created_by} if release.created_by else {}
        details = json.dumps(dataclasses.asdict(event) if event else created)
        name = type(event).__name__ if event else "Create"
        text = json.dumps(release.to_plain())

        async def write(connection: Connection) -> list[int]:
            query = f"{RELEASES.insert()} ON CONFLICT (id) DO UPDATE SET release = excluded.release"
            await connection.execute(query, release.id, release.number, text)
            row = (release.id, release.updated_s, name, details, release.state.value)
            await connection.execute(TRANSITIONS.insert(without=["number"]), *row)
            insert = f"{EFFECTS.insert(without=['number'])} RETURNING number"
            return [await connection.fetchval(insert, release.id, effect.value) for effect in effects]

        numbers = await self._write(write)
        return tuple(PendingEffect(number, release.id, one) for number, one in zip(numbers, effects, strict=True))

    async def releases(self) -> list[Release]:
        """Return every release, oldest first."""
        rows = await self._database.read("SELECT release FROM releases ORDER BY number")
        return [Release.from_plain(json.loads(text)) for (text,) in rows]

    async def history(self, release_id: str) -> list[Transition]:
        """Return the release's transitions, oldest first."""
        query = "SELECT at_s, event, details, state FROM transitions WHERE release_id = $1 ORDER BY number"
        rows = await self._database.read(query, release_id)
        return [Transition(at_s, event, json.loads(details), state) for at_s, event, details, state in rows]

    async def pending(self) -> list[PendingEffect]:
        """Return the effects that have not run, in the order they were journalled."""
        rows = await self._database.read("SELECT number, release_id, effect FROM effects ORDER BY number")
        return [PendingEffect(number, release_id, Effect(effect)) for number, release_id, effect in rows]

    async def strike(self, effect: PendingEffect) -> None:
        """Delete an effect that has run."""

        async def write(connection: Connection) -> None:
            await connection.execute("DELETE FROM effects WHERE number = $1", effect.number)

        await self._write(write)

    # --- rows of the release table ---

    async def draw(self, counter: str, count: int = 1) -> int:
        """Return the first of `count` new numbers of a persistent counter that begins at 1."""

        async def write(connection: Connection) -> int:
            query = (
                "INSERT INTO counters AS c VALUES ($1, $2)"
                " ON CONFLICT (name) DO UPDATE SET value = c.value + excluded.value RETURNING value"
            )
            last: int = await connection.fetchval(query, counter, count)
            return last - count + 1

        return await self._write(write)

    async def save_row(self, row: TaskRow) -> None:
        """Write a task's signed row, replacing the one before."""
        text = json.dumps(row.to_plain())

        async def write(connection: Connection) -> None:
            await connection.execute(TABLE_ROWS.upsert, row.task, text)

        await self._write(write)

    async def rows(self) -> list[TaskRow]:
        """Return the signed rows, by task."""
        rows = await self._database.read("SELECT task_row FROM table_rows ORDER BY task")
        return [TaskRow.from_plain(json.loads(text)) for (text,) in rows]

    # --- evidence of the monitor ---

    async def save_evidence(
        self, evidence: Mapping[str, Any], batches: Sequence[tuple[str, str]] = (), *, keep: int = 0
    ) -> None:
        """Write the evidence of some releases (release id → plain values), replacing theirs.

        `batches` are the (device id, batch id) of the reports that are new in it; the latest `keep` are kept.
        """
        packed = self._database.packed
        values = [(release_id, json.dumps(plain)) for release_id, plain in evidence.items()]
        new = [(packed(device_id), packed(batch_id)) for device_id, batch_id in batches]

        async def write(connection: Connection) -> None:
            await connection.executemany(EVIDENCE.upsert, values)
            if new:
                await connection.executemany(BATCHES.insert(without=["number"]), new)
                delete = "DELETE FROM batches WHERE number <= (SELECT max(number) FROM batches) - $1"
                await connection.execute(delete, keep)

        await self._write(write)

    async def batches(self) -> list[tuple[str, str]]:
        """Return the (device id, batch id) of the latest reports that the evidence counts, oldest first."""
        rows = await self._database.read("SELECT device_id, batch_id FROM batches ORDER BY number")
        unpacked = self._database.unpacked
        return [(unpacked(device_id), unpacked(batch_id)) for device_id, batch_id in rows]

    async def evidence(self) -> dict[str, Any]:
        """Return the evidence of each release."""
        rows = await self._database.read("SELECT release_id, evidence FROM evidence ORDER BY release_id")
        return {release_id: json.loads(text) for release_id, text in rows}

    async def _write[T](self, action: Action[T]) -> T:
        return await self._database.write(action, grant=self._grant)


def read_releases(path: Path) -> list[Release]:
    """Return the releases in a journal that another process may write. Raises ConfigError where it cannot be read."""
    if not path.exists():
        return []
    try:
        with contextlib.closing(connect_present(path)) as database:
            rows = database.execute("SELECT release FROM releases ORDER BY number").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"release journal {path}: {error}") from error
    return [Release.from_plain(json.loads(text)) for (text,) in rows]
