"""The registry of devices in PostgreSQL.

Changes are made in memory, in tables with the rows of their devices, by the same statements as those of a file; then
the rows that differ are written in one transaction, so that a fleet's changes take a few statements. Characters that
PostgreSQL does not store (NUL) are replaced.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import re
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from walle.base.clock import Clock
from walle.deploy.fleet.device_changes import Change, Report, Sighting
from walle.deploy.fleet.device_conditions import Dialect, conditions
from walle.deploy.fleet.registry import (
    MAX_FAILURES,
    MAX_PAGE,
    MAX_VALUES,
    TASK_FIELDS,
    DevicePage,
    DeviceQuery,
    DeviceRegistry,
    KnownDevice,
    known_device,
    up_to_enough_tasks,
)
from walle.deploy.fleet.sqlite_registry import SCHEMA, apply_changes
from walle.store.lease import Grant
from walle.store.postgres_database import Connection, PostgresDatabase
from walle.store.postgres_text import storable_text

FAILURE_NUMBERS = "device failures"  # a counter
_PART_DEVICES = 250  # devices of which tasks are read together
_PART_S = 60.0
# Tables of the file, and those here: their columns, with types, and how many of them are the key.
_DEVICES = (
    "device_id text, profile bytea, app_version text, attributes text, first_seen_s float8, last_seen_s float8,"
    " reported_s float8"
)
_TASKS = (
    "device_id text, task text, active text, version text, state text, release text, reported_s float8, ok int8,"
    " failed int8"
)
_FAILURES = "number int8, device_id text, task text, version text, release text, kind text, at_s float8, failure text"

_DIALECT = Dialect(
    tasks="walle.device_tasks",
    id_has="strpos(d.device_id, ?) > 0",
    has_attribute="EXISTS (SELECT 1 FROM jsonb_each_text(d.attributes::jsonb) AS a WHERE a.key = ? AND a.value = ?)",
    in_scenarios="split_part(t.task, '/', 1) = ANY(?)",
    scenarios=list,
)


@dataclasses.dataclass(frozen=True)
class _Table:
    local: str
    remote: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    keys: int  # the first columns

    @classmethod
    def of(cls, local: str, remote: str, described: str, keys: int) -> "_Table":
        pairs = [one.split() for one in described.split(", ")]
        return cls(local, remote, tuple(name for name, _ in pairs), tuple(kind for _, kind in pairs), keys)

    @property
    def named(self) -> str:
        return ", ".join(self.columns)

    def unnest(self, count: int) -> str:
        """Return a query for the rows of parameters, one for each of the first `count` columns."""
        arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(self.types[:count], 1))
        return f"SELECT * FROM unnest({arrays})"  # noqa: S608 - our names

    @property
    def upsert(self) -> str:
        keys = ", ".join(self.columns[: self.keys])
        updates = ", ".join(f"{name} = excluded.{name}" for name in self.columns[self.keys :])
        return (
            f"INSERT INTO walle.{self.remote} ({self.named}) {self.unnest(len(self.columns))}"
            f" ON CONFLICT ({keys}) DO UPDATE SET {updates}"
        )

    @property
    def delete(self) -> str:
        keys = ", ".join(self.columns[: self.keys])
        return f"DELETE FROM walle.{self.remote} WHERE ({keys}) IN ({self.unnest(self.keys)})"  # noqa: S608 - our names


_TABLES = (
    _Table.of("devices", "devices", _DEVICES, 1),
    _Table.of("tasks", "device_tasks", _TASKS, 2),
    _Table.of("failures", "device_failures", _FAILURES, 1),
)


class PostgresDeviceRegistry(DeviceRegistry):
    """The registry in an open database. `options` are those of `DeviceRegistry`; `grant` is of the monitor's lease."""

    def __init__(self, database: PostgresDatabase, clock: Clock, *, grant: Grant | None = None, **options: Any) -> None:
        super().__init__(clock, **options)
        self._database = database
        self._grant = grant
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def _close(self) -> None:
        self._loop = None

    # --- changes ---

    async def _store(self, changes: Sequence[Change]) -> int:
        storable = [_storable(change) for change in changes]
        devices = sorted({change.device_id for change in storable})

        async def write(connection: Connection) -> int:
            before = [
                [
                    tuple(row)
                    for row in await connection.fetch(
                        f"SELECT {table.named} FROM walle.{table.remote} WHERE device_id = ANY($1)"  # noqa: S608
                        f" ORDER BY {table.columns[0]} FOR UPDATE",
                        devices,
                    )
                ]
                for table in _TABLES
            ]
            query = "SELECT value FROM walle.counters WHERE name = $1"
            highest = await connection.fetchval(query, FAILURE_NUMBERS) or 0
            after, numbered, dropped = await asyncio.to_thread(_changed, before, highest, storable)
            for table, old, new in zip(_TABLES, before, after, strict=True):
                kept = {row[: table.keys] for row in new}
                if removed := [row[: table.keys] for row in old if row[: table.keys] not in kept]:
                    await connection.execute(table.delete, *_columns(removed, table.keys))
                if written := list(set(new).difference(old)):
                    await connection.execute(table.upsert, *_columns(written, len(table.columns)))
            if numbered > highest:
                query = "INSERT INTO walle.counters VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = $2"
                await connection.execute(query, FAILURE_NUMBERS, numbered)
            await self._trim(connection)
            return dropped

        return await self._database.write(write, grant=self._grant, durable=False)

    async def _trim(self, connection: Connection) -> None:
        """Remove what exceeds the bounds."""
        excess = await connection.fetchval("SELECT count(*) FROM walle.devices") - self._max_devices
        if excess > 0:
            query = (
                "DELETE FROM walle.devices WHERE device_id IN (SELECT device_id FROM walle.devices"
                " ORDER BY reported_s IS NOT NULL, last_seen_s LIMIT $1) RETURNING device_id"
            )
            removed = [row[0] for row in await connection.fetch(query, excess)]
            await connection.execute("DELETE FROM walle.device_tasks WHERE device_id = ANY($1)", removed)
            await connection.execute("DELETE FROM walle.device_failures WHERE device_id = ANY($1)", removed)
        await connection.execute(
            "DELETE FROM walle.device_failures WHERE number <="
            " (SELECT number FROM walle.device_failures ORDER BY number DESC LIMIT 1 OFFSET $1)",
            MAX_FAILURES,
        )

    # --- reads ---

    async def _count(self) -> int:
        return int((await self._database.read("SELECT count(*) FROM walle.devices"))[0][0])

    async def _page(self, query: DeviceQuery) -> DevicePage:
        where, values = _conditions(query, self._clock.time())
        limit = max(1, min(query.limit, MAX_PAGE))
        # Conditions are constants of this module; what the caller gave is bound.
        total = await self._database.read(f"SELECT count(*) FROM walle.devices AS d WHERE {where}", *values)  # noqa: S608
        after, count = len(values) + 1, len(values) + 2
        rows = await self._database.read(
            f"SELECT {_TABLES[0].named} FROM walle.devices AS d WHERE {where} AND d.device_id > ${after}"  # noqa: S608
            f" ORDER BY d.device_id LIMIT ${count}",
            *values,
            storable_text(query.after),
            limit + 1,
        )
        devices: tuple[KnownDevice, ...] = ()
        for start in range(0, limit, _PART_DEVICES):
            part = rows[start : min(start + _PART_DEVICES, limit)]
            tasks = await self._tasks([row[0] for row in part])
            found = (known_device(row, tasks.get(row[0], ()), query.scenarios) for row in part)
            devices = up_to_enough_tasks((*devices, *found))
            if len(devices) < start + len(part):
                break
        last = devices[-1].device_id if len(rows) > len(devices) else ""
        return DevicePage(devices=devices, after=last, total=total[0][0], unlisted=self.unlisted)

    async def _tasks(self, devices: list[str]) -> dict[str, list[Sequence[Any]]]:
        rows = await self._database.read(
            f"SELECT device_id, {', '.join(TASK_FIELDS)} FROM walle.device_tasks WHERE device_id = ANY($1)"  # noqa: S608
            " ORDER BY device_id, task",
            devices,
        )
        found: dict[str, list[Sequence[Any]]] = {}
        for device_id, *task in rows:
            found.setdefault(device_id, []).append(task)
        return found

    async def _get(self, device_id: str, scenarios: Collection[str] | None) -> KnownDevice | None:
        query = f"SELECT {_TABLES[0].named} FROM walle.devices WHERE device_id = $1"  # noqa: S608 - our names
        rows = await self._database.read(query, storable_text(device_id))
        if not rows:
            return None
        tasks = await self._tasks([rows[0][0]])
        return known_device(rows[0], tasks.get(rows[0][0], ()), scenarios)

    async def _failures(self, device_id: str, task: str, before: int) -> list[tuple[Any, ...]]:
        rows = await self._database.read(
            "SELECT number, at_s, task, version, release, kind, failure FROM walle.device_failures"
            " WHERE device_id = $1 AND ($2::int8 = 0 OR number < $2) AND ($3 = '' OR task = $3) ORDER BY number DESC",
            storable_text(device_id),
            before,
            storable_text(task),
        )
        return [tuple(row) for row in rows]

    async def _attribute_keys(self) -> list[str]:
        rows = await self._database.read(
            "SELECT a.key, count(*) FROM (SELECT attributes FROM walle.devices LIMIT 2000) AS d,"
            " jsonb_each_text(d.attributes::jsonb) AS a GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 40"
        )
        return [str(key) for key, _ in rows]

    async def _attribute_counts(self, query: DeviceQuery, key: str) -> list[tuple[str, int]]:
        where, values = _conditions(query, self._clock.time())
        if key == "app_version":
            sql = f"SELECT d.app_version, count(*) FROM walle.devices AS d WHERE {where}"  # noqa: S608 - as `_page`
        else:
            of_key = "FROM walle.devices AS d, jsonb_each_text(d.attributes::jsonb) AS a WHERE"
            values.append(storable_text(key))
            sql = f"SELECT a.value, count(*) {of_key} {where} AND a.key = ${len(values)}"
        rows = await self._database.read(f"{sql} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MAX_VALUES}", *values)
        return [(value, count) for value, count in rows]

    async def _versions(self, task: str) -> list[tuple[str, str, int, int, int, int]]:
        rows = await self._database.read(
            "SELECT active, version, count(*), count(*) FILTER (WHERE failed > 0), sum(ok)::int8, sum(failed)::int8"
            " FROM walle.device_tasks WHERE task = $1 GROUP BY active, version",
            storable_text(task),
        )
        return [tuple(row) for row in rows]

    def _profile_part(self, after: str) -> list[tuple[str, str, str, float]]:
        query = (
            "SELECT device_id, app_version, attributes, last_seen_s FROM walle.devices WHERE device_id > $1"
            " ORDER BY device_id LIMIT $2"
        )
        assert self._loop is not None
        reading = asyncio.run_coroutine_threadsafe(self._database.read(query, after, MAX_PAGE), self._loop)
        return [tuple(row) for row in reading.result(_PART_S)]


