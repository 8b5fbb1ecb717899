"""The device's side of deployment (§6): directives in, installed tasks out, and what came of it told to the cloud.

A directive is believed if a release key signed it, it has not expired and none newer was seen for its task. Its version
is then pulled, verified, put together, checked in a folder of its own, and activated by one rename. Going back to the
version before needs no pull. A version that fails here after all is left by `revert`, without asking the cloud.

Nothing retries by itself: a directive that the network kept from being carried out is carried out when the cloud sends
it again, in the answer to the next business request, and goes on with the bytes that came. A version that was found bad
is not tried again by the same directive. Expiry is asked of directives only: what is installed stays.
"""

import asyncio
import contextlib
import logging
import random
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from walle.clock import Clock
from walle.deploy.device.fetch import Fetcher
from walle.deploy.device.installed import (
    CorruptedError,
    Installed,
    Standing,
    TaskNameError,
    TaskState,
    VersionRef,
    verify_files,
)
from walle.deploy.device.outcomes import OutcomeReport
from walle.deploy.device.pull import BundleRejectedError, Puller, on_disk, to_the_end
from walle.deploy.signing import SignatureError, TrustedKeys
from walle.errors import DeployError
from walle.protocol import Directive, Manifest, Outcome, OutcomeKind, ProtocolError, check_sha256

_log = logging.getLogger(__name__)

_PARTIAL_KEEP_S = 86_400.0  # how long a half-pulled version waits for the directive that goes on with it
_MAX_BUNDLE_BYTES = 300_000_000  # §2.2 gives a whole app package as much

type Check = Callable[[Path, Manifest], Awaitable[None]]
type OnActivate = Callable[[str, Path, Manifest], Awaitable[None]]
type OnRemove = Callable[[str], Awaitable[None]]


class DirectiveRefusedError(DeployError):
    """A directive that moves nothing: signed wrongly, expired, or older than one already seen."""

    def __init__(self, directive: Directive, reason: str) -> None:
        super().__init__(f"directive {directive.serial} for {directive.task[:200]!r} is refused: {reason}")
        self.task = directive.task
        self.serial = directive.serial
        self.reason = reason


class SupersededError(DeployError):
    """A pull given up for a newer directive, or because the active version failed meanwhile."""

    def __init__(self, directive: Directive) -> None:
        super().__init__(f"the pull of {directive.task} {directive.version} was given up for something newer")
        self.task = directive.task
        self.serial = directive.serial


class ActivationFailedError(DeployError):
    """A version that passed its check and yet could not be put to use; the device has fallen back."""

    def __init__(self, task: str, version: str, reason: str) -> None:
        super().__init__(f"{task} {version} could not be put to use: {reason}")
        self.task = task
        self.version = version
        self.reason = reason


