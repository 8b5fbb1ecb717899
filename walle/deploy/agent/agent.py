"""Deployment agent of a device (§6): installs what directives ask for and reports the outcome to the cloud.

A directive is accepted if the release role signed it for this device among others, it has not expired, no newer one was
seen for its task, and a fresh timestamp says that it still counts (`walle.deploy.agent.trust`). Its version is then
pulled, verified, assembled, checked in a separate folder, and activated by one rename. Going back to the previous
version needs no pull. `revert` leaves a version that fails after activation, without asking the cloud.

The agent does not retry by itself. A directive that failed because of the network is carried out when the cloud sends
it again, in the answer to a later business request, after a pause that grows with each failure (`PullRetries`); its
pull resumes from the bytes already received. The same directive does not try a bad version again. Only directives
expire: installed versions do not.
"""

import asyncio
import dataclasses
import logging
import random
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from walle.base.clock import Clock
from walle.base.waiting import to_the_end
from walle.deploy.agent.active_tasks import ActiveTasks, Check, OnActivate, OnEnd
from walle.deploy.agent.agent_errors import (
    CheckFailedError,
    DirectiveRefusedError,
    PullDelayedError,
    SupersededError,
)
from walle.deploy.agent.exclusive import ExclusiveFiles
from walle.deploy.agent.failure_class import TRIES_BEFORE_REPORT, Hindrances, class_of
from walle.deploy.agent.fetch import Fetcher, FetchError
from walle.deploy.agent.installed import (
    CorruptedError,
    InstalledTasks,
    Staging,
    Standing,
    TaskNameError,
    TaskState,
    VersionRef,
    verify_files,
)
from walle.deploy.agent.outcomes import OutcomeReport
from walle.deploy.agent.pull import BundleRejectedError, Puller, on_disk
from walle.deploy.agent.pull_retries import PullRetries
from walle.deploy.agent.pulls_under_way import PullsUnderWay
from walle.deploy.agent.trace_log import TraceLog
from walle.deploy.agent.trust import DeviceTrust, TrustError
from walle.deploy.agent.trust_renewal import TrustRenewal
from walle.deploy.agent.trusted_versions import TrustedVersions
from walle.deploy.agent.watched_runs import WatchedRuns
from walle.errors import DeployError
from walle.protocol import (
    Directive,
    Failure,
    FailureClass,
    Manifest,
    Outcome,
    OutcomeKind,
    ProtocolError,
    check_sha256,
)
from walle.task.format.failure import failure_of
from walle.trust.signing import SignatureError

_LOG = logging.getLogger(__name__)

_MAX_BUNDLE_BYTES = 300_000_000  # the limit of a whole app package in §2.2
_MAX_DIFFERENCE_BYTES = 64 << 20  # size of a file and the one that it replaces, together
# Why a pull was cancelled.
_NEWER = "a newer directive came"
_CLOSED = "the agent was closed"


