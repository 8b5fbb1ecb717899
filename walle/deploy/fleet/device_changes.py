"""Changes of the registry of devices: by a profile that was sent, and by a report of outcomes.

They change rows in memory; the registry reads them before, and writes those that differ.
"""

import dataclasses
import functools
import hashlib
import json
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from walle.protocol import Failure, Outcome, OutcomeBatch, OutcomeKind, Profile, ProtocolError

MAX_DEVICE_TASKS = 400  # §7.1 has 348 active tasks; a row has about 100 bytes on the disk
MAX_SIGHTING_BYTES = 32 << 10  # limit of a profile with all of its tasks, as the gateway passes it on
MAX_DEVICE_FAILURES = 20
_MAX_APP_VERSION = 100  # in characters
_MAX_ATTRIBUTES = 2_000  # in characters of JSON
_MAX_TASK = 300  # in characters
_MAX_RUNS = 10**15

type Row = tuple[Any, ...]
type Storable = Callable[[str], str]
"""`storable(text)` returns a text as the registry's database has it."""


@dataclasses.dataclass(slots=True)
class StoredDevice:
    """A row of the table `devices`, with its columns in their order."""

    device_id: str
    profile: bytes
    app_version: str
    attributes: str
    first_seen_s: float
    last_seen_s: float
    reported_s: float | None = None


@dataclasses.dataclass(slots=True)
class StoredTask:
    """A row of the table `device_tasks`, with its columns in their order."""

    device_id: str
    task: str
    active: str = ""
    version: str = ""
    state: str = ""
    release: str = ""
    reported_s: float | None = None
    ok: int = 0
    failed: int = 0


_row_of_task = operator.attrgetter(*(field.name for field in dataclasses.fields(StoredTask)))
_row_of_device = operator.attrgetter(*(field.name for field in dataclasses.fields(StoredDevice)))


class DeviceRows:
    """Rows of one device: of its profile, None for none, and of its tasks. `failures` are new ones, without a number.

    `storable` is applied to each text of a device.
    """

    def __init__(self, device: Row | None, tasks: Sequence[Row], storable: Storable) -> None:
        self.storable = storable
        self.device = None if device is None else StoredDevice(*device)
        self.tasks = {task.task: task for task in (StoredTask(*row) for row in tasks)}
        self.failures: list[Row] = []
        self._device_before = device
        self._tasks_before = {row[1]: row for row in tasks}

    def changed_device(self) -> list[Row]:
        """Return the row of the device if it differs from the one before."""
        row = None if self.device is None else _row_of_device(self.device)
        return [] if row is None or row == self._device_before else [row]

    def changed_tasks(self) -> list[Row]:
        """Return the rows of tasks that differ from those before."""
        rows = (_row_of_task(task) for task in self.tasks.values())
        return [row for row in rows if row != self._tasks_before.get(row[1])]

    def removed_tasks(self) -> list[str]:
        """Return the tasks that were removed."""
        return [task for task in self._tasks_before if task not in self.tasks]