class Agent:
    """Keeps the tasks of one device at what the cloud wants of them. `start` comes before all else.

    `check(files_folder, manifest)` loads a version as it would run, writes nothing there, and raises where it
    does not load. `on_activate(task,
    files_folder, manifest)` puts a version to use, the first or in another's place; if it raises, the version is left
    again. `on_remove(task)` ends one. The latter two are not interrupted by a cancellation, and must not call `handle`
    or `revert` of their own task, which would wait for them.

    One task's directives are handled one after the other, different tasks' side by side. A directive that a call is
    working on is left to it by others; a newer one makes a pull under way give up, so that going back never waits for
    going forward. `jitter_s` spreads pulls over as many seconds, against herds.
    """

    def __init__(
        self,
        folder: Path,
        keys: TrustedKeys,
        fetcher: Fetcher,
        check: Check,
        clock: Clock,
        *,
        outcomes: OutcomeReport,
        on_activate: OnActivate,
        on_remove: OnRemove,
        jitter_s: float = 0.0,
        random_source: random.Random | None = None,
        cache_tag: str = sys.implementation.cache_tag or "",
        max_bundle_bytes: int = _MAX_BUNDLE_BYTES,
    ) -> None:
        self.outcomes = outcomes
        self._installed = Installed(folder)
        self._keys = keys
        self._puller = Puller(self._installed, keys, fetcher, cache_tag=cache_tag, max_bundle_bytes=max_bundle_bytes)
        self._check = check
        self._clock = clock
        self._on_activate = on_activate
        self._on_remove = on_remove
        self._jitter_s = jitter_s
        self._random = random_source or random.Random()
        self._is_started = False
        self._states: dict[str, TaskState] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # of tasks in signed directives only
        self._newest: dict[str, int] = {}  # task → highest serial that a call is working on
        self._pulls: dict[str, asyncio.Task[Manifest]] = {}

    @property
    def tasks(self) -> dict[str, str]:
        """Return the active version of each task, as a profile says it."""
        return {task: state.active.version for task, state in self._states.items() if state.active is not None}

    async def start(self) -> None:
        """Finish or discard what a crash left, verify what is active, put it to use and tell its outcome again.

        A version that is corrupted on the disk is left for the previous one, or dropped where that is corrupted too;
        either way a REVERTED outcome says so and nothing of it runs.
        """
        for task in await on_disk(self._installed.tasks):
            async with self._locks[task]:
                try:
                    await to_the_end(self._recover(task))
                except (OSError, TaskNameError) as error:
                    _log.warning("what is installed of %s cannot be read and is not run: %s", task, error)
        self._is_started = True

    async def handle(self, directives: Sequence[Directive]) -> list[DeployError]:
        """Carry out `directives`; return why those that were not carried out were not, one error for each.

        A refusal of a version is told to the cloud as REJECTED. What anybody could have sent - an unsigned directive,
        an old one - is not told: no release should fail by it. Cancellation leaves each task at its old version or its
        new one.
        """
        if not self._is_started:
            raise RuntimeError("start the agent first: before that it knows neither what is installed nor any serial")
        async with asyncio.TaskGroup() as group:
            handling = [group.create_task(self._handle_one(directive)) for directive in directives]
        return [error for error in (task.result() for task in handling) if error is not None]

    async def revert(self, task: str, reason: str, *, version: str = "") -> bool:
        """Leave the active version of `task`, which failed here; return whether it was left.

        The previous version takes its place, or none where there is no good one. With `version`, only that version is
        left: a failure told late does not hit its successor. The directive that brought it does not bring it back.
        """
        self._give_up_pull(task)
        async with self._locks[task]:
            active = self._states.get(task, TaskState(task)).active
            if active is None or version not in ("", active.version):
                return False
            await to_the_end(self._fall_back(task, reason))
            return True

    def count_run(self, task: str, version: str, *, ok: bool, error: str = "") -> None:
        """Count one execution of a version towards the release that brought it."""
        state = self._states.get(task, TaskState(task))
        refs = [ref for ref in (state.active, state.previous) if ref is not None and ref.version == version]
        self.outcomes.count_run(task, version, refs[0].release if refs else "", ok=ok, error=error)

    # --- one directive -----------------------------------------------------------------------------------------------

    async def _handle_one(self, directive: Directive) -> DeployError | None:
        try:
            self._admit(directive)
            await self._in_turn(directive)
        except DeployError as error:
            _log.warning("%s", error)
            return error
        return None

    def _admit(self, directive: Directive) -> None:
        try:
            self._keys.verify_directive(directive)
        except SignatureError as error:
            raise DirectiveRefusedError(directive, str(error)) from error
        if directive.expires_s <= self._clock.time():
            raise DirectiveRefusedError(directive, f"it expired at {directive.expires_s} s since the epoch")
        if directive.serial <= 0:
            raise DirectiveRefusedError(directive, "serials begin at 1")
        self._installed.task_folder(directive.task)  # raises where the name can be no folder's
        if directive.version:
            try:
                check_sha256(directive.manifest, "manifest")
            except ProtocolError as error:
                raise DirectiveRefusedError(directive, str(error)) from error

    async def _in_turn(self, directive: Directive) -> None:
        task = directive.task
        newest = self._newest.get(task, 0)
        if directive.serial == newest:
            return
        if directive.serial < newest:
            raise DirectiveRefusedError(directive, f"serial {newest} is being carried out")
        self._newest[task] = directive.serial
        self._give_up_pull(task)
        try:
            async with self._locks[task]:
                if self._newest[task] != directive.serial:
                    raise SupersededError(directive)
                await self._carry_out(directive)
        finally:
            if self._newest.get(task) == directive.serial:
                del self._newest[task]

    async def _carry_out(self, directive: Directive) -> None:
        task = directive.task
        state = self._states.get(task, TaskState(task))
        if directive.serial < state.serial:
            raise DirectiveRefusedError(directive, f"serial {state.serial} was seen, an older one is a replay")
        if directive.serial == state.serial and state.standing is not Standing.OPEN:
            return
        target = VersionRef(directive.version, directive.manifest, directive.release)
        try:
            if not directive.version:
                await to_the_end(self._remove(state, directive))
            elif state.active is not None and state.active.manifest == target.manifest:
                await to_the_end(self._stay(state.activate(directive.serial, target)))
            elif not await self._go_back(state, directive, target):
                await self._go_forward(state, directive, target)
        except OSError as error:
            rejection = BundleRejectedError(directive, f"the device's disk: {error.strerror or error}", final=False)
            await to_the_end(self._reject(target, directive.serial, rejection))
            raise rejection from error
        except BundleRejectedError as rejection:
            await to_the_end(self._reject(target, directive.serial, rejection))
            raise

    async def _go_back(self, state: TaskState, directive: Directive, target: VersionRef) -> bool:
        """Activate the previous version if that is what is asked for and it is whole; return whether it was."""
        if not state.is_previous(target.manifest):
            return False
        try:
            manifest = await on_disk(self._load, directive.task, target)
        except CorruptedError as error:
            _log.warning("%s; it is pulled again", error)
            return False
        files = self._installed.version_files(directive.task, target)
        if not state.previous_good:
            await self._run_check(directive, files, manifest)
        await to_the_end(self._activate(state.activate(directive.serial, target), files, manifest))
        return True

    async def _go_forward(self, state: TaskState, directive: Directive, target: VersionRef) -> None:
        task = directive.task
        if state.serial != directive.serial:
            state = state.begin(directive.serial)
            await to_the_end(self._settle(state))
        pull = asyncio.create_task(self._pull(state, directive))
        self._pulls[task] = pull
        try:
            manifest = await pull
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise
            raise SupersededError(directive) from None
        finally:
            del self._pulls[task]
        staged = self._installed.staging(task, target.manifest)
        activated = state.activate(directive.serial, target)

        async def adopt_and_activate() -> None:
            await on_disk(self._installed.adopt, staged, activated)
            await self._activate(activated, self._installed.version_files(task, target), manifest, written=True)

        await to_the_end(adopt_and_activate())

    async def _pull(self, state: TaskState, directive: Directive) -> Manifest:
        if self._jitter_s > 0:
            await self._clock.sleep(self._random.uniform(0, self._jitter_s))
        staging = self._installed.staging(directive.task, directive.manifest)
        files, manifest = await self._puller.pull(directive, staging, await on_disk(self._kept_files, state))
        await self._run_check(directive, files, manifest)
        return manifest

    async def _run_check(self, directive: Directive, files: Path, manifest: Manifest) -> None:
        try:
            await self._check(files, manifest)
        except Exception as error:
            reason = f"its check failed: {type(error).__name__}: {error}"
            raise BundleRejectedError(directive, reason, final=True) from error
        try:
            await on_disk(verify_files, files, manifest)
        except CorruptedError as error:
            raise BundleRejectedError(directive, f"its check changed its files: {error}", final=True) from error

    def _give_up_pull(self, task: str) -> None:
        pull = self._pulls.get(task)
        if pull is not None:
            pull.cancel()

    # --- changes of state; each runs to its end, and with its task's lock held ---------------------------------------

    async def _settle(self, state: TaskState) -> None:
        """Record `state` where no version begins or ends by it."""
        await on_disk(self._installed.write, state)
        self._states[state.task] = state
        if state.standing is Standing.DONE and state.outcome is not None:
            self.outcomes.add(state.outcome)

    async def _stay(self, state: TaskState) -> None:
        await self._settle(state)
        await self._clean(state)

    async def _activate(self, state: TaskState, files: Path, manifest: Manifest, *, written: bool = False) -> None:
        if not written:
            await on_disk(self._installed.write, state)
        self._states[state.task] = state
        if state.outcome is not None:
            self.outcomes.add(state.outcome)
        try:
            await self._on_activate(state.task, files, manifest)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            await self._fall_back(state.task, reason)
            raise ActivationFailedError(state.task, manifest.version, reason) from error
        await self._clean(state)

    async def _reject(self, target: VersionRef, serial: int, rejection: BundleRejectedError) -> None:
        """Record and tell a refusal, and leave nothing of what was refused on the disk."""
        before = self._states.get(rejection.task, TaskState(rejection.task))
        state = before.refuse(serial, target, rejection.reason, final=rejection.final)
        is_told = before.serial == serial and before.outcome == state.outcome
        await self._clean(before)
        await self._write_or_log(state)
        self._states[state.task] = state
        if state.outcome is not None and not is_told:  # a full disk is told once, not at every request
            self.outcomes.add(state.outcome)

    async def _remove(self, state: TaskState, directive: Directive) -> None:
        removed = state.remove(directive.serial, directive.release)
        await self._settle(removed)
        if state.active is not None:
            with self._logged(directive.task):
                await self._on_remove(directive.task)
        await self._clean(removed)

    async def _fall_back(self, task: str, reason: str) -> None:
        """Leave the active version for the previous one, or for none, until one can be put to use."""
        while (before := self._states[task]).active is not None:
            manifest: Manifest | None = None
            if before.previous is not None and before.previous_good:
                try:
                    manifest = await on_disk(self._load, task, before.previous)
                except (CorruptedError, OSError) as error:
                    _log.warning("%s", error)
                    before = before.without_previous()
            state = before.fall_back(reason)
            await self._write_or_log(state)
            self._states[task] = state
            if state.outcome is not None:
                self.outcomes.add(state.outcome)
            if state.active is None or manifest is None:
                with self._logged(task):
                    await self._on_remove(task)
                break
            try:
                await self._on_activate(task, self._installed.version_files(task, state.active), manifest)
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the device must not stay with it
                _log.exception("%s: the previous version cannot be put to use either", task)
                reason = f"{type(error).__name__}: {error}"
        await self._clean(self._states[task])

    async def _recover(self, task: str) -> None:
        try:
            state = await on_disk(self._installed.read, task)
        except CorruptedError as error:
            _log.error("%s; the task is dropped", error)
            await on_disk(self._installed.forget, task)
            self.outcomes.add(Outcome(task=task, version="", release="", kind=OutcomeKind.REMOVED, error=str(error)))
            return
        manifest: Manifest | None = None
        recovered = state
        while recovered.active is not None and manifest is None:
            try:
                manifest = await on_disk(self._load, task, recovered.active)
            except (CorruptedError, OSError) as error:
                _log.error("%s %s is left: %s", task, recovered.active.version, error)
                recovered = recovered.fall_back(str(error), corrupted=True)
                if recovered.outcome is not None:
                    self.outcomes.add(recovered.outcome)
        if recovered is not state:
            await self._write_or_log(recovered)
        elif state.outcome is not None:
            self.outcomes.add(state.outcome)
        self._states[task] = recovered
        await self._clean(recovered, partial_newer_than_s=self._clock.time() - _PARTIAL_KEEP_S)
        if recovered.active is not None and manifest is not None:
            files = self._installed.version_files(task, recovered.active)
            try:
                await self._on_activate(task, files, manifest)
            except Exception as error:  # noqa: BLE001 - one task's failure stays that task's
                _log.exception("%s cannot be put to use", task)
                await self._fall_back(task, f"{type(error).__name__}: {error}")

    # --- the disk ----------------------------------------------------------------------------------------------------

    def _load(self, task: str, ref: VersionRef) -> Manifest:
        """Return the manifest of an installed version. Raises CorruptedError unless it is signed and whole."""
        try:
            manifest = self._keys.verify_manifest(self._installed.envelope(task, ref))
        except SignatureError as error:
            raise CorruptedError(self._installed.version_files(task, ref), str(error)) from error
        if (manifest.name, manifest.version) != (task, ref.version):
            reason = f"its manifest is of {manifest.name} {manifest.version}"
            raise CorruptedError(self._installed.version_files(task, ref), reason)
        verify_files(self._installed.version_files(task, ref), manifest)
        return manifest

    def _kept_files(self, state: TaskState) -> dict[str, list[Path]]:
        """Return where the versions on this disk have files, by sha256; whether they are whole is seen when used."""
        kept: defaultdict[str, list[Path]] = defaultdict(list)
        for ref in (state.active, state.previous):
            with contextlib.suppress(CorruptedError, SignatureError):
                if ref is not None:
                    manifest = self._keys.verify_manifest(self._installed.envelope(state.task, ref))
                    folder = self._installed.version_files(state.task, ref)
                    for entry in manifest.files:
                        kept[entry.sha256].append(folder / entry.path)
        return dict(kept)

    async def _write_or_log(self, state: TaskState) -> None:
        """Record `state`; a disk that takes nothing keeps no bad version in use, but forgets this at a restart."""
        try:
            await on_disk(self._installed.write, state)
        except OSError as error:
            _log.warning("the state of %s cannot be written: %s", state.task, error)

    async def _clean(self, state: TaskState, *, partial_newer_than_s: float | None = None) -> None:
        """Remove leftovers; what cannot be removed now is at the next start."""
        try:
            await on_disk(self._installed.clean, state, partial_newer_than_s=partial_newer_than_s)
        except OSError as error:
            _log.warning("leftovers of %s cannot be removed: %s", state.task, error)

    @contextlib.contextmanager
    def _logged(self, task: str) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - one task's failure stays that task's
            _log.exception("%s did not end well", task)
