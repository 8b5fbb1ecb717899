"""Runs of a device's tasks in their VMs: callbacks to the device and the cloud, and the outcome of each run."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from walle.base import plain
from walle.base.clock import Clock
from walle.deploy.agent.exclusive import ExclusiveFiles, ExclusiveMissingError
from walle.deploy.agent.trace_log import TraceLog
from walle.device.cloud_tunnel import CloudTunnel
from walle.device.config import DeviceConfig
from walle.device.summary import DeviceCounts
from walle.device.task_versions import ActiveVersion
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.host import HostStartError
from walle.errors import VMError, WalleError
from walle.pipeline.features.checkpoints import Checkpoints
from walle.pipeline.features.database import StoreError
from walle.pipeline.features.state_entries import largest
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_queries import query_payloads
from walle.pipeline.features.task_states import TaskState
from walle.pipeline.features.topics import PutTopics
from walle.pipeline.stream.event_history import EventHistory, EventHistoryError
from walle.pipeline.trigger.stream_counts import LossKind
from walle.pipeline.trigger.stream_engine import OnLoss, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.tunnel.client.client import RequestError, TunnelClosedError
from walle.protocol import LATENCY_MS, Attribute, Failure, FullPolicy, StatePolicy, TrainingPolicy
from walle.task.format.failure import failure_of
from walle.task.run.log import LogLine, TaskLog, last_lines
from walle.task.run.run_result import TrainedStep
from walle.task.run.run_version import deadline_s
from walle.task.run.runner import PHASE_TOPIC, TaskRunner

_NEARLY_FULL = 0.8  # share of a state's bound from which on there is a warning
_OUTCOME_S = 600.0  # interval between outcomes of a training that goes on
_KEPT_FOR_TASK = 0.1  # share of a run's deadline: time for the task after an escalation that got no answer


@dataclasses.dataclass(kw_only=True)
class _Run:
    """One run of a task, until its outcome."""

    version: ActiveVersion
    arrived_s: float  # arrival of its event, by the monotonic clock
    outputs: int = 0
    unanswered: str = ""  # why its last escalation had no answer: "away", "late", "full"
    is_unserved: bool = False  # the device could not read what it asked for, as on a full disk
    log: Sequence[LogLine] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _Training:
    """Metrics of a version's training since its last outcome, which was counted at this time (monotonic)."""

    version: ActiveVersion
    counted_s: float
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


