"""Engine of several processes: each batch goes to the one with the least to do, over a connection to it.

Who starts the processes, and again when they end, is the caller's affair (`walle.actors`): `connect` waits for one.
One on another node gets versions' files over its connection.
A process whose connection ends, or that is silent for `_SILENT_S`, loses its batches: they may run again elsewhere.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from walle.base.clock import Clock, SystemClock
from walle.cloud.inference.engine import EngineState, LoadedVersion, ProcessState, ReleasedVersion
from walle.cloud.inference.failures import InferenceError, InferenceLateError, NoRoomError, ReplicaLostError
from walle.cloud.inference.replica_address import Connection
from walle.cloud.inference.replica_wire import FrameStream, WireError, parts
from walle.cloud.inference.request import PhaseRequest
from walle.cloud.inference.version_source import HomeSource
from walle.errors import WalleError

_LOG = logging.getLogger(__name__)

_PING_S = 1.0
_SUSPECT_S = 2.0  # time without a frame after which the process gets no batch that another one can take
_SILENT_S = 10.0  # time without a frame after which the process counts as hanging
_HELLO_S = 5.0
_BACKOFF_S = 0.05  # pause before the next connection; doubled up to _BACKOFF_MAX_S while none is made
_BACKOFF_MAX_S = 2.0
_WARN_AFTER = 8  # tries in a row: some 6 s
_MAX_USED = 64  # versions whose last use is known


@dataclasses.dataclass(eq=False)
class _Link:
    """The connection to one process; `vms` is 0 until its first message."""

    number: int
    stream: FrameStream | None = None
    vms: int = 0
    loaded: dict[str, LoadedVersion] = dataclasses.field(default_factory=dict)
    discarded: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # by version
    loading: dict[int, asyncio.Future[None]] = dataclasses.field(default_factory=dict)
    quiet_s: float = 0.0  # time without a frame, while this process was running itself
    running: dict[int, "_Batch"] = dataclasses.field(default_factory=dict)
    sending: set[asyncio.Task[None]] = dataclasses.field(default_factory=set)  # parts of files


@dataclasses.dataclass(eq=False, frozen=True)
class _Batch:
    version: ReleasedVersion
    size: int
    answers: asyncio.Future[list[bytes | Exception]]


class ProcessEngine:
    """Runs batches in `count` processes, between `start` and `close`. `connect(number)` connects to one."""

    def __init__(
        self,
        count: int,
        connect: Callable[[int], Awaitable[Connection]],
        source: HomeSource,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._connect = connect
        self._source = source
        self._clock = clock or SystemClock()
        self._links = [_Link(number) for number in range(count)]
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self._lost = 0
        self._discarded = collections.Counter[str]()  # counts of connections that have ended
        self._joined = asyncio.Event()  # at least once a process
        self._kept: list[str] = []
        self._used: collections.OrderedDict[str, None] = collections.OrderedDict()  # versions, last used last

    @property
    def capacity(self) -> int:
        return sum(link.vms for link in self._links)

    def state(self) -> EngineState:
        processes = [ProcessState(link.vms > 0, len(link.running), tuple(link.loaded.values())) for link in self._links]
        discarded = sum((link.discarded for link in self._links), self._discarded)
        return EngineState(tuple(processes), self._lost, discarded)

    def is_loaded(self, version: ReleasedVersion) -> bool:
        return all(version.sha256 in link.loaded for link in self._links if link.vms)

    async def load(self, version: ReleasedVersion, *, may_unload: bool) -> None:
        """Load a version in each process that does not have it; see `Engine.load`.

        Raises:
            ReplicaLostError: no process can be reached, or one ended.
        """
        links = [link for link in self._links if link.vms]
        if not links:
            raise _unreachable()
        loads = [self._load(link, version, may_unload) for link in links if version.sha256 not in link.loaded]
        errors = await asyncio.gather(*loads, return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error

    def keep(self, versions: Sequence[ReleasedVersion]) -> None:
        self._kept = [version.sha256 for version in versions]
        for link in self._links:
            if link.stream is not None:
                link.stream.send(["keep", self._kept])

    async def start(self) -> None:
        """Keep connecting to the processes; wait for the first of them, for _HELLO_S at most."""
        self._tasks = [asyncio.create_task(self._keep(link)) for link in self._links]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HELLO_S):
                await self._joined.wait()

    async def close(self) -> None:
        """Disconnect; batches that run are lost."""
        tasks = [*self._tasks, *(sending for link in self._links for sending in link.sending)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self, version: ReleasedVersion, requests: Sequence[PhaseRequest]) -> list[bytes | Exception]:
        """Run requests of one phase; a process that has a free VM and the version loaded goes first. See `Engine.run`.

        Raises:
            ReplicaLostError: it ended, or no process can be reached.
        """
        links = [link for link in self._links if link.vms]
        link = min(links, key=lambda one: _cost(one, version.sha256), default=None)
        if link is None or link.stream is None:
            raise _unreachable()
        self._used[version.sha256] = None
        self._used.move_to_end(version.sha256)
        if len(self._used) > _MAX_USED:
            self._used.popitem(last=False)
        number, now_s = next(self._numbers), self._clock.monotonic()
        members = [
            [dict(one.device), None if one.due_s == math.inf else one.due_s - now_s, len(one.payload)]
            for one in requests
        ]
        answers: asyncio.Future[list[bytes | Exception]] = asyncio.get_running_loop().create_future()
        link.running[number] = _Batch(version, len(requests), answers)
        head = ["run", number, version.sha256, requests[0].phase, version.max_batch, members]
        try:
            link.stream.send(head, [one.payload for one in requests])
            await link.stream.drain()
            return await answers
        except asyncio.CancelledError:
            if link.running.pop(number, None) is not None and link.stream is not None:
                link.stream.send(["cancel", number])
            raise

    # --- one process --------------------------------------------------------------------------------------------------

    async def _keep(self, link: _Link) -> None:
        """Keep connected to a process, until cancelled."""
        backoff_s, tries = _BACKOFF_S, 0
        while True:
            try:
                await self._serve(link, FrameStream(*await self._connect(link.number)))
            except Exception as error:  # noqa: BLE001 -- of whatever kind: the next try may reach it
                tries += 1
                level = logging.WARNING if tries == _WARN_AFTER else logging.INFO
                _LOG.log(level, "replica process %d cannot be reached: %r", link.number + 1, error)
            if link.vms:
                _LOG.warning("replica process %d ended, or its connection was lost", link.number + 1)
                self._lost += 1
                backoff_s, tries = _BACKOFF_S, 0
            self._drop(link)
            await self._clock.sleep(backoff_s)
            backoff_s = min(_BACKOFF_MAX_S, 2 * backoff_s)

    async def _serve(self, link: _Link, stream: FrameStream) -> None:
        """Take a process's answers until it is gone."""
        pinging = asyncio.create_task(self._ping(link, stream))
        try:
            async with asyncio.timeout(_HELLO_S):
                frame = await stream.receive()
            match frame:
                case (["hello", int(vms)], _) if vms > 0:
                    link.stream, link.vms = stream, vms
                case _:
                    raise WireError("a replica process did not send its first message")
            self._restore(link, stream)
            self._joined.set()
            self.on_change()
            while frame := await stream.receive():
                link.quiet_s = 0.0
                self._take(link, *frame)
        finally:
            pinging.cancel()
            stream.abort()

    def _restore(self, link: _Link, stream: FrameStream) -> None:
        """Have a process that joins load what devices may ask for, what was asked for last first."""
        used = {sha256: place for place, sha256 in enumerate(self._used)}
        kept = sorted(self._kept, key=lambda sha256: -used.get(sha256, -1))
        stream.send(["keep", self._kept])
        for sha256 in kept[: link.vms]:
            stream.send(["load", next(self._numbers), sha256, False])

    async def _load(self, link: _Link, version: ReleasedVersion, may_unload: bool) -> None:
        if link.stream is None:  # the connection has ended since it was chosen
            raise _unreachable()
        number, loaded = next(self._numbers), asyncio.get_running_loop().create_future()
        link.loading[number] = loaded
        try:
            link.stream.send(["load", number, version.sha256, may_unload])
            await loaded
        finally:
            link.loading.pop(number, None)

    async def _ping(self, link: _Link, stream: FrameStream) -> None:
        """End the connection to a process that is silent."""
        link.quiet_s = 0.0
        while link.quiet_s < _SILENT_S:
            stream.send(["ping"])
            await self._clock.sleep(_PING_S)
            link.quiet_s += _PING_S  # counted in this task's steps: while this process is stopped, no other is late
        _LOG.error("replica process %d has been silent for %.0f s", link.number + 1, _SILENT_S)
        stream.abort()

    def _take(self, link: _Link, head: list[Any], body: memoryview) -> None:
        match head:
            case ["ran", int(number), int(max_batch), list(ends)]:
                batch = link.running.pop(number, None)
                if batch is None or batch.answers.done():
                    return
                batch.version.max_batch = min(batch.version.max_batch, max_batch)
                results = parts(body, [length for _, length in ends])
                if len(results) != batch.size:
                    raise WireError(f"{len(results)} answers of a batch of {batch.size}")
                batch.answers.set_result([_answer(kind, part) for (kind, _), part in zip(ends, results, strict=True)])
            case ["loaded", list(versions), dict(discarded)]:
                link.loaded = {sha256: LoadedVersion(sha256, *rest) for sha256, *rest in versions}
                link.discarded = collections.Counter({str(name): int(count) for name, count in discarded.items()})
            case ["load", int(number), str(kind), str(text)]:
                loaded = link.loading.pop(number, None)
                if loaded is None or loaded.done():
                    return
                if kind:
                    loaded.set_exception(NoRoomError(text) if kind == "room" else InferenceError(text))
                else:
                    loaded.set_result(None)
            case ["pong"]:
                pass
            case ["fetch", int(number), str(sha256), int(offset)] if link.stream is not None:
                sending = asyncio.create_task(self._send_part(link.stream, number, sha256, offset))
                link.sending.add(sending)
                sending.add_done_callback(link.sending.discard)
            case _:
                raise WireError(f"a frame {head[0]!r:.100} of {len(head)} parts")

    async def _send_part(self, stream: FrameStream, number: int, sha256: str, offset: int) -> None:
        try:
            size_bytes, part = await asyncio.to_thread(self._source.read_part, sha256, offset)
        except (WalleError, OSError, ValueError) as error:  # the other end's to report
            stream.send(["part", number, 0, str(error) or type(error).__name__])
        else:
            stream.send(["part", number, size_bytes, ""], [part])
        await stream.drain()

    def _drop(self, link: _Link) -> None:
        """Forget a connection that has ended, and give its batches back."""
        futures: list[asyncio.Future[Any]] = [
            *(batch.answers for batch in link.running.values()),
            *link.loading.values(),
        ]
        self._discarded += link.discarded
        link.stream, link.vms, link.loaded, link.discarded = None, 0, {}, collections.Counter()
        link.running.clear()
        link.loading.clear()
        for sending in link.sending:
            sending.cancel()
        for future in futures:
            with contextlib.suppress(asyncio.InvalidStateError):
                future.set_exception(ReplicaLostError(f"replica process {link.number + 1} ended before it answered"))
        self.on_change()


def _cost(link: _Link, sha256: str) -> tuple[bool, bool, bool, float]:
    """Return the order of processes for a batch: first those that answer, have a free VM and the version loaded.

    One that hangs looks free: devices that stop waiting take their requests back.
    """
    is_full, is_suspect = len(link.running) >= link.vms, link.quiet_s >= _SUSPECT_S
    return is_suspect, is_full, sha256 not in link.loaded, len(link.running) / link.vms


def _unreachable() -> ReplicaLostError:
    return ReplicaLostError("no process of fallback inference can be reached")


def _answer(kind: str, part: memoryview) -> bytes | Exception:
    if not kind:
        return bytes(part)
    text = bytes(part).decode(errors="replace")
    return InferenceLateError(text) if kind == "late" else InferenceError(text)
