"""States of tasks between their runs (`ctx.state`, §5.1), by version of their form (ADR 21).

A state is written in the transaction of the outputs and the position of the run that made it. A task has one active
state, and keeps the one of the version before it for a rollback. `walle.pipeline.features.state_entries` has the rules
of a state whose entries expire or are evicted (ADR 21).
"""

import dataclasses
import logging
import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self

from walle.base import plain
from walle.engine_ext._core import packed_value
from walle.errors import PipelineError
from walle.pipeline.features.state_entries import (
    EntryTimes,
    EntryTooLargeError,
    after_run,
    after_upgrade,
    entry_count,
    expired,
    largest,
)
from walle.protocol import FeaturesPolicy, StatePolicy, UpgradePolicy

_LOG = logging.getLogger(__name__)

TRAINING_PREFIX = "@training "  # beginning of the names of checkpoints, which no task has
_DEFAULT = StatePolicy()
_SCHEMA = """
CREATE TABLE IF NOT EXISTS task_states (task TEXT NOT NULL, version INTEGER NOT NULL, is_active INTEGER NOT NULL,
    after_id INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (task, version))
    WITHOUT ROWID
"""
_COLUMNS = "task, version, is_active, after_id, data, checksum"
_TIMES = "task_state_times"  # states whose entries have times; the checksum is of the state's data too
_TIMES_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {_TIMES} (task TEXT NOT NULL, version INTEGER NOT NULL, times BLOB NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (task, version)) WITHOUT ROWID
"""


class TaskStateError(PipelineError):
    """A state that cannot be stored. Carries `task`."""

    def __init__(self, task: str, what: str) -> None:
        super().__init__(f"the state of task {task!r} {what}")
        self.task = task


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A task's state: `data` is a dict, encoded as plain data.

    Queries of the task return features with a number above `after_id` only. `times` are those of its entries, None
    where the version that left the state keeps none.
    """

    task: str
    version: int
    data: bytes
    after_id: int = 0
    is_active: bool = True
    times: EntryTimes | None = None

    @classmethod
    def empty(cls, task: str, version: int) -> Self:
        return cls(task=task, version=version, data=encode_state(task, {}))

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.version

    @property
    def value(self) -> dict[str, Any]:
        """The state, decoded: a new dict for each access."""
        decoded: dict[str, Any] = plain.decode(self.data)
        return decoded

    def value_at(self, policy: StatePolicy, ts_ms: int) -> dict[str, Any]:
        """Return the state as a run on an event of this time finds it: without the entries that have expired."""
        value = self.value
        if self.times is not None:
            for key in expired(policy, self.times, ts_ms):
                del value[key]
        return value

    def with_data(self, data: bytes, times: EntryTimes | None = None) -> Self:
        """Return the state after a run, which is active."""
        return type(self)(task=self.task, version=self.version, data=data, after_id=self.after_id, times=times)

    @property
    def entries(self) -> int:
        return entry_count(self.data)


@dataclasses.dataclass(frozen=True, slots=True)
class StateSize:
    """Size of a task's state beside its bound, and how many entries were evicted since the device's start."""

    size_bytes: int
    max_bytes: int
    entries: int
    evicted: int = 0


def encode_state(task: str, value: object, policy: StatePolicy = _DEFAULT) -> bytes:
    """Return a state encoded.

    Raises:
        TaskStateError: the value is not a dict of plain data, or larger than the policy allows and it does not evict.
    """
    if not isinstance(value, Mapping):
        raise TaskStateError(task, f"must be a dict, is a {type(value).__name__}")
    try:
        data = packed_value(value) or plain.encode(value, "state")
    except plain.PlainDataError as error:
        raise TaskStateError(task, f"cannot be stored: {error}") from error
    if len(data) > policy.max_bytes and not policy.evicts:
        raise TaskStateError(task, _too_large(data, policy))
    return data


