"""Training in the background (§4.2): steps of the tasks that train, while the device is in the state they ask for."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping

from walle.base.clock import Clock
from walle.base.waiting import first_of
from walle.device.task_versions import ActiveVersion
from walle.errors import WalleError
from walle.protocol import Attribute, TrainingPolicy
from walle.task.run.run_result import TrainedStep

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Course:
    """The training of one active version: when its next step is due, by the monotonic clock."""

    version: ActiveVersion
    policy: TrainingPolicy
    due_s: float
    has_vm: bool = False


class BackgroundTraining:
    """One step at a time, of the task that is due first; a step is cut short when its task may not train any more.

    Args:
        device: returns the attributes of the device as tasks see them.
        active: the active version of each task.
        step: runs one step of a task and stores it; what it raises ends that step only.
        release: called with a version that rests, whose VM can be closed.
    """

    def __init__(
        self,
        clock: Clock,
        device: Callable[[], Mapping[str, Attribute]],
        active: Mapping[str, ActiveVersion],
        step: Callable[[str, ActiveVersion], Awaitable[TrainedStep]],
        release: Callable[[ActiveVersion], None],
    ) -> None:
        self._clock = clock
        self._device = device
        self._active = active
        self._step = step
        self._release = release
        self._courses: dict[str, _Course] = {}
        self._changed = asyncio.Event()

    def note_change(self) -> None:
        """Take note that an attribute or an active version has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Train until this is cancelled."""
        while True:
            self._changed.clear()
            self._follow()
            now_s = self._clock.monotonic()
            ready = [one for one in self._courses.values() if self._may_train(one)]
            for one in self._courses.values():
                if one.has_vm and one not in ready:
                    self._rest(one)
            course = min(ready, key=lambda one: one.due_s, default=None)
            if course is None:
                await self._changed.wait()
            elif course.due_s > now_s:
                await first_of(self._changed.wait(), self._clock.sleep(course.due_s - now_s))
            else:
                await self._train(course)

    def _follow(self) -> None:
        """Begin the course of each version that was activated, and end that of each that is active no more."""
        for task, course in list(self._courses.items()):
            if self._active.get(task) is not course.version:
                del self._courses[task]
                self._rest(course)
        for task, version in self._active.items():
            policy = version.manifest.training
            if policy is not None and task not in self._courses:
                self._courses[task] = _Course(version, policy, self._clock.monotonic())

    def _may_train(self, course: _Course) -> bool:
        task = course.version.manifest.name
        return self._active.get(task) is course.version and course.policy.is_met(self._device())

    def _rest(self, course: _Course) -> None:
        course.has_vm = False
        self._release(course.version)

    async def _train(self, course: _Course) -> None:
        """Run one step, and set when the next one is due."""
        manifest, policy = course.version.manifest, course.policy
        begun_s = self._clock.monotonic()
        course.has_vm = True
        running = asyncio.ensure_future(self._step(manifest.name, course.version))
        try:
            while not running.done():
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([running, changed], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                self._changed.clear()
                if not running.done() and not self._may_train(course):
                    return  # due at once when the task may train again
            step = running.result()
        except WalleError as error:
            _LOG.info("a step of training of %s failed: %s", manifest.name, error)
            course.due_s = self._clock.monotonic() + policy.rest_s
            self._rest(course)
            return
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        now_s = self._clock.monotonic()
        if step.more:
            course.due_s = max(now_s, begun_s + step.cpu_s * 100 / policy.cpu_percent)
        else:
            course.due_s = now_s + policy.rest_s
            self._rest(course)
