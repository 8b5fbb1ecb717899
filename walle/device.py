"""One device as one asyncio program: agent, trigger trie, task VMs, feature store and tunnel client.

The app around it does three things: it passes the user's events to `on_event`, adds `profile_header()` to its ordinary
HTTP requests, and passes the answer's header to `handle_answer`. `walle device run` is such an app.

    async with Device(config) as device:
        await device.on_event(Event("page_enter", "item/7", ts_ms, {}))

After a crash a new `Device` on the same folder continues: it replays the events from its own journal, and nothing is
produced twice (ARCHITECTURE.md, "Exactly once"). An app that can send its events again, as from a log file, passes
their positions instead, replays them from `device.resume_from`, and the device keeps no journal.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from walle import plain
from walle.clock import Clock, SystemClock
from walle.credential import device_credential
from walle.deploy.device.agent import Agent
from walle.deploy.device.fetch import HttpFetcher
from walle.deploy.device.outcomes import OutcomeReport
from walle.deploy.signing import TrustedKeys
from walle.durable_file import remove_unfinished, write_file
from walle.engine_ext.vm.callbacks import Callbacks
from walle.errors import PipelineError
from walle.pipeline.database import StoreError
from walle.pipeline.event_history import EventHistory
from walle.pipeline.event_journal import EventJournal, EventJournalError
from walle.pipeline.events import Event, EventError
from walle.pipeline.live_source import LivePolicy, LiveSource
from walle.pipeline.outbox import Outbox
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.task_queue import Trigger
from walle.pipeline.task_states import TaskStateError, state_of_version
from walle.pipeline.tunnel.client import TunnelClient, client_context
from walle.pipeline.tunnel.dictionaries import Dictionary, DictionaryError
from walle.protocol import (
    PROFILE_HEADER,
    TASKS_HEADER,
    Attribute,
    Manifest,
    Profile,
    ProtocolError,
    StatePolicy,
    printable,
)
from walle.protocol import directives_from_header as parse_directives
from walle.task_log import LogLine, TaskLog, failure_place, last_lines
from walle.task_runner import PHASE_TOPIC, TaskRunner, deadline_s

_LOG = logging.getLogger(__name__)

_LATENCIES_KEPT = 10_000
_MAX_TOPICS = 1000  # whose task is remembered, for its dictionary
_FAILURES_TO_REVERT = 10
_TUNNEL_RETRY_S = 60.0  # after a tunnel was refused or failed permanently
_RETRY_STATUSES = (401, 403, 408, 425, 429)  # from a proxy, or from a cloud during its set-up
_LAST_REPORT_S = 2.0  # timeout for the cloud when a device closes
_HISTORY = "history.db"
_JOURNAL = "events"  # folder of the event journal
_SWITCH_S = 10.0  # for a run under way and its outputs, beside its deadline, before a version with a state replaces it
_LAST_RUNS_S = 2.0  # for runs under way and queued triggers, then


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """A device's identity, folder, and cloud. `folder` holds its whole state; one process may use it at a time."""

    device_id: str
    folder: Path
    app_version: str
    attributes: Mapping[str, Attribute]
    cloud_url: str  # of the gateway, for pulls and outcomes
    tunnel_host: str
    tunnel_port: int
    ca_pem: str  # certificate authority of the tunnel server
    token: str  # the fleet's secret: authenticates reports, and makes the device's credential for the tunnel
    trusted_keys: Mapping[str, Any]  # TrustedKeys.to_json()
    vms: int = 8  # task VMs at once; with more tasks, each switch costs a few milliseconds of reset and loading
    report_interval_s: float = 10.0
    escalation_timeout_s: float = 5.0
    live: LivePolicy = dataclasses.field(default_factory=LivePolicy)  # for events without a position
    journal_sync_s: float = 1.0  # of live events, what a power cut may lose; 0: `on_event` waits for the disk