def _too_large(data: bytes, policy: StatePolicy) -> str:
    """Return what is wrong with a state beyond its bound, and what to do."""
    found = f"has {len(data)} bytes, more than {policy.max_bytes}; keep less, or put features"
    raised = f", raise max_bytes (up to {policy.MAX_BYTES})" if policy.max_bytes < policy.MAX_BYTES else ""
    hint = f'or have old entries removed: in [state] of task.toml set ttl_s or on_full = "evict"{raised}'
    return f"{found}, {hint}; its largest entries: {largest(data)}"


class TaskStates:
    """The states of all tasks, those that wait for their transaction included."""

    def __init__(self, states: Iterable[TaskState] = ()) -> None:
        self._states: dict[str, dict[int, TaskState]] = {}
        for state in states:
            self._states.setdefault(state.task, {})[state.version] = state

    def active(self, task: str) -> TaskState | None:
        """Return the task's active state, None if it has none."""
        return next((state for state in self._states.get(task, {}).values() if state.is_active), None)

    def changed(
        self, task: str, value: object, policy: StatePolicy = _DEFAULT, ts_ms: int = 0
    ) -> tuple[TaskState | None, int]:
        """Return the task's active state after a run on an event of this time, and how many entries are evicted.

        The state is None if the run has not changed it. Raises as `encode_state`, and where one entry alone is larger
        than the bound.
        """
        active = self.active(task)
        if active is None:
            raise TaskStateError(task, "is not declared; add [state] to its task.toml")
        data = encode_state(task, value, policy)
        if not policy.times_entries:
            return None if data == active.data else active.with_data(data), 0
        try:
            settled = after_run(policy, active.data, active.times, data, ts_ms)
        except EntryTooLargeError as error:
            raise _entry_too_large(task, policy, error) from error
        if settled is None:
            return None, 0
        return active.with_data(settled.data, settled.times), settled.evicted

    def of_version(self, task: str, version: int) -> TaskState | None:
        return self._states.get(task, {}).get(version)

    def activate(self, state: TaskState) -> dict[tuple[str, int], TaskState | None]:
        """Make this the task's active state; return the rows that change, None for one that is removed.

        The state that was active before is kept, others are removed.
        """
        kept = self._states.setdefault(state.task, {})
        before = kept.get(state.version)
        if before is not None and before.is_active:
            kept[state.version] = state
            return {state.key: state}
        changes: dict[tuple[str, int], TaskState | None] = {}
        for version, other in list(kept.items()):
            if other.is_active:
                kept[version] = changes[other.key] = dataclasses.replace(other, is_active=False)
            else:
                changes[other.key] = None
                del kept[version]
        kept[state.version] = changes[state.key] = state
        return changes

    def remove(self, task: str) -> dict[tuple[str, int], TaskState | None]:
        """Remove all states of the task; return the rows that change."""
        return {state.key: None for state in self._states.pop(task, {}).values()}


def _entry_too_large(task: str, policy: StatePolicy, error: EntryTooLargeError) -> TaskStateError:
    return TaskStateError(task, f"cannot be kept within {policy.max_bytes} bytes: {error}; keep less in it")


type Migrate = Callable[[int, Mapping[str, Any]], Awaitable[object]]


async def state_of_version(
    states: TaskStates, task: str, policy: StatePolicy, *, last_id: Callable[[], Awaitable[int]], migrate: Migrate
) -> TaskState:
    """Return the state that a version with this policy begins with.

    `last_id` returns the number of the latest feature, `migrate(old_version, state)` the new state.

    Raises:
        TaskStateError: the new state cannot be stored.
        Exception: what `migrate` raises.
    """
    active, version = states.active(task), policy.version
    if active is not None and active.version == version:
        return active
    if active is None or version < active.version:  # a first version, or a rollback
        before = states.of_version(task, version)
        return TaskState.empty(task, version) if before is None else dataclasses.replace(before, is_active=True)
    value: object = {}
    if policy.on_upgrade is UpgradePolicy.KEEP:
        value = active.value
    elif policy.on_upgrade is UpgradePolicy.MIGRATE:
        value = await migrate(active.version, active.value)
    after_id = await last_id() if policy.features is FeaturesPolicy.CLEAR else active.after_id
    data, times = encode_state(task, value, policy), None
    if policy.times_entries:
        try:
            data, times, evicted = after_upgrade(policy, active.data, active.times, data)
        except EntryTooLargeError as error:
            raise _entry_too_large(task, policy, error) from error
        if evicted:
            _LOG.warning("task %s: the upgrade of its state evicted %d entries, to fit its bound", task, evicted)
    return TaskState(task=task, version=version, data=data, after_id=after_id, times=times)


