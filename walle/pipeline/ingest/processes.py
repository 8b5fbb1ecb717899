"""Several tunnel processes on one port (SO_REUSEPORT): the kernel gives each connection to one of them.

A device may reach another process each time: the store decides which of them has it. A process that ends is started
again; its devices connect to the others meanwhile. One that sends no report for `_HUNG_S` is killed and started again.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from walle.base import plain
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import Revocations
from walle.errors import PipelineError, WalleError
from walle.pipeline.ingest.channel import Channel, ChannelError
from walle.pipeline.ingest.service import DeviceConnection, DrainTarget, TunnelState, TunnelStateError
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.topic_check import ForeignTasks
from walle.pipeline.tunnel.dictionaries import DictionaryLookup
from walle.pipeline.tunnel.received import Received
from walle.pipeline.tunnel.server.deadline import request_deadline
from walle.pipeline.tunnel.server.handlers import RequestBusyError, RequestExpiredError, RequestRefusedError
from walle.pipeline.tunnel.server.reserved_port import ReservedPort, reserve
from walle.pipeline.tunnel.server.server import RequestHandler

_LOG = logging.getLogger(__name__)

_START_S = 60.0
_STOP_S = 15.0
_BACKOFF_S = 0.25  # pause before a process is started again; doubled with each that ended soon after its start
_BACKOFF_MAX_S = 30.0
_STEADY_S = 10.0  # run time after which a process's end no longer counts as soon
_ANSWER_S = 2.0  # time for a process to answer a question
_SILENT_S = 10.0  # time since the last report after which /healthz says so
_HUNG_S = 30.0  # time since the last report after which the process is killed. A busy process reports late, but earlier
_TERM_S = 3.0  # time from SIGTERM to SIGKILL, which ends a stopped process too
_TICK_S = 0.5  # interval between two checks that a process reports


class TunnelProcessError(PipelineError):
    """A tunnel process that cannot start."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings of the tunnel processes. `uploads` is the store's place; `server_pem` has certificate and key.

    `device_ca_pem` is the authority of devices' certificates.
    """

    host: str
    port: int
    uploads: str
    server_pem: Path
    device_ca_pem: str
    drain_to: DrainTarget = dataclasses.field(default_factory=DrainTarget)
    device_quota: DeviceQuota = dataclasses.field(default_factory=DeviceQuota)
    trace_ratio: float = 0.0  # share of the runs whose uploads are told to `on_traced`


@dataclasses.dataclass
class _Slot:
    """One of the processes, which may be replaced by another. `state` is its latest report."""

    number: int
    process: asyncio.subprocess.Process | None = None
    channel: Channel | None = None
    state: TunnelState | None = None
    reported_s: float = 0.0
    quiet_s: float = 0.0  # time since its last message, counted only while this process was running itself
    starts: int = 0
    failures: int = 0  # processes that ended soon after their start, without a steady one since
    was_ready: bool = False
    is_hung: bool = False  # the process is being killed
    error: str = ""
    ready: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class TunnelProcesses:
    """`count` tunnel processes, within `async with`. `port` 0 is chosen by the system.

    Args:
        on_stored: gets the delays in milliseconds from the events to their receipt.
        on_traced: gets uploads of sampled runs, without payloads, and the time in seconds since the epoch at which they
            were stored.
        foreign_tasks: as for `TunnelService`.

    Raises, from entering:
        OSError: the port is in use.
        TunnelProcessError: a process cannot start.
    """

    def __init__(
        self,
        count: int,
        settings: WorkerSettings,
        *,
        on_request: RequestHandler,
        dictionaries: DictionaryLookup | None = None,
        on_stored: Callable[[list[float]], None] | None = None,
        on_traced: Callable[[Sequence[Received], float], None] | None = None,
        foreign_tasks: ForeignTasks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.restarts = 0
        self.hangs = 0  # processes that were killed because they did not report
        self._settings = settings
        self._on_request = on_request
        self._dictionaries = dictionaries
        self._on_stored = on_stored
        self._on_traced = on_traced
        self._foreign_tasks = foreign_tasks
        self._clock = clock or SystemClock()
        self._slots = [_Slot(number) for number in range(count)]
        self._ended: list[TunnelState] = []  # the counts of processes that have ended
        self._keeping: list[asyncio.Task[None]] = []
        self._reserved: ReservedPort | None = None
        self._is_closing = False
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[float | None]] = {}  # unanswered questions to processes, by number
        self._revocations = Revocations()

    @property
    def port(self) -> int:
        assert self._reserved is not None
        return self._reserved.number

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [slot.process.pid for slot in self._slots if slot.process is not None and slot.ready.is_set()]

    @property
    def count(self) -> int:
        return len(self._slots)

    def states(self) -> list[TunnelState]:
        """Return the latest report of each process that runs; one that does not report any more has an error."""
        now_s = self._clock.monotonic()
        states = []
        for slot in self._slots:
            if slot.state is None or not slot.ready.is_set():
                continue
            silent_s = now_s - slot.reported_s
            state = slot.state
            if silent_s > _SILENT_S:
                state = dataclasses.replace(state, error=f"process {state.pid} has not reported for {silent_s:.0f} s")
            states.append(state)
        return states

    def ended(self) -> list[TunnelState]:
        """Return one state with the counts of all processes that have ended, or none."""
        return self._ended

    async def __aenter__(self) -> Self:
        self._reserved = await reserve(self._settings.host, self._settings.port)
        try:
            self._keeping = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
            ready = [asyncio.create_task(slot.ready.wait()) for slot in self._slots]
            try:
                async with asyncio.timeout(_START_S):
                    while not all(waiting.done() for waiting in ready):
                        await asyncio.wait(
                            [*(waiting for waiting in ready if not waiting.done()), *self._keeping],
                            return_when=asyncio.FIRST_COMPLETED,
                        )
                        for keeping in self._keeping:
                            if keeping.done():
                                keeping.result()
            finally:
                for waiting in ready:
                    waiting.cancel()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the processes; each stores first what has arrived. On cancellation they are killed."""
        self._is_closing = True
        for slot, keeping in zip(self._slots, self._keeping, strict=False):
            if slot.channel is None:  # the task waits to start a process
                keeping.cancel()
        # A process that hangs does not read: the others are not to wait for it.
        sending = [asyncio.create_task(slot.channel.send("stop")) for slot in self._slots if slot.channel is not None]
        try:
            if self._keeping:
                await asyncio.wait(self._keeping, timeout=_STOP_S + self._settings.drain_to.over_s)
        finally:
            for task in (*sending, *self._keeping):
                task.cancel()
            await asyncio.gather(*sending, *self._keeping, return_exceptions=True)
            if self._reserved is not None:
                self._reserved.close()

    async def renew_certificate(self) -> None:
        """Have the processes show the certificate that is in its file now; one that hangs is not waited for."""
        await self._tell("renewed")

    async def revoke(self, version: int, lowest: Mapping[str, int]) -> None:
        """Refuse keys of devices in all processes, and those that start later: see `TunnelServer.revoke`."""
        self._revocations.update(version, lowest)
        await self._tell("revoked", version, dict(lowest))

    async def connection(self, device_id: str) -> DeviceConnection:
        """Return the device's connection to any of the processes, each of which is asked."""
        asked = [slot.channel for slot in self._slots if slot.channel is not None and slot.ready.is_set()]
        answers = await asyncio.gather(*(self._since(channel, device_id) for channel in asked))
        opened = [one for one in answers if isinstance(one, float)]
        return DeviceConnection(max(opened, default=None), sum(isinstance(one, TimeoutError) for one in answers))

    async def _since(self, channel: Channel, device_id: str) -> float | TimeoutError | None:
        """Return what a process says of a device's connection, a TimeoutError where it does not answer."""
        number = next(self._numbers)
        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            async with asyncio.timeout(_ANSWER_S):
                await channel.send("connection", number, device_id)
                return await answer
        except TimeoutError as error:
            return error
        finally:
            del self._questions[number]

    async def _tell(self, *message: Any) -> None:
        """Send a message to every process; one that hangs is not waited for."""
        sending = [asyncio.create_task(slot.channel.send(*message)) for slot in self._slots if slot.channel is not None]
        if sending:
            _, late = await asyncio.wait(sending, timeout=_SILENT_S)
            for task in late:
                task.cancel()

    # --- one process ---

    async def _keep(self, slot: _Slot) -> None:
        """Keep a process running until this closes. Raises TunnelProcessError if the first one cannot start."""
        while True:
            slot.starts += 1
            slot.was_ready = False
            started_s = self._clock.monotonic()
            try:
                await self._run(slot)
            except OSError as error:  # no memory or file descriptor is left, or the program was replaced
                slot.error = f"was not started: {error}"
            except Exception as error:  # noqa: BLE001 - a slot without a process would go unseen
                slot.error = f"cannot be kept running: {error!r}"
                _LOG.exception("tunnel process %d", slot.number + 1)
            if self._is_closing:
                return
            if slot.starts == 1 and not slot.was_ready:
                raise TunnelProcessError(f"tunnel process {slot.number + 1} cannot start: {slot.error}")
            is_steady = slot.was_ready and self._clock.monotonic() - started_s >= _STEADY_S
            slot.failures = 0 if is_steady else slot.failures + 1
            self.restarts += 1
            delay_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2.0 ** min(max(0, slot.failures - 1), 20))
            _LOG.error("tunnel process %d %s; starting another in %.1f s", slot.number + 1, slot.error, delay_s)
            await self._clock.sleep(delay_s)

    async def _run(self, slot: _Slot) -> None:
        """Start a process, and return when it has ended."""
        settings = self._settings
        loop_name = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        process = slot.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "walle.pipeline.ingest.worker",
            loop_name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        channel = slot.channel = Channel(process.stdout, process.stdin)
        slot.error, slot.quiet_s, slot.is_hung = "ended before it was ready", 0.0, False
        requests: dict[int, asyncio.Task[None]] = {}
        watching = asyncio.create_task(self._end_if_hung(slot, process))
        try:
            await channel.send(
                "start",
                settings.host,
                self.port,
                settings.uploads,
                str(settings.server_pem),
                settings.device_ca_pem,
                [self._revocations.version, self._revocations.lowest],
                list(dataclasses.astuple(settings.device_quota)),
                settings.trace_ratio,
                *dataclasses.astuple(settings.drain_to),
            )
            fault = ""
            try:
                while message := await channel.receive():
                    self._take(slot, message, requests)
            except (ChannelError, TunnelStateError) as error:
                fault = f" after a message that is unknown here ({error}): restart the cloud if walle was updated"
                process.kill()
            code = await process.wait()
            if slot.is_hung:
                fault = f" because it had not reported for {slot.quiet_s:.0f} s"
            if slot.ready.is_set() or fault:
                slot.error = f"(pid {process.pid}) ended with {code}{fault}"
        finally:
            watching.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            slot.ready.clear()
            slot.process = slot.channel = None
            if slot.state is not None:
                self._ended = [sum_ended([*self._ended, slot.state])]
                slot.state = None
            for task in requests.values():
                task.cancel()

    async def _end_if_hung(self, slot: _Slot, process: asyncio.subprocess.Process) -> None:
        """Return once a process has been killed because it did not report, or was not ready in time.

        The time is counted in steps of this task's own: while this process is stopped, no other is late.
        """
        while slot.quiet_s < (_HUNG_S if slot.ready.is_set() else _START_S):
            await self._clock.sleep(_TICK_S)
            slot.quiet_s += _TICK_S
        self.hangs += 1
        slot.is_hung = True
        what = "tunnel process %d (pid %d) has not reported for %.0f s; ending it"
        _LOG.error(what, slot.number + 1, process.pid, slot.quiet_s)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            await self._clock.sleep(_TERM_S)
            process.kill()

    def _take(self, slot: _Slot, message: list[Any], requests: dict[int, asyncio.Task[None]]) -> None:
        """Process a message. Raises ChannelError or TunnelStateError if it is of another version of walle."""
        slot.quiet_s = 0.0
        match message:
            case ["state", dict(fields), list(delays_ms)] if all(type(delay) in (int, float) for delay in delays_ms):
                slot.state, slot.reported_s = TunnelState.parse(fields), self._clock.monotonic()
                if self._on_stored is not None:
                    self._on_stored(delays_ms)
                if not slot.ready.is_set() and slot.error == "":
                    self._note_ready(slot)
            case ["traced", list(rows)]:
                for device_id, epoch, seq, topic, sent_ms, received_ms, stored_s in rows:
                    if self._on_traced is not None:
                        self._on_traced([Received(device_id, epoch, seq, topic, b"", sent_ms, received_ms)], stored_s)
            case ["connection", int(number), None | float() as since_s]:
                if (asked := self._questions.get(number)) is not None and not asked.done():
                    asked.set_result(since_s)
            case ["ready"]:
                slot.error = ""
                if slot.state is not None:
                    self._note_ready(slot)
            case ["failed", str(error)]:
                slot.error = error
            case ["request", int(number), *question]:
                assert slot.channel is not None
                requests[number] = asyncio.create_task(self._answer(slot.channel, number, question))
                requests[number].add_done_callback(lambda _: requests.pop(number, None))
            case ["cancel", int(number)]:
                if number in requests:  # else it is answered
                    requests[number].cancel()
            case [kind, *_]:
                raise ChannelError(f"a message {kind!r:.100} of {len(message)} parts")

    def _note_ready(self, slot: _Slot) -> None:
        slot.was_ready = True
        slot.ready.set()

    async def _answer(self, channel: Channel, number: int, question: list[Any]) -> None:
        try:
            answer = await self._result(question)
        except WalleError as error:
            await channel.send("answer", number, b"", str(error) or type(error).__name__, failure_kind(error))
        except Exception as error:  # noqa: BLE001 - the device gets an answer after any failure
            _LOG.exception("tunnel: a question of a tunnel process failed: %.100r", question[:-1])
            await channel.send("answer", number, b"", repr(error), "")
        else:
            await channel.send("answer", number, answer, None, "")

    async def _result(self, question: list[Any]) -> bytes | None:
        match question:
            case [str(device_id), str(topic), bytes(payload), left_s]:
                with request_deadline(None if left_s is None else self._clock.monotonic() + float(left_s)):
                    return await self._on_request(device_id, topic, payload)
            case ["foreign", bytes(pairs)] if self._foreign_tasks is not None:
                asked = [(str(device_id), str(task)) for device_id, task in plain.decode(pairs)]
                return plain.encode(list(await self._foreign_tasks(asked)))
            case [str(digest)] if self._dictionaries is not None:
                return await self._dictionaries(digest)
            case _:
                return None


def failure_kind(error: WalleError) -> str:
    """Return how a tunnel process is told of the kind of an error, of which it raises one for the device."""
    kinds = {"busy": RequestBusyError, "expired": RequestExpiredError, "refused": RequestRefusedError}
    return next((kind for kind, known in kinds.items() if isinstance(error, known)), "failed")


def sum_ended(states: list[TunnelState]) -> TunnelState:
    """Return the counts of ended processes, as of one that does nothing."""
    counts, refusals = collections.Counter[str](), collections.Counter[str]()
    for state in states:
        counts.update(state.counts)
        refusals.update(state.refusals)
    return TunnelState(
        pid=0,
        is_running=False,
        error="",
        queued=0,
        lag_s=0.0,
        open_connections=0,
        held={},
        held_bytes=0,
        stored=sum(state.stored for state in states),
        commits=sum(state.commits for state in states),
        pump_failures=sum(state.pump_failures for state in states),
        counts=dict(counts),
        refusals=dict(refusals),
        waited_s=sum(state.waited_s for state in states),
    )