class Change(Protocol):
    """A change of what is known of `device_id`."""

    @property
    def device_id(self) -> str: ...

    def reads_tasks(self, device: Row | None) -> bool:
        """Return whether it needs the tasks of its device, which has this row, None for none."""

    def __call__(self, rows: DeviceRows) -> None: ...


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A device that sent a profile. One that it sent before is not read again."""

    device_id: str
    header: bytes
    now_s: float

    @functools.cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.header, digest_size=16).digest()

    def reads_tasks(self, device: Row | None) -> bool:
        return device is None or device[1] != self.digest  # the second column is the profile

    def __call__(self, rows: DeviceRows) -> None:
        device = rows.device
        if device is not None and device.profile == self.digest:
            device.last_seen_s = self.now_s
            return
        try:
            profile = Profile.from_header(self.header.decode(), max_bytes=MAX_SIGHTING_BYTES)
        except (ProtocolError, UnicodeDecodeError):
            return
        device_id = rows.storable(self.device_id)
        app_version = rows.storable(profile.app_version[:_MAX_APP_VERSION])
        first_s, reported_s = (self.now_s, None) if device is None else (device.first_seen_s, device.reported_s)
        attributes = _attributes(profile, rows.storable)
        rows.device = StoredDevice(device_id, self.digest, app_version, attributes, first_s, self.now_s, reported_s)
        active = {
            rows.storable(task[:_MAX_TASK]): rows.storable(version[:_MAX_APP_VERSION])
            for task, version in profile.tasks.items()
        }
        for task in rows.tasks.values():
            if task.task not in active:
                task.active = ""
        # Anyone may send profiles: they remove nothing that was reported.
        _make_room(rows.tasks, active.keys(), lambda task: not task.active and task.reported_s is None)
        for name, version in active.items():
            if name in rows.tasks:
                rows.tasks[name].active = version
            elif len(rows.tasks) < MAX_DEVICE_TASKS:
                rows.tasks[name] = StoredTask(device_id, name, version)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A report of outcomes."""

    batch: OutcomeBatch
    now_s: float

    @property
    def device_id(self) -> str:
        return self.batch.device_id

    @property
    def weight(self) -> int:
        """Weight of the change while it waits in memory."""
        return 1 + len(self.batch.outcomes) + 8 * sum(len(_failures(outcome)) for outcome in self.batch.outcomes)

    def reads_tasks(self, _: Row | None) -> bool:
        return True

    def __call__(self, rows: DeviceRows) -> None:
        device_id, now_s = rows.storable(self.device_id), self.now_s
        if rows.device is None:
            rows.device = StoredDevice(device_id, b"", "", "{}", now_s, now_s, now_s)
        else:
            rows.device.last_seen_s = rows.device.reported_s = now_s

        def shown(text: str, most: int) -> str:
            return rows.storable(text[:most])

        wanted = {shown(outcome.task, _MAX_TASK) for outcome in self.batch.outcomes}
        _make_room(rows.tasks, wanted, lambda task: not task.active or task.reported_s is None)
        for outcome in self.batch.outcomes:
            name, version = shown(outcome.task, _MAX_TASK), shown(outcome.version, _MAX_APP_VERSION)
            release = shown(outcome.release, _MAX_TASK)
            if name not in rows.tasks:
                if len(rows.tasks) >= MAX_DEVICE_TASKS:
                    continue
                rows.tasks[name] = StoredTask(device_id, name, version=version, state=outcome.kind.value)
            self._note_standing(rows.tasks[name], version, release, outcome)
            for failure in _failures(outcome):
                text = json.dumps(dataclasses.asdict(failure))
                rows.failures.append((device_id, name, version, release, outcome.kind.value, now_s, text))

    def _note_standing(self, task: StoredTask, version: str, release: str, outcome: Outcome) -> None:
        is_same = task.version == version
        # Counts begin again with another version; a run does not change the state of the version.
        task.ok = min(_MAX_RUNS, outcome.ok + is_same * task.ok)
        task.failed = min(_MAX_RUNS, outcome.failed + is_same * task.failed)
        if not (is_same and outcome.kind is OutcomeKind.RUN):
            task.state = outcome.kind.value
        task.version, task.release, task.reported_s = version, release, self.now_s


def _make_room(
    tasks: dict[str, StoredTask], wanted: Collection[str], is_removable: Callable[[StoredTask], bool]
) -> None:
    """Remove tasks that may be removed, where those that are wanted make too many."""
    excess = len(tasks.keys() | set(wanted)) - MAX_DEVICE_TASKS
    if excess <= 0:
        return
    removable = [task for task in tasks.values() if task.task not in wanted and is_removable(task)]
    removable.sort(key=lambda task: (task.reported_s is not None, task.active != "", task.reported_s or 0.0, task.task))
    for task in removable[:excess]:
        del tasks[task.task]


def _failures(outcome: Outcome) -> tuple[Failure, ...]:
    if outcome.failures or not outcome.error:
        return outcome.failures
    count = max(1, outcome.failed)  # the device does not describe its failures, or they are not of task code
    return (Failure(error_type="", error=outcome.error, place=outcome.place, log=outcome.log, count=count),)


def _attributes(profile: Profile, storable: Storable) -> str:
    """Return a profile's attributes as JSON: the first ones that fit, without numbers that JSON lacks."""
    kept: dict[str, Any] = {}
    size = 2
    for name, value in profile.attributes.items():
        if isinstance(value, float) and not math.isfinite(value):
            continue
        clean = storable(value) if isinstance(value, str) else value
        size += len(json.dumps({name: clean}))
        if size > _MAX_ATTRIBUTES:
            break
        kept[storable(name)] = clean
    return json.dumps(kept)
