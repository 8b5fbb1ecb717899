"""Scheduler of fallback inference: order, batches, refusals, loss of a replica. The engine and clock are the test's."""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from hypothesis import strategies as st

from tests.sim.inference_versions import HeldEngine, home_in, policy_version, released, request
from walle.base import plain
from walle.base.clock import ManualClock
from walle.cloud.inference import InferenceError, InferenceFullError, InferenceLateError, ReplicaLostError
from walle.cloud.inference import counts as counts_module
from walle.cloud.inference.counts import VersionCounts
from walle.cloud.inference.engine import ReleasedVersion
from walle.cloud.inference.request import PhaseRequest
from walle.cloud.inference.scheduler import DEVICE_REQUESTS, MAX_WAIT_S, Scheduler
from walle.protocol import CloudPolicy

MAIN = "def execute(ctx, x): return x\ndef execute_batch(ctx, payloads): return payloads\n"


class Rig:
    """A scheduler with one version, and what its callers got."""

    def __init__(self, version: Callable[[str], ReleasedVersion]) -> None:
        self.clock = ManualClock()
        self.engine = HeldEngine()
        self.scheduler = Scheduler(self.engine, self.clock)
        self.version = version
        self.tasks: list[asyncio.Task[bytes]] = []

    async def ask(self, version: ReleasedVersion, payload: Any, left_s: float | None = None, **changes: Any) -> Any:
        due_s = math.inf if left_s is None else self.clock.monotonic() + left_s
        task = asyncio.create_task(self.scheduler.answer(version, request(payload, due_s=due_s, **changes)))
        self.tasks.append(task)
        await self.clock.advance(0)
        return task


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    home = home_in(tmp_path)
    rig = Rig(lambda config: released(home, MAIN, f"[cloud]\n{config}"))
    yield rig
    await rig.scheduler.close()
    await asyncio.gather(*rig.tasks, return_exceptions=True)


@pytest.mark.asyncio
async def test_the_earliest_deadline_runs_first(rig: Rig) -> None:
    version = rig.version("replicas = 1")
    for payload, left_s in (("now", 9.0), ("late", 5.0), ("none", None), ("soon", 1.0), ("soon too", 1.0)):
        await rig.ask(version, payload, left_s, device=payload)
    while rig.engine.batches:
        rig.engine.end()
        await rig.clock.advance(0.01)
    assert rig.engine.started == [["now"], ["soon"], ["soon too"], ["late"], ["none"]]
    assert [plain.decode(task.result()) for task in rig.tasks] == ["now", "late", "none", "soon", "soon too"]


@pytest.mark.asyncio
async def test_a_batch_starts_when_it_is_full_or_its_oldest_has_waited(rig: Rig) -> None:
    version = rig.version("max_batch = 3\nbatch_ms = 20\nreplicas = 4")
    rig.engine.capacity = 4
    for number in range(4):
        await rig.ask(version, number, 5.0)
    assert rig.engine.started == [[0, 1, 2]]  # the fourth waits for company
    await rig.clock.advance(0.019)
    assert len(rig.engine.started) == 1
    await rig.clock.advance(0.002)
    assert rig.engine.started[1:] == [[3]]
    await rig.ask(version, 4, 5.0)
    await rig.clock.advance(0.015)
    await rig.ask(version, 5, 5.0)  # a late companion of number 4
    await rig.clock.advance(0.006)
    assert rig.engine.started[2:] == [[4, 5]]
    await rig.ask(version, 6, 0.005)  # there is no time to wait for company
    await rig.clock.advance(0.004)
    assert rig.engine.started[3:] == []
    await rig.clock.advance(0.002)
    assert [type(task.exception()) for task in rig.tasks if task.done()] == [InferenceLateError]


