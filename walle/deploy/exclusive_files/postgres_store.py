"""Exclusive files in PostgreSQL, for gateways and release services on several machines.

A change first locks the row of its device's serial, or of that of all groups, until the commit: changes of one device
come one after the other. Serial and files are read by one statement, which is of one state.
"""

import json
from collections.abc import Iterable
from typing import Any, Self

from walle.base.clock import Clock
from walle.deploy.exclusive_files.store import (
    DeviceFiles,
    ExclusiveRecord,
    ExclusiveStore,
    ExclusiveStoreError,
    FormerKeyError,
    GroupRow,
    TooManyFilesError,
)
from walle.protocol import MAX_EXCLUSIVE_FILES, SealedFile
from walle.store.errors import StateError
from walle.store.postgres_database import Action, Connection
from walle.store.postgres_text import is_storable, storable_text
from walle.store.sync_database import SyncDatabase

_RAISE = (
    "INSERT INTO walle.exclusive_serials AS s VALUES ($1, 1)"
    " ON CONFLICT (device_id) DO UPDATE SET serial = s.serial + 1"
)
_RAISE_GROUP = "INSERT INTO walle.group_serial AS s VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET serial = s.serial + 1"
_LOCK_GROUP = "SELECT serial FROM walle.group_serial FOR UPDATE"
_FILES = """
SELECT s.serial, f.task, f.name, f.sha256, f.size_bytes FROM
    (SELECT coalesce((SELECT serial FROM walle.exclusive_serials WHERE device_id = $1), 0) AS serial) AS s
    LEFT JOIN walle.exclusive_files AS f ON f.device_id = $1 AND f.generation = $2 ORDER BY f.task, f.name
"""
_GROUPS = f"""
SELECT s.serial, {", ".join(f"f.{name}" for name in GroupRow._fields)} FROM
    (SELECT coalesce((SELECT serial FROM walle.group_serial), 0) AS serial) AS s
    LEFT JOIN walle.group_files AS f ON TRUE ORDER BY f.number DESC
"""  # noqa: S608 - our own names
_OF_FILE = "device_id = $1 AND task = $2 AND name = $3"
_OF_GROUP = "task = $1 AND name = $2 AND app_version = $3 AND rule = $4"


