"""The registry of devices in one SQLite file. The file may be lost, and a damaged one is set aside."""

import asyncio
import json
import logging
import sqlite3
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from walle.base.clock import Clock
from walle.deploy.fleet.device_changes import Change
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
from walle.store.errors import StateError, state_errors

_LOG = logging.getLogger(__name__)
_TEXT = "CASE a.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(a.value AS TEXT) END"
_KEYS = (
    "SELECT a.key, count(*) FROM (SELECT attributes FROM devices LIMIT 2000) AS d, json_each(d.attributes) AS a"
    " GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 40"
)
_DIALECT = Dialect(
    tasks="tasks",
    id_has="instr(d.device_id, ?) > 0",
    has_attribute=f"EXISTS (SELECT 1 FROM json_each(d.attributes) AS a WHERE a.key = ? AND {_TEXT} = ?)",  # noqa: S608
    in_scenarios="substr(t.task, 1, instr(t.task, '/') - 1) IN (SELECT value FROM json_each(?))",
    scenarios=json.dumps,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS devices (
    device_id TEXT PRIMARY KEY, profile BLOB NOT NULL, app_version TEXT NOT NULL, attributes TEXT NOT NULL,
    first_seen_s REAL NOT NULL, last_seen_s REAL NOT NULL, reported_s REAL) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS devices_by_age ON devices (reported_s IS NOT NULL, last_seen_s);
CREATE TABLE IF NOT EXISTS tasks (
    device_id TEXT NOT NULL, task TEXT NOT NULL, active TEXT NOT NULL, version TEXT NOT NULL, state TEXT NOT NULL,
    release TEXT NOT NULL, reported_s REAL, ok INTEGER NOT NULL, failed INTEGER NOT NULL,
    PRIMARY KEY (device_id, task)) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tasks_by_name ON tasks (task);
CREATE TABLE IF NOT EXISTS failures (
    number INTEGER PRIMARY KEY AUTOINCREMENT, device_id TEXT NOT NULL, task TEXT NOT NULL, version TEXT NOT NULL,
    release TEXT NOT NULL, kind TEXT NOT NULL, at_s REAL NOT NULL, failure TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS failures_of ON failures (device_id, number);
"""


class SqliteDeviceRegistry(DeviceRegistry):
    """The registry in the file at `path`. `options` are those of `DeviceRegistry`."""

    def __init__(self, path: Path, clock: Clock, **options: Any) -> None:
        super().__init__(clock, **options)
        self.path = path
        self._lock = threading.Lock()  # held for the connection, which worker threads take in turn
        self._db: sqlite3.Connection | None = None

    async def _open(self) -> None:
        self._db = await asyncio.to_thread(self._open_file)

    async def _close(self) -> None:
        if self._db is not None:
            with self._lock:
                self._db.close()
            self._db = None

    def _open_file(self) -> sqlite3.Connection:
        with state_errors(self.path):
            try:
                return self._connect()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, or the disk refuses
                    raise
                damaged = self.path.with_suffix(".damaged")
                _LOG.error("%s is damaged (%s), is kept as %s, and begins again", self.path, error, damaged)
                self.path.replace(damaged)
                for ending in ("-wal", "-shm"):
                    self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
                return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(SCHEMA)
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)  # noqa: TRY301 - as any other damage
        except BaseException:
            db.close()
            raise
        return db

    async def _store(self, changes: Sequence[Change]) -> int:
        return await asyncio.to_thread(self._write, changes)

    def _write(self, changes: Sequence[Change]) -> int:
        with self._lock, state_errors(self.path):
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                dropped = apply_changes(db, changes)
                self._trim(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return dropped

    def _trim(self, db: sqlite3.Connection) -> None:
        """Remove what exceeds the bounds."""
        ((count,),) = db.execute("SELECT count(*) FROM devices").fetchall()
        if count > self._max_devices:
            chosen = "SELECT device_id FROM devices ORDER BY reported_s IS NOT NULL, last_seen_s LIMIT ?"
            removed = [(device_id,) for (device_id,) in db.execute(chosen, (count - self._max_devices,)).fetchall()]
            for table in ("devices", "tasks", "failures"):
                db.executemany(f"DELETE FROM {table} WHERE device_id = ?", removed)  # noqa: S608 - our own names
        db.execute(
            "DELETE FROM failures WHERE number <= (SELECT number FROM failures ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (MAX_FAILURES,),
        )

    async def _count(self) -> int:
        ((count,),) = await asyncio.to_thread(self._select, "SELECT count(*) FROM devices", ())
        return int(count)

    async def _page(self, query: DeviceQuery) -> DevicePage:
        return await asyncio.to_thread(self._read_page, query)

    async def _get(self, device_id: str, scenarios: Collection[str] | None) -> KnownDevice | None:
        return await asyncio.to_thread(self._read_device, device_id, scenarios)

    async def _failures(self, device_id: str, task: str, before: int) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(self._read_failures, device_id, task, before)

    def _profile_part(self, after: str) -> list[tuple[str, str, str, float]]:
        query = (
            "SELECT device_id, app_version, attributes, last_seen_s FROM devices WHERE device_id > ?"
            " ORDER BY device_id LIMIT ?"
        )
        with self._lock, state_errors(self.path):  # for one part: others read and write between two
            return self._opened().execute(query, (after, MAX_PAGE)).fetchall()

    def _read_page(self, query: DeviceQuery) -> DevicePage:
        where, values = conditions(query, self._clock.time(), _DIALECT)
        limit = max(1, min(query.limit, MAX_PAGE))
        with self._lock, state_errors(self.path):
            db = self._opened()
            # Conditions are constants of this module; what the caller gave is bound.
            ((total,),) = db.execute(f"SELECT count(*) FROM devices AS d WHERE {where}", values).fetchall()  # noqa: S608
            rows = db.execute(
                f"SELECT * FROM devices AS d WHERE {where} AND d.device_id > ? ORDER BY d.device_id LIMIT ?",  # noqa: S608
                (*values, query.after, limit + 1),
            ).fetchall()
            devices = up_to_enough_tasks(self._known(db, row, query.scenarios) for row in rows[:limit])
        after = devices[-1].device_id if len(rows) > len(devices) else ""
        return DevicePage(devices=devices, after=after, total=total, unlisted=self.unlisted)

    def _read_device(self, device_id: str, scenarios: Collection[str] | None) -> KnownDevice | None:
        with self._lock, state_errors(self.path):
            db = self._opened()
            row = db.execute("SELECT * FROM devices WHERE device_id = ?", (device_id,)).fetchone()
            return None if row is None else self._known(db, row, scenarios)

    def _known(self, db: sqlite3.Connection, row: Any, scenarios: Collection[str] | None) -> KnownDevice:
        query = f"SELECT {', '.join(TASK_FIELDS)} FROM tasks WHERE device_id = ? ORDER BY task"  # noqa: S608 - ours
        return known_device(row, db.execute(query, (row[0],)).fetchall(), scenarios)

    async def _attribute_keys(self) -> list[str]:
        return [str(key) for key, _ in await asyncio.to_thread(self._select, _KEYS, ())]

    async def _attribute_counts(self, query: DeviceQuery, key: str) -> list[tuple[str, int]]:
        where, values = conditions(query, self._clock.time(), _DIALECT)
        more: tuple[str, ...] = ()
        if key == "app_version":
            sql = f"SELECT d.app_version, count(*) FROM devices AS d WHERE {where}"  # noqa: S608 - as `_read_page`
        else:
            of_key = "FROM devices AS d, json_each(d.attributes) AS a WHERE"
            sql, more = f"SELECT {_TEXT}, count(*) {of_key} {where} AND a.key = ?", (key,)
        sql += f" GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MAX_VALUES}"
        return await asyncio.to_thread(self._select, sql, (*values, *more))

    def _select(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with self._lock, state_errors(self.path):
            return self._opened().execute(sql, values).fetchall()

    async def _versions(self, task: str) -> list[tuple[str, str, int, int, int, int]]:
        return await asyncio.to_thread(self._read_versions, task)

    def _read_versions(self, task: str) -> list[tuple[str, str, int, int, int, int]]:
        query = (
            "SELECT active, version, count(*), sum(failed > 0), sum(ok), sum(failed) FROM tasks WHERE task = ?"
            " GROUP BY active, version"
        )
        with self._lock, state_errors(self.path):
            return self._opened().execute(query, (task,)).fetchall()

    def _read_failures(self, device_id: str, task: str, before: int) -> list[tuple[Any, ...]]:
        with self._lock, state_errors(self.path):
            rows = self._opened().execute(
                "SELECT number, at_s, task, version, release, kind, failure FROM failures"
                " WHERE device_id = ? AND (? = 0 OR number < ?) AND (? = '' OR task = ?) ORDER BY number DESC",
                (device_id, before, before, task, task),
            )
            return rows.fetchall()

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            raise StateError(str(self.path), "is not open")
        return self._db


def apply_changes(db: sqlite3.Connection, changes: Sequence[Change]) -> int:
    """Make changes in the present transaction; return how many cannot be made. Such a one costs no other."""
    dropped = 0
    for change in changes:
        db.execute("SAVEPOINT change")
        try:
            change(db)
        except (sqlite3.DataError, sqlite3.IntegrityError, ValueError, OverflowError) as error:
            db.execute("ROLLBACK TO change")
            dropped += 1
            _LOG.warning("what a device sent cannot be listed: %s", error)
        db.execute("RELEASE change")
    return dropped
