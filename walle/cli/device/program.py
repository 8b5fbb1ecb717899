"""Program behind `walle device run`: a `Device`, the requests of its app, its user's events, and its status.

The events of a file have positions, so that a killed device continues where it was. Positions of one device only
grow: each new file begins where the one before ended, and `source.json` in the device's folder says where.
"""

import abc
import asyncio
import contextlib
import dataclasses
import enum
import json
import logging
import random
import signal
import statistics
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.markup import escape
from rich.status import Status

from walle.base.durable_file import write_file
from walle.base.waiting import first_of
from walle.cli.output import emit, emit_line, progress_console
from walle.device import Device, DeviceConfig, DeviceSummary
from walle.pipeline.events.event import MAX_EVENT_BYTES, Event, EventError
from walle.pipeline.events.event_log import EventLog

SOURCE_FILE = "source.json"
_SETTLE_RETRY_S = 1.0
_LINES_AHEAD = 256
_POLL_S = 0.1
_MAX_REPORTS = 100
_LOG = logging.getLogger(__name__)


class _State(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING_FOR_TASK = "waiting for a task"
    PLAYING = "playing"
    SETTLING = "waiting for the cloud"
    DONE = "done"
    STOPPED = "stopped"


class Source(abc.ABC):
    """Source of events: `name` tells one from another, `replayable` ones give the same places each time.

    `endless` ones end by a signal. `error` says why there are no events now, "" if nothing is wrong.
    """

    replayable: bool
    name: list[str]
    endless = False
    error = ""

    def __init__(self) -> None:
        self._skipped = 0
        self._reports: list[str] = []

    def skip(self, why: str) -> None:
        """Count an event that the device did not take."""
        self._skipped += 1
        if len(self._reports) < _MAX_REPORTS:
            self._reports.append(why)

    @property
    def skipped(self) -> int:
        return self._skipped

    @property
    def reports(self) -> list[str]:
        """Why the first ones were skipped."""
        return self._reports

    @abc.abstractmethod
    def events(self, start: int) -> AsyncGenerator[tuple[int | None, Event | bytes]]:
        """Give (place in the source, event) from place `start` on; None where it cannot be read again.

        A message of a source without places may be given as it came, as `Device.on_message` reads it. When the next
        is asked for, it was taken, or is set aside.
        """


class LogSource(Source):
    """The events of a log file.

    Raises:
        EventLogError, MappingError: it cannot be read.
    """

    replayable = True

    def __init__(self, path: Path, mapping: Path | None, streams: tuple[str, ...]) -> None:
        super().__init__()
        self._log = EventLog(path, mapping, streams=streams or None)
        self.name = [str(path.resolve()), str(mapping.resolve()) if mapping else "", *streams]

    @property
    def skipped(self) -> int:
        return self._skipped + sum(self._log.skipped.values())

    @property
    def reports(self) -> list[str]:
        return [*(f"line {one.line}: {one.fault}: {one.reason}" for one in self._log.reports), *self._reports]

    async def events(self, start: int) -> AsyncGenerator[tuple[int | None, Event]]:
        for record in self._log.records(start):
            yield record.position, record.event


class StandardInput(Source):
    """JSON lines of `Event` on standard input, taken as they come."""

    replayable = False

    def __init__(self) -> None:
        super().__init__()
        self.name = ["-"]

    async def events(self, start: int) -> AsyncGenerator[tuple[int | None, Event]]:  # noqa: ARG002 - cannot go back
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes] = asyncio.Queue(_LINES_AHEAD)
        # A daemon thread, since nothing can wake a thread that reads a terminal or a pipe.
        threading.Thread(target=_read_lines, args=(loop, lines), name="walle-stdin", daemon=True).start()
        number = 0
        while line := await lines.get():
            number += 1
            if not line.strip():
                continue
            try:
                if len(line) > MAX_EVENT_BYTES:
                    raise EventError("event", f"more than {MAX_EVENT_BYTES} bytes")  # noqa: TRY301 - as a wrong field
                event = Event.from_dict(json.loads(line))
            except (ValueError, RecursionError, EventError) as error:
                self.skip(f"line {number}: {error}")
                continue
            yield None, event


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[bytes]) -> None:
    """Hand over each line, cut where it is enormous, and b"" at the end. The bounded queue holds the writer back."""
    with open(sys.stdin.fileno(), "rb", closefd=False) as file:
        while True:
            line = file.readline(MAX_EVENT_BYTES + 1)
            rest = line
            while len(rest) > MAX_EVENT_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_EVENT_BYTES + 1)
            put = lines.put(line)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, asyncio.CancelledError):  # the loop is closed
                put.close()
                return
            if not line:
                return


