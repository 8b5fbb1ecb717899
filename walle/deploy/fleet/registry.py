"""Devices that the cloud has heard of: their profiles, the standing of their tasks, and their latest failures.

What is known comes from profiles, which anyone may send, and from reports of outcomes, which need a device's token.
The registry is of bounded size: MAX_DEVICES devices, MAX_FAILURES failures, and some of each
device (`device_changes`). Beyond that, devices that never reported an outcome go first, then those that were seen
least recently; they come back when they are heard of again. So do a device's tasks that are not active. A release
depends on nothing here.

It is in a file, which may be lost, and is set aside where it is damaged, or in a database.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from walle.base.clock import Clock
from walle.base.waiting import to_the_end
from walle.deploy.fleet.device_changes import Change, Report, Sighting
from walle.deploy.fleet.device_group import TargetedGroups
from walle.deploy.fleet.device_tables import MAX_PAGE, DeviceTables
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule_index import PolicyIndex
from walle.deploy.policies.uploaded_attributes import UploadedAttributes, UploadedTables
from walle.errors import DeployError
from walle.protocol import Failure, OutcomeBatch, Profile, version_of
from walle.store.lease import Grant
from walle.store.sql import Database
from walle.store.sqlite_database import SqliteDatabase
from walle.store.tables import COUNTERS, REGISTRY

_LOG = logging.getLogger(__name__)

MAX_DEVICES = 100_000
MAX_PAGE_TASKS = 100_000  # tasks on a page, which ends after the device that reaches it
MAX_FAILURES_PAGE = 100
_MAX_WAITING = 20_000  # the changes in memory between two writes weigh less, at 0.5 to 1 KB a unit
_FLUSH_S = 2.0
_PART_DEVICES = 250  # tasks of this many devices are read together
_PART_S = 60.0
_MAX_COMBINATIONS = 128  # combinations of policies that are counted before they are added up


class UnknownDeviceError(DeployError):
    """A device that the cloud has not heard of, or whose tasks are all of scenarios that the caller may not read."""

    def __init__(self, device_id: str) -> None:
        super().__init__(device_id)
        self.device_id = device_id

    def __str__(self) -> str:
        return f"device {self.device_id[:100]!r} is unknown; list the known ones with: walle device list"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceTask:
    """A task of a device. `active` is the version in its latest profile, with its variant, "" for none.

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