@pytest.mark.asyncio
async def test_a_request_near_its_deadline_does_not_wait_for_a_batch(rig: Rig) -> None:
    version = rig.version("max_batch = 3\nbatch_ms = 500")
    for _ in range(2):  # the first one loads the version, and tells nothing
        for number in range(3):
            await rig.ask(version, number, 5.0)
        await rig.clock.advance(0.1)
        rig.engine.end()
        await rig.clock.advance(0)
    await rig.ask(version, 6, 0.3)
    await rig.clock.advance(0.05)
    assert len(rig.engine.started) == 2
    await rig.clock.advance(0.06)  # 0.19 s are left of it, and a batch takes 0.1
    assert rig.engine.started[2:] == [[6]]


@pytest.mark.asyncio
async def test_a_version_runs_on_its_replicas_and_all_on_the_engines_capacity(rig: Rig, tmp_path: Path) -> None:
    rig.engine.capacity = 3
    two = rig.version("replicas = 2")
    other = released(home_in(tmp_path), MAIN, "[cloud]\nreplicas = 3", name="other")
    for number in range(3):
        await rig.ask(two, number, 5.0)
    assert len(rig.engine.batches) == 2
    for number in range(2):
        await rig.ask(other, f"other {number}", 1.0)
    assert rig.engine.started == [[0], [1], ["other 0"]]
    rig.engine.end(0)
    await rig.clock.advance(0)
    assert rig.engine.started[3:] == [["other 1"]]  # the deadline is earlier than that of [2]
    rig.engine.capacity = 4
    rig.engine.on_change()
    await rig.clock.advance(0)
    assert rig.engine.started[4:] == [[2]]


@pytest.mark.asyncio
async def test_a_full_queue_refuses_at_once_and_says_so(rig: Rig) -> None:
    version = rig.version("queue = 2")
    for number in range(4):
        await rig.ask(version, number, 5.0)
    error = rig.tasks[3].exception()
    assert isinstance(error, InferenceFullError)
    assert str(error) == "the cloud has no room: 2 requests wait for shop/rank v1, its [cloud] queue"
    assert rig.scheduler.counts.refused == {"queue": 1}
    rig.engine.end()
    await rig.clock.advance(0)
    assert (await rig.ask(version, 4, 5.0)).done() is False


@pytest.mark.asyncio
async def test_a_request_that_would_be_late_is_refused_and_a_late_one_is_not_run(rig: Rig) -> None:
    version = rig.version("queue = 100")
    for number in range(2):
        await rig.ask(version, number, 5.0)
        await rig.clock.advance(0.1)
        rig.engine.end()
        await rig.clock.advance(0)
    await rig.ask(version, "runs", 5.0)
    await rig.ask(version, "waits", 0.4)
    refused = await rig.ask(version, "is refused", 0.2)  # earlier than "waits", and yet a run of 0.1 s is before it
    assert not refused.done()
    refused = await rig.ask(version, "is refused", 0.14)
    assert isinstance(refused.exception(), InferenceFullError)
    assert str(refused.exception()).endswith("takes 150 ms now, and the device waits 140")
    await rig.clock.advance(0.3)  # "runs" takes longer than before
    assert isinstance(rig.tasks[4].exception(), InferenceLateError)
    rig.engine.end()
    await rig.clock.advance(0)
    assert rig.engine.started[-1] == ["waits"]
    assert rig.scheduler.counts.refused == {"wait": 1, "expired": 1}
    too_late = await rig.ask(version, "too late", 0.0)
    assert isinstance(too_late.exception(), InferenceLateError)


@pytest.mark.asyncio
async def test_a_request_without_a_deadline_gets_one(rig: Rig) -> None:
    version = rig.version("queue = 2")
    await rig.ask(version, "runs")
    waits = await rig.ask(version, "waits")
    await rig.clock.advance(MAX_WAIT_S + 1)
    assert isinstance(waits.exception(), InferenceLateError)


