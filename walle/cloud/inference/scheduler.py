"""Scheduler of fallback inference: bounded queues by deadline, batches with a latency bound, refusals (§7.1).

A version has a queue, and runs on `replicas` VMs at once. Whenever the engine can take a batch, the version whose first
request is due earliest gives one: as soon as it has `max_batch` requests, or one has waited for `batch_ms`, or has no
more time to wait. A request is refused at once if the queue is full, if no replica can be reached, or if what must run
before it takes longer than the device waits, by the time that the version's latest batches took.

Devices share a version: the first DEVICE_REQUESTS that a device has without an answer run by deadline alone; the next
as many run after those of other devices, and so on. A full queue refuses what would run last, be it there already.
Tasks share the VMs: see `TaskShares`.
"""

import asyncio
import collections
import math
from collections.abc import Iterator

from walle.base.clock import Clock
from walle.cloud.inference.counts import InferenceCounts, VersionCounts
from walle.cloud.inference.engine import Engine, ReleasedVersion
from walle.cloud.inference.failures import (
    InferenceError,
    InferenceFullError,
    InferenceLateError,
    ReplicaLostError,
)
from walle.cloud.inference.request import PhaseRequest
from walle.cloud.inference.request_queue import MAX_ATTEMPTS, RequestQueue, Waiting
from walle.cloud.inference.task_shares import TaskShares

_NEW_SHARE = 0.2  # weight of the latest batch in the mean of their times
_MAX_TIMES = 1_000  # versions whose batch times are known
DEVICE_REQUESTS = 4  # requests of one device to one version that run by their deadline alone
MAX_WAIT_S = 60.0  # wait after which a request without a deadline ends; it is ordered as if that were its deadline