def _changed(
    before: Sequence[Sequence[tuple[Any, ...]]], highest: int, changes: Sequence[Change]
) -> tuple[list[list[tuple[Any, ...]]], int, int]:
    """Return the tables' rows after changes, the highest number of a failure, and how many changes cannot be made."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(SCHEMA)
        db.execute("BEGIN")
        db.execute("INSERT INTO sqlite_sequence VALUES ('failures', ?)", (highest,))
        for table, rows in zip(_TABLES, before, strict=True):
            marks = ", ".join("?" * len(table.columns))
            db.executemany(f"INSERT INTO {table.local} ({table.named}) VALUES ({marks})", rows)  # noqa: S608 - our names
        dropped = apply_changes(db, changes)
        after = [db.execute(f"SELECT {table.named} FROM {table.local}").fetchall() for table in _TABLES]  # noqa: S608
        ((numbered,),) = db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'failures'").fetchall()
    return after, numbered, dropped


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return [[row[number] for row in rows] for number in range(count)]


def _storable(change: Change) -> Change:
    match change:
        case Sighting(device_id, header):
            return dataclasses.replace(
                change, device_id=storable_text(device_id), header=header.replace(b"\\u0000", b"\\ufffd")
            )
        case Report(batch):
            outcomes = tuple(
                dataclasses.replace(
                    outcome,
                    task=storable_text(outcome.task),
                    version=storable_text(outcome.version),
                    release=storable_text(outcome.release),
                )
                for outcome in batch.outcomes
            )
            cleaned = dataclasses.replace(batch, device_id=storable_text(batch.device_id), outcomes=outcomes)
            return dataclasses.replace(change, batch=cleaned)
    return change


def _conditions(query: DeviceQuery, now_s: float) -> tuple[str, list[Any]]:
    """Return a condition on `walle.devices AS d`, with the values to bind to $1 and so on."""
    text, values = conditions(query, now_s, _DIALECT)
    numbers = itertools.count(1)
    numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", text)
    return numbered, [storable_text(value) if isinstance(value, str) else value for value in values]