@pytest.mark.asyncio
async def test_a_request_that_was_cancelled_is_removed_and_stopped(rig: Rig) -> None:
    version = rig.version("max_batch = 2\nbatch_ms = 0")
    first = await rig.ask(version, 0, 5.0)
    waits = await rig.ask(version, 1, 5.0)
    await rig.ask(version, 2, 5.0)
    waits.cancel()
    await rig.clock.advance(0)
    assert rig.scheduler.waiting == 1
    first.cancel()
    await rig.clock.advance(0)
    assert rig.engine.cancelled == 1
    assert rig.engine.started == [[0], [2]]
    rig.engine.end()
    await rig.clock.advance(0)
    assert rig.scheduler.waiting == rig.scheduler.running == 0
    assert not rig.scheduler.is_busy(version)
    assert rig.scheduler.counts.cancelled == 2


@pytest.mark.asyncio
async def test_a_lost_batch_runs_again_and_at_last_fails(rig: Rig) -> None:
    version = rig.version("max_batch = 2\nbatch_ms = 0")
    await rig.ask(version, 0, 5.0)
    await rig.ask(version, 1, 1.0)
    await rig.ask(version, 2, 1.0)
    rig.engine.batches[0][1].set_exception(ReplicaLostError("the replica ended"))
    await rig.clock.advance(0)
    assert rig.engine.started == [[0], [1, 2]]
    rig.engine.end()
    await rig.clock.advance(0)
    assert rig.engine.started[2:] == [[0]]
    assert rig.scheduler.counts.repeated == 1
    for _ in range(2):
        rig.engine.batches[0][1].set_exception(ReplicaLostError("the replica ended"))
        await rig.clock.advance(0)
    error = rig.tasks[0].exception()
    assert isinstance(error, InferenceError)
    assert str(error) == "the replica ended; it was tried 3 times"
    assert [plain.decode(task.result()) for task in rig.tasks[1:]] == [1, 2]


@pytest.mark.asyncio
async def test_a_lost_request_past_its_deadline_fails_in_time(rig: Rig) -> None:
    version = rig.version("replicas = 1")
    late = await rig.ask(version, 0, 0.5)
    rig.engine.capacity = 0  # no other replica
    rig.engine.batches[0][1].set_exception(ReplicaLostError("the replica ended"))
    await rig.clock.advance(0.4)
    assert not late.done()
    await rig.clock.advance(0.2)
    assert isinstance(late.exception(), InferenceLateError)


@pytest.mark.asyncio
async def test_closing_ends_what_runs_and_what_waits(rig: Rig) -> None:
    version = rig.version("replicas = 1")
    for number in range(2):
        await rig.ask(version, number, 5.0)
    await rig.scheduler.close()
    await asyncio.wait(rig.tasks)
    assert rig.engine.cancelled == 1
    with pytest.raises(InferenceFullError, match="closing"):
        await rig.scheduler.answer(version, request(3))


@pytest.mark.asyncio
async def test_a_batch_that_has_not_begun_fails_when_the_scheduler_closes(rig: Rig) -> None:
    version = rig.version("replicas = 1")
    asking = asyncio.create_task(rig.scheduler.answer(version, request(1)))
    closing = asyncio.create_task(rig.scheduler.close())  # closed before the batch has taken its first step
    async with asyncio.timeout(5):
        await closing
        with pytest.raises(InferenceFullError, match="is closing"):
            await asking
    assert rig.engine.started == []


# --- shares of devices and tasks --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_device_that_fills_the_queue_delays_no_other(rig: Rig) -> None:
    version = rig.version("queue = 32")
    for number in range(100):  # earlier deadlines than the honest device's
        await rig.ask(version, f"greedy {number}", 5.0, device="greedy")
    assert rig.scheduler.counts.refused == {"queue": 67}
    for _ in range(DEVICE_REQUESTS):  # the first ones are no more than any device's
        rig.engine.end()
        await rig.clock.advance(0.05)
        await rig.ask(version, "greedy again", 4.0, device="greedy")
    honest = []
    for number in range(20):
        honest.append(await rig.ask(version, f"honest {number}", 6.0, device="honest"))
        for _ in range(2):  # greedy puts a new request in the place of each that ends
            rig.engine.end()
            await rig.clock.advance(0.05)
            await rig.ask(version, "greedy again", 4.0, device="greedy")
        assert honest[-1].done(), "it waits for one batch that ran before it came"
        assert not honest[-1].exception()
    assert rig.scheduler.waiting >= 30
    assert rig.scheduler.counts.refused["share"] >= 15  # the greedy device's last, for the honest one's