@dataclasses.dataclass(kw_only=True)
class DeviceCounts:
    """Counts since a device's start, and `produced` since its folder was made.

    Latencies in ms, the latest few thousand of each.
    """

    produced: int = 0  # task outputs put for the cloud, without those lost in a crash before they were durable
    runs_ok: int = 0
    runs_failed: int = 0
    escalated: int = 0
    last_error: str = ""
    bare_events: int = 0  # events while no task was active, although one had been before
    to_feature_ms: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_LATENCIES_KEPT)
    )
    to_ack_ms: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_LATENCIES_KEPT)
    )


@dataclasses.dataclass
class _Active:
    """An active task version."""

    files: Path
    manifest: Manifest
    dictionary: Dictionary | None = None  # for its uploads
    failures_in_a_row: int = 0


@dataclasses.dataclass(kw_only=True)
class _Run:
    """One run of a task, until its outcome."""

    active: _Active
    arrived_s: float  # its event, by the monotonic clock
    outputs: int = 0
    unanswered: bool = False  # it escalated to the cloud, and no answer came
    log: Sequence[LogLine] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSummary:
    """A snapshot of a device. `stored` features are in its file, `unsent` ones are not acknowledged.

    `queued` are the triggers of each task that are not done. `dropped`, `uploads_dropped`, `without_visit` and
    `cut_visits` as in `StreamCounts`, `visits_cut` are visits that were evicted. `late`, `out_of_order`, `duplicates`
    and `clock_jumps` as in `LiveCounts`. The rest as in `DeviceCounts`.
    """

    device_id: str
    tasks: dict[str, str]
    produced: int
    stored: int
    unsent: int
    runs_ok: int
    runs_failed: int
    escalated: int
    bare_events: int
    last_error: str
    to_feature_ms: tuple[float, ...]  # from an event's arrival to the end of its task's run
    to_ack_ms: tuple[float, ...]
    queued: dict[str, int]
    dropped: dict[str, int]
    uploads_dropped: dict[str, int]
    without_visit: int
    cut_visits: int
    visits_cut: int
    late: int
    out_of_order: int
    duplicates: int
    clock_jumps: int
    losses: tuple[str, ...]  # a line for each loss of the feature store since the start, see `StoreReport`
    lost_uploads: dict[str, int]  # of those, the number of uploads by cause