class Agent:
    """Installs, activates and removes the tasks of one device as directives say, between `start` and `close`.

    `check(files_folder, manifest)` tries a version that is new here: it loads it as it would run, may run it where its
    outputs go nowhere, writes nothing there, and raises where it does not load or a run fails. `prepare(files_folder,
    manifest)` loads it where it is going to run, while the version before it is active; it must not raise. A bad
    version is left at once: the one that replaces it is not prepared. `on_activate(task, files_folder, manifest)`
    activates a task's first version or replaces the active one; if it raises, the agent falls back, unless the
    activation is postponed. `on_suspend(task)` stops a task that has no version to run, until a newer directive; its
    data stays. `on_remove(task)` ends a task and removes its data; it may be called again, also for a task that is
    suspended or was never active. A cancellation does not interrupt these four. They must not call `handle` or `revert`
    for their own task: that is a deadlock. The activation of a version waits for the `exclusive` files that it
    requires, unless it replaces a bad one.

    Directives of one task are handled in order, those of different tasks concurrently. A call returns at once for a
    directive that another call is handling. A newer directive cancels a pull under way, so that a rollback never waits
    for a pull. Each pull begins after a random delay of up to `jitter_s` seconds, so that devices do not pull at once.
    """

    def __init__(
        self,
        folder: Path,
        trust: DeviceTrust,
        fetcher: Fetcher,
        check: Check,
        clock: Clock,
        *,
        outcomes: OutcomeReport,
        exclusive: ExclusiveFiles | None = None,
        prepare: Check | None = None,
        on_activate: OnActivate,
        on_suspend: OnEnd,
        on_remove: OnEnd,
        jitter_s: float = 0.0,
        random_source: random.Random | None = None,
        cache_tag: str = sys.implementation.cache_tag or "",
        max_bundle_bytes: int = _MAX_BUNDLE_BYTES,
        max_difference_bytes: int = _MAX_DIFFERENCE_BYTES,
    ) -> None:
        self.outcomes = outcomes
        self.traces = TraceLog(outcomes.device_id, clock, outcomes.trace)
        self._installed = InstalledTasks(folder)
        self._versions = TrustedVersions(self._installed, trust)
        self._trust = trust
        self._renewal = TrustRenewal(folder, trust, fetcher, outcomes, clock)
        self._runs = WatchedRuns(folder)
        self._puller = Puller(
            self._installed,
            trust,
            fetcher,
            cache_tag=cache_tag,
            max_bundle_bytes=max_bundle_bytes,
            max_difference_bytes=max_difference_bytes,
        )
        self._check = check
        self._clock = clock
        self._exclusive = exclusive
        self._jitter_s = jitter_s
        self._random = random_source or random.Random()
        self._retries = PullRetries(clock, self._random)
        self._active = ActiveTasks(
            self._installed,
            self._versions,
            outcomes,
            self.traces,
            clock,
            exclusive=exclusive,
            prepare=prepare,
            on_activate=on_activate,
            on_suspend=on_suspend,
            on_remove=on_remove,
            forget=self._forget,
        )
        self._is_started = False
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()  # see `_lock`
        self._newest: dict[str, tuple[int, int]] = {}  # task → highest epoch and serial that a call is working on
        self._pulls = PullsUnderWay()
        self._hindrances = Hindrances()

    def _lock(self, task: str) -> asyncio.Lock:
        """Return the lock of a task. It exists as long as a call holds it or waits for it."""
        lock = self._locks.get(task)
        if lock is None:
            lock = self._locks[task] = asyncio.Lock()
        return lock

    @property
    def tasks(self) -> dict[str, str]:
        """Return the active version of each task, with its variant, as in a profile."""
        return {
            task: state.active.installed_as for task, state in self._active.states.items() if state.active is not None
        }

    @property
    def refused(self) -> dict[str, str]:
        """Return, for each task whose latest directive is not carried out again, that directive's `order`."""
        refused = Standing.REFUSED
        return {
            task: f"{one.epoch}.{one.serial}" for task, one in self._active.states.items() if one.standing is refused
        }

    async def start(self) -> Self:
        """Recover from a crash: remove leftovers, verify and activate each task's version, report its outcome again.

        A version that is corrupted on the disk is replaced by the previous one, or dropped where that is corrupted too.
        Both are reported as REVERTED; a corrupted version never runs. A task whose state is corrupted is removed, its
        data too, and reported as REMOVED.
        """
        await self._renewal.restore()
        await on_disk(self._runs.read)
        for task in await on_disk(self._installed.tasks):
            async with self._lock(task):
                try:
                    await to_the_end(self._active.recover(task))
                except (OSError, TaskNameError) as error:
                    _LOG.warning("the installed version of %s cannot be read and is not run: %s", task, error)
        self._is_started = True
        return self

    async def close(self) -> None:
        """Cancel the pulls and wait for the changes that are under way; later directives are refused.

        A cancelled pull resumes when its directive comes again, after the next start.
        """
        self._is_started = False
        for task, lock in list(self._locks.items()):
            self._pulls.cancel(task, _CLOSED)
            async with lock:
                pass
        await self.keep_runs()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def handle(self, directives: Sequence[Directive], timestamp: str | None = None) -> list[DeployError]:
        """Carry out `directives`; return an error for each that failed, and one for `timestamp` if it was refused.

        `timestamp` is X-Walle-Trust of the same answer, None if it had none: then the last one counts as long as it is
        fresh. What is wrong with it becomes an alarm in the next report of outcomes, and `directives` are refused.

        A refused version is reported to the cloud as REJECTED. A refused directive (unsigned, expired or old) is not
        reported: anybody could have sent it, and it must not fail a release. Cancellation leaves each task at its old
        version or its new one.
        """
        if not self._is_started:
            raise RuntimeError(
                "the agent is not started, or is closed: it does not know the installed versions; call start"
            )
        refused = await self._renewal.renew(timestamp) if timestamp else None
        self.watch_freshness(is_needed=bool(directives or timestamp))
        async with asyncio.TaskGroup() as group:
            handling = [group.create_task(self._handle_one(directive, refused)) for directive in directives]
        return [error for error in (refused, *(task.result() for task in handling)) if error is not None]

    async def revert(self, task: str, reason: str, *, version: str = "") -> bool:
        """Deactivate the version of `task` that failed here; return whether it was active.

        The previous version replaces it; where that is missing or bad, the task is removed. With `version`, only that
        version is deactivated, so that a late failure does not affect its successor. The directive that installed the
        version does not install it again.
        """
        self._pulls.cancel(task, "the active version failed meanwhile")
        async with self._lock(task):
            active = self._active.state_of(task).active
            if active is None or version not in ("", active.version):
                return False
            await to_the_end(self._active.fall_back(task, reason))
            return True

    def count_run(
        self, task: str, version: str, failure: Failure | None = None, metrics: Mapping[str, float] | None = None
    ) -> str:
        """Count one execution of a version towards the release that brought it; it failed if there is a `failure`.

        `metrics` are the numbers of one that ended well, which the release's guards judge.

        Return why the version is to be left (`revert`), as it fails more often than the one before it, else "".
        """
        state = self._active.state_of(task)
        refs = [ref for ref in (state.active, state.previous) if ref is not None and ref.version == version]
        self.outcomes.count_run(task, version, refs[0].release if refs else "", failure, metrics)
        if not refs or refs[0] is not state.active:
            return ""
        found = self._runs.count(state, ok=failure is None)
        return f"{found}; the last: {failure.error}" if found and failure is not None else found

    def count_dropped(self, task: str, version: str, *, triggers: int = 0, uploads: int = 0, entries: int = 0) -> None:
        """Count what a version lost for want of room, towards the release that brought it."""
        state = self._active.state_of(task)
        refs = [ref for ref in (state.active, state.previous) if ref is not None and ref.version == version]
        release = refs[0].release if refs else ""
        self.outcomes.count_dropped(task, version, release, triggers=triggers, uploads=uploads, entries=entries)

    async def keep_runs(self) -> None:
        """Write the counts of runs to the disk, if there are new ones; a disk error is logged."""
        if not self._runs.is_changed:
            return
        self._runs.is_changed = False
        try:
            await on_disk(self._runs.write, self._runs.to_bytes())
        except OSError as error:
            self._runs.is_changed = True
            _LOG.warning("the counts of runs cannot be written: %s", error)

    def watch_freshness(self, *, is_needed: bool = False) -> None:
        """Raise an alarm where no fresh timestamp has come; call it at each answer without directives or a timestamp.

        A device that never had a timestamp does so only where one `is_needed`.
        """
        self._renewal.watch(is_needed=is_needed)

    def _forget(self, task: str) -> None:
        self._runs.forget(task)
        self._retries.forget(task)

    # --- one directive -----------------------------------------------------------------------------------------------

    async def _handle_one(self, directive: Directive, refused: DeployError | None) -> DeployError | None:
        try:
            if refused is not None:
                self._hinder_if_frozen(directive, refused)
                raise DirectiveRefusedError(directive, f"the timestamp of its answer was refused: {refused}")
            with self.traces.installing(directive.task, "device.verify"):
                self._admit(directive)
            await self._in_turn(directive)
        except PullDelayedError as error:
            _LOG.debug("%s", error)
            return error
        except DeployError as error:
            _LOG.warning("%s", error)
            return error
        return None

    def _admit(self, directive: Directive) -> None:
        try:
            self._trust.verify_directive(directive)
        except SignatureError as error:
            raise DirectiveRefusedError(directive, str(error)) from error
        except TrustError as error:
            self._hinder_if_frozen(directive, error)
            raise DirectiveRefusedError(directive, str(self._renewal.refuse(error))) from error
        if directive.expires_s <= self._trust.now_s():
            self._hinder(directive, FailureClass.DEVICE, "its directive has expired by this device's clock")
            raise DirectiveRefusedError(directive, f"it expired at {directive.expires_s} s since the epoch")
        if directive.serial <= 0:
            raise DirectiveRefusedError(directive, "serials begin at 1")
        self._installed.task_folder(directive.task)  # raises where the name cannot be a folder's
        if directive.version:
            try:
                check_sha256(directive.manifest, "manifest")
            except ProtocolError as error:
                raise DirectiveRefusedError(directive, str(error)) from error

    async def _in_turn(self, directive: Directive) -> None:
        task = directive.task
        number = (directive.epoch, directive.serial)
        newest = self._newest.get(task, (0, 0))
        if number == newest:
            return
        if number < newest:
            raise DirectiveRefusedError(directive, f"serial {newest[1]} is being applied")
        self._newest[task] = number
        self._pulls.cancel(task, _NEWER)
        try:
            async with self._lock(task):
                if self._newest[task] != number:
                    raise SupersededError(directive, _NEWER)
                if not self._is_started:
                    raise SupersededError(directive, _CLOSED)
                try:
                    await self._carry_out(directive)
                finally:
                    self.traces.end_install(directive)
        finally:
            if self._newest.get(task) == number:
                del self._newest[task]

    async def _carry_out(self, directive: Directive) -> None:
        task = directive.task
        state = self._active.state_of(task)
        if self._trust.era == state.era and directive.epoch < state.epoch:
            raise DirectiveRefusedError(directive, f"epoch {state.epoch} was seen, an older one is a replay")
        state = self._active.enter_epoch(directive, self._trust.era)
        if directive.serial < state.serial:
            raise DirectiveRefusedError(directive, f"serial {state.serial} was seen, an older one is a replay")
        if directive.serial == state.serial and state.standing is not Standing.OPEN:
            return
        target = VersionRef(directive.version, directive.manifest, directive.release)
        try:
            if not directive.version:
                await to_the_end(self._active.remove(state, directive))
            elif state.active is not None and state.active.manifest == target.manifest:
                target = dataclasses.replace(target, variant=state.active.variant)
                await to_the_end(self._active.stay(state.activate(directive.serial, target)))
            elif not await self._activate_from_disk(state, directive, target):
                await self._go_forward(state, directive, target)
        except OSError as error:
            reason = f"the device's disk: {error.strerror or error}"
            rejection = BundleRejectedError(directive, reason, final=False, failure_class=class_of(error))
            await to_the_end(self._active.reject(target, directive.serial, rejection))
            raise rejection from error
        except BundleRejectedError as rejection:
            await to_the_end(self._active.reject(target, directive.serial, rejection))
            raise
        except FetchError as error:
            self._hinder(directive, class_of(error), str(error), tries=TRIES_BEFORE_REPORT)
            raise
        self._hindrances.end(task)

    def _hinder_if_frozen(self, directive: Directive, refused: DeployError) -> None:
        """Report that a directive is refused for the time: where it is genuine, this device's clock may be wrong."""
        if not isinstance(refused, TrustError) or refused.kind not in ("frozen", "clock"):
            return
        try:
            self._trust.root.verify_directive(directive)
        except SignatureError:
            return
        self._hinder(directive, FailureClass.DEVICE, refused.reason)

    def _hinder(self, directive: Directive, what: FailureClass, reason: str, *, tries: int = 1) -> None:
        """Report that a directive cannot be carried out yet, for a reason that says nothing of its version."""
        active = self._active.state_of(directive.task).active
        is_active = active is not None and active.manifest == directive.manifest
        if directive.version and not is_active and self._hindrances.is_news(directive, what, tries=tries):
            outcome = Outcome(
                task=directive.task,
                version=directive.version,
                release=directive.release,
                kind=OutcomeKind.REJECTED,
                error=reason,
                failure_class=what,
            )
            self.outcomes.add(outcome)

    async def _activate_from_disk(self, state: TaskState, directive: Directive, target: VersionRef) -> bool:
        """Activate the target if it is on the disk, whole; return whether it was activated.

        It is there if it is the previous version, or if its activation was postponed.
        """
        postponed = self._active.postponed_of(directive.task)
        if postponed is not None and postponed.manifest != target.manifest:
            postponed = None
        if postponed is None and not state.is_previous(target.manifest):
            return False
        try:
            manifest = await on_disk(self._versions.load, directive.task, target, to_install=True)
        except CorruptedError as error:
            _LOG.warning("%s; it is pulled again", error)
            return False
        files = self._installed.version_files(directive.task, target)
        is_checked = postponed is None or postponed.is_checked
        if postponed is None and not state.previous_good:
            await self._run_check(directive, files, manifest)
        if not is_checked and not self._active.missing(manifest):
            is_back = state.active is not None and target.is_back_from(state.active)
            await self._pulls.until_newer(directive, self._run_check(directive, files, manifest, is_back=is_back))
            is_checked = True
        activated = state.activate(directive.serial, dataclasses.replace(target, variant=manifest.variant))
        await to_the_end(self._active.activate(activated, files, manifest, is_checked=is_checked))
        return True

    async def _go_forward(self, state: TaskState, directive: Directive, target: VersionRef) -> None:
        task, number = directive.task, (directive.epoch, directive.serial)
        if (left_s := self._retries.left_s(task, number)) > 0:
            raise PullDelayedError(directive, left_s)
        if state.serial != directive.serial:
            state = state.begin(directive.serial)
            await to_the_end(self._active.settle(state))
        if not self._is_started:
            raise SupersededError(directive, _CLOSED)
        staging = self._installed.staging(task, target.manifest)
        try:
            manifest, is_checked = await self._pulls.until_newer(directive, self._pull(state, directive, staging))
        except FetchError as error:
            self._retries.failed(task, number, error.asked_s, has_progressed=staging.received_bytes > 0)
            raise
        except (BundleRejectedError, OSError) as error:
            if isinstance(error, OSError) or not error.final:  # else its directive is not tried again
                self._retries.failed(task, number, 0.0, has_progressed=False)
            raise
        self._retries.forget(task)
        activated = state.activate(directive.serial, dataclasses.replace(target, variant=manifest.variant))

        async def adopt_and_activate() -> None:
            await on_disk(self._installed.adopt, staging, activated)
            files = self._installed.version_files(task, target)
            await self._active.activate(activated, files, manifest, written=True, is_checked=is_checked)

        await to_the_end(adopt_and_activate())

    async def _pull(self, state: TaskState, directive: Directive, staging: Staging) -> tuple[Manifest, bool]:
        """Pull and check a version; return its manifest, and whether the check had the files that it requires."""
        if self._jitter_s > 0:
            await self._clock.sleep(self._random.uniform(0, self._jitter_s))
        with self.traces.installing(directive.task, "device.pull"):
            files, manifest = await self._puller.pull(
                directive, staging, await on_disk(self._versions.kept_files, state)
            )
        target = VersionRef(directive.version, directive.manifest, directive.release)
        is_back = state.active is not None and target.is_back_from(state.active)
        if self._exclusive is not None:
            await self._exclusive.obtain(manifest)  # obtained before the check, whose runs may read them
        is_checked = not self._active.missing(manifest)
        await self._run_check(directive, files, manifest, is_back=is_back)
        return manifest, is_checked

    async def _run_check(self, directive: Directive, files: Path, manifest: Manifest, *, is_back: bool = False) -> None:
        """Check a version before its activation. One that `is_back` from the active one must load, and no more.

        The cloud takes the active version back, and devices have run the older one before: a check that fails is not a
        reason to stay at a version that is known to be bad.
        """
        try:
            with self.traces.installing(directive.task, "device.check"):
                await self._check(files, manifest)
        except CheckFailedError as error:
            if not is_back:
                raise BundleRejectedError(directive, str(error), final=True, failure=error.failure) from error
            _LOG.warning("%s goes back to %s nevertheless: %s", directive.task, directive.version, error)
        except Exception as error:
            reason = f"its check failed: {type(error).__name__}: {error}"
            failure, found = failure_of(error), class_of(error)
            is_final = found is FailureClass.VERSION  # a fault of this device may pass
            raise BundleRejectedError(
                directive, reason, final=is_final, failure=failure, failure_class=found
            ) from error
        try:
            await on_disk(verify_files, files, manifest)
        except CorruptedError as error:
            raise BundleRejectedError(directive, f"its check changed its files: {error}", final=True) from error