@pytest.mark.asyncio
async def test_many_credentials_give_many_devices_their_share_and_no_more(rig: Rig) -> None:
    version = rig.version("queue = 64")
    for number in range(160):
        await rig.ask(version, number, 5.0, device=f"greedy {number % 16}")
    honest = await rig.ask(version, "honest", 5.0, device="honest")
    before = 0
    while not honest.done():
        rig.engine.end()
        await rig.clock.advance(0)
        before += 1
    assert before == 16 * DEVICE_REQUESTS + 1  # the first requests of each device, in the order of their deadlines


@pytest.mark.asyncio
async def test_a_task_that_asks_without_end_leaves_other_tasks_their_share(rig: Rig, tmp_path: Path) -> None:
    greedy = rig.version("replicas = 4")
    other = released(home_in(tmp_path), MAIN, "[cloud]\nreplicas = 4", name="other")
    for number in range(40):
        await rig.ask(greedy, number, 2.0, device=f"d{number}")
    for number in range(10):
        await rig.ask(other, f"other {number}", 9.0, device=f"d{number}")
    for _ in range(20):
        await rig.clock.advance(0.05)
        rig.engine.end()
        await rig.clock.advance(0)
    others = [index for index, batch in enumerate(rig.engine.started) if str(batch[0]).startswith("other")]
    assert len(others) >= 8, "half of the time is the other task's"
    assert others[0] <= 4, "deadlines alone decide for as long as LAG_S"


@pytest.mark.asyncio
async def test_a_task_that_was_idle_has_saved_up_nothing(rig: Rig, tmp_path: Path) -> None:
    steady = rig.version("replicas = 4")
    late = released(home_in(tmp_path), MAIN, "[cloud]\nreplicas = 4", name="late")
    for number in range(30):
        await rig.ask(steady, number, 9.0, device=f"d{number}")
    for _ in range(10):
        await rig.clock.advance(0.1)
        rig.engine.end()
        await rig.clock.advance(0)
    begin = len(rig.engine.started)
    for number in range(10):
        await rig.ask(late, f"late {number}", 9.0, device=f"d{number}")
    for _ in range(10):
        await rig.clock.advance(0.1)
        rig.engine.end()
        await rig.clock.advance(0)
    late_batches = sum(str(batch[0]).startswith("late") for batch in rig.engine.started[begin:])
    assert 4 <= late_batches <= 7


@pytest.mark.asyncio
async def test_without_any_replica_a_request_is_refused_at_once(rig: Rig) -> None:
    version = rig.version("queue = 2")
    rig.engine.capacity = 0
    error = (await rig.ask(version, 1, 5.0)).exception()
    assert isinstance(error, InferenceFullError)
    assert str(error) == "the cloud has no replica that can run shop/rank v1 now"
    assert rig.scheduler.counts.refused == {"down": 1}
    rig.engine.capacity = 1
    assert not (await rig.ask(version, 1, 5.0)).done()


# --- the promise of deadlines, in simulated time ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Arrival:
    after_s: float
    left_s: float
    device: int


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    arrivals=st.lists(
        st.builds(
            Arrival,
            after_s=st.floats(0, 0.05),
            left_s=st.floats(0.001, 0.6),
            device=st.integers(0, 5),
        ),
        min_size=1,
        max_size=40,
    ),
    batch_s=st.lists(st.floats(0.001, 0.2), min_size=1, max_size=8),
    capacity=st.integers(1, 3),
    max_batch=st.sampled_from([1, 2, 4]),
    queue=st.sampled_from([2, 8, 64]),
)
def test_no_answer_comes_after_its_deadline_and_batches_go_by_deadline(
    arrivals: list[Arrival], batch_s: list[float], capacity: int, max_batch: int, queue: int
) -> None:
    asyncio.run(_play(arrivals, batch_s, capacity, max_batch, queue))