TASK_FIELDS = tuple(field.name for field in dataclasses.fields(DeviceTask))


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
    written. Where `is_full`, the registry had to forget devices, or will: there are more than it has.
    """

    devices: tuple[KnownDevice, ...]
    after: str
    total: int
    unlisted: int
    is_full: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reach:
    """Counts of devices that policies take, among the `seen` ones that the registry has of the asked time.

    `taken` is for each policy, `shared` for each policy and the first one together. Where `is_full`, the registry had
    to forget devices, so that there are more than it counts. Where `is_partial`, the budget ended first: counted are
    the devices of the first ids. `cpu_s` is the CPU time that it took.
    """

    seen: int
    taken: tuple[int, ...]
    shared: tuple[int, ...]
    is_full: bool
    is_partial: bool = False
    cpu_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReachBudget:
    """Bounds of one count of the devices that policies take: `cpu_s` of CPU time, with a pause after each slice.

    Evaluations hold the interpreter's lock, so that another thread alone would not let the process answer devices. One
    evaluation takes some milliseconds at most (`rule_cost`). `cpu_clock` returns the CPU seconds of the calling thread.
    """

    cpu_s: float = 5.0
    slice_s: float = 0.005
    pause_s: float = 0.005
    cpu_clock: Callable[[], float] = time.thread_time


class _Counting:
    """One count under way, in a thread: its CPU time and its devices."""

    def __init__(self, budget: ReachBudget) -> None:
        self.devices = 0
        self.is_over = False
        self._budget = budget
        self._began_s = self._slice_s = budget.cpu_clock()

    @property
    def used_s(self) -> float:
        return self._budget.cpu_clock() - self._began_s

    def goes_on(self) -> bool:
        """Count a device; return False where the budget has ended. Pause after each slice."""
        now_s = self._budget.cpu_clock()
        if now_s - self._began_s >= self._budget.cpu_s:
            self.is_over = True
            return False
        if now_s - self._slice_s >= self._budget.slice_s:
            time.sleep(self._budget.pause_s)
            self._slice_s = now_s
        self.devices += 1
        return True


class DeviceRegistry:
    """The registry in an open database, within `async with`.

    Changes wait in memory until `flush`, every `flush_s` and before reads. `grant` is of the monitor's lease.

    Raises, from reads:
        StateError: the registry cannot be read.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        grant: Grant | None = None,
        uploaded: UploadedAttributes | None = None,
        flush_s: float = _FLUSH_S,
        max_devices: int = MAX_DEVICES,
        reach_budget: ReachBudget | None = None,
    ) -> None:
        self.unlisted = 0
        self._reach_budget = reach_budget or ReachBudget()
        self._clock = clock
        self._uploaded = uploaded
        self._flush_s = flush_s
        self._max_devices = max_devices
        self._tables = DeviceTables(database, max_devices, grant=grant)
        self._file: SqliteDatabase | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Change] = []
        self._waiting_weight = 0
        self._storing = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None

    @classmethod
    def in_file(cls, path: Path, clock: Clock, **options: Any) -> Self:
        """Return the registry in the file at `path`, which entering the registry opens; for options see the class."""
        file = SqliteDatabase(path, (*REGISTRY, COUNTERS), is_durable=False, replaces_damaged=True)
        registry = cls(file, clock, **options)
        registry._file = file
        return registry

    # --- lifetime ---

    async def __aenter__(self) -> Self:
        if self._file is not None:
            await self._file.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._flushing = asyncio.create_task(self._flush_periodically(), name="device registry")
        return self

    async def __aexit__(self, *_: object) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
        try:
            await self.flush()
        except DeployError as error:
            _LOG.warning("the device registry could not be saved: %s", error)
        finally:
            if self._file is not None:
                await self._file.__aexit__()

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

    def _enqueue(self, change: Change, *, weight: int) -> None:
        if self._waiting and self._waiting_weight + weight > _MAX_WAITING:
            self.unlisted += 1
            return
        self._waiting.append(change)
        self._waiting_weight += weight

    async def flush(self) -> None:
        """Write what waits; what cannot be written is dropped and counted.

        Raises:
            StateError: the registry cannot be written.
        """
        async with self._storing:
            changes, self._waiting, self._waiting_weight = self._waiting, [], 0
            if not changes:
                return
            storing = asyncio.ensure_future(self._store(changes))
            try:
                await to_the_end(storing)
            except asyncio.CancelledError:
                with contextlib.suppress(DeployError):  # a fault of the code replaces the cancellation
                    storing.result()
                raise

    async def _store(self, changes: list[Change]) -> None:
        """Write changes, those of `_PART_DEVICES` devices in one transaction: each has hundreds of tasks in memory."""
        of_device: dict[str, list[Change]] = {}
        for change in changes:
            of_device.setdefault(change.device_id, []).append(change)
        left = len(changes)
        try:
            for part in itertools.batched(of_device.values(), _PART_DEVICES, strict=False):
                of_part = list(itertools.chain.from_iterable(part))
                is_last = len(of_part) == left
                dropped = await self._tables.store(of_part, trims=is_last)
                self.unlisted += dropped
                left -= len(of_part)
        except BaseException:
            self.unlisted += left
            raise

    async def _flush_periodically(self) -> None:
        while True:
            await self._clock.sleep(self._flush_s)
            try:
                await self.flush()
            except DeployError as error:
                if not getattr(error, "may_pass", False):  # the database has logged an outage
                    _LOG.warning("the device registry could not be saved: %s", error)

    # --- reads ---

    async def page(self, query: DeviceQuery) -> DevicePage:
        """Return the devices of a query."""
        await self.flush()
        limit = max(1, min(query.limit, MAX_PAGE))
        total, rows = await self._tables.page(query, self._clock.time(), limit + 1)
        devices: tuple[KnownDevice, ...] = ()
        for start in range(0, min(limit, len(rows)), _PART_DEVICES):
            part = rows[start : min(start + _PART_DEVICES, limit)]
            tasks = await self._tables.tasks([row[0] for row in part])
            found = (known_device(row, tasks.get(row[0], ()), query.scenarios) for row in part)
            devices = up_to_enough_tasks((*devices, *found))
            if len(devices) < start + len(part):
                break
        after = devices[-1].device_id if len(rows) > len(devices) else ""
        is_full = await self._tables.count() >= self._max_devices
        return DevicePage(devices=devices, after=after, total=total, unlisted=self.unlisted, is_full=is_full)

    async def get(self, device_id: str, scenarios: Collection[str] | None = None) -> KnownDevice:
        """Return a device with its tasks of these scenarios, None for all.

        Raises:
            UnknownDeviceError: it is unknown, or has no task of them.
        """
        await self.flush()
        row = await self._tables.device(device_id)
        if row is None:
            raise UnknownDeviceError(device_id)
        tasks = await self._tables.tasks([row[0]])
        device = known_device(row, tasks.get(row[0], ()), scenarios)
        if scenarios is not None and not device.tasks:
            raise UnknownDeviceError(device_id)
        return device

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
        await self.get(device_id, scenarios)
        rows = await self._tables.failures(device_id, task, before)
        found = [row for row in rows if may_read(row[2], scenarios)]  # MAX_DEVICE_FAILURES at most
        names = ("number", "at_s", "task", "version", "release", "kind")
        chosen = found[: max(1, min(limit, MAX_FAILURES_PAGE))]
        return [
            DeviceFailure(**dict(zip(names, row[:-1], strict=True)), failure=Failure(**json.loads(row[-1])))
            for row in chosen
        ]

    async def attribute_keys(self) -> list[str]:
        """Return attributes that devices have, the most frequent first: of a sample of the devices."""
        await self.flush()
        return await self._tables.attribute_keys()

    async def attribute_counts(self, query: DeviceQuery, key: str) -> list[AttributeCount]:
        """Return how many devices of a query have each value of an attribute, at most MAX_VALUES, most devices first.

        The key `app_version` is of the profile itself.
        """
        await self.flush()
        counts = await self._tables.attribute_counts(query, self._clock.time(), key)
        return [AttributeCount(str(value), count) for value, count in counts]

    async def versions(self, task: str) -> list[VersionHealth]:
        """Return the versions of a task that devices have or reported last, the one of most devices first."""
        await self.flush()
        counts: dict[str, list[int]] = {}
        for active, version, devices, failing, ok, failed in await self._tables.versions(task):
            if active:
                counts.setdefault(version_of(active), [0] * 5)[0] += devices
            if version:
                of_version = counts.setdefault(version, [0] * 5)
                for place, count in enumerate((devices, failing, ok, failed), start=1):
                    of_version[place] += count
        names = ("active", "reported", "failing", "ok", "failed")
        found = [VersionHealth(version=one, **dict(zip(names, each, strict=True))) for one, each in counts.items()]
        return sorted(found, key=lambda one: (-one.active, -one.reported, one.version))

    async def reach(self, policies: Sequence[Policy], seen_within_s: float) -> Reach:
        """Return how many of the devices that were seen in these last seconds the policies take, within the budget.

        A device counts with the attributes that the registry keeps of its latest profile, and those uploaded of it.
        """
        await self.flush()
        return await asyncio.to_thread(self._reach, policies, seen_within_s)

    def _reach(self, policies: Sequence[Policy], seen_within_s: float) -> Reach:
        counting = _Counting(self._reach_budget)
        index = PolicyIndex(policies)
        taken, shared = [0] * len(policies), [0] * len(policies)
        combinations: dict[int, int] = {}
        seen = 0
        for profile in self._recent(seen_within_s, counting):
            seen += 1
            found = index.matching(profile)
            combinations[found] = combinations.get(found, 0) + 1
            if len(combinations) >= _MAX_COMBINATIONS:
                _add_up(combinations, taken, shared)
        _add_up(combinations, taken, shared)
        return Reach(
            seen=seen,
            taken=tuple(taken),
            shared=tuple(shared),
            is_full=counting.devices >= self._max_devices,
            is_partial=counting.is_over,
            cpu_s=counting.used_s,
        )

    def _recent(self, seen_within_s: float, counting: "_Counting") -> Iterator[Profile]:
        """Yield the devices that were seen in these last seconds, until the budget ends."""
        since_s = self._clock.time() - seen_within_s
        for profile, last_seen_s in self._profiles():
            if not counting.goes_on():
                return
            if last_seen_s >= since_s:
                yield profile

    def _profiles(self) -> Iterator[tuple[Profile, float]]:
        """Yield the devices with their latest attributes, uploaded ones too, and when they were last seen."""
        tables = UploadedTables()
        if self._uploaded is not None:
            self._uploaded.read()
            tables = self._uploaded.current
        after = ""
        while True:
            assert self._loop is not None
            reading = asyncio.run_coroutine_threadsafe(self._tables.profiles(after), self._loop)
            rows = reading.result(_PART_S)
            for device_id, app_version, attributes, last_seen_s in rows:
                yield tables.join(Profile(device_id, app_version, json.loads(attributes))), last_seen_s
            if len(rows) < MAX_PAGE:
                break
            after = rows[-1][0]

    async def groups(self, policy: Policy, seen_within_s: float) -> TargetedGroups:
        """Return the groups, by app version and system, of the devices seen in these last seconds that a policy takes.

        Where the budget ends first, they are those of the devices of the first ids.

        Raises:
            StateError: the registry cannot be read.
        """
        await self.flush()

        def count() -> TargetedGroups:
            counting = _Counting(self._reach_budget)
            index, recent = PolicyIndex([policy]), self._recent(seen_within_s, counting)
            return TargetedGroups.of(profile for profile in recent if index.matching(profile))

        return await asyncio.to_thread(count)