class Device:
    """A device; it runs between `start` and `close`, or within `async with`.

    Raises, from `start`:
        StoreError: another process uses the folder, or its feature store cannot be read.
    """

    def __init__(self, config: DeviceConfig, *, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self.config = config
        self.counts = DeviceCounts()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._is_open = False
        self._active: dict[str, _Active] = {}
        self._topics: dict[str, str] = {}  # of tasks with a dictionary: topic → task
        self._dictionaries: dict[str, Dictionary] = {}  # by topic
        self._runs: dict[str, _Run] = {}  # one of each task at most: its triggers run one after the other
        self._had_task = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._profile: str | None = None
        self._journal: EventJournal | None = None  # once there is an event without a position
        self._recorded: collections.deque[tuple[int, Event]] = collections.deque()  # in the journal, not taken yet
        self._live = LiveSource(config.live)
        self._live_turn = asyncio.Lock()

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        config = self.config
        config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with contextlib.AsyncExitStack() as undo:
            self.store = await undo.enter_async_context(FeatureStore(config.folder / "features.db", clock=self._clock))
            ca_path = config.folder / "ca.pem"  # written after the store has locked the folder
            await asyncio.to_thread(remove_unfinished, config.folder)
            await asyncio.to_thread(write_file, ca_path, config.ca_pem)
            self.outbox = Outbox(self.store)
            self.counts.produced = self.store.state.produced
            self.stream = StreamEngine(self.store, self._run_task, on_outcome=self._on_outcome)
            self._history = EventHistory(config.folder / _HISTORY, self._clock, position=self.store.position)
            undo.push_async_callback(self._history.aclose)
            self._task_log = TaskLog(config.device_id, self._clock)
            self._runner = TaskRunner(config.vms, task_log=self._task_log)
            undo.push_async_callback(self._runner.close)
            undo.push_async_callback(self.stream.close)
            self._http = await undo.enter_async_context(httpx.AsyncClient(base_url=config.cloud_url, timeout=10.0))
            self.agent = Agent(
                config.folder / "tasks",
                TrustedKeys.from_json(config.trusted_keys),
                HttpFetcher(self._http),
                self._runner.load,
                self._clock,
                outcomes=OutcomeReport(config.device_id),
                on_activate=self._activate,
                on_remove=self._remove,
                random_source=self._rng,
            )
            self._tls = client_context(ca_path)
            self.tunnel = self._new_tunnel()
            await undo.enter_async_context(self.agent)
            await self._history.remove_unused()
            undo.push_async_callback(self._stop_tasks)
            self._spawn(self._keep_tunnel(), "tunnel")
            self._spawn(self._report_periodically(), "report")
            undo.push_async_callback(self._close_journal)
            if (config.folder / _JOURNAL).is_dir():
                await self._replay(await self._open_journal())
            self._undo = undo.pop_all()
        self._is_open = True
        return self

    async def close(self) -> None:
        """Let queued triggers run briefly, write buffered features, report outcomes if the cloud answers, and stop.

        Unsent features stay in the outbox. Triggers that are not done run after a restart, if their events are replayed
        then. A second call does nothing.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LAST_RUNS_S):
                    await self.stream.settle()
            with contextlib.suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self.report()
        finally:
            await self._undo.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.config.device_id} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s ended: %s", task.get_name(), error)

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- tunnel -------------------------------------------------------------------------------------------------------

    def _new_tunnel(self) -> TunnelClient:
        tunnel = TunnelClient(
            self.outbox,
            device_id=self.config.device_id,
            token=device_credential(self.config.token, self.config.device_id),
            host=self.config.tunnel_host,
            port=self.config.tunnel_port,
            ssl_context=self._tls,
            clock=self._clock,
            rng=self._rng,
            on_ack=self._on_ack,
        )
        tunnel.use_dictionaries(self._dictionaries)
        return tunnel

    async def _keep_tunnel(self) -> None:
        """Keep a tunnel up: replace a client that ends (refused, or its outbox cannot be read) by a new one."""
        while True:
            try:
                await self.tunnel.run()
            except PipelineError as error:
                _LOG.error("%s: the tunnel ended, retrying later: %s", self.config.device_id, error)
            await self._clock.sleep(_TUNNEL_RETRY_S * self._rng.uniform(0.5, 1.5))
            self.tunnel = self._new_tunnel()

    # --- push ---------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[str, str]:
        """The active version of each task."""
        return self.agent.tasks

    def profile_header(self) -> str:
        """Return the value of `X-Walle-Profile` for the app's next request."""
        if self._profile is None:
            config = self.config
            profile = Profile(config.device_id, config.app_version, config.attributes, self.agent.tasks)
            self._profile = profile.to_header()
        return self._profile

    async def handle_answer(self, header: str | None) -> None:
        """Act on `X-Walle-Tasks` of an answer, None if it has none; pulls run in the background.

        An answer after `close` is ignored.
        """
        if not header or not self._is_open:
            return
        try:
            directives = parse_directives(header)
        except ProtocolError as error:
            _LOG.warning("%s: an answer that is not a list of directives: %s", self.config.device_id, error)
            return
        self._spawn(self.agent.handle(directives), "directives")

    async def checkin(self) -> None:
        """Send a heartbeat to the cloud and act on its answer.

        Raises:
            httpx.HTTPError: the cloud does not answer.
        """
        response = await self._http.post("/v1/checkin", headers={PROFILE_HEADER: self.profile_header()})
        response.raise_for_status()
        await self.handle_answer(response.headers.get(TASKS_HEADER))

    async def report(self) -> None:
        """Send all outcomes.

        A batch that the cloud refuses permanently (a 4xx outside _RETRY_STATUSES) is dropped, so that it does not block
        the next.

        Raises:
            httpx.HTTPError: the cloud does not accept them now; the next report sends them again.
        """
        while (batch := self.agent.outcomes.take_batch()) is not None:
            headers = {"Authorization": f"Bearer {self.config.token}"}
            response = await self._http.post("/v1/outcomes", json=batch.to_json(), headers=headers)
            if response.is_client_error and response.status_code not in _RETRY_STATUSES:
                _LOG.error("%s: outcomes were refused and are dropped: %s", self.config.device_id, response.text[:500])
            else:
                response.raise_for_status()
            self.agent.outcomes.confirm(batch.batch_id)

    async def _report_periodically(self) -> None:
        while True:
            await self._clock.sleep(self.config.report_interval_s * self._rng.uniform(0.8, 1.2))
            try:
                await self.report()
            except httpx.HTTPError as error:
                _LOG.info("%s: outcomes were not sent: %s", self.config.device_id, error)

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def _activate(self, task: str, files: Path, manifest: Manifest) -> None:
        async with contextlib.AsyncExitStack() as held:
            state = self.store.task_states.active(task)
            # A state of another version must be what the last run of the version before left. One of the same version
            # changes hands without waiting: that run may wait for the cloud, and a fallback must not fail by it.
            if manifest.state is not None and (state is None or state.version != manifest.state.version):
                await self._hold_runs(task, held)
                await self._take_state(files, manifest, manifest.state)
            self.stream.add_task(task, manifest.trigger, manifest.queue_policy)
            self._active[task] = _Active(files, manifest, _dictionary_of(files, manifest))
        self._use_dictionaries()
        self._history.set_policy(task, manifest.history)
        self._had_task = True
        self._profile = None

    async def _hold_runs(self, task: str, held: contextlib.AsyncExitStack) -> None:
        active = self._active.get(task)
        limit_s = _SWITCH_S + (0 if active is None else deadline_s(active.manifest))
        try:
            async with asyncio.timeout(limit_s):
                await held.enter_async_context(self.stream.between_runs(task))
        except TimeoutError as error:
            what = (
                f"cannot be taken over: the run under way did not end, or could not store its outputs, in {limit_s} s"
            )
            raise TaskStateError(task, what) from error

    async def _take_state(self, files: Path, manifest: Manifest, policy: StatePolicy) -> None:
        """Activate the state that the version begins with: its own, or one that it makes of an older version's."""
        migrate = functools.partial(self._runner.migrate, files, manifest)
        states = self.store.task_states
        state = await state_of_version(states, manifest.name, policy, last_id=self._last_feature_id, migrate=migrate)
        self.store.activate_state(state)

    async def _last_feature_id(self) -> int:
        await self.store.flush()
        return await self.store.call(lambda database: database.last_feature_id())

    async def _remove(self, task: str) -> None:
        self.stream.remove_task(task)
        self._active.pop(task, None)
        self._use_dictionaries()
        self._profile = None
        self._history.set_policy(task, None)
        self.store.remove_states(task)
        await self._history.remove_unused()

    def _use_dictionaries(self) -> None:
        """Tell the tunnel the dictionaries of the active tasks, by the topics that these have put so far."""
        active, topics = self._active, {**{task: task for task in self._active}, **self._topics}
        by_topic = {topic: active[task].dictionary for topic, task in topics.items() if task in active}
        self._dictionaries = {topic: found for topic, found in by_topic.items() if found is not None}
        self.tunnel.use_dictionaries(self._dictionaries)

    async def _run_task(self, task: str, trigger: Trigger) -> TaskOutput:
        active = self._active.get(task)
        if active is None:
            return TaskOutput()  # it was removed after the event triggered it
        run = self._runs[task] = _Run(active=active, arrived_s=trigger.arrived_s)
        state = None if active.manifest.state is None else self.store.task_states.active(task)
        query = functools.partial(self._query, 0 if state is None else state.after_id)
        callbacks: Callbacks = {"escalate": functools.partial(self._escalate, run), "store.query": query}
        if active.manifest.history is not None:
            callbacks = {**callbacks, "events.history": functools.partial(self._history.query, task, trigger.position)}
        attributes = {**self.config.attributes, "id": self.config.device_id}
        on_log = functools.partial(self._on_log, run)
        output = await self._runner.run(
            active.files,
            active.manifest,
            trigger,
            attributes,
            callbacks,
            state=None if state is None else state.value,
            on_log=on_log,
        )
        run.outputs = (output.output is not None) + len(output.puts)
        self._note_topics(task, output)
        return output

    def _note_topics(self, task: str, output: TaskOutput) -> None:
        active = self._active.get(task)
        if active is None or active.dictionary is None:
            return
        added = {topic: task for topic, _ in output.puts if self._topics.get(topic) != task}
        if added and len(self._topics) < _MAX_TOPICS:
            self._topics |= added
            self._use_dictionaries()

    def _on_log(self, run: _Run, lines: Sequence[LogLine]) -> None:
        run.log = lines
        self._task_log.write(run.active.manifest.name, run.active.manifest.version, lines)

    def _on_outcome(self, task: str, ok: bool, error: Exception | None) -> None:
        """Count a run that has ended."""
        run = self._runs.pop(task, None)
        if run is None:
            return
        version = run.active.manifest.version
        if ok:
            self.counts.runs_ok += 1
            self.counts.produced += run.outputs
            self.counts.to_feature_ms.append((self._clock.monotonic() - run.arrived_s) * 1000)
            run.active.failures_in_a_row = 0
            self.agent.count_run(task, version, ok=True)
            return
        what = printable(str(error))
        place = "" if error is None else failure_place(error)
        self.counts.runs_failed += 1
        self.counts.last_error = what
        _LOG.info("%s: %s %s failed: %s (%s)", self.config.device_id, task, version, what, place or "place unknown")
        if run.unanswered and not self.tunnel.connected:
            return  # the cloud was unreachable: that does not count against the version
        self.agent.count_run(task, version, ok=False, error=what, place=place, log=last_lines(run.log))
        run.active.failures_in_a_row += 1
        if run.active.failures_in_a_row == _FAILURES_TO_REVERT:  # without waiting for the cloud's verdict
            reason = f"{_FAILURES_TO_REVERT} runs in a row failed, the last with: {what}"
            self._spawn(self.agent.revert(task, reason, version=version), "revert")

    def _on_ack(self, _seq: int, latency_s: float) -> None:
        self.counts.to_ack_ms.append(latency_s * 1000)

    async def _escalate(self, run: _Run, phase: str, payload: Any) -> Any:
        """Run a phase in the cloud (fallback inference), for a task's `ctx.escalate`."""
        manifest = run.active.manifest
        question = {
            "task": manifest.name,
            "version": manifest.version,
            "phase": phase,
            "payload": payload,
            "device": dict(self.config.attributes),
        }
        data = plain.encode(question)
        self.counts.escalated += 1
        run.unanswered = True
        answer = await self.tunnel.request(PHASE_TOPIC, data, timeout=self.config.escalation_timeout_s)
        run.unanswered = False
        return plain.decode(answer)

    async def _query(self, after_id: int, topic: str, since_ms: int = 0, limit: int = 100) -> list[Any]:
        """Return payloads, oldest first, for a task's `ctx.store.query`; those up to `after_id` are left out."""
        found = await self.store.query(topic, since_ms, limit)
        return [plain.decode(feature.payload) for feature in found if feature.id > after_id]

    # --- events -------------------------------------------------------------------------------------------------------

    async def on_event(self, event: Event, position: int | None = None, *, can_wait: bool = False) -> None:
        """Take one event of the user, as `StreamEngine.on_event`; the tasks that it triggers run in the background.

        An event without a position is live. Late ones and duplicates are dropped and counted (`DeviceConfig.live`). It
        is recorded in the device's journal first: a process that is killed after this call
        loses nothing of it (`DeviceConfig.journal_sync_s` for a power cut). A call that is cancelled may have
        recorded it; the next call takes it then.

        Raises:
            EventError, PositionError, StoreClosedError: as there.
            EventJournalError: the event cannot be recorded, and is not taken; with `journal_sync_s` 0 also where the
                disk did not confirm a recorded one, which the next call takes.
        """
        if self._had_task and not self._active:
            self.counts.bare_events += 1
        if position is not None:
            await self._history.wait_for_room()
            await self.stream.on_event(event, position, can_wait=can_wait)
            self._history.add(position, event)
            return
        async with self._live_turn:
            journal = self._journal or await self._open_journal()
            await self._take_recorded(can_wait=can_wait)
            self._live.note_clock(self._clock.time(), self._clock.monotonic())
            if self._live.check(event) is not None:
                return
            self._recorded.append((journal.append(event), event))
            self._live.take(event)
            await journal.synced()
            await self._take_recorded(can_wait=can_wait)
            journal.trim(self.store.state.resume_from)

    async def on_json(self, json: bytes) -> int:
        """Take events in JSON, a list of objects or JSON lines, each as `on_event`; return their number.

        They are read in C++ into the bytes that the journal keeps and the tasks' VMs read; no Python objects are made
        of contents that no condition tests.

        Raises:
            EventError: the JSON or an event is wrong; none of the events is taken.
            StoreClosedError, EventJournalError: as `on_event`; the events before are taken.
        """
        events = Event.list_from_json(json)
        for event in events:
            await self.on_event(event)
        return len(events)

    async def _take_recorded(self, *, can_wait: bool) -> None:
        while self._recorded:
            position, event = self._recorded[0]
            await self._history.wait_for_room()
            await self.stream.on_event(event, position, can_wait=can_wait)  # cancelled, it has not taken the event
            self._recorded.popleft()
            self._history.add(position, event)

    async def _open_journal(self) -> EventJournal:
        config = self.config
        journal = EventJournal(config.folder / _JOURNAL, sync_interval_s=config.journal_sync_s, clock=self._clock)
        self._journal = await journal.start(self.store.position + 1)
        return journal

    async def _replay(self, journal: EventJournal) -> None:
        """Take the recorded events again that the last process may not have finished."""
        async for position, event in journal.replay(self.store.resume_from):
            self._live.restore(event)
            await self._history.wait_for_room()
            try:
                await self.stream.on_event(event, position, can_wait=True)
                self._history.add(position, event)
            except EventError as error:  # recorded by a walle with wider bounds
                _LOG.warning("%s: a recorded event is left out: %s", self.config.device_id, error)

    async def _close_journal(self) -> None:
        if self._journal is not None:
            with contextlib.suppress(EventJournalError):  # logged by the journal
                await self._journal.close()

    @property
    def resume_from(self) -> int:
        """The position at which the event source starts again after a crash."""
        return self.store.resume_from

    async def settled(self) -> None:
        """Return once all runs are done, all features stored and acknowledged by the cloud, and all outcomes reported.

        Raises:
            StoreError, TunnelClosedError, httpx.HTTPError: one of these failed.
        """
        await self.stream.settle()
        await self.store.flush()
        await self.tunnel.drained()
        await self.store.flush()  # removes acknowledged uploads from the outbox
        await self.report()

    async def summary(self) -> DeviceSummary:
        """Return a snapshot of the device."""
        counts = self.counts
        stored, _ = await self.store.call(lambda database: database.counts())
        return DeviceSummary(
            device_id=self.config.device_id,
            tasks=self.tasks,
            produced=counts.produced,
            stored=stored,
            unsent=self.store.unsent,
            runs_ok=counts.runs_ok,
            runs_failed=counts.runs_failed,
            escalated=counts.escalated,
            bare_events=counts.bare_events,
            last_error=counts.last_error,
            to_feature_ms=tuple(counts.to_feature_ms),
            to_ack_ms=tuple(counts.to_ack_ms),
            queued=self.stream.queued,
            dropped=dict(self.stream.counts.dropped),
            uploads_dropped=dict(self.stream.counts.uploads_dropped),
            without_visit=self.stream.counts.without_visit,
            cut_visits=self.stream.counts.cut_visits,
            visits_cut=self.stream.events.counters()["evicted"],
            **dataclasses.asdict(self._live.counts),
            losses=self.store.report.lines(),
            lost_uploads=self.store.report.lost_uploads,
        )


def _dictionary_of(files: Path, manifest: Manifest) -> Dictionary | None:
    """Return a task's dictionary; None without one, or if it cannot be used, so that its uploads go without."""
    if not manifest.dictionary:
        return None
    try:
        return Dictionary((files / manifest.dictionary).read_bytes())
    except (DictionaryError, OSError) as error:
        _LOG.error("%s: dictionary %s is not used: %s", manifest.name, manifest.dictionary, error)
        return None
