"""Checkpoints of tasks that train (`ctx.checkpoint`), in a device's feature store (§4.2).

A checkpoint is kept as the state of a task is (`walle.pipeline.features.task_states`), under another name: its step's
puts are in the same transaction, and the form before the present one is kept for a rollback.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from walle.base import plain
from walle.errors import PipelineError
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore, OutboxFullError
from walle.pipeline.features.task_states import TaskState
from walle.protocol import TrainingPolicy

_PREFIX = "@training "  # no task has such a name
_NO_POSITION = -1  # position of puts that no event has caused
_KEY = "checkpoint"


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

    def read(self, task: str, policy: TrainingPolicy, known: int = 0) -> tuple[int, Any]:
        """Return the number and the value of the task's checkpoint, 0 and None if it has none of this version's form.

        The value is None too where `known` is the number. A number is of this process, and is never used again.
        """
        state = self._store.task_states.of_version(_PREFIX + task, policy.version)
        if state is None:
            return 0, None
        numbered = self._numbered.get(task)
        if numbered is None or numbered[0] is not state:
            numbered = self._numbered[task] = state, next(self._numbers)
        return numbered[1], None if numbered[1] == known else state.value[_KEY]

    async def put(
        self,
        task: str,
        policy: TrainingPolicy,
        puts: Sequence[Put],
        checkpoint: Sequence[Any],
        on_put: Callable[[], None] | None = None,
    ) -> None:
        """Store what a step has put, and its checkpoint, a list of one or empty, in one transaction. Waits for room.

        `on_put` is called when a transaction has taken it. Returns once that is in the file, so that a kill loses the
        step under way alone.

        Raises:
            CheckpointError: the checkpoint is not plain data, or is larger than the policy allows; nothing is stored.
            StoreError: the store cannot be written now; a later transaction has it.
        """
        store, since_s = self._store, self._store.clock.time()
        state = None if not checkpoint else _state_of(task, policy, checkpoint[0])
        while True:
            try:
                await store.put_outputs(puts, position=_NO_POSITION, since_s=since_s, state=state, on_put=on_put)
            except OutboxFullError:
                await store.wait_for_progress()
            else:
                await store.flush()
                return

    def remove(self, task: str) -> None:
        """Remove the task's checkpoints with the next transaction."""
        self._numbered.pop(task, None)
        self._store.remove_states(_PREFIX + task)


def _state_of(task: str, policy: TrainingPolicy, checkpoint: Any) -> TaskState:
    try:
        data = plain.encode({_KEY: checkpoint}, "ctx")
    except plain.PlainDataError as error:
        raise CheckpointError(task, f"cannot be stored: {error}") from error
    if len(data) > policy.max_bytes:
        raised = f", or raise max_bytes (up to {policy.MAX_BYTES})" if policy.max_bytes < policy.MAX_BYTES else ""
        what = f"has {len(data)} bytes, more than {policy.max_bytes} of [training] in task.toml; keep less in it, such"
        raise CheckpointError(task, f"{what} as step.state_dict(frozen=False){raised}")
    return TaskState(task=_PREFIX + task, version=policy.version, data=data)
