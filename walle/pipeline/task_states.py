"""States of tasks between their runs (`ctx.state`, §5.1), by version of their form (ADR 106).

A state is written in the transaction of the outputs and the position of the run that made it. A task has one active
state, and keeps the one of the version before it for a rollback.
"""

import dataclasses
import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self

from walle import plain
from walle.engine_ext._core import packed_value
from walle.errors import PipelineError
from walle.protocol import FeaturesPolicy, StatePolicy, UpgradePolicy

MAX_STATE_BYTES = 64 << 10  # encoded; each run that changes the state writes all of it

_SCHEMA = """
CREATE TABLE IF NOT EXISTS task_states (task TEXT NOT NULL, version INTEGER NOT NULL, is_active INTEGER NOT NULL,
    after_id INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (task, version))
    WITHOUT ROWID
"""
_COLUMNS = "task, version, is_active, after_id, data, checksum"


class TaskStateError(PipelineError):
    """A state that cannot be stored. Carries `task`."""

    def __init__(self, task: str, what: str) -> None:
        super().__init__(f"the state of task {task!r} {what}")
        self.task = task


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A task's state: `data` is a dict, encoded as plain data.

    Queries of the task return features with a number above `after_id` only.
    """

    task: str
    version: int
    data: bytes
    after_id: int = 0
    is_active: bool = True

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


def encode_state(task: str, value: object) -> bytes:
    """Return a state encoded.

    Raises:
        TaskStateError: the value is not a dict of plain data, or larger than MAX_STATE_BYTES.
    """
    if not isinstance(value, Mapping):
        raise TaskStateError(task, f"must be a dict, is a {type(value).__name__}")
    try:
        data = packed_value(value) or plain.encode(value, "state")
    except plain.PlainDataError as error:
        raise TaskStateError(task, f"cannot be stored: {error}") from error
    if len(data) > MAX_STATE_BYTES:
        raise TaskStateError(task, f"has {len(data)} bytes, more than {MAX_STATE_BYTES}; keep less, or put features")
    return data


class TaskStates:
    """The states of all tasks, those that wait for their transaction included."""

    def __init__(self, states: Iterable[TaskState] = ()) -> None:
        self._states: dict[str, dict[int, TaskState]] = {}
        for state in states:
            self._states.setdefault(state.task, {})[state.version] = state

    def active(self, task: str) -> TaskState | None:
        """Return the task's active state, None if it has none."""
        return next((state for state in self._states.get(task, {}).values() if state.is_active), None)

    def changed(self, task: str, value: object) -> TaskState | None:
        """Return the task's active state with another value, None if it is equal. Raises as `encode_state`."""
        active = self.active(task)
        if active is None:
            raise TaskStateError(task, "is not declared; add [state] to its task.toml")
        data = encode_state(task, value)
        return None if data == active.data else dataclasses.replace(active, data=data)

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
    return TaskState(task=task, version=version, data=encode_state(task, value), after_id=after_id)


# --- rows -------------------------------------------------------------------------------------------------------------


def write_states(db: sqlite3.Connection, changes: Mapping[tuple[str, int], TaskState | None]) -> None:
    """Write changed rows, in the open transaction.

    The first one creates the table. An older walle ignores it, so that the file's format stays.
    """
    db.execute(_SCHEMA)
    for (task, version), state in changes.items():
        if state is None:
            db.execute("DELETE FROM task_states WHERE task = ? AND version = ?", (task, version))
        else:
            values = (task, version, int(state.is_active), state.after_id, state.data)
            db.execute("INSERT OR REPLACE INTO task_states VALUES (?, ?, ?, ?, ?, ?)", (*values, _checksum(values)))


def read_states(db: sqlite3.Connection) -> tuple[list[TaskState], int]:
    """Return the states of the file, and the number of rows that fail their checksum or are not plain data.

    An older walle stored states that cannot be decoded; each run of their task would fail.
    """
    states: list[TaskState] = []
    damaged = 0
    if not db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'task_states'").fetchone()[0]:
        return states, damaged
    for *values, checksum in db.execute(f"SELECT {_COLUMNS} FROM task_states"):  # noqa: S608 - made of constants
        task, version, is_active, after_id, data = values
        if _checksum(tuple(values)) != checksum or not _is_state(data):
            damaged += 1
            continue
        state = TaskState(task=task, version=version, data=data, after_id=after_id, is_active=bool(is_active))
        states.append(state)
    return states, damaged


def _is_state(data: bytes) -> bool:
    try:
        return isinstance(plain.decode(data, strict=True), dict)
    except plain.PlainDataError:
        return False


def _checksum(values: tuple[object, ...]) -> int:
    return zlib.crc32(repr(values).encode())
