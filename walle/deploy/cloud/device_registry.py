"""Devices that the cloud has heard of: their profiles, the standing of their tasks, and their latest failures.

What is known comes from profiles, which anyone may send, and from reports of outcomes, which need a device's token.
The registry is one SQLite file of bounded size: MAX_DEVICES devices, MAX_FAILURES failures, and some of each
device (`device_changes`). Beyond that, devices that never reported an outcome go first, then those that were seen
least recently; they come back when they are heard of again. So do a device's tasks that are not active. A release
depends on nothing here: the file may be lost, and a damaged one is set aside.
"""

import asyncio
import dataclasses
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from walle.clock import Clock
from walle.deploy.cloud.device_changes import Report, Sighting
from walle.deploy.cloud.device_group import TargetedGroups
from walle.deploy.cloud.journal import JournalError, journal_errors
from walle.deploy.cloud.policy import Policy
from walle.deploy.cloud.rule_index import PolicyIndex
from walle.deploy.cloud.uploaded_attributes import UploadedAttributes, UploadedTables
from walle.errors import DeployError
from walle.protocol import Failure, OutcomeBatch, Profile

_LOG = logging.getLogger(__name__)

MAX_DEVICES = 50_000
MAX_FAILURES = 20_000
MAX_PAGE = 1_000
MAX_FAILURES_PAGE = 100
_MAX_WAITING = 20_000  # weight of the changes in memory between two writes, about 0.5 to 1 KB each
_FLUSH_S = 2.0
MAX_VALUES = 30  # of an attribute that are counted
_TEXT = "CASE a.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(a.value AS TEXT) END"
_KEYS = (
    "SELECT a.key, count(*) FROM (SELECT attributes FROM devices LIMIT 2000) AS d, json_each(d.attributes) AS a"
    " GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 40"
)

_SCHEMA = """
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


class UnknownDeviceError(DeployError):
    """A device that the cloud has not heard of, or whose tasks are all of scenarios that the caller may not read."""

    def __init__(self, device_id: str) -> None:
        super().__init__(device_id)
        self.device_id = device_id

    def __str__(self) -> str:
        return f"device {self.device_id[:100]!r} is unknown; list the known ones with: walle device list"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceTask:
    """A task of a device. `active` is the version in its latest profile, "" for none.

    `version`, `state`, `release` and `reported_s` are of the latest outcome that it reported, "" and None for none;
    `state` is an `OutcomeKind`. `ok` and `failed` are the runs of that version that it reported.
    """

    task: str
    active: str
    version: str
    state: str
    release: str
    reported_s: float | None
    ok: int
    failed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionHealth:
    """A version of a task on the devices that the registry has.

    `active` devices have it by their latest profile. `reported` ones reported it last, `failing` of them with failed
    runs; `ok` and `failed` are the runs of these.
    """

    version: str
    active: int
    reported: int
    failing: int
    ok: int
    failed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownDevice:
    """A device as the cloud knows it. Times are in seconds since the epoch; `reported_s` is None before any report."""

    device_id: str
    app_version: str
    attributes: dict[str, Any]
    first_seen_s: float
    last_seen_s: float
    reported_s: float | None
    tasks: tuple[DeviceTask, ...]

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceFailure:
    """A failure that a device reported, at a time of the cloud's clock. `kind` is an `OutcomeKind`."""

    number: int
    at_s: float
    task: str
    version: str
    release: str
    kind: str
    failure: Failure

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON, with the fields of `failure` beside its own."""
        plain = dataclasses.asdict(self)
        return {**plain.pop("failure"), **plain}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceQuery:
    """A choice of devices, in the order of their ids: `limit` of them after the id `after`.

    `scenarios` are those that the caller may read, None for all: other devices and tasks are not shown. The rest
    narrows the choice where it is set: `search` is a part of the id, `task` is scenario/task, `version` an active
    version, `state` the latest outcome's kind, `failing` chooses devices with failed runs of a version they reported,
    `seen_within_s` those that were seen in these last seconds. `attribute` is a key and `value` its value as text.
    """

    scenarios: frozenset[str] | None = None
    after: str = ""
    limit: int = 100
    search: str = ""
    app_version: str = ""
    task: str = ""
    version: str = ""
    state: str = ""
    failing: bool = False
    seen_within_s: float = 0.0
    attribute: str = ""
    value: str = ""


@dataclasses.dataclass(frozen=True)
class AttributeCount:
    """An attribute's value as text, and how many devices have it."""

    value: str
    devices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePage:
    """Devices of a query. `after` is the query's for the next page, "" at the end; `total` counts all of the query.

    `unlisted` counts sightings and reports since the start that were dropped, because they came faster than they are
    written.
    """

    devices: tuple[KnownDevice, ...]
    after: str
    total: int
    unlisted: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reach:
    """Counts of devices that policies take, among the `seen` ones that the registry has of the asked time.

    `taken` is for each policy, `shared` for each policy and the first one together. Where `is_full`, the registry had
    to forget devices, so that there are more than it counts.
    """

    seen: int
    taken: tuple[int, ...]
    shared: tuple[int, ...]
    is_full: bool


