"""Checkpoints of tasks that train (`ctx.checkpoint`), in a device's feature store (§4.2).

A checkpoint is kept as the state of a task is (`walle.pipeline.features.task_states`), under another name: its step's
puts are in the same transaction, and the form before the present one is kept for a rollback. It has the time since
when the training rests, too.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from walle.base import plain
from walle.engine_ext._core import packed_values
from walle.errors import PipelineError
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_states import TRAINING_PREFIX, TaskState
from walle.protocol import TrainingPolicy

_NO_POSITION = -1  # position of puts that no event has caused
_MAX_VALUES = 1 << 18  # values in containers too: 16 MB of empty lists take more than 1 GB once decoded
_VALUE, _RESTS = "checkpoint", "rests_since_s"


class CheckpointError(PipelineError):
    """A checkpoint that cannot be stored. Carries `task`."""

    def __init__(self, task: str, what: str) -> None:
        super().__init__(f"the checkpoint of task {task!r} {what}")
        self.task = task


class Checkpoints:
    """The checkpoints of the tasks of one device."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._numbers = itertools.count(1)
        self._numbered: dict[str, tuple[TaskState, int]] = {}  # checkpoints that were read, by task

    def activate(self, task: str, policy: TrainingPolicy) -> None:
        """Make the form of this version the present one: the task's checkpoint of this form, or none yet."""
        states, name = self._store.task_states, TRAINING_PREFIX + task
        active = states.active(name)
        if active is not None and active.version == policy.version:
            return
        before = states.of_version(name, policy.version)
        empty = TaskState(task=name, version=policy.version, data=plain.encode({}))
        self._store.activate_state(empty if before is None else dataclasses.replace(before, is_active=True))

    def read(self, task: str, known: int = 0) -> tuple[int, Any]:
        """Return the number and the value of the task's checkpoint, 0 and None if it has none.

        The value is None too where `known` is the number. A number is of this process, and is never used again.
        """
        state = self._store.task_states.active(TRAINING_PREFIX + task)
        if state is None:
            return 0, None
        numbered = self._numbered.get(task)
        if numbered is None or numbered[0] is not state:
            numbered = self._numbered[task] = state, next(self._numbers)
        if numbered[1] == known:
            return known, None
        value = state.value
        return (numbered[1], value[_VALUE]) if _VALUE in value else (0, None)

    def rests_since_s(self, task: str) -> float | None:
        """Return since when the training rests, in seconds since the epoch, None where it does not."""
        state = self._store.task_states.active(TRAINING_PREFIX + task)
        found = None if state is None else state.value.get(_RESTS)
        return found if isinstance(found, float) else None

    async def put(
        self,
        task: str,
        policy: TrainingPolicy,
        puts: Sequence[Put],
        checkpoint: Sequence[Any],
        *,
        rests: bool = False,
        on_put: Callable[[], None] | None = None,
    ) -> None:
        """Store what a step has put, and its checkpoint, a list of one or empty, in one transaction.

        `rests`: the training rests from now on. `on_put` is called when a transaction has taken the step. Returns once
        that is in the file, so that a kill loses the step under way alone.

        Raises:
            CheckpointError: the checkpoint is not plain data, is larger than the policy allows, or has more than
                262,144 values, those in lists and dicts too; an array is one. Nothing is stored.
            OutboxFullError: the outbox has no room for the step's uploads; nothing is stored.
            StoreError: the store cannot be written now; a later transaction has it.
        """
        store, since_s = self._store, self._store.clock.time()
        state = None
        if checkpoint or rests:
            before = store.task_states.active(TRAINING_PREFIX + task)
            value = {} if before is None else before.value
            value = {_VALUE: checkpoint[0]} if checkpoint else {key: one for key, one in value.items() if key == _VALUE}
            state = _state_of(task, policy, value | ({_RESTS: since_s} if rests else {}))
            if before is not None and state.data == before.data:
                state = None
        await store.put_outputs(puts, position=_NO_POSITION, since_s=since_s, state=state, on_put=on_put)
        await store.flush()

    def remove(self, task: str) -> None:
        """Remove the task's checkpoints with the next transaction."""
        self._numbered.pop(task, None)
        self._store.remove_states(TRAINING_PREFIX + task)


def _state_of(task: str, policy: TrainingPolicy, value: dict[str, Any]) -> TaskState:
    try:
        data = plain.encode(value, "ctx")
    except plain.PlainDataError as error:
        raise CheckpointError(task, f"cannot be stored: {error}") from error
    if len(data) > policy.max_bytes:
        raised = f", or raise max_bytes (up to {policy.MAX_BYTES})" if policy.max_bytes < policy.MAX_BYTES else ""
        what = f"has {len(data)} bytes, more than {policy.max_bytes} of [training] in task.toml; keep less in it, such"
        raise CheckpointError(task, f"{what} as step.state_dict(frozen=False){raised}")
    if (values := packed_values(data)) > _MAX_VALUES:
        raise CheckpointError(task, f"has {values} values, more than {_MAX_VALUES}; put numbers into arrays (walle.np)")
    return TaskState(task=TRAINING_PREFIX + task, version=policy.version, data=data)