class PostgresExclusiveStore(ExclusiveStore):
    """The store in a database, which outlives it. Rules are kept as JSON: they may have any character."""

    def __init__(self, database: SyncDatabase, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._database = database

    def open(self) -> Self:
        self._rows("SELECT 1")  # the first statement brings the schema up to date
        return self

    def _put(self, record: ExclusiveRecord, sha256: str, sealed: bytes) -> None:
        device_id, generation, key = record.device_id, record.generation, (record.device_id, record.task, record.name)

        async def work(connection: Connection) -> None:
            await connection.execute(_RAISE, device_id)
            later = "SELECT EXISTS (SELECT FROM walle.exclusive_files WHERE device_id = $1 AND generation > $2)"
            if await connection.fetchval(later, device_id, generation):
                raise FormerKeyError(device_id)
            former = "DELETE FROM walle.exclusive_files WHERE device_id = $1 AND generation < $2"
            await connection.execute(former, device_id, generation)
            await connection.execute(f"DELETE FROM walle.exclusive_files WHERE {_OF_FILE}", *key)  # noqa: S608
            count = "SELECT count(*) FROM walle.exclusive_files WHERE device_id = $1"
            if await connection.fetchval(count, device_id) >= MAX_EXCLUSIVE_FILES:
                raise TooManyFilesError(device_id)
            await connection.execute(
                "INSERT INTO walle.exclusive_files VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                *(device_id, generation, record.task, record.name, sha256, record.size_bytes, record.put_s),
                storable_text(record.put_by),
                sealed,
            )

        self._write(work)

    def has(self, device_id: str, task: str, name: str) -> bool:
        if not is_storable(device_id, task, name):
            return False
        query = f"SELECT 1 FROM walle.exclusive_files WHERE {_OF_FILE}"  # noqa: S608 - our own names
        return bool(self._rows(query, device_id, task, name))

    def remove(self, device_id: str, task: str, name: str) -> bool:
        if not is_storable(device_id, task, name):
            return False

        async def work(connection: Connection) -> bool:
            # The serial's row first, as in `_put`, so that no two wait for each other.
            query = "SELECT serial FROM walle.exclusive_serials WHERE device_id = $1 FOR UPDATE"
            await connection.execute(query, device_id)
            delete = f"DELETE FROM walle.exclusive_files WHERE {_OF_FILE} RETURNING TRUE"  # noqa: S608
            found: bool | None = await connection.fetchval(delete, device_id, task, name)
            if found:
                await connection.execute(_RAISE, device_id)
            return bool(found)

        return self._write(work)

    def files(self, device_id: str, generation: int) -> DeviceFiles:
        rows = self._rows(_FILES, device_id, generation)
        found = tuple(
            SealedFile(task=task, name=name, sha256=sha256, size_bytes=size_bytes)
            for _, task, name, sha256, size_bytes in rows
            if task is not None
        )
        return DeviceFiles(rows[0][0], found)

    def sealed(self, device_id: str, generation: int, sha256: str) -> bytes | None:
        query = "SELECT sealed FROM walle.exclusive_files WHERE device_id = $1 AND generation = $2 AND sha256 = $3"
        rows = self._rows(query, device_id, generation, sha256)
        return rows[0][0] if rows else None

    def _records(self, scenario: str, task: str, device_id: str, after: str, count: int) -> Iterable[ExclusiveRecord]:
        if not is_storable(scenario, task, device_id):
            return []
        rows = self._rows(
            "SELECT device_id, generation, task, name, size_bytes, put_s, put_by FROM walle.exclusive_files"
            " WHERE task >= $1 AND task < $2 AND ($3 = '' OR task = $3) AND ($4 = '' OR device_id = $4)"
            " AND device_id > $5 ORDER BY device_id, task, name LIMIT $6",
            f"{scenario}/",
            f"{scenario}0",  # 0 follows /
            task,
            device_id,
            storable_text(after),
            count,
        )
        return [ExclusiveRecord(**dict(row)) for row in rows]

    def put_group(self, row: GroupRow, encrypted: bytes, *, most: int) -> bool:
        key = (row.task, row.name, row.app_version, json.dumps(row.rule))

        async def work(connection: Connection) -> bool:
            await connection.execute("INSERT INTO walle.group_serial VALUES (1, 0) ON CONFLICT DO NOTHING")
            await connection.execute(_LOCK_GROUP)
            query = f"SELECT count(*) FROM walle.group_files WHERE NOT ({_OF_GROUP})"  # noqa: S608 - our own names
            if await connection.fetchval(query, *key) >= most:
                return False
            await connection.execute(f"DELETE FROM walle.group_files WHERE {_OF_GROUP}", *key)  # noqa: S608
            await connection.execute(
                "INSERT INTO walle.group_files"
                " (task, name, app_version, rule, columns, size_bytes, put_s, put_by, encrypted)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                *key,
                row.columns,
                row.size_bytes,
                row.put_s,
                storable_text(row.put_by),
                encrypted,
            )
            await connection.execute(_RAISE_GROUP)
            return True

        return self._write(work)

    def remove_group(self, task: str, name: str, app_version: str, rule: str) -> bool:
        if not is_storable(task, name, app_version):
            return False

        async def work(connection: Connection) -> bool:
            await connection.execute(_LOCK_GROUP)
            delete = f"DELETE FROM walle.group_files WHERE {_OF_GROUP} RETURNING TRUE"  # noqa: S608 - our own names
            found: bool | None = await connection.fetchval(delete, task, name, app_version, json.dumps(rule))
            if found:
                await connection.execute(_RAISE_GROUP)
            return bool(found)

        return self._write(work)

    def group_rows(self, known: int) -> tuple[int, list[GroupRow] | None]:
        serials = self._rows("SELECT serial FROM walle.group_serial")
        if (serials[0][0] if serials else 0) == known:
            return known, None
        rows = self._rows(_GROUPS)
        found = [GroupRow(*row[1:])._replace(rule=json.loads(row["rule"])) for row in rows if row["number"] is not None]
        return rows[0]["serial"], found

    def group_contents(self, number: int) -> bytes | None:
        rows = self._rows("SELECT encrypted FROM walle.group_files WHERE number = $1", number)
        return rows[0][0] if rows else None

    def _rows(self, query: str, *values: object) -> list[Any]:
        try:
            return self._database.read(query, *values)
        except StateError as error:
            raise ExclusiveStoreError.of_database(error) from error

    def _write[T](self, work: Action[T]) -> T:
        try:
            return self._database.write(work)
        except StateError as error:
            raise ExclusiveStoreError.of_database(error) from error
