"""Active task versions of a device: what the agent's activations and removals change in stream, store and history."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path

from walle.deploy.agent.agent_errors import ActivationPostponedError
from walle.device.cloud_tunnel import CloudTunnel
from walle.errors import WalleError
from walle.pipeline.features.checkpoints import Checkpoints
from walle.pipeline.features.database import StoreError
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_states import StateSize, state_of_version
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_engine import StreamEngine
from walle.pipeline.tunnel.dictionaries import Dictionary, DictionaryError
from walle.protocol import HistoryPolicy, Manifest, StatePolicy
from walle.task.run.run_version import deadline_s
from walle.task.run.runner import TaskRunner

_LOG = logging.getLogger(__name__)

_LOAD_S = 3.0  # time to load a version before it is activated: a rollback waits for it; the rest is loaded beside it
_SWITCH_S = 10.0  # time beside its deadline for a run and its outputs, before a version with a state replaces it


@dataclasses.dataclass
class ActiveVersion:
    """An active task version."""

    files: Path
    manifest: Manifest
    dictionary: Dictionary | None = None  # dictionary for its uploads


class TaskVersions:
    """The active version of each task. `prepare`, `activate`, `suspend` and `remove` are for the agent, see there.

    `on_change` is called after `active` has changed.
    """

    def __init__(
        self,
        store: FeatureStore,
        stream: StreamEngine,
        history: EventHistory,
        runner: TaskRunner,
        tunnel: CloudTunnel,
        checkpoints: Checkpoints,
        active: dict[str, ActiveVersion],
        *,
        on_change: Callable[[], None],
    ) -> None:
        self.active = active
        self.had_task = False  # true if it had a task since the start
        self._store = store
        self._stream = stream
        self._history = history
        self._runner = runner
        self._tunnel = tunnel
        self._checkpoints = checkpoints
        self._on_change = on_change
        self._is_started = False
        self._loading: dict[tuple[str, Path], asyncio.Task[None]] = {}  # by task and files of the version

    async def start(self) -> None:
        """Remove what no task needs, once the agent has activated the installed versions."""
        self._is_started = True
        await self._history.remove_unused()

    async def aclose(self) -> None:
        """Stop what is being loaded."""
        loads = list(self._loading.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    async def prepare(self, files: Path, manifest: Manifest) -> None:
        """Load a version that is to be activated where it will run, so that its first triggers do not wait for it.

        What takes longer than _LOAD_S continues in the background; the first run waits for it. The version has passed
        its check; a failure here is left to its runs, which count for its release.
        """
        key = manifest.name, files
        self._stop_loading(manifest.name, but=files)
        load = self._loading.get(key)
        if load is None:
            load = self._loading[key] = asyncio.create_task(self._load(files, manifest))
            load.add_done_callback(lambda _: self._loading.pop(key))
        await asyncio.wait([load], timeout=_LOAD_S)

    async def activate(self, task: str, files: Path, manifest: Manifest, /, *, may_postpone: bool) -> None:
        """Run this version of the task from the next trigger on.

        With `may_postpone`, an upgrade of the state waits for the run under way, so that its state is upgraded too.
        Otherwise nothing is waited for: the run under way stores its outputs, and its state is dropped.

        Raises:
            ActivationPostponedError: the run under way or the store holds the upgrade up.
            TaskStateError: the new state cannot be stored.
            VMError: the version's `migrate` failed.
        """
        self._stop_loading(task, but=files)
        async with contextlib.AsyncExitStack() as held:
            policy, state = manifest.state, self._store.task_states.active(task)
            if policy is not None and (state is None or state.version != policy.version):
                if may_postpone and state is not None and policy.version > state.version:
                    await self._hold_runs(task, manifest, held)
                try:
                    await self._take_state(files, manifest, policy)
                except StoreError as error:
                    if may_postpone:
                        raise ActivationPostponedError(task, manifest.version, str(error)) from error
                    raise
            if manifest.training is not None:
                self._checkpoints.activate(task, manifest.training)
            self._stream.add_task(task, manifest.trigger, manifest.queue_policy)
            self.active[task] = ActiveVersion(files, manifest, _dictionary_of(files, manifest))
        self._on_change()
        self._use_dictionaries()
        self.had_task = True
        await self._set_history(task, manifest.history)

    async def suspend(self, task: str) -> None:
        """Stop a task until it has a version again, which finds its state."""
        self._stop_loading(task)
        self._stream.remove_task(task)
        self.active.pop(task, None)
        self._on_change()
        self._use_dictionaries()
        self._history.set_policy(task, None)

    async def remove(self, task: str) -> None:
        """End a task: remove its triggers, its state, and the history of events that it alone asked for."""
        await self.suspend(task)
        self._store.remove_states(task)
        self._checkpoints.remove(task)
        await self._set_history(task, None)

    def state_sizes(self) -> dict[str, StateSize]:
        """Return the size of the state of each active task that has one."""
        found, evicted = {}, self._stream.counts.entries_evicted
        for task, version in self.active.items():
            policy, state = version.manifest.state, self._store.task_states.active(task)
            if policy is not None and state is not None:
                found[task] = StateSize(len(state.data), policy.max_bytes, state.entries, evicted[task])
        return found

    def state_of(self, task: str, version: str) -> tuple[int, int] | None:
        """Return the bytes and the bound of the state of an active version, None if it has none or is not active."""
        active = self.active.get(task)
        if active is None or active.manifest.version != version or active.manifest.state is None:
            return None
        state = self._store.task_states.active(task)
        return None if state is None else (len(state.data), active.manifest.state.max_bytes)

    # --- internals ----------------------------------------------------------------------------------------------------

    async def _load(self, files: Path, manifest: Manifest) -> None:
        try:
            await self._runner.load(files, manifest)
        except WalleError as error:
            _LOG.warning("%s %s was not loaded before its first run: %r", manifest.name, manifest.version, error)

    def _stop_loading(self, task: str, *, but: Path | None = None) -> None:
        """Stop loading the task's versions, except the one with these files."""
        for (name, files), load in self._loading.items():
            if name == task and files != but:
                load.cancel()

    async def _set_history(self, task: str, policy: HistoryPolicy | None) -> None:
        self._history.set_policy(task, policy)
        if policy is None and self._is_started:  # before that, other tasks have not asked yet
            await self._history.remove_unused()

    async def _hold_runs(self, task: str, manifest: Manifest, held: contextlib.AsyncExitStack) -> None:
        active = self.active.get(task)
        limit_s = _SWITCH_S + (0 if active is None else deadline_s(active.manifest))
        try:
            async with asyncio.timeout(limit_s):
                await held.enter_async_context(self._stream.between_runs(task))
        except TimeoutError as error:
            reason = f"the run under way did not end, or could not store its outputs, in {limit_s} s"
            raise ActivationPostponedError(task, manifest.version, reason) from error

    async def _take_state(self, files: Path, manifest: Manifest, policy: StatePolicy) -> None:
        """Activate the state that the version begins with: its own, or one that it makes of an older version's."""
        migrate = functools.partial(self._runner.migrate, files, manifest)
        states = self._store.task_states
        state = await state_of_version(states, manifest.name, policy, last_id=self._last_feature_id, migrate=migrate)
        self._store.activate_state(state)

    async def _last_feature_id(self) -> int:
        await self._store.flush()
        return await self._store.call(lambda database: database.last_feature_id())

    def _use_dictionaries(self) -> None:
        active = self.active.items()
        self._tunnel.use_dictionaries({task: version.dictionary for task, version in active if version.dictionary})


def _dictionary_of(files: Path, manifest: Manifest) -> Dictionary | None:
    """Return a task's dictionary; None without one, or if it cannot be used, so that its uploads go without."""
    if not manifest.dictionary:
        return None
    try:
        return Dictionary((files / manifest.dictionary).read_bytes())
    except (DictionaryError, OSError) as error:
        _LOG.error("%s: dictionary %s is not used: %s", manifest.name, manifest.dictionary, error)
        return None
