"""Tables of the registry of devices, in a file or a database.

Changes are made in memory, to the rows of their devices; then the rows that differ are written in one transaction, so
that a fleet's changes take a few statements.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from walle.deploy.fleet.device_changes import MAX_DEVICE_FAILURES, Change, DeviceRows, Row
from walle.store.lease import Grant
from walle.store.sql import Connection, Database, in_thread
from walle.store.tables import DEVICE_FAILURES, DEVICE_TASKS, DEVICES, FAILURE_NUMBERS

if TYPE_CHECKING:
    from walle.deploy.fleet.registry import DeviceQuery

MAX_FAILURES = 20_000
MAX_PAGE = 1_000
MAX_VALUES = 30  # values of an attribute that are counted
_ATTRIBUTES = "jsonb_each_text(d.attributes::jsonb) AS a"
_TASK_COLUMNS = ", ".join(DEVICE_TASKS.names[1:])
_LOG = logging.getLogger(__name__)


class DeviceTables:
    """The tables in an open database. `grant` is of the lease of what writes, None where the database has none.

    Raises, from every call:
        StateError: the database cannot be read or written.
    """

    def __init__(self, database: Database, max_devices: int, *, grant: Grant | None = None) -> None:
        self._database = database
        self._max_devices = max_devices
        self._grant = grant

    # --- changes ---

    async def store(self, changes: Sequence[Change], *, trims: bool = True) -> int:
        """Make changes in one transaction, and return how many cannot be made.

        With `trims` remove what exceeds the bounds.
        """
        by_device: dict[str, list[Change]] = {}
        for change in changes:
            by_device.setdefault(self._database.storable(change.device_id), []).append(change)

        async def write(connection: Connection) -> int:
            found = await self._read(connection, by_device)
            dropped: int = await in_thread(connection, _make, found, by_device)
            await self._write(connection, found)
            if trims:
                await self._trim(connection)
            return dropped

        return await self._database.write(write, grant=self._grant, durable=False)

    async def _read(self, connection: Connection, changes: dict[str, list[Change]]) -> dict[str, DeviceRows]:
        """Return the rows of devices that these changes need."""
        query = f"SELECT {DEVICES.listed} FROM devices WHERE device_id = ANY($1) ORDER BY device_id FOR UPDATE"  # noqa: S608
        devices = {row[0]: tuple(row) for row in await connection.fetch(query, sorted(changes))}
        wanted = [
            device_id
            for device_id, of_device in changes.items()
            if any(change.reads_tasks(devices.get(device_id)) for change in of_device)
        ]
        query = f"SELECT {DEVICE_TASKS.listed} FROM device_tasks WHERE device_id = ANY($1) ORDER BY device_id, task"  # noqa: S608
        tasks: dict[str, list[Row]] = {}
        for row in await connection.fetch(query, wanted):
            tasks.setdefault(row[0], []).append(tuple(row))
        storable = self._database.storable
        return {one: DeviceRows(devices.get(one), tasks.get(one, ()), storable) for one in changes}

    async def _write(self, connection: Connection, found: dict[str, DeviceRows]) -> None:
        removed = [(device_id, task) for device_id, rows in found.items() for task in rows.removed_tasks()]
        await connection.executemany("DELETE FROM device_tasks WHERE device_id = $1 AND task = $2", removed)
        await connection.executemany(DEVICES.upsert, [row for rows in found.values() for row in rows.changed_device()])
        tasks = [row for rows in found.values() for row in rows.changed_tasks()]
        await connection.executemany(DEVICE_TASKS.upsert, tasks)
        failures = [row for rows in found.values() for row in rows.failures[-MAX_DEVICE_FAILURES:]]
        if not failures:
            return
        query = (
            "INSERT INTO counters AS c VALUES ($1, $2)"
            " ON CONFLICT (name) DO UPDATE SET value = c.value + excluded.value RETURNING value"
        )
        first = await connection.fetchval(query, FAILURE_NUMBERS, len(failures)) - len(failures) + 1
        numbered = [(first + place, *row) for place, row in enumerate(failures)]
        await connection.executemany(DEVICE_FAILURES.insert(), numbered)
        await connection.executemany(
            "DELETE FROM device_failures WHERE device_id = $1 AND number <= (SELECT number FROM device_failures"
            " WHERE device_id = $1 ORDER BY number DESC LIMIT 1 OFFSET $2)",
            [(device_id, MAX_DEVICE_FAILURES) for device_id, rows in found.items() if rows.failures],
        )

    async def _trim(self, connection: Connection) -> None:
        """Remove what exceeds the bounds."""
        excess = await connection.fetchval("SELECT count(*) FROM devices") - self._max_devices
        if excess > 0:
            query = (
                "DELETE FROM devices WHERE device_id IN (SELECT device_id FROM devices"
                " ORDER BY reported_s IS NOT NULL, last_seen_s LIMIT $1) RETURNING device_id"
            )
            removed = [row[0] for row in await connection.fetch(query, excess)]
            await connection.execute("DELETE FROM device_tasks WHERE device_id = ANY($1)", removed)
            await connection.execute("DELETE FROM device_failures WHERE device_id = ANY($1)", removed)
        await connection.execute(
            "DELETE FROM device_failures WHERE number <="
            " (SELECT number FROM device_failures ORDER BY number DESC LIMIT 1 OFFSET $1)",
            MAX_FAILURES,
        )

    # --- reads ---

    async def count(self) -> int:
        """Return how many devices there are."""
        return int((await self._database.read("SELECT count(*) FROM devices"))[0][0])

    async def page(self, query: "DeviceQuery", now_s: float, limit: int) -> tuple[int, list[Row]]:
        """Return how many devices a query has in all, and the rows of the first `limit` after its id `after`."""
        where, values = self._condition(query, now_s)
        # Conditions are constants of this module; what the caller gave is bound.
        total = await self._database.read(f"SELECT count(*) FROM devices AS d WHERE {where}", *values)  # noqa: S608
        after, count = len(values) + 1, len(values) + 2
        rows = await self._database.read(
            f"SELECT {DEVICES.listed} FROM devices AS d WHERE {where} AND d.device_id > ${after}"  # noqa: S608
            f" ORDER BY d.device_id LIMIT ${count}",
            *values,
            self._database.storable(query.after),
            limit,
        )
        return total[0][0], rows

    async def device(self, device_id: str) -> Row | None:
        """Return the row of a device, None where it is unknown."""
        query = f"SELECT {DEVICES.listed} FROM devices WHERE device_id = $1"  # noqa: S608 - our names
        rows = await self._database.read(query, self._database.storable(device_id))
        return rows[0] if rows else None

    async def tasks(self, devices: list[str]) -> dict[str, list[Row]]:
        """Return the rows of the tasks of devices, by device and without its id, in the order of the tasks."""
        query = (
            f"SELECT device_id, {_TASK_COLUMNS} FROM device_tasks WHERE device_id = ANY($1)"  # noqa: S608 - our names
            " ORDER BY device_id, task"
        )
        found: dict[str, list[Row]] = {}
        for device_id, *task in await self._database.read(query, devices):
            found.setdefault(device_id, []).append(tuple(task))
        return found

    async def failures(self, device_id: str, task: str, before: int) -> list[Row]:
        """Return a device's failures, newest first: number, time, task, version, release, kind, and the failure."""
        rows = await self._database.read(
            "SELECT number, at_s, task, version, release, kind, failure FROM device_failures WHERE device_id = $1"
            " AND (CAST($2 AS BIGINT) = 0 OR number < $2) AND ($3 = '' OR task = $3) ORDER BY number DESC",
            self._database.storable(device_id),
            before,
            self._database.storable(task),
        )
        return [tuple(row) for row in rows]

    async def profiles(self, after: str) -> list[Row]:
        """Return id, app version, attributes and time of the MAX_PAGE devices after an id."""
        query = (
            "SELECT device_id, app_version, attributes, last_seen_s FROM devices WHERE device_id > $1"
            " ORDER BY device_id LIMIT $2"
        )
        return [tuple(row) for row in await self._database.read(query, after, MAX_PAGE)]

    async def attribute_keys(self) -> list[str]:
        """Return attributes that devices have, the most frequent first: of a sample of the devices."""
        rows = await self._database.read(
            f"SELECT a.key, count(*) FROM (SELECT attributes FROM devices LIMIT 2000) AS d, {_ATTRIBUTES}"  # noqa: S608
            " GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 40"
        )
        return [str(key) for key, _ in rows]

    async def attribute_counts(self, query: "DeviceQuery", now_s: float, key: str) -> list[tuple[str, int]]:
        """Return the values of an attribute of a query's devices, or their app versions, with counts, at most first."""
        where, values = self._condition(query, now_s)
        if key == "app_version":
            sql = f"SELECT d.app_version, count(*) FROM devices AS d WHERE {where}"  # noqa: S608 - as `page`
        else:
            values.append(self._database.storable(key))
            sql = f"SELECT a.value, count(*) FROM devices AS d, {_ATTRIBUTES} WHERE {where} AND a.key = ${len(values)}"  # noqa: S608
        rows = await self._database.read(f"{sql} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MAX_VALUES}", *values)
        return [(value, count) for value, count in rows]

    async def versions(self, task: str) -> list[tuple[str, str, int, int, int, int]]:
        """Return, for each pair of an active and a reported version, devices, failing ones, and runs ok and failed."""
        rows = await self._database.read(
            "SELECT active, version, count(*), count(*) FILTER (WHERE failed > 0), CAST(sum(ok) AS BIGINT),"
            " CAST(sum(failed) AS BIGINT) FROM device_tasks WHERE task = $1 GROUP BY active, version",
            self._database.storable(task),
        )
        return [(active, version, *counts) for active, version, *counts in rows]

    def _condition(self, query: "DeviceQuery", now_s: float) -> tuple[str, list[Any]]:
        """Return the condition of a query on devices `d`, and the values that it numbers."""
        values: list[Any] = []

        def mark(value: Any) -> str:
            values.append(self._database.storable(value) if isinstance(value, str) else value)
            return f"${len(values)}"

        parts = []
        if query.search:
            parts.append(f"strpos(d.device_id, {mark(query.search)}) > 0")
        if query.app_version:
            parts.append(f"d.app_version = {mark(query.app_version)}")
        if query.seen_within_s:
            parts.append(f"d.last_seen_s >= {mark(now_s - query.seen_within_s)}")
        if query.attribute:
            has = f"a.key = {mark(query.attribute)} AND a.value = {mark(query.value)}"
            parts.append(f"EXISTS (SELECT 1 FROM {_ATTRIBUTES} WHERE {has})")  # noqa: S608 - our own names
        of_task = []
        for column, value in (("task", query.task), ("state", query.state)):
            if value:
                of_task.append(f"t.{column} = {mark(value)}")
        if query.version:
            variants = f"strpos(t.active, {mark(f'{query.version}@')}) = 1"
            of_task.append(f"(t.active = {mark(query.version)} OR {variants})")
        if query.failing:
            of_task.append("t.failed > 0")
        if query.scenarios is not None:
            scenario = "substr(t.task, 1, greatest(strpos(t.task, '/') - 1, 0))"
            of_task.append(f"{scenario} = ANY({mark(sorted(query.scenarios))})")
        if of_task:
            inner = " AND ".join(["t.device_id = d.device_id", *of_task])
            parts.append(f"EXISTS (SELECT 1 FROM device_tasks AS t WHERE {inner})")  # noqa: S608 - our own names
        return " AND ".join(parts) or "TRUE", values


def _make(found: dict[str, DeviceRows], changes: dict[str, list[Change]]) -> int:
    """Make changes of rows; return how many cannot be made. Such a one costs no other."""
    dropped = 0
    for device_id, of_device in changes.items():
        for change in of_device:
            try:
                change(found[device_id])
            except (ValueError, OverflowError) as error:
                dropped += 1
                _LOG.warning("a device's message cannot be listed: %s", error)
    return dropped