class _VmTimes(NamedTuple):
    """When a run that is followed began and ended in its VM, by the wall clock."""

    came_s: float
    began_s: float
    ended_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run that counts for or against its version: `failure` is None for a run that ended well.

    `metrics` are the numbers of one that did, by name: those of the task, and its latency in milliseconds.
    """

    version: str
    failure: Failure | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class TrainingPostponedError(WalleError):
    """A step of training that the device could not take now. It says nothing of its version."""


class TaskRuns:
    """Runs of active versions. `run` is the stream engine's runner, which makes one call at a time for each task."""

    def __init__(
        self,
        config: DeviceConfig,
        clock: Clock,
        counts: DeviceCounts,
        *,
        device: Callable[[], Mapping[str, Attribute]],
        active: Mapping[str, ActiveVersion],
        store: FeatureStore,
        checkpoints: Checkpoints,
        history: EventHistory,
        tunnel: CloudTunnel,
        runner: TaskRunner,
        task_log: TaskLog,
        exclusive: ExclusiveFiles,
        traces: Callable[[], TraceLog],
        on_loss: OnLoss,
    ) -> None:
        self._config = config
        self._clock = clock
        self._counts = counts
        self._device = device
        self._active = active
        self._store = store
        self._checkpoints = checkpoints
        self._history = history
        self._tunnel = tunnel
        self._runner = runner
        self._task_log = task_log
        self._exclusive = exclusive
        self._traces = traces
        self._on_loss = on_loss
        self._training: dict[str, _Training] = {}
        self._followed: dict[str, _VmTimes] = {}  # by task: runs whose outputs are not put yet
        self._topics = PutTopics()
        self._warm: dict[str, ActiveVersion] = {}  # version of each task that has run since it was activated
        self._warned: set[tuple[str, int]] = set()  # tasks with the bound of their state, which came near it
        self._runs: dict[str, _Run] = {}  # one of each task at most: its triggers run one after the other

    async def run(self, task: str, trigger: Trigger) -> TaskOutput:
        """Run the task's active version on a trigger and return its output.

        Raises:
            PayloadError: the task put a value that cannot be stored.
            TopicError: the task has put under more than MAX_TOPICS topics since the device started.
            VMError: the task raised, exceeded a limit, or imported what is not allowed.
        """
        version = self._active.get(task)
        if version is None:
            return TaskOutput()  # the task was removed after the event triggered it
        run = self._runs[task] = _Run(version=version, arrived_s=trigger.arrived_s)
        policy = version.manifest.state
        state = None if policy is None else self._store.task_states.active(task)
        if policy is not None and state is not None and len(state.data) >= _NEARLY_FULL * policy.max_bytes:
            self._warn_of_state(version, policy, state)
        callbacks = self._callbacks(run, trigger.position, 0 if state is None else state.after_id)
        callbacks = {**callbacks, "escalate": functools.partial(self._escalate, run)}
        follows = self._traces().follows_run(task, trigger.came_s)
        began_s = self._clock.time() if follows else 0.0
        output = await self._runner.run(
            version.files,
            version.manifest,
            trigger,
            self._device(),
            callbacks,
            state=None if state is None or policy is None else state.value_at(policy, trigger.ts_ms),
            on_log=functools.partial(self._on_log, run),
        )
        run.outputs = output.uploads
        run.metrics = output.metrics
        # A first run fills caches. A version that was just installed would look slow beside one that has run for days.
        if self._warm.get(task) is not version:
            self._warm[task] = version
        elif output.run_ms is not None:
            run.metrics = {**output.metrics, LATENCY_MS: output.run_ms}
        if follows and run.outputs:
            self._followed[task] = _VmTimes(trigger.came_s, began_s, self._clock.time())
        self._topics.add(task, output.topics)
        return output

    def end(self, task: str, ok: bool, error: Exception | None) -> RunOutcome | None:
        """Count a run that has ended; return its outcome, None if it says nothing of its version."""
        run = self._runs.pop(task, None)
        if run is None:
            return None
        counts, version = self._counts, run.version.manifest.version
        if ok:
            counts.runs_ok += 1
            counts.produced += run.outputs
            counts.to_feature_ms.append((self._clock.monotonic() - run.arrived_s) * 1000)
            return RunOutcome(version=version, metrics=run.metrics)
        failure = self._failure(run, error or VMError(f"a run of {task} ended without an error"))
        if run.unanswered in ("away", "full") or (run.unanswered and not self._tunnel.client.connected):
            return None  # the cloud was unreachable, or had no room: that does not count against the version
        if run.is_unserved or isinstance(error, HostStartError):
            return None  # a fault of the device's disk, or of its VM host, does not count either
        return RunOutcome(version=version, failure=failure)

    async def train(self, version: ActiveVersion, on_outcome: Callable[[RunOutcome], None]) -> TrainedStep:
        """Run one step of the version's training, and store it; `on_outcome` gets what counts for its release.

        A step of a version that is not active any more is not stored.

        Raises:
            TrainingPostponedError: a fault of the device, such as a full disk or outbox, which does not count.
            PayloadError, TopicError, VMError: as `run`.
            CheckpointError: the checkpoint cannot be stored.
        """
        manifest, policy = version.manifest, version.manifest.training
        assert policy is not None
        run = _Run(version=version, arrived_s=self._clock.monotonic())
        state = None if manifest.state is None else self._store.task_states.active(manifest.name)
        callbacks = self._callbacks(run, self._store.position, 0 if state is None else state.after_id)
        on_log = functools.partial(self._on_log, run)
        try:
            step = await self._runner.train(version.files, manifest, self._device(), callbacks, on_log=on_log)
            self._topics.add(manifest.name, [put.topic for put in step.puts])
            if self._active.get(manifest.name) is version:
                await self._store_step(version, policy, step, on_outcome)
        except WalleError as error:
            if run.is_unserved or isinstance(error, HostStartError | StoreError):
                raise TrainingPostponedError(f"a step of training of {manifest.name} waits: {error}") from error
            on_outcome(RunOutcome(version=manifest.version, failure=self._failure(run, error)))
            raise
        return step

    async def _store_step(
        self,
        version: ActiveVersion,
        policy: TrainingPolicy,
        step: TrainedStep,
        on_outcome: Callable[[RunOutcome], None],
    ) -> None:
        """Store a step; what it uploads stays on the device where the outbox is full and the policy is to drop."""
        task, puts = version.manifest.name, step.puts
        drops = version.manifest.queue_policy.outbox_full is FullPolicy.DROP_NEWEST
        if drops and not self._store.outbox_has_room(puts):
            self._on_loss(task, LossKind.UPLOADS, sum(put.upload for put in puts))
            puts = [put._replace(upload=False) for put in puts]
        on_put = functools.partial(self._count_step, version, step, sum(put.upload for put in puts), on_outcome)
        rests = not step.wants_more
        await self._checkpoints.put(task, policy, puts, step.checkpoint, rests=rests, on_put=on_put)

    def _count_step(
        self, version: ActiveVersion, step: TrainedStep, uploads: int, on_outcome: Callable[[RunOutcome], None]
    ) -> None:
        """Count a step that is stored.

        An outcome is counted when the training rests, and each _OUTCOME_S: thousands of steps that end well would hide
        the runs that fail. It has the latest value of each metric since the last one.
        """
        self._counts.training_steps += 1
        self._counts.produced += uploads
        now_s = self._clock.monotonic()
        course = self._training.get(version.manifest.name)
        if course is None or course.version is not version:
            course = self._training[version.manifest.name] = _Training(version, now_s)
        course.metrics |= step.metrics
        if not step.wants_more or now_s - course.counted_s >= _OUTCOME_S:
            on_outcome(RunOutcome(version=version.manifest.version, metrics=course.metrics))
            self._training[version.manifest.name] = _Training(version, now_s)

    def _failure(self, run: _Run, error: Exception) -> Failure:
        """Count a run that failed, write it to its task's log, and return it."""
        failure = failure_of(error, log=last_lines(run.log))
        self._counts.runs_failed += 1
        self._counts.last_error = failure.error
        self._log_failure(run.version.manifest.name, run.version.manifest.version, failure)
        return failure

    def _warn_of_state(self, version: ActiveVersion, policy: StatePolicy, state: TaskState) -> None:
        """Write to the task's log that its state comes near its bound, once for each bound since the start."""
        manifest, bound = version.manifest, (version.manifest.name, policy.max_bytes)
        if bound in self._warned:
            return
        self._warned.add(bound)
        then = "the oldest entries are evicted" if policy.evicts else "runs fail"
        size = f"ctx.state has {len(state.data)} of {policy.max_bytes} bytes in {state.entries} entries"
        line = LogLine("warning", f"{size}; beyond them {then}. The largest entries: {largest(state.data)}")
        self._task_log.write(manifest.name, manifest.version, [line])

    def put(self, task: str, trigger: Trigger) -> None:
        """Take note that the outputs of a run are in the store's buffer."""
        if not self._followed:
            return
        times = self._followed.pop(task, None)
        if times is not None and times.came_s == trigger.came_s:
            self._traces().end_run(task, *times)

    def _log_failure(self, task: str, version: str, failure: Failure) -> None:
        """Write a failed run to the task's log, whose bounds hold for tracebacks too."""
        place = "" if failure.place in failure.error else f" ({failure.place})"
        lines = [f"failed: {failure.error}{place}", *filter(None, failure.traceback.split("\n"))]
        self._task_log.write(task, version, [LogLine("info", line) for line in lines])

    # --- callbacks ----------------------------------------------------------------------------------------------------

    def _callbacks(self, run: _Run, position: int, after_id: int) -> Callbacks:
        """Return what a run asks the device for: of events up to `position`, of features after `after_id`."""
        manifest = run.version.manifest
        callbacks: Callbacks = {"store.query": functools.partial(self._query, run, after_id)}
        if manifest.history is not None:
            callbacks = {**callbacks, "events.history": functools.partial(self._older_events, run, position)}
        if manifest.exclusive:
            callbacks = {**callbacks, "exclusive.read": functools.partial(self._exclusive_file, run)}
        if manifest.training is not None:
            read = functools.partial(self._checkpoints.read, manifest.name)
            callbacks = {**callbacks, "checkpoint.read": read}
        return callbacks

    def _on_log(self, run: _Run, lines: Sequence[LogLine]) -> None:
        run.log = lines
        self._task_log.write(run.version.manifest.name, run.version.manifest.version, lines)

    async def _escalate(
        self, run: _Run, phase: str, payload: Any, timeout_ms: float | None, spent_ms: float
    ) -> tuple[str, Any]:
        """Run a phase in the cloud (fallback inference), for a task's `ctx.escalate`.

        Return "" and the result, or why there is none (a reason of `EscalationError`) and a text. That comes before the
        deadline of the run, which has run for `spent_ms`: the task decides without the cloud then.
        """
        manifest = run.version.manifest
        limit_s = deadline_s(manifest)
        timeout_s = limit_s * (1 - _KEPT_FOR_TASK) - max(0.0, float(spent_ms)) / 1000
        timeout_s = min(timeout_s, self._config.escalation_timeout_s)
        if timeout_ms is not None:
            timeout_s = min(timeout_s, float(timeout_ms) / 1000)
        question = {
            "task": manifest.name,
            "version": manifest.version,
            "phase": phase,
            "payload": payload,
            "device": dict(self._config.attributes),
        }
        data = plain.encode(question)
        self._counts.escalated += 1
        if not timeout_s > 0:  # false for NaN too
            return (
                "late",
                f"{spent_ms:.0f} ms of the run's {limit_s * 1000:.0f} are used up, which leaves no time to wait",
            )
        run.unanswered = ""
        client = self._tunnel.client
        try:
            connect_s = self._config.escalation_connect_s
            answer = await client.request(PHASE_TOPIC, data, timeout=timeout_s, connect_timeout=connect_s)
        except TunnelClosedError as error:
            run.unanswered = "away"
            return "away", str(error)
        except RequestError as error:
            away = "late" if client.connected else "away"
            reason = {"expired": away, "busy": "full"}.get(error.code, "failed")
            run.unanswered = reason if reason != "failed" else ""
            return reason, str(error)
        return "", plain.decode(answer)

    async def _query(self, run: _Run, after_id: int, *args: Any) -> list[Any]:
        """Return payloads for a task's `ctx.store.query`."""
        try:
            return await query_payloads(self._store, run.version.manifest, after_id, *args)
        except StoreError:
            run.is_unserved = True
            raise

    async def _older_events(self, run: _Run, upto: int, *args: Any) -> Any:
        """Return encoded events for a task's `ctx.history`."""
        try:
            return await self._history.query(run.version.manifest.name, upto, *args)
        except EventHistoryError:
            run.is_unserved = True
            raise

    async def _exclusive_file(self, run: _Run, name: str, known: str) -> tuple[str, bytes | None]:
        """Return hash and contents of a file for a task's `ctx.exclusive`: "" if there is none.

        The contents are None if the task's VM knows them, by the hash `known`.
        """
        try:
            return await self._exclusive.read(run.version.manifest, name, known)
        except ExclusiveMissingError:
            run.is_unserved = True
            raise
