"""Tasks that a device runs, and the changes of each: activation, fall-back, removal, recovery after a crash (§6).

A change is not cancelled, and is made with the task's lock held (`walle.deploy.agent.agent`). Its state is on the disk
before a version runs, so that a start after a crash continues from it.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from walle.base.clock import Clock
from walle.deploy.agent.agent_errors import ActivationFailedError, ActivationPostponedError
from walle.deploy.agent.exclusive import ExclusiveFiles
from walle.deploy.agent.failure_class import class_of
from walle.deploy.agent.installed import CorruptedError, InstalledTasks, Standing, TaskState, VersionRef
from walle.deploy.agent.outcomes import OutcomeReport
from walle.deploy.agent.pull import BundleRejectedError, on_disk
from walle.deploy.agent.trace_log import TraceLog
from walle.deploy.agent.trusted_versions import TrustedVersions
from walle.protocol import Directive, FailureClass, Manifest

_LOG = logging.getLogger(__name__)

_PARTIAL_KEEP_S = 86_400.0  # a partly pulled version is kept this long, for a directive that resumes it

type Check = Callable[[Path, Manifest], Awaitable[None]]
type OnEnd = Callable[[str], Awaitable[None]]


class OnActivate(Protocol):
    """Activates a task's first version, or replaces the active one.

    With `may_postpone`, it may raise ActivationPostponedError: the active version then continues.
    """

    async def __call__(self, task: str, files: Path, manifest: Manifest, /, *, may_postpone: bool) -> None: ...


class Postponed(NamedTuple):
    """A version in `versions` that is not activated yet. It is checked again where its runs lacked required files."""

    manifest: str
    is_checked: bool


class ActiveTasks:
    """The states of the tasks of one device. The calls to the app are those of `Agent`.

    `forget` is called with a task that has no version any more.
    """

    def __init__(
        self,
        installed: InstalledTasks,
        versions: TrustedVersions,
        outcomes: OutcomeReport,
        traces: TraceLog,
        clock: Clock,
        *,
        exclusive: ExclusiveFiles | None,
        prepare: Check | None,
        on_activate: OnActivate,
        on_suspend: OnEnd,
        on_remove: OnEnd,
        forget: Callable[[str], None],
    ) -> None:
        self._states: dict[str, TaskState] = {}
        self._postponed: dict[str, Postponed] = {}  # by task
        self._installed = installed
        self._versions = versions
        self._outcomes = outcomes
        self._traces = traces
        self._clock = clock
        self._exclusive = exclusive
        self._prepare = prepare
        self._on_activate = on_activate
        self._on_suspend = on_suspend
        self._on_remove = on_remove
        self._forget = forget

    def state_of(self, task: str) -> TaskState:
        """Return the state of a task, an empty one where nothing is known of it."""
        return self._states.get(task, TaskState(task=task))

    @property
    def states(self) -> Mapping[str, TaskState]:
        """The states of all known tasks, by task, to read only."""
        return MappingProxyType(self._states)

    def postponed_of(self, task: str) -> Postponed | None:
        """Return the version of a task whose activation is postponed, if there is one."""
        return self._postponed.get(task)

    def enter_epoch(self, directive: Directive, era: str) -> TaskState:
        """Put a directive's task into the directive's epoch of `era`, and return its state."""
        state = self._states[directive.task] = self.state_of(directive.task).within(era, directive.epoch)
        return state

    async def settle(self, state: TaskState) -> None:
        """Record a `state` that neither activates nor removes a version."""
        await on_disk(self._installed.write, state)
        self._states[state.task] = state
        if state.standing is Standing.DONE:
            self._add_outcome(state)

    async def stay(self, state: TaskState) -> None:
        """Record a directive for the version that is active already."""
        await self.settle(state)
        await self._clean(state)

    async def activate(
        self, state: TaskState, files: Path, manifest: Manifest, *, written: bool = False, is_checked: bool
    ) -> None:
        """Activate the active version of `state`, whose files are on the disk; `written` where `state` is, too.

        `is_checked`: its check had the exclusive files that it requires.

        Raises:
            ActivationPostponedError: the version before it continues, and the directive is still to be carried out.
            ActivationFailedError: it could not be activated, and the version before it replaced it.
        """
        before = self.state_of(state.task)
        # A bad version is left at once: only one that the device may fall back to may run on meanwhile.
        may_postpone = before.active is not None and state.previous_good
        missing = self.missing(manifest)
        if (missing or not is_checked) and (may_postpone or before.active is None):
            await self._postpone(before, state, is_checked=False)  # runs had no file to read
            why = f"it requires exclusive files that this device does not have: {missing} (walle device-file put)"
            if not missing:
                why = "the exclusive files that it requires have come since it was checked; it is checked with them"
            raise ActivationPostponedError(state.task, manifest.version, why)
        if not written:
            await on_disk(self._installed.write, state)
        if self._prepare is not None and (may_postpone or before.active is None):
            await self._prepare(files, manifest)
        self._states[state.task] = state
        try:
            with self._traces.installing(state.task, "device.activate"):
                await self._on_activate(state.task, files, manifest, may_postpone=may_postpone)
        except ActivationPostponedError:
            await self._postpone(before, state, is_checked=True)
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._add_outcome(state)
            await self.fall_back(state.task, reason, class_of(error))
            raise ActivationFailedError(state.task, manifest.version, reason) from error
        self._add_outcome(state)
        await self._clean(state)

    def missing(self, manifest: Manifest) -> str:
        """Return the required exclusive files that are not here, "" for none."""
        return "" if self._exclusive is None else self._exclusive.missing(manifest)

    async def _postpone(self, before: TaskState, state: TaskState, *, is_checked: bool) -> None:
        """Return to the state before an activation, with its directive still to be carried out. The files stay."""
        open_again = before.begin(state.serial)
        await self._write_or_log(open_again)
        self._states[state.task] = open_again
        if state.active is not None:
            self._postponed[state.task] = Postponed(state.active.manifest, is_checked=is_checked)

    def _add_outcome(self, state: TaskState) -> None:
        if state.outcome is not None:
            self._outcomes.add(state.outcome)

    async def reject(self, target: VersionRef, serial: int, rejection: BundleRejectedError) -> None:
        """Record and report a refusal, and delete the files of the refused version."""
        before = self.state_of(rejection.task)
        state = before.refuse(
            serial, target, rejection.reason, final=rejection.final, failure_class=rejection.failure_class
        )
        is_reported = before.serial == serial and before.outcome == state.outcome
        await self._clean(before)
        await self._write_or_log(state)
        self._states[state.task] = state
        if state.outcome is not None and not is_reported:  # a full disk is reported once, not at every request
            self._outcomes.add(state.outcome, rejection.failure)

    async def remove(self, state: TaskState, directive: Directive) -> None:
        """Remove a task and its data, as a directive says."""
        removed = state.remove(directive.serial, directive.release)
        await self.settle(removed)
        if state.active is not None or state.standing is not Standing.DONE:  # a suspended task has data too
            with self._logged(directive.task):
                await self._on_remove(directive.task)
        await self._clean(removed)

    async def fall_back(self, task: str, reason: str, what: FailureClass = FailureClass.VERSION) -> None:
        """Replace the active version by the previous one, or by none if that cannot be activated either."""
        while (before := self._states[task]).active is not None:
            manifest: Manifest | None = None
            if before.previous is not None and before.previous_good:
                try:
                    manifest = await on_disk(self._versions.load, task, before.previous)
                except (CorruptedError, OSError) as error:
                    _LOG.warning("%s", error)
                    before = before.without_previous()
            state = before.fall_back(reason, failure_class=what)
            await self._write_or_log(state)
            self._states[task] = state
            self._add_outcome(state)
            if state.active is None or manifest is None:
                with self._logged(task):
                    await self._on_suspend(task)
                break
            try:
                files = self._installed.version_files(task, state.active)
                await self._on_activate(task, files, manifest, may_postpone=False)
                break
            except Exception as error:  # noqa: BLE001 - after any error the device must not keep the version
                _LOG.exception("%s: the previous version cannot be activated either", task)
                reason, what = f"{type(error).__name__}: {error}", class_of(error)
        await self._clean(self._states[task])

    async def recover(self, task: str) -> None:
        """Verify and activate what is on the disk of a task after a start; see `Agent.start`.

        Raises:
            OSError, TaskNameError: it cannot be read.
        """
        try:
            state = await on_disk(self._installed.read, task)
        except CorruptedError as error:
            await self._drop(TaskState.lost(task, str(error)), error)
            return
        manifest: Manifest | None = None
        recovered = state
        while recovered.active is not None and manifest is None:
            try:
                manifest = await on_disk(self._versions.load, task, recovered.active)
            except (CorruptedError, OSError) as error:
                _LOG.error("%s %s is deactivated: %s", task, recovered.active.version, error)
                recovered = recovered.fall_back(str(error), corrupted=True, failure_class=class_of(error))
                self._add_outcome(recovered)
        if recovered is not state:
            await self._write_or_log(recovered)
        else:
            self._add_outcome(state)
        self._states[task] = recovered
        await self._clean(recovered, partial_newer_than_s=self._clock.time() - _PARTIAL_KEEP_S)
        if recovered.active is not None and manifest is not None:
            files = self._installed.version_files(task, recovered.active)
            try:
                await self._on_activate(task, files, manifest, may_postpone=False)
            except Exception as error:  # noqa: BLE001 - one task's failure must not affect other tasks
                _LOG.exception("%s cannot be activated", task)
                await self.fall_back(task, f"{type(error).__name__}: {error}", class_of(error))
        elif recovered.serial > 0 and recovered.standing is Standing.DONE:
            with self._logged(task):  # the process may have ended between the removal and that of the task's data
                await self._on_remove(task)

    async def _drop(self, lost: TaskState, error: CorruptedError) -> None:
        """Remove a task whose state cannot be read, its data too: the cloud may have removed it before.

        A removal that fails is tried again at the next start. The outcome is in the new state, so that a kill before
        the next report does not lose it.
        """
        _LOG.error("%s; the task and its data are removed, until the cloud sends the task again", error)
        self._add_outcome(lost)
        try:
            await self._on_remove(lost.task)
        except Exception:  # noqa: BLE001 - one task's failure must not affect other tasks
            _LOG.exception("%s: its data could not be removed, the next start tries again", lost.task)
            return
        await self._write_or_log(lost)
        self._states[lost.task] = lost
        await self._clean(lost)

    # --- the disk ----------------------------------------------------------------------------------------------------

    async def _write_or_log(self, state: TaskState) -> None:
        """Write `state`; log a disk error instead of raising it: the new state then holds until a restart."""
        try:
            await on_disk(self._installed.write, state)
        except OSError as error:
            _LOG.warning("the state of %s cannot be written: %s", state.task, error)

    async def _clean(self, state: TaskState, *, partial_newer_than_s: float | None = None) -> None:
        """Remove leftovers; those that cannot be removed now are removed at the next start."""
        self._postponed.pop(state.task, None)
        if state.active is None and state.previous is None:
            self._forget(state.task)
        try:
            await on_disk(self._installed.clean, state, partial_newer_than_s=partial_newer_than_s)
        except OSError as error:
            _LOG.warning("leftovers of %s cannot be removed: %s", state.task, error)

    @contextlib.contextmanager
    def _logged(self, task: str) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - one task's failure must not affect other tasks
            _LOG.exception("%s failed", task)
