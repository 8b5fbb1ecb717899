"""Training in the background (§4.2): steps of tasks that train, while the device is as they ask."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from walle.base.clock import Clock
from walle.base.waiting import first_of
from walle.device.task_runs import TrainingPostponedError
from walle.device.task_versions import ActiveVersion
from walle.protocol import Attribute, TrainingPolicy
from walle.task.run.run_result import TrainedStep

_LOG = logging.getLogger(__name__)

_CUT_S = 2.0  # time for a step to end by itself when its task may not train any more
_RETRY_S = 60.0  # pause after a fault of the device
_MAX_CPU_S = 3_600.0  # CPU time of one step, which its VM tells and a task can falsify


@dataclasses.dataclass(eq=False, slots=True)
class _Schedule:
    """Training of one active version: when its next step is due, by the monotonic clock."""

    version: ActiveVersion
    policy: TrainingPolicy
    due_s: float
    has_vm: bool = False


class BackgroundTraining:
    """One step at a time, of the task that is due first, and none while a task may not train.

    Args:
        device: returns the attributes of the device as tasks see them.
        active: the active version of each task.
        step: runs one step of a task and stores it; what it raises ends that step only.
        rests_since_s: returns since when a task's training rests, in seconds since the epoch, None where it does not.
        release: called with a version whose VM can be closed.
    """

    def __init__(
        self,
        clock: Clock,
        device: Callable[[], Mapping[str, Attribute]],
        active: Mapping[str, ActiveVersion],
        step: Callable[[str, ActiveVersion], Awaitable[TrainedStep]],
        rests_since_s: Callable[[str], float | None],
        release: Callable[[ActiveVersion], None],
    ) -> None:
        self._clock = clock
        self._device = device
        self._active = active
        self._step = step
        self._rests_since_s = rests_since_s
        self._release = release
        self._schedules: dict[str, _Schedule] = {}
        self._changed = asyncio.Event()

    def note_change(self) -> None:
        """Take note that an attribute or an active version has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Train until this is cancelled."""
        while True:
            self._changed.clear()
            self._update_schedules()
            allowed = [one for one in self._schedules.values() if self._may_train(one)]
            for one in self._schedules.values():
                if one.has_vm and one not in allowed:
                    self._release_vm(one)
            first = min(allowed, key=lambda one: one.due_s, default=None)
            if first is None:
                await self._changed.wait()
            elif (pause_s := first.due_s - self._clock.monotonic()) > 0:
                await first_of(self._changed.wait(), self._clock.sleep(pause_s))
            else:
                await self._train(first)

    def _update_schedules(self) -> None:
        """Begin the training of each version that was activated, and end that of each that is not active any more."""
        for task, schedule in list(self._schedules.items()):
            if self._active.get(task) is not schedule.version:
                del self._schedules[task]
                self._release_vm(schedule)
        for task, version in self._active.items():
            policy = version.manifest.training
            if policy is not None and task not in self._schedules:
                self._schedules[task] = _Schedule(version, policy, self._first_due_s(task, policy))

    def _first_due_s(self, task: str, policy: TrainingPolicy) -> float:
        """Return when the first step is due: at once, or after the rest that began before the device's start."""
        since_s = self._rests_since_s(task)
        left_s = 0.0 if since_s is None else since_s + policy.rest_s - self._clock.time()
        return self._clock.monotonic() + min(max(left_s, 0.0), policy.rest_s)  # a clock may be set back

    def _may_train(self, schedule: _Schedule) -> bool:
        task = schedule.version.manifest.name
        return self._active.get(task) is schedule.version and schedule.policy.is_met(self._device())

    def _release_vm(self, schedule: _Schedule) -> None:
        schedule.has_vm = False
        self._release(schedule.version)

    async def _train(self, schedule: _Schedule) -> None:
        """Run one step, and set when the next one is due."""
        manifest, policy = schedule.version.manifest, schedule.policy
        begun_s = self._clock.monotonic()
        schedule.has_vm = True
        running = asyncio.ensure_future(self._step(manifest.name, schedule.version))
        try:
            await self._ended_or_cut(running, schedule)
        finally:
            was_cut = not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        now_s = self._clock.monotonic()
        cpu_s = now_s - begun_s  # at least as much as its thread has used, also where the task tells less
        error = None if running.cancelled() else running.exception()
        if was_cut:
            self._release_vm(schedule)  # half of a step may be in it
        elif isinstance(error, TrainingPostponedError):
            _LOG.info("%s", error)
            schedule.due_s = now_s + _RETRY_S
            return
        elif error is not None or running.cancelled():
            _LOG.info("a step of training of %s failed: %r", manifest.name, error)
            schedule.due_s = now_s + policy.rest_s
            self._release_vm(schedule)
            return
        elif not running.result().wants_more:
            schedule.due_s = now_s + policy.rest_s
            self._release_vm(schedule)
            return
        else:
            cpu_s = max(cpu_s, min(running.result().cpu_s, _MAX_CPU_S))
        schedule.due_s = max(now_s, begun_s + cpu_s * 100 / policy.cpu_percent)

    async def _ended_or_cut(self, running: "asyncio.Future[TrainedStep]", schedule: _Schedule) -> None:
        """Return when the step has ended, or when its task may not train any more and it did not end soon."""
        while not running.done():
            changed = asyncio.ensure_future(self._changed.wait())
            await _first_of(running, changed)
            self._changed.clear()
            if not running.done() and not self._may_train(schedule):
                await _first_of(running, asyncio.ensure_future(self._clock.sleep(_CUT_S)))
                return


async def _first_of(running: "asyncio.Future[TrainedStep]", other: "asyncio.Future[Any]") -> None:
    """Return when one has ended; the other one is cancelled then."""
    try:
        await asyncio.wait([running, other], return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()