class _Pace:
    """Gives events at `speed` times the pace at which they happened; 0: at once."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._first: tuple[float, int] | None = None

    async def wait_for(self, event: Event) -> None:
        if not self._speed:
            return
        now_s = asyncio.get_running_loop().time()
        self._first = self._first or (now_s, event.ts_ms)
        due_s = self._first[0] + (event.ts_ms - self._first[1]) / 1000 / self._speed
        await asyncio.sleep(due_s - now_s)


class DeviceProgram:
    """One run of a device, with what a person sees of it.

    `speed` is times real time, 0 as fast as possible. Requests to the cloud come every `checkin_s`, give or take a
    fifth.
    """

    def __init__(
        self,
        config: DeviceConfig,
        source: Source | None,
        *,
        speed: float,
        wait_for_task: bool,
        checkin_s: float,
        status_s: float,
        as_json: bool,
    ) -> None:
        self._config = config
        self._source = source
        self._speed = speed
        self._wait_for_task = wait_for_task
        self._checkin_s = checkin_s
        self._status_s = status_s
        self._as_json = as_json
        self._rng = random.Random()
        self._taken = 0
        self._state = _State.STARTING
        self._cloud_error = ""
        self._shown: dict[str, Any] = {}
        self._had: Mapping[str, str] = {}  # the latest tasks with their versions
        self._line: Status | None = None

    async def run(self) -> bool:
        """Run to the end; return whether it got there, False where a signal stopped it before its events were done.

        Raises:
            WalleError: the device cannot start, its events cannot be read, or the cloud refuses it permanently.
        """
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        with self._status_line() as self._line:
            async with Device(self._config, rng=self._rng) as device:
                await first_of(
                    self._check_in_repeatedly(device),
                    self._show_repeatedly(device),
                    self._play(device),
                    stopping.wait(),
                )
                finished = self._source is None or self._source.endless or self._state is _State.DONE
                if self._state is not _State.DONE:
                    self._state = _State.STOPPED
                await self._show(device)
                summary = await device.summary()
        if not self._as_json:
            self._say_end(summary)
        return finished

    # --- the app around the device ------------------------------------------------------------------------------------

    async def _check_in_repeatedly(self, device: Device) -> None:
        await device.checkin_periodically(self._checkin_s, self._note_cloud_error)

    def _note_cloud_error(self, error: httpx.HTTPError | None) -> None:
        self._cloud_error = "" if error is None else str(error) or type(error).__name__

    async def _play(self, device: Device) -> None:
        source = self._source
        if source is None:
            self._state = _State.RUNNING
            await asyncio.Event().wait()
            return
        base = self._base(device, source)
        self._state = _State.WAITING_FOR_TASK
        while self._wait_for_task and not device.tasks:  # noqa: ASYNC110 - a device tells it by its profile only
            await asyncio.sleep(_POLL_S)
        self._state = _State.PLAYING
        pace = _Pace(self._speed)
        async with contextlib.aclosing(source.events(max(0, device.resume_from - base))) as events:
            async for place, event in events:
                if isinstance(event, bytes):
                    self._taken += await device.on_message(event)
                    continue
                position = None if place is None else base + place
                if position is None or position > device.store.position:  # others are replayed, which takes no time
                    await pace.wait_for(event)
                try:
                    await device.on_event(event, position, can_wait=not self._speed)
                    self._taken += 1
                except EventError as error:
                    source.skip(str(error))
        self._state = _State.SETTLING
        while self._state is _State.SETTLING:
            try:
                await device.settled()
                await device.store.flush()  # what the cloud has acknowledged leaves the outbox now
            except httpx.HTTPError as error:
                self._cloud_error = str(error) or type(error).__name__
                await asyncio.sleep(_SETTLE_RETRY_S)
            else:
                self._state = _State.DONE

    def _base(self, device: Device, source: Source) -> int:
        """Return the position of the source's first event: as it was for the same source, else after all others."""
        path = self._config.folder / SOURCE_FILE
        try:
            known = json.loads(path.read_bytes())
            if source.replayable and known["name"] == source.name:
                return int(known["base"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("events that were taken before may be taken again: %s cannot be read: %r", path, error)
        base = device.store.position + 1
        write_file(path, json.dumps({"name": source.name, "base": base}))
        return base

    # --- what a person sees -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _status_line(self) -> Iterator[Status | None]:
        if self._as_json or not progress_console.is_terminal:
            yield None
            return
        with progress_console.status("starting") as line:
            yield line

    async def _show_repeatedly(self, device: Device) -> None:
        while True:
            await self._show(device)
            await asyncio.sleep(self._status_s)

    async def _show(self, device: Device) -> None:
        """Show the device as it is, where that is new."""
        summary = await device.summary()
        status: dict[str, Any] = {
            "device_id": summary.device_id,
            "state": self._state.value,
            "tasks": summary.tasks,
            "events": self._taken,
            "skipped": self._source.skipped if self._source else 0,
            "produced": summary.produced,
            "stored": summary.stored,
            "unsent": summary.unsent,
            "runs_ok": summary.runs_ok,
            "runs_failed": summary.runs_failed,
            "training_steps": summary.training_steps,
            "queued": summary.queued,
            "dropped": summary.dropped,
            "uploads_dropped": summary.uploads_dropped,
            "without_visit": summary.without_visit,
            "visits_cut": summary.visits_cut,
            "late": summary.late,
            "out_of_order": summary.out_of_order,
            "duplicates": summary.duplicates,
            "clock_jumps": summary.clock_jumps,
            "history_dropped": summary.history_dropped,
            "timers": summary.timers,
            "timers_evicted": summary.timers_evicted,
            "window_late": summary.window_late,
            "window_evicted": summary.window_evicted,
            "states": {task: dataclasses.asdict(size) for task, size in summary.states.items()},
            "rejected": summary.rejected,
            "interpreters_discarded": summary.discarded,
            "last_error": summary.last_error,
            "losses": list(summary.losses),
            "lost_uploads": summary.lost_uploads,
            "open_losses": summary.open_losses,
            "cloud_error": self._cloud_error,
            "events_error": self._source.error if self._source else "",
        }
        if status == self._shown:
            return
        self._had = summary.tasks or self._had
        if self._as_json:
            emit_line(status)
        elif self._line is not None:
            self._line.update(escape(_line_of(status, self._had)))
        elif status["tasks"] != self._shown.get("tasks") or status["state"] != self._shown.get("state"):
            print(_line_of(status, self._had), flush=True)
        self._shown = status

    def _say_end(self, summary: DeviceSummary) -> None:
        lines = [_line_of(self._shown, self._had)] if self._line is not None else []  # elsewhere it is printed already
        for what, latencies in (("event to feature", summary.to_feature_ms), ("feature to cloud", summary.to_ack_ms)):
            if len(latencies) > 1:
                cuts = statistics.quantiles(latencies, n=100, method="inclusive")
                lines.append(f"{what}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms")
        if summary.timers and self._source is not None:
            lines.append(f"{summary.timers} timers were running at the end: time stops at the last event")
        lines += summary.losses
        lines += [f"skipped {report}" for report in (self._source.reports if self._source else [])]
        for line in lines:
            emit(None, as_json=False, text=escape(line))


_COUNTED = (
    ("training_steps", "training steps"),
    ("dropped", "triggers dropped"),
    ("uploads_dropped", "uploads dropped"),
    ("without_visit", "triggers without a visit"),
    ("visits_cut", "visits cut"),
    ("late", "late events"),
    ("out_of_order", "events out of order"),
    ("duplicates", "duplicate events"),
    ("clock_jumps", "clock jumps"),
    ("history_dropped", "events missing from the longer history"),
    ("timers_evicted", "timers evicted"),
    ("window_late", "times too late for a window"),
    ("window_evicted", "events evicted from windows"),
    ("rejected", "events that could not be read"),
    ("interpreters_discarded", "interpreters discarded"),
)
_NEARLY_FULL = 0.8  # share of a state's bound from which on it is shown


def _tasks_text(tasks: Mapping[str, str], had: Mapping[str, str]) -> str:
    """Return the tasks with their versions; where there is none, those of before, which were removed."""
    if tasks:
        return _versions_text(tasks)
    if had:
        return f"no task ({_versions_text(had)} {'was' if len(had) == 1 else 'were'} removed)"
    return "no task yet"


def _versions_text(tasks: Mapping[str, str]) -> str:
    return ", ".join(f"{task} {version}" for task, version in tasks.items())


def _line_of(status: Mapping[str, Any], had: Mapping[str, str]) -> str:
    """Return a status as a line. `had` are the latest tasks that the device had."""
    parts = [f"{status['device_id']}: {status['state']}", _tasks_text(status["tasks"], had)]
    parts.append(f"{status['events']} events")
    parts.append(f"{status['produced']} features, {status['unsent']} unsent")
    if status["runs_failed"]:
        parts.append(f"{status['runs_failed']} runs failed: {status['last_error']}")
    for key, what in _COUNTED:
        count = status[key] if isinstance(status[key], int) else sum(status[key].values())
        if count:
            parts.append(f"{count} {what}")
    for task, size in status["states"].items():
        share = size["size_bytes"] / size["max_bytes"]
        if share >= _NEARLY_FULL or size["evicted"]:
            evicted = f", {size['evicted']} entries evicted" if size["evicted"] else ""
            parts.append(f"state of {task} {share:.0%} full{evicted}")
    if status["cloud_error"]:
        parts.append(f"no cloud: {status['cloud_error']}")
    if status["events_error"]:
        parts.append(f"no events: {status['events_error']}")
    return "; ".join(parts)
