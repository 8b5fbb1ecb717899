"""Scheduler of fallback inference: order, batches, refusals, loss of a replica. The engine and clock are the test's."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.inference_versions import HeldEngine, home_in, released, request
from walle import plain
from walle.clock import ManualClock
from walle.cloud.inference import InferenceError, InferenceFullError, InferenceLateError, ReplicaLostError
from walle.cloud.inference.engine import ReleasedVersion
from walle.cloud.inference.scheduler import MAX_WAIT_S, Scheduler

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
        await rig.ask(version, payload, left_s, device={"id": payload})
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
    await rig.ask(version, 5, 5.0)  # which comes late for company
    await rig.clock.advance(0.006)
    assert rig.engine.started[2:] == [[4, 5]]
    await rig.ask(version, 6, 0.005)  # there is no time to wait for company
    await rig.clock.advance(0.004)
    assert rig.engine.started[3:] == []
    await rig.clock.advance(0.002)
    assert [type(task.exception()) for task in rig.tasks if task.done()] == [InferenceLateError]


@pytest.mark.asyncio
async def test_what_has_no_time_for_company_starts_by_the_time_that_batches_take(rig: Rig) -> None:
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
    assert rig.engine.started[3:] == [["other 1"]]  # whose deadline is earlier than that of [2]
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
async def test_what_would_be_late_is_refused_at_once_and_what_is_late_is_not_run(rig: Rig) -> None:
    version = rig.version("queue = 100")
    for number in range(2):
        await rig.ask(version, number, 5.0)
        await rig.clock.advance(0.1)
        rig.engine.end()
        await rig.clock.advance(0)
    await rig.ask(version, "runs", 5.0)
    await rig.ask(version, "waits", 0.4)
    refused = await rig.ask(version, "is refused", 0.2)  # before "waits", and yet a run of 0.1 s is before it
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
async def test_what_nobody_waits_for_is_taken_out_and_stopped(rig: Rig) -> None:
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
async def test_a_lost_request_whose_time_is_over_fails_in_time(rig: Rig) -> None:
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
    closing = asyncio.create_task(rig.scheduler.close())  # before the batch has taken its first step
    async with asyncio.timeout(5):
        await closing
        with pytest.raises(InferenceFullError, match="is closing"):
            await asking
    assert rig.engine.started == []