class TimedEngine(HeldEngine):
    """An engine whose batches take the next of `batch_s` each, in simulated time."""

    def __init__(self, capacity: int, clock: ManualClock, batch_s: list[float], on_start: Callable[[list[int]], None]):
        super().__init__(capacity)
        self._clock = clock
        self._batch_s = itertools.cycle(batch_s)
        self._on_start = on_start

    async def run(self, version: ReleasedVersion, requests: Sequence[PhaseRequest]) -> list[bytes | Exception]:
        self._on_start([one.value() for one in requests])
        await self._clock.sleep(next(self._batch_s))
        return [bytes(one.payload) for one in requests]


async def _play(arrivals: list[Arrival], batch_s: list[float], capacity: int, max_batch: int, queue: int) -> None:
    """Play arrivals in simulated time, and check each end and each batch."""
    clock = ManualClock(0.0)
    keys: dict[int, tuple[int, float]] = {}  # rank and deadline, by which requests run
    ends: dict[int, tuple[float, BaseException | None]] = {}
    ran: list[int] = []

    def check_batch(batch: list[int]) -> None:
        assert len(batch) <= max_batch
        ran.extend(batch)
        waiting = [keys[one] for one in keys.keys() - ends.keys() - set(ran)]
        assert max(keys[one] for one in batch) <= min(waiting, default=(math.inf, math.inf))

    scheduler = Scheduler(TimedEngine(capacity, clock, batch_s, check_batch), clock)
    version = policy_version(CloudPolicy(max_batch=max_batch, batch_ms=10, replicas=4, queue=queue))

    async def ask(number: int, arrival: Arrival) -> None:
        unanswered = sum(arrivals[one].device == arrival.device for one in keys.keys() - ends.keys())
        due_s = clock.monotonic() + arrival.left_s
        keys[number] = unanswered // DEVICE_REQUESTS, due_s
        one = request(number, due_s=due_s, device=f"d{arrival.device}")
        error: BaseException | None = None
        try:
            assert plain.decode(await scheduler.answer(version, one)) == number
        except InferenceError as failure:
            error = failure
        ends[number] = clock.monotonic(), error

    tasks = []
    for number, arrival in enumerate(arrivals):
        await clock.advance(arrival.after_s)
        tasks.append(asyncio.create_task(ask(number, arrival)))
        await clock.advance(0)
        assert scheduler.waiting <= queue
        if number in ends:
            assert isinstance(ends[number][1], InferenceFullError)
    await clock.advance(10)
    await asyncio.gather(*tasks)
    assert len(ran) == len(set(ran))
    for number, (end_s, error) in ends.items():
        if error is None or number not in ran:  # a result, a refusal, or the word that its time is over
            assert end_s <= keys[number][1] + 1e-6
        if isinstance(error, InferenceFullError):
            assert number not in ran
    assert scheduler.waiting == scheduler.running == 0
    total = scheduler.counts
    assert total.requests == len(arrivals) == total.latency_s.buckets()[-1][1] + sum(total.refused.values())
    await scheduler.close()


def test_the_counts_of_versions_are_bounded_and_nothing_is_lost_of_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "MAX_COUNTED", 3)
    counts = VersionCounts()
    busy = counts.hold("busy v1")
    for number in range(9):
        counts.hold(f"v{number}").requests += 1
        counts.release(f"v{number}")
        busy.refused["wait"] += 1
        busy.batch_sizes.add(2)
    assert list(counts.versions) == ["busy v1", "v7", "v8"]
    total = counts.total()
    assert (total.requests, total.refused, total.batch_sizes.total) == (9, {"wait": 9}, 18)