class DeviceRegistry:
    """The registry in one file. Changes wait in memory until `flush`, which also runs every `flush_s` and before reads.

    Raises, from reads:
        JournalError: SQLite refused.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        uploaded: UploadedAttributes | None = None,
        flush_s: float = _FLUSH_S,
        max_devices: int = MAX_DEVICES,
    ) -> None:
        self.path = path
        self.unlisted = 0
        self._clock = clock
        self._uploaded = uploaded
        self._flush_s = flush_s
        self._max_devices = max_devices
        self._waiting: list[Callable[[sqlite3.Connection], None]] = []
        self._waiting_weight = 0
        self._lock = threading.Lock()  # of the connection, which worker threads take in turn
        self._db: sqlite3.Connection | None = None
        self._flushing: asyncio.Task[None] | None = None

    # --- lifetime ---

    async def __aenter__(self) -> Self:
        self._db = await asyncio.to_thread(self._open)
        self._flushing = asyncio.create_task(self._flush_periodically(), name="device registry")
        return self

    async def __aexit__(self, *_: object) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
        try:
            await self.flush()
        except JournalError as error:
            _LOG.warning("the device registry could not be saved: %s", error)
        finally:
            if self._db is not None:
                with self._lock:
                    self._db.close()
                self._db = None

    def _open(self) -> sqlite3.Connection:
        with journal_errors(self.path):
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
            db.executescript(_SCHEMA)
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)  # noqa: TRY301 - as any other damage
        except BaseException:
            db.close()
            raise
        return db

    # --- what is heard of devices ---

    def note(self, profiles: Mapping[str, bytes]) -> None:
        """Take note of devices that sent profiles: the header's bytes by device. What cannot be read is ignored."""
        now_s = self._clock.time()
        for device_id, header in profiles.items():
            self._enqueue(Sighting(device_id, header, now_s), weight=1 + len(header) // 512)

    def take(self, batch: OutcomeBatch) -> None:
        """Take note of a report, which a device's token authenticated."""
        report = Report(batch, self._clock.time())
        self._enqueue(report, weight=report.weight)

    def _enqueue(self, change: Callable[[sqlite3.Connection], None], *, weight: int) -> None:
        if self._waiting and self._waiting_weight + weight > _MAX_WAITING:
            self.unlisted += 1
            return
        self._waiting.append(change)
        self._waiting_weight += weight

    async def flush(self) -> None:
        """Write what waits, in one transaction; what cannot be written is dropped and counted.

        Raises:
            JournalError: SQLite refused.
        """
        if self._waiting:
            await asyncio.to_thread(self._write)

    def _write(self) -> None:
        with self._lock, journal_errors(self.path):
            changes, self._waiting, self._waiting_weight = self._waiting, [], 0
            if not changes:
                return
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                for change in changes:
                    self._apply(db, change)
                self._trim(db)
                db.execute("COMMIT")
            except BaseException:
                self.unlisted += len(changes)
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _apply(self, db: sqlite3.Connection, change: Callable[[sqlite3.Connection], None]) -> None:
        """Make one change; one that cannot be made costs no other."""
        db.execute("SAVEPOINT change")
        try:
            change(db)
        except (sqlite3.DataError, sqlite3.IntegrityError, ValueError, OverflowError) as error:
            db.execute("ROLLBACK TO change")
            self.unlisted += 1
            _LOG.warning("what a device sent cannot be listed: %s", error)
        db.execute("RELEASE change")

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

    async def _flush_periodically(self) -> None:
        while True:
            await self._clock.sleep(self._flush_s)
            try:
                await self.flush()
            except JournalError as error:
                _LOG.warning("the device registry could not be saved: %s", error)

    # --- reads ---

    async def page(self, query: DeviceQuery) -> DevicePage:
        """Return the devices of a query."""
        await self.flush()
        return await asyncio.to_thread(self._page, query)

    async def get(self, device_id: str, scenarios: Collection[str] | None = None) -> KnownDevice:
        """Return a device with its tasks of these scenarios, None for all.

        Raises:
            UnknownDeviceError: it is unknown, or has no task of them.
        """
        await self.flush()
        return await asyncio.to_thread(self._get, device_id, scenarios)

    async def failures(
        self,
        device_id: str,
        scenarios: Collection[str] | None = None,
        *,
        task: str = "",
        before: int = 0,
        limit: int = MAX_FAILURES_PAGE,
    ) -> list[DeviceFailure]:
        """Return failures that a device reported, newest first: those of numbers below `before`, 0 for all.

        Raises:
            UnknownDeviceError: as `get`.
        """
        await self.flush()
        return await asyncio.to_thread(self._failures, device_id, scenarios, task, before, limit)

    async def attribute_keys(self) -> list[str]:
        """Return attributes that devices have, the most frequent first: of a sample of the devices."""
        await self.flush()
        return [str(key) for key, _ in await asyncio.to_thread(self._select, _KEYS, ())]

    async def attribute_counts(self, query: DeviceQuery, key: str) -> list[AttributeCount]:
        """Return how many devices of a query have each value of an attribute, at most MAX_VALUES, most devices first.

        The key `app_version` is of the profile itself.
        """
        await self.flush()
        where, values = _conditions(query, self._clock.time())
        more: tuple[str, ...]
        if key == "app_version":
            sql, more = f"SELECT d.app_version, count(*) FROM devices AS d WHERE {where}", ()  # noqa: S608 - as `_page`
        else:
            of_key = "FROM devices AS d, json_each(d.attributes) AS a WHERE"
            sql, more = f"SELECT {_TEXT}, count(*) {of_key} {where} AND a.key = ?", (key,)
        sql += f" GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MAX_VALUES}"
        rows = await asyncio.to_thread(self._select, sql, (*values, *more))
        return [AttributeCount(str(value), count) for value, count in rows]

    def _select(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with self._lock, journal_errors(self.path):
            return self._opened().execute(sql, values).fetchall()

    async def versions(self, task: str) -> list[VersionHealth]:
        """Return the versions of a task that devices have or reported last, the one of most devices first."""
        await self.flush()
        return await asyncio.to_thread(self._versions, task)

    def _versions(self, task: str) -> list[VersionHealth]:
        with self._lock, journal_errors(self.path):
            rows = (
                self._opened()
                .execute(
                    "SELECT active, version, count(*), sum(failed > 0), sum(ok), sum(failed) FROM tasks WHERE task = ?"
                    " GROUP BY active, version",
                    (task,),
                )
                .fetchall()
            )
        counts: dict[str, list[int]] = {}
        for active, version, devices, failing, ok, failed in rows:
            if active:
                counts.setdefault(active, [0] * 5)[0] += devices
            if version:
                of_version = counts.setdefault(version, [0] * 5)
                for place, count in enumerate((devices, failing, ok, failed), start=1):
                    of_version[place] += count
        names = ("active", "reported", "failing", "ok", "failed")
        found = [VersionHealth(version=one, **dict(zip(names, each, strict=True))) for one, each in counts.items()]
        return sorted(found, key=lambda one: (-one.active, -one.reported, one.version))

    async def reach(self, policies: Sequence[Policy], seen_within_s: float) -> Reach:
        """Return how many of the devices that were seen in these last seconds the policies take.

        A device counts with the attributes that the registry keeps of its latest profile, and those uploaded of it.
        """
        await self.flush()
        return await asyncio.to_thread(self._reach, policies, seen_within_s)

    def _reach(self, policies: Sequence[Policy], seen_within_s: float) -> Reach:
        index = PolicyIndex(policies)
        since_s = self._clock.time() - seen_within_s
        combinations: dict[int, int] = {}
        count = 0
        for profile, last_seen_s in self._profiles():
            count += 1
            if last_seen_s >= since_s:
                found = index.matching(profile)
                combinations[found] = combinations.get(found, 0) + 1
        taken, shared = [0] * len(policies), [0] * len(policies)
        for found, devices in combinations.items():
            for number in range(len(policies)):
                if found >> number & 1:
                    taken[number] += devices
                    shared[number] += devices if found & 1 else 0
        return Reach(
            seen=sum(combinations.values()),
            taken=tuple(taken),
            shared=tuple(shared),
            is_full=count >= self._max_devices,
        )

    def _profiles(self) -> Iterator[tuple[Profile, float]]:
        """Yield the devices with their latest attributes, uploaded ones too, and when they were last seen."""
        tables = UploadedTables()
        if self._uploaded is not None:
            self._uploaded.read()
            tables = self._uploaded.current
        after = ""
        while True:
            with self._lock, journal_errors(self.path):  # for one part: others read and write between two
                rows = (
                    self._opened()
                    .execute(
                        "SELECT device_id, app_version, attributes, last_seen_s FROM devices WHERE device_id > ?"
                        " ORDER BY device_id LIMIT ?",
                        (after, MAX_PAGE),
                    )
                    .fetchall()
                )
            for device_id, app_version, attributes, last_seen_s in rows:
                yield tables.join(Profile(device_id, app_version, json.loads(attributes))), last_seen_s
            if len(rows) < MAX_PAGE:
                break
            after = rows[-1][0]

    async def groups(self, policy: Policy, seen_within_s: float) -> TargetedGroups:
        """Return the groups, by app version and system, of the devices seen in these last seconds that a policy takes.

        Raises:
            JournalError: the registry cannot be read.
        """
        await self.flush()

        def count() -> TargetedGroups:
            index, since_s = PolicyIndex([policy]), self._clock.time() - seen_within_s
            recent = (profile for profile, last_seen_s in self._profiles() if last_seen_s >= since_s)
            return TargetedGroups.of(profile for profile in recent if index.matching(profile))

        return await asyncio.to_thread(count)

    def _page(self, query: DeviceQuery) -> DevicePage:
        where, values = _conditions(query, self._clock.time())
        limit = max(1, min(query.limit, MAX_PAGE))
        with self._lock, journal_errors(self.path):
            db = self._opened()
            # Conditions are constants of this module; what the caller gave is bound.
            ((total,),) = db.execute(f"SELECT count(*) FROM devices AS d WHERE {where}", values).fetchall()  # noqa: S608
            rows = db.execute(
                f"SELECT * FROM devices AS d WHERE {where} AND d.device_id > ? ORDER BY d.device_id LIMIT ?",  # noqa: S608
                (*values, query.after, limit + 1),
            ).fetchall()
            devices = tuple(self._known(db, row, query.scenarios) for row in rows[:limit])
        after = devices[-1].device_id if len(rows) > limit else ""
        return DevicePage(devices=devices, after=after, total=total, unlisted=self.unlisted)

    def _get(self, device_id: str, scenarios: Collection[str] | None) -> KnownDevice:
        with self._lock, journal_errors(self.path):
            db = self._opened()
            row = db.execute("SELECT * FROM devices WHERE device_id = ?", (device_id,)).fetchone()
            device = None if row is None else self._known(db, row, scenarios)
        if device is None or (scenarios is not None and not device.tasks):
            raise UnknownDeviceError(device_id)
        return device

    def _known(self, db: sqlite3.Connection, row: Any, scenarios: Collection[str] | None) -> KnownDevice:
        device_id, _, app_version, attributes, first_seen_s, last_seen_s, reported_s = row
        names = [field.name for field in dataclasses.fields(DeviceTask)]
        found = db.execute(
            f"SELECT {', '.join(names)} FROM tasks WHERE device_id = ? ORDER BY task",  # noqa: S608 - our own names
            (device_id,),
        )
        tasks = tuple(DeviceTask(**dict(zip(names, each, strict=True))) for each in found.fetchall())
        return KnownDevice(
            device_id=device_id,
            app_version=app_version,
            attributes=json.loads(attributes),
            first_seen_s=first_seen_s,
            last_seen_s=last_seen_s,
            reported_s=reported_s,
            tasks=tuple(task for task in tasks if _may_read(task.task, scenarios)),
        )

    def _failures(
        self, device_id: str, scenarios: Collection[str] | None, task: str, before: int, limit: int
    ) -> list[DeviceFailure]:
        self._get(device_id, scenarios)
        with self._lock, journal_errors(self.path):
            rows = self._opened().execute(
                "SELECT number, at_s, task, version, release, kind, failure FROM failures"
                " WHERE device_id = ? AND (? = 0 OR number < ?) AND (? = '' OR task = ?) ORDER BY number DESC",
                (device_id, before, before, task, task),
            )
            found = [row for row in rows.fetchall() if _may_read(row[2], scenarios)]  # MAX_DEVICE_FAILURES at most
        names = ("number", "at_s", "task", "version", "release", "kind")
        chosen = found[: max(1, min(limit, MAX_FAILURES_PAGE))]
        return [
            DeviceFailure(**dict(zip(names, row[:-1], strict=True)), failure=Failure(**json.loads(row[-1])))
            for row in chosen
        ]

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            raise JournalError(str(self.path), "is not open")
        return self._db


def _may_read(task: str, scenarios: Collection[str] | None) -> bool:
    return scenarios is None or task.partition("/")[0] in scenarios


def _conditions(query: DeviceQuery, now_s: float) -> tuple[str, list[Any]]:
    """Return a condition on `devices AS d`, with the values to bind."""
    parts = ["1"]
    values: list[Any] = []
    if query.search:
        parts.append("instr(d.device_id, ?) > 0")
        values.append(query.search)
    if query.app_version:
        parts.append("d.app_version = ?")
        values.append(query.app_version)
    if query.seen_within_s:
        parts.append("d.last_seen_s >= ?")
        values.append(now_s - query.seen_within_s)
    if query.attribute:
        has = f"SELECT 1 FROM json_each(d.attributes) AS a WHERE a.key = ? AND {_TEXT} = ?"  # noqa: S608 - our own text
        parts.append(f"EXISTS ({has})")
        values += [query.attribute, query.value]
    of_task: list[str] = []
    task_values: list[Any] = []
    for condition, value in (("task", query.task), ("active", query.version), ("state", query.state)):
        if value:
            of_task.append(f"t.{condition} = ?")
            task_values.append(value)
    if query.failing:
        of_task.append("t.failed > 0")
    if query.scenarios is not None:
        marks = ", ".join("?" * len(query.scenarios))
        of_task.append(f"substr(t.task, 1, instr(t.task, '/') - 1) IN ({marks})")
        task_values += sorted(query.scenarios)
    if of_task:
        inner = " AND ".join(["t.device_id = d.device_id", *of_task])
        parts.append(f"EXISTS (SELECT 1 FROM tasks AS t WHERE {inner})")  # noqa: S608 - our own names
        values += task_values
    return " AND ".join(parts), values
