"""`Device`: the parts of one device, connected, with their common lifetime."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx

from walle.base.backoff import Pace
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import remove_unfinished, write_file
from walle.deploy.agent.agent import Agent
from walle.deploy.agent.exclusive import ExclusiveFiles
from walle.deploy.agent.fetch import HttpFetcher
from walle.deploy.agent.outcomes import OutcomeReport, device_groups
from walle.deploy.agent.trust import DeviceTrust
from walle.device.background import BackgroundWork
from walle.device.cloud_requests import CloudRequests, device_http
from walle.device.cloud_tunnel import CloudTunnel
from walle.device.config import DeviceConfig
from walle.device.credentials import DeviceCredentials, asked_pause_s
from walle.device.event_intake import EventIntake
from walle.device.exclusive_source import HttpExclusiveSource
from walle.device.peer_models import PeerModels
from walle.device.smoke_run import SmokeRun
from walle.device.summary import DeviceCounts, DeviceSummary
from walle.device.task_runs import RunOutcome, TaskRuns
from walle.device.task_versions import ActiveVersion, TaskVersions
from walle.device.training import BackgroundTraining
from walle.engine_ext.vm.host import shared_host
from walle.errors import ConfigError
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_batch import read_batch, rejected_message
from walle.pipeline.events.rejected_events import RejectedEvents
from walle.pipeline.events.ticks import Tick
from walle.pipeline.features.checkpoints import Checkpoints
from walle.pipeline.features.database import StoreError
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_counts import LossKind
from walle.pipeline.trigger.stream_engine import StreamEngine, TakenEvent
from walle.pipeline.trigger.task_results import ResultStream
from walle.pipeline.tunnel.client.client import TunnelClient, client_context
from walle.protocol import MODEL_GOAL, Attribute, Profile
from walle.task.run.log import TaskLog
from walle.task.run.runner import TaskRunner
from walle.trust.sealing import open_sealed

_HISTORY = "history.db"
_MAX_CHECKINS = 4  # check-ins that one `checkin` sends
_LAST_REPORT_S = 2.0  # timeout for the cloud when a device closes
_KEEP_RUNS_S = 10.0  # interval between two writes of the counts of runs
_LAST_RUNS_S = 2.0  # time at the end for runs under way and queued triggers
_LOG = logging.getLogger(__name__)


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
        self._current_attributes: dict[str, Attribute] = {}
        self._is_open = False

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        config, clock = self.config, self._clock
        config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with contextlib.AsyncExitStack() as undo:
            self.store = await undo.enter_async_context(FeatureStore(config.folder / "features.db", clock=clock))
            ca_path = config.folder / "ca.pem"  # written after the store has locked the folder
            await asyncio.to_thread(remove_unfinished, config.folder)
            await asyncio.to_thread(_keep_file, ca_path, config.ca_pem)
            self.outbox = Outbox(self.store)
            self.counts.produced = self.store.state.produced
            history = self._history = EventHistory(config.folder / _HISTORY, clock, position=self.store.position)
            undo.push_async_callback(history.aclose)
            self._rejected = RejectedEvents(config.folder)
            task_log = TaskLog(config.device_id, clock)
            host = shared_host() if config.vm_host else None
            runner = self._runner = TaskRunner(config.vms, task_log=task_log, host=host)
            undo.push_async_callback(runner.close)
            http = await undo.enter_async_context(device_http(config.cloud_url, config.ca_pem))
            self._tunnel = CloudTunnel(
                config, self.outbox, client_context(ca_path), clock, self._rng, on_ack=self._on_ack
            )
            self._credentials = DeviceCredentials(
                config.device_id,
                config.folder,
                http,
                clock,
                self._rng,
                token=config.enrolment_token,
                on_certificate=self._tunnel.show,
            )
            await self._credentials.start()
            self.peer_models = PeerModels(http, self._credentials)
            active: dict[str, ActiveVersion] = {}
            credentials = self._credentials
            trust = DeviceTrust(config.trusted_keys, clock, device_id=config.device_id, app_version=config.app_version)
            fetcher = HttpFetcher(http)
            self._exclusive = ExclusiveFiles(
                config.folder / "exclusive",
                config.device_id,
                trust,
                HttpExclusiveSource(
                    fetcher, credentials, Profile(config.device_id, config.app_version, config.attributes)
                ),
                lambda sealed, info: open_sealed(sealed, credentials.key, info),
                active=lambda: [version.manifest for version in active.values()],
            )
            self._smoke = SmokeRun(
                config.folder / "smoke",
                config.as_seen_by_tasks,
                self._exclusive,
                task_log=task_log,
                host=host,
            )
            await undo.enter_async_context(self._smoke)
            checkpoints = Checkpoints(self.store)
            self._runs = TaskRuns(
                config,
                clock,
                self.counts,
                device=lambda: self.attributes,
                active=active,
                store=self.store,
                checkpoints=checkpoints,
                history=history,
                tunnel=self._tunnel,
                runner=runner,
                task_log=task_log,
                exclusive=self._exclusive,
                traces=lambda: self.agent.traces,
                on_loss=self._on_training_loss,
            )
            self.stream = StreamEngine(
                self.store,
                self._runs.run,
                on_outcome=self._on_outcome,
                on_put=self._runs.put,
                on_loss=self._on_loss,
                share_arrays=config.vm_host,
            )
            undo.push_async_callback(self.stream.close)
            self._training = BackgroundTraining(
                clock,
                lambda: self.attributes,
                active,
                lambda task, version: self._runs.train(version, functools.partial(self._count, task)),
                checkpoints.rests_since_s,
                lambda version: runner.drop_training(version.files, version.manifest),
            )
            self._versions = TaskVersions(
                self.store,
                self.stream,
                history,
                runner,
                self._tunnel,
                checkpoints,
                active,
                on_change=self._training.note_change,
            )
            undo.push_async_callback(self._versions.aclose)
            self.agent = Agent(
                config.folder / "tasks",
                trust,
                fetcher,
                self._smoke.check,
                clock,
                outcomes=OutcomeReport(
                    config.device_id,
                    device_groups(config.app_version, config.attributes),
                    state_of=self._versions.state_of,
                ),
                exclusive=self._exclusive,
                prepare=self._versions.prepare,
                on_activate=self._versions.activate,
                on_suspend=self._versions.suspend,
                on_remove=self._remove_task,
                random_source=self._rng,
                max_bundle_bytes=config.max_version_bytes,
            )
            self._requests = CloudRequests(config, http, self.agent, self._credentials, clock, self._rng)
            await undo.enter_async_context(self.agent)
            await self._exclusive.start()
            await self._versions.start()
            self._background = BackgroundWork(config.device_id)
            undo.push_async_callback(self._background.aclose)
            self._background.spawn(self._credentials.run(), "credentials")
            self._background.spawn(self._tunnel.run(self._credentials), "tunnel")
            pace = Pace(self._rng, config.exclusive_interval_s)
            self._background.spawn(self._exclusive.run(pace), "exclusive files")
            self._background.spawn(self._requests.report_periodically(), "report")
            self._background.spawn(self._keep_runs(), "counts of runs")
            self._intake = EventIntake(config, clock, self.store, self.stream, history)
            undo.push_async_callback(self._intake.aclose)
            await self._intake.start()
            self._background.spawn(self._intake.run_timers(), "timers")
            self._trains = self._background.spawn(self._training.run(), "training")
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
        if self._trains is not None:
            self._trains.cancel()  # first: the last runs need VMs
        try:
            try:
                async with asyncio.timeout(_LAST_RUNS_S):
                    await self.stream.settle()
            except (StoreError, TimeoutError) as error:
                why = str(error) or f"they take more than {_LAST_RUNS_S:g} s"
                _LOG.warning("%s closes before all triggers are done: %s", self.config.device_id, why)
            try:
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self.report()
            except (httpx.HTTPError, TimeoutError) as error:
                why = str(error) or type(error).__name__
                _LOG.info("%s closes without its last report: %s", self.config.device_id, why)
        finally:
            await self._undo.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- cloud --------------------------------------------------------------------------------------------------------

    @property
    def tunnel(self) -> TunnelClient:
        """The present client of the tunnel; another replaces one that ends."""
        return self._tunnel.client

    @property
    def tasks(self) -> dict[str, str]:
        """The active version of each task."""
        return self.agent.tasks

    @property
    def attributes(self) -> dict[str, Attribute]:
        """The device as tasks see it (`ctx.device`), with what `set_attributes` has set."""
        return {**self.config.as_seen_by_tasks, **self._current_attributes}

    def set_attributes(self, **attributes: Attribute | None) -> None:
        """Set attributes that change, such as `charging=True`: tasks see them, and [training] may ask for them.

        None removes one that was set. The cloud does not learn them: its policies see those of `DeviceConfig`. A step
        of training under way is cut short when its task may not train any more. Call it in the device's event loop.

        Raises:
            ConfigError: the name is `id` or `app_version`, or the value is not a text, a number, true or false.
        """
        for name, value in attributes.items():
            if name in ("id", "app_version"):
                raise ConfigError(f"the attribute {name} of a device cannot be set")
            if value is not None and type(value) not in (str, int, float, bool):
                what = f"must be a text, a number, true or false, is of type {type(value).__name__}"
                raise ConfigError(f"the attribute {name[:80]} of a device {what}")
        kept = {name: value for name, value in (self._current_attributes | attributes).items() if value is not None}
        self._current_attributes = kept
        if self._is_open:
            self._training.note_change()

    def ask_for_model(self, goal: str | None, *, attribute: str = MODEL_GOAL) -> None:
        """Ask for a model of another goal, such as "latency <= 8ms, memory <= 5MB"; None takes the goal back.

        The goal goes up as an attribute of the profile, which the cloud has to declare as a string, and is kept over
        restarts. `walle adapt follow` adapts the model to it and releases it; it arrives as the task's next version
        (Mistify §6). Tasks do not see it.

        Raises:
            ConfigError: the goal is not of that form, or the attribute is one of the device's own.
        """
        from walle.adapt.goals.asked import asked_text

        if attribute in (*self.config.attributes, "id", "app_version"):
            raise ConfigError(f"the attribute {attribute[:80]} of a device is its own; name another one for goals")
        self._requests.ask(attribute, None if goal is None else asked_text(goal))

    def request_headers(self) -> dict[str, str]:
        """Return the headers for the app's next request to its server: `X-Walle-Profile` and `X-Walle-Device`.

        None before the device has a session, which it asks for in the background. The session is a secret: these
        headers are for the app's own server alone.
        """
        return self._requests.headers()

    async def handle_answer(self, header: str | None, trust: str | None = None, trace: str | None = None) -> None:
        """Act on `X-Walle-Tasks` and `X-Walle-Trust` of an answer, None if it has none; pulls run in the background.

        `trace` is its `X-Walle-Trace`, by which the cloud asks for the times of some installs and runs; "" if it has
        none, so that there are no more of them. None changes nothing.

        Nothing new is installed without a fresh `X-Walle-Trust` from this answer or from one before. An answer after
        `close` is ignored.
        """
        directives = self._requests.directives(header)
        if trace is not None:
            self.agent.traces.follow(trace)
        if self._is_open and (directives or trust):
            self._background.spawn(self.agent.handle(directives, trust), "directives")
        elif self._is_open:
            self.agent.watch_freshness()

    async def checkin(self) -> None:
        """Send a heartbeat to the cloud and act on its answer.

        Raises:
            httpx.HTTPError: the cloud does not answer.
        """
        for _ in range(_MAX_CHECKINS):  # the cloud may ask for parts of the profile that it does not know
            await self.handle_answer(*await self._requests.checkin())
            if not self._requests.is_asked:
                break

    @property
    def wait_s(self) -> int:
        """Seconds after which the cloud may have more than in its latest answer, which it spreads; 0 if it has not."""
        return self._requests.wait_s

    async def checkin_periodically(
        self, interval_s: float, on_end: Callable[[httpx.HTTPError | None], None] = lambda _: None
    ) -> None:
        """Check in about every `interval_s` until this is cancelled; after failures with pauses that grow.

        `on_end` gets the error of each check-in, None for one that worked.
        """
        pace = Pace(self._rng, interval_s)
        while True:
            try:
                await self.checkin()
            except httpx.HTTPError as error:
                on_end(error)
                pause_s = pace.failed(asked_pause_s(error, self._clock.time()))
            else:
                on_end(None)
                pause_s = pace.worked()
                if self.wait_s:
                    pause_s = min(pause_s, self.wait_s * self._rng.uniform(0.8, 1.2))
            await self._clock.sleep(pause_s)

    async def report(self) -> None:
        """Send all outcomes. A batch that the cloud refuses permanently is dropped, so that it does not block the next.

        Raises:
            httpx.HTTPError: the cloud does not accept them now; the next report sends them again.
        """
        await self._requests.report()

    async def _keep_runs(self) -> None:
        while True:
            await self._clock.sleep(_KEEP_RUNS_S)
            await self.agent.keep_runs()

    async def _remove_task(self, task: str) -> None:
        await self._versions.remove(task)
        await self._exclusive.forget(task)

    def _on_outcome(self, task: str, ok: bool, error: Exception | None) -> None:
        """Count a run that has ended towards the release of its version."""
        outcome = self._runs.end(task, ok, error)
        if outcome is not None:
            self._count(task, outcome)

    def _count(self, task: str, outcome: RunOutcome) -> None:
        """Count an outcome towards the release of its version, which the agent may revert."""
        version = outcome.version
        reason = self.agent.count_run(task, version, outcome.failure, outcome.metrics)
        if reason:  # spawned: the run does not wait for the cloud's verdict
            self._background.spawn(self.agent.revert(task, reason, version=version), "revert")

    def _on_loss(self, task: str, kind: LossKind, count: int) -> None:
        """Count what a full queue, outbox or state dropped towards the release of the task's active version."""
        active = self._versions.active.get(task)
        if active is not None and count:
            self.agent.count_dropped(task, active.manifest.version, **{kind.value: count})

    def _on_training_loss(self, task: str, kind: LossKind, count: int) -> None:
        self.stream.count_loss(task, kind, count)

    def _on_ack(self, _seq: int, latency_s: float) -> None:
        self.counts.to_ack_ms.append(latency_s * 1000)

    # --- events -------------------------------------------------------------------------------------------------------

    async def on_event(self, event: Event, position: int | None = None, *, can_wait: bool = False) -> TakenEvent | None:
        """Take one event of the user, as `StreamEngine.on_event`; the tasks that it triggers run in the background.

        An event without a position is live. Late ones are counted, and dropped where `DeviceConfig.live` says so, as
        duplicates are. It is recorded in the device's journal first: a process that is killed after this call
        loses nothing of it (`DeviceConfig.journal_sync_s` for a power cut). A call that is cancelled may have
        recorded it; the next call takes it then. Live events get the positions after those of earlier events.

        An event whose contents hold arrays (`walle.pipeline.events.transient_events`) is recorded without them: a
        process that is killed loses its triggers that are not done, and the app plays its stream on. Its arrays must
        not change until this call returns; if it is cancelled, until the next call has returned, which may take the
        event.

        Return the event's position and the tasks that it has triggered, None for an event that is dropped. Each of
        these tasks gives one result (`results`).

        Raises:
            EventError, StoreClosedError: as there.
            PositionError: as there, or the device has live events since its start; the event is not taken.
            EventJournalError: the event cannot be recorded, and is not taken. With `journal_sync_s` 0 also where the
                disk did not confirm it: the error's `recorded` is True, and the next call takes the event.
        """
        self._count_bare(1)
        if position is not None:
            return await self._intake.take(event, position, can_wait=can_wait)
        return await self._intake.take_live(event, can_wait=can_wait)

    async def on_time(self, ts_ms: int, position: int | None = None) -> TakenEvent | None:
        """Move the time of the stream to at least `ts_ms`, in milliseconds since the epoch, without an event.

        Timers that are due trigger their tasks. A live source does not need it: there time advances by the device's
        clock. An app that has its own log passes what its log has, with a position, and passes it again in a replay:
        the time of its stream advances with its entries alone. More than an hour before the time of the stream it sets
        that back, as an event does.

        Return its position and the tasks that it has triggered, None if the device closes meanwhile.

        Raises:
            EventError: the time is not one.
            PositionError, StoreClosedError, EventJournalError: as `on_event`.
        """
        if position is not None:
            return await self._intake.take(Tick(ts_ms), position, can_wait=True)
        return await self._intake.take_tick(ts_ms)

    async def on_json(self, json: bytes) -> int:
        """Take live events in JSON, a list of objects or JSON lines; return the number of those that could be read.

        An event that cannot be read is set aside: counted (`DeviceSummary.rejected`), logged, and recorded with the
        reason in `rejected.jsonl` in the device's folder, of bounded size (`walle device log --rejected`). The others
        are taken, all or none. A repeated call takes them again, unless `LivePolicy` finds duplicates.

        They are read in C++ into the bytes that the journal keeps and the tasks' VMs read; no Python objects are made
        of contents that no condition tests. They are recorded together, then each is taken as by `on_event`. A call
        that is cancelled may have recorded them; the next call takes them then.

        Raises:
            EventError: it begins neither with [ nor with {, or is more than 256 MiB; none of the events is taken.
            StoreClosedError: the device is closed; none of the events is taken.
            EventJournalError: as `on_event`; none of the events is taken, or all of them if `recorded` is True.
        """
        events, rejected = read_batch(json)
        self._count_bare(len(events))
        await self._intake.take_all_live(events)
        self._rejected.add(rejected, self._clock.time())
        return len(events)

    async def on_message(self, message: bytes) -> int:
        """Take live events of a message that nobody can correct, as `on_json`; return how many could be read.

        Also a message that is not JSON is set aside, as an event that cannot be read is.

        Raises:
            StoreClosedError, EventJournalError: as `on_json`.
        """
        try:
            return await self.on_json(message)
        except EventError as error:
            self._rejected.add([rejected_message(message, str(error))], self._clock.time())
            return 0

    def results(self, task: str) -> ResultStream:
        """Return the results of a task's triggers from now on: outputs, failures and drops, in the order of its events.

        Use it as `with device.results("shop/item") as results: async for result in results: ...`. A task that is not
        installed yet may be named; outputs come also if they are not uploaded.
        """
        return self.stream.results.open(task)

    def _count_bare(self, events: int) -> None:
        if self._versions.had_task and not self._versions.active:
            self.counts.bare_events += events

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
            training_steps=counts.training_steps,
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
            **dataclasses.asdict(self._intake.live_counts),
            history_dropped=self._history.dropped,
            timers=self.stream.time.running,
            timers_evicted=self.stream.time.evicted(),
            window_late=self.stream.time.late(),
            window_evicted=self.stream.time.evicted_events(),
            states=self._versions.state_sizes(),
            rejected=self._rejected.count,
            discarded={name: one.count for name, one in self._runner.discarded().items()},
            losses=self._losses(),
            lost_uploads=self.store.report.lost_uploads,
            open_losses=self.store.report.open_losses,
        )

    def _losses(self) -> tuple[str, ...]:
        lines = list(self.store.report.lines())
        if self._history.damages:
            lines.append("the longer history of events was damaged and began again")
        if lost := self.agent.outcomes.lost:
            lines.append(f"{lost} outcomes of tasks were not reported: too many, or the cloud refused them")
        return (*lines, *self._intake.losses())


def _keep_file(path: Path, text: str) -> None:
    """Write a file unless it has this text: a device starts on a full disk too."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == text.encode():
            return
    write_file(path, text)
