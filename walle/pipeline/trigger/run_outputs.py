"""Runs of tasks: what a run puts out, as puts for the store, and the state of its task after it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from walle.errors import PipelineError, VMError
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_states import TaskState
from walle.pipeline.trigger.stream_counts import StreamCounts
from walle.pipeline.trigger.task_output import TaskOutput
from walle.pipeline.trigger.task_queue import Trigger

_LOG = logging.getLogger(__name__)

type Runner = Callable[[str, Trigger], Awaitable[TaskOutput]]
type OnOutcome = Callable[[str, bool, Exception | None], None]


class RunResult(NamedTuple):
    """Outputs of a run, and its task's state after it, None if that is not to be stored; its error if it failed.

    `state_before` is the state that the run began with: only its successor may replace it.
    """

    puts: list[Put]
    state_before: TaskState | None
    state: TaskState | None
    output: Any = None
    error: Exception | None = None
    cpu_s: float | None = None
    evicted: int = 0  # entries of the state


class TaskRuns:
    """Runs tasks by the `runner`, and counts how the runs ended. What a run raises fails that run only."""

    def __init__(self, store: FeatureStore, runner: Runner, on_outcome: OnOutcome, counts: StreamCounts) -> None:
        self._store = store
        self._runner = runner
        self._on_outcome = on_outcome
        self._counts = counts

    async def run(self, task: str, trigger: Trigger) -> RunResult:
        """Run the task; return its outputs, and its state if that has changed. A run that fails has neither."""
        self._counts.triggers += 1
        states = self._store.task_states
        state_before = states.active(task)
        try:
            output = await self._runner(task, trigger)
            puts = output.stored(task)
            state, evicted = None, 0
            if output.state is not None and states.active(task) is state_before:
                state, evicted = states.changed(task, output.state, output.state_policy, trigger.ts_ms)
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            return self._failed(task, PipelineError(f"task {task!r} cancelled itself: {error!r}"))
        except Exception as error:  # noqa: BLE001 (any failure of a run stays that task's)
            return self._failed(task, error)
        self._tell_outcome(task, True, None)
        return RunResult(puts, state_before, state, output.output, cpu_s=output.cpu_s, evicted=evicted)

    def _failed(self, task: str, error: Exception) -> RunResult:
        self._counts.failures += 1
        self._tell_outcome(task, False, error)
        return RunResult([], None, None, error=error, cpu_s=error.cpu_s if isinstance(error, VMError) else None)

    def _tell_outcome(self, task: str, ok: bool, error: Exception | None) -> None:
        try:
            self._on_outcome(task, ok, error)
        except Exception:  # noqa: BLE001 - a fault of the caller must not end the task's queue
            _LOG.exception("the outcome of a run of task %s could not be counted", task)