class _Lane:
    """A version's queue, what of it runs now, and how long a batch takes."""

    def __init__(self, version: ReleasedVersion, counts: InferenceCounts) -> None:
        self.version = version
        self.name = version.name
        self.task = version.manifest.name
        self.counts = counts
        self.queue = RequestQueue()
        self.devices: dict[str, int] = {}  # requests of each device that have no answer yet
        self.running = 0
        self.batch_s = 0.0  # mean; 0 until one has run
        self.is_loaded = False  # a batch has run, so that the next one does not load the version

    @property
    def replicas(self) -> int:
        return self.version.manifest.cloud.replicas

    def ready_s(self, now_s: float) -> float:
        """Return when the next batch may start, infinity for not before another one ends."""
        if not self.queue or self.running >= self.replicas:
            return math.inf
        first = self.queue.first
        if len(self.queue) >= self.version.max_batch or first.request.phase != "execute":
            return now_s
        latest_s = first.request.due_s - 2 * self.batch_s
        return min(self.queue.oldest.arrived_s + self.version.manifest.cloud.batch_ms / 1000, latest_s)

    def wait_s(self, due_s: float, rank: int, slots: int) -> float:
        """Return the time until a request with this deadline and rank is answered, 0 where one can start now."""
        before = self.queue.count_before(due_s, rank)
        if before == 0 and self.running < slots:
            return 0.0
        rounds = (before // self.version.max_batch + self.running / 2) / max(1, slots)  # those that run are half done
        return (rounds + 1) * self.batch_s

    def note_time(self, seconds: float) -> None:
        if self.is_loaded:
            self.batch_s = self.batch_s + _NEW_SHARE * (seconds - self.batch_s) if self.batch_s else seconds
        self.is_loaded = True


class Scheduler:
    """Gives requests to `engine`, whose `on_change` it takes. `counts_by_version` are for /metrics."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.counts_by_version = VersionCounts()
        self._shares = TaskShares()
        self._engine = engine
        self._clock = clock
        self._lanes: dict[ReleasedVersion, _Lane] = {}  # versions with requests
        self._batch_times: collections.OrderedDict[str, tuple[float, bool]] = collections.OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self._number = 0
        self._waking: tuple[float, asyncio.Task[None]] | None = None
        self._is_closed = False
        engine.on_change = self.pump

    @property
    def counts(self) -> InferenceCounts:
        """The counts of all versions together."""
        return self.counts_by_version.total()

    @property
    def lanes(self) -> dict[str, tuple[int, int]]:
        """Return the number of waiting requests and of running batches, by the names of versions that have any."""
        found: dict[str, tuple[int, int]] = {}
        for lane in self._lanes.values():
            waiting, running = found.get(lane.name, (0, 0))
            found[lane.name] = waiting + len(lane.queue), running + lane.running
        return found

    @property
    def waiting(self) -> int:
        """Requests that wait, of all versions."""
        return sum(len(lane.queue) for lane in self._lanes.values())

    @property
    def running(self) -> int:
        """Batches that run."""
        return len(self._running)

    def is_busy(self, version: ReleasedVersion) -> bool:
        return version in self._lanes

    async def answer(self, version: ReleasedVersion, request: PhaseRequest) -> bytes:
        """Return the encoded result of a request.

        Raises:
            InferenceFullError: there is no room for it, or not enough time.
            InferenceLateError: it could not run before its deadline.
            InferenceError, VMError: it failed.
        """
        now_s = self._clock.monotonic()
        lane = self._lane(version)
        device = str(request.device["id"])
        lane.counts.requests += 1
        try:
            unanswered = lane.devices.get(device, 0)
            waiting = self._admit(lane, request, unanswered // DEVICE_REQUESTS, now_s)
        except BaseException:
            self._forget_idle(lane)
            raise
        lane.devices[device] = unanswered + 1
        self.pump()
        try:
            result = await waiting.answer
        except asyncio.CancelledError:
            lane.counts.cancelled += 1
            lane.queue.remove(waiting)
            raise
        except Exception:
            lane.counts.failed += 1
            raise
        finally:
            lane.devices[device] -= 1
            if not lane.devices[device]:
                del lane.devices[device]
                self._forget_idle(lane)
        lane.counts.latency_s.add(self._clock.monotonic() - now_s)
        return result

    def pump(self) -> None:
        """Start what can start, and set the timer for what waits."""
        self._pump(self._clock.monotonic())

    def _pump(self, now_s: float) -> None:
        if self._is_closed:
            return
        for lane in list(self._lanes.values()):
            self._expire(lane, now_s)
        while len(self._running) < self._engine.capacity:
            ready = [lane for lane in self._lanes.values() if lane.ready_s(now_s) <= now_s]
            if not ready:
                break
            first = self._shares.first({lane.task for lane in ready}) if len(ready) > 1 else ()
            self._start(max((lane for lane in ready if not first or lane.task in first), key=_urgency))
        self._wake_at(min(self._events(now_s), default=math.inf))

    async def close(self) -> None:
        """Fail what waits, and stop what runs."""
        self._is_closed = True
        tasks = list(self._running)
        if self._waking is not None:
            tasks.append(self._waking[1])
        for lane in self._lanes.values():
            while lane.queue:
                _fail(lane.queue.take(1), _closing())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- internals ----------------------------------------------------------------------------------------------------

    def _lane(self, version: ReleasedVersion) -> _Lane:
        lane = self._lanes.get(version)
        if lane is None:
            lane = self._lanes[version] = _Lane(version, self.counts_by_version.hold(version.name))
            self._shares.join(lane.task)
            lane.batch_s, lane.is_loaded = self._batch_times.pop(version.sha256, (0.0, False))
        return lane

    def _forget_idle(self, lane: _Lane) -> None:
        """Keep of a version that has no requests only how long its batches take."""
        if not lane.queue and not lane.running and not lane.devices and self._lanes.get(lane.version) is lane:
            del self._lanes[lane.version]
            self._shares.leave(lane.task)
            self.counts_by_version.release(lane.name)
            self._batch_times[lane.version.sha256] = lane.batch_s, lane.is_loaded
            if len(self._batch_times) > _MAX_TIMES:
                self._batch_times.popitem(last=False)

    def _admit(self, lane: _Lane, request: PhaseRequest, rank: int, now_s: float) -> Waiting:
        """Put a request into its queue, or refuse it."""
        if self._is_closed:
            raise _closing()
        name, refused = lane.name, lane.counts.refused
        left_s = request.due_s - now_s
        if left_s <= 0:
            refused["expired"] += 1
            raise InferenceLateError(f"the deadline of the request to {name} had passed when it was read")
        if not self._engine.capacity:
            refused["down"] += 1
            raise InferenceFullError(f"the cloud has no replica that can run {name} now", "down")
        slots = min(lane.replicas, self._engine.capacity)
        if (wait_s := lane.wait_s(request.due_s, rank, slots)) > left_s:
            refused["wait"] += 1
            what = f"the cloud has no room: an answer of {name} takes {wait_s * 1000:.0f} ms now, and the device waits"
            raise InferenceFullError(f"{what} {left_s * 1000:.0f}", "wait")
        self._make_room(lane, rank)
        self._number += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting = Waiting(request, self._number, rank, min(request.due_s, now_s + MAX_WAIT_S), now_s, answer)
        lane.queue.add(waiting)
        return waiting

    def _make_room(self, lane: _Lane, rank: int) -> None:
        """Refuse the request that runs last where the queue is full: the next one, unless another has a higher rank."""
        limit = lane.version.manifest.cloud.queue
        if len(lane.queue) < limit:
            return
        full = f"the cloud has no room: {limit} requests wait for {lane.name}, its [cloud] queue"
        last = lane.queue.last
        if last.rank <= rank:
            lane.counts.refused["queue"] += 1
            raise InferenceFullError(full, "queue")
        lane.queue.remove(last)
        lane.counts.refused["share"] += 1
        device = last.request.device["id"]
        _fail([last], InferenceFullError(f"{full}, and {device} has {lane.devices[device]} of them", "share"))

    def _expire(self, lane: _Lane, now_s: float) -> None:
        while lane.queue and (waiting := lane.queue.earliest).due_s <= now_s:
            lane.queue.remove(waiting)
            lane.counts.refused["expired"] += 1
            _fail([waiting], _late(lane.version))
        self._forget_idle(lane)

    def _events(self, now_s: float) -> Iterator[float]:
        """Yield the times at which something is to be done."""
        has_room = len(self._running) < self._engine.capacity
        for lane in self._lanes.values():
            if lane.queue:
                yield lane.queue.earliest.due_s
                if has_room:
                    yield lane.ready_s(now_s)

    def _wake_at(self, due_s: float) -> None:
        if self._waking is not None and self._waking[0] <= due_s:
            return  # the timer looks again then
        if self._waking is not None:
            self._waking[1].cancel()
            self._waking = None
        if due_s < math.inf:
            self._waking = due_s, asyncio.create_task(self._wake(due_s))

    async def _wake(self, due_s: float) -> None:
        await self._clock.sleep(max(0.0, due_s - self._clock.monotonic()))
        self._waking = None
        self._pump(max(due_s, self._clock.monotonic()))  # a sleep may end a rounding too early

    def _start(self, lane: _Lane) -> None:
        batch = lane.queue.take(lane.version.max_batch)
        lane.running += 1
        now_s = self._clock.monotonic()
        counts = lane.counts
        counts.batch_sizes.add(len(batch))
        for waiting in batch:
            counts.waited_s.add(now_s - waiting.arrived_s)
        task = asyncio.create_task(self._run(lane, batch))
        self._running.add(task)
        unanswered = len(batch)

        def note_end(_: asyncio.Future[bytes]) -> None:
            nonlocal unanswered
            unanswered -= 1
            if unanswered == 0:
                task.cancel()  # nobody waits for it

        for waiting in batch:
            waiting.answer.add_done_callback(note_end)
        task.add_done_callback(lambda _: self._end(lane, batch, task))

    def _end(self, lane: _Lane, batch: list[Waiting], task: asyncio.Task[None]) -> None:
        if task.cancelled():  # all its requests were, or this closes; it may not have begun
            _fail(batch, _closing())
        self._running.discard(task)
        lane.running -= 1
        self._forget_idle(lane)
        self.pump()

    async def _run(self, lane: _Lane, batch: list[Waiting]) -> None:
        began_s = self._clock.monotonic()
        try:
            await self._answer(lane, batch, began_s)
        finally:
            self._shares.charge(lane.task, self._clock.monotonic() - began_s)

    async def _answer(self, lane: _Lane, batch: list[Waiting], began_s: float) -> None:
        try:
            answers = await self._engine.run(lane.version, [waiting.request for waiting in batch])
        except ReplicaLostError as error:
            self._run_again(lane, batch, error)
            return
        except Exception as error:  # noqa: BLE001 -- theirs, whatever it is
            _fail(batch, error)
            return
        now_s = self._clock.monotonic()
        lane.note_time(now_s - began_s)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():
                continue
            if waiting.due_s < now_s:
                lane.counts.refused["expired"] += 1
                waiting.answer.set_exception(_late(lane.version))
            elif isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    def _run_again(self, lane: _Lane, batch: list[Waiting], error: ReplicaLostError) -> None:
        for waiting in batch:
            waiting.attempts += 1
            if waiting.answer.done():
                continue
            if waiting.attempts >= MAX_ATTEMPTS:
                waiting.answer.set_exception(InferenceError(f"{error}; it was tried {waiting.attempts} times"))
            else:
                lane.counts.repeated += 1
                lane.queue.add(waiting)


def _urgency(lane: _Lane) -> tuple[int, float, int]:
    return lane.queue.first.order


def _closing() -> InferenceFullError:
    return InferenceFullError("fallback inference is closing; try again later", "closing")


def _late(version: ReleasedVersion) -> InferenceLateError:
    return InferenceLateError(f"the request to {version.name} could not run before its deadline")


def _fail(batch: list[Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