# --- rows -------------------------------------------------------------------------------------------------------------


def write_states(db: sqlite3.Connection, changes: Mapping[tuple[str, int], TaskState | None]) -> None:
    """Write changed rows, in the open transaction.

    The first one creates the table, and the first one with times that of times. An older walle ignores a table that it
    does not know, so that the file's format stays.
    """
    db.execute(_SCHEMA)
    for (task, version), state in changes.items():
        if state is None:
            db.execute("DELETE FROM task_states WHERE task = ? AND version = ?", (task, version))
            if _has_table(db, _TIMES):
                db.execute(f"DELETE FROM {_TIMES} WHERE task = ? AND version = ?", (task, version))  # noqa: S608
        else:
            values = (task, version, int(state.is_active), state.after_id, state.data)
            db.execute("INSERT OR REPLACE INTO task_states VALUES (?, ?, ?, ?, ?, ?)", (*values, _checksum(values)))
            if state.times is not None:
                db.execute(_TIMES_SCHEMA)
                times = state.times.encode()
                row = (task, version, times, _checksum_of_times(times, state.data))
                db.execute(f"INSERT OR REPLACE INTO {_TIMES} VALUES (?, ?, ?, ?)", row)  # noqa: S608
            elif _has_table(db, _TIMES):  # equal bytes of a later run would make them valid again
                db.execute(f"DELETE FROM {_TIMES} WHERE task = ? AND version = ?", (task, version))  # noqa: S608


def read_states(db: sqlite3.Connection, *, with_times: bool = True) -> tuple[list[TaskState], int]:
    """Return the states of the file, and the number of rows that fail their checksum or are not plain data.

    An older walle stored states that cannot be decoded; each run of their task would fail. Times that are damaged, or
    of other contents, as an older walle leaves them, are left out: entries get new ones at the next run.
    """
    states: list[TaskState] = []
    damaged = 0
    if not _has_table(db, "task_states"):
        return states, damaged
    for *values, checksum in db.execute(f"SELECT {_COLUMNS} FROM task_states"):  # noqa: S608 - made of constants
        task, version, is_active, after_id, data = values
        if _checksum(tuple(values)) != checksum or not _is_state(data):
            damaged += 1
            continue
        state = TaskState(task=task, version=version, data=data, after_id=after_id, is_active=bool(is_active))
        states.append(state)
    if not with_times or not _has_table(db, _TIMES):
        return states, damaged
    rows = db.execute(f"SELECT task, version, times, checksum FROM {_TIMES}")  # noqa: S608 - made of constants
    times = {(task, version): (encoded, checksum) for task, version, encoded, checksum in rows}
    return [_with_times(state, *times.get(state.key, (b"", 0))) for state in states], damaged


def _with_times(state: TaskState, encoded: object, checksum: object) -> TaskState:
    if not isinstance(encoded, bytes) or not encoded or _checksum_of_times(encoded, state.data) != checksum:
        return state
    try:
        return dataclasses.replace(state, times=EntryTimes.decode(encoded, state.data))
    except (TypeError, ValueError):
        return state


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_schema WHERE name = ?", (name,)).fetchone()[0])


def _is_state(data: bytes) -> bool:
    try:
        return isinstance(plain.decode(data, strict=True), dict)
    except plain.PlainDataError:
        return False


def _checksum(values: tuple[object, ...]) -> int:
    if str(values[0]).startswith(TRAINING_PREFIX):  # megabytes, whose text would take a thread long
        *others, data = values
        return zlib.crc32(data if isinstance(data, bytes) else b"", zlib.crc32(repr(others).encode()))
    return zlib.crc32(repr(values).encode())


def _checksum_of_times(times: bytes, data: bytes) -> int:
    return zlib.crc32(times, zlib.crc32(data))