def known_device(row: Sequence[Any], tasks: Iterable[Sequence[Any]], scenarios: Collection[str] | None) -> KnownDevice:
    """Return a device of its row and those of its tasks, in the order of the fields, of the scenarios that are read."""
    device_id, _, app_version, attributes, first_seen_s, last_seen_s, reported_s = row
    found = (DeviceTask(**dict(zip(TASK_FIELDS, each, strict=True))) for each in tasks)
    return KnownDevice(
        device_id=device_id,
        app_version=app_version,
        attributes=json.loads(attributes),
        first_seen_s=first_seen_s,
        last_seen_s=last_seen_s,
        reported_s=reported_s,
        tasks=tuple(task for task in found if may_read(task.task, scenarios)),
    )


def up_to_enough_tasks(devices: Iterable[KnownDevice]) -> tuple[KnownDevice, ...]:
    """Return the first of the devices, up to the one with which they have MAX_PAGE_TASKS tasks together."""
    found: list[KnownDevice] = []
    tasks = 0
    for device in devices:
        found.append(device)
        tasks += len(device.tasks)
        if tasks >= MAX_PAGE_TASKS:
            break
    return tuple(found)


def _add_up(combinations: dict[int, int], taken: list[int], shared: list[int]) -> None:
    """Add devices, by the policies that take them, to the counts of each policy; `combinations` is empty then."""
    for found, devices in combinations.items():
        has_first, rest = found & 1, found
        while rest:
            low = rest & -rest
            rest ^= low
            number = low.bit_length() - 1
            taken[number] += devices
            shared[number] += devices if has_first else 0
    combinations.clear()


def may_read(task: str, scenarios: Collection[str] | None) -> bool:
    """Return whether a task is of one of the scenarios."""
    return scenarios is None or task.partition("/")[0] in scenarios
