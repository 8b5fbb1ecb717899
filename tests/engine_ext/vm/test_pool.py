import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import DEEP_SLEEP, write_task
from walle.engine_ext.vm.bytecode import BytecodeError
from walle.engine_ext.vm.pool import MAX_STRIKES
from walle.errors import ConfigError
from walle.vm import VM, DeadlineExceeded, TaskQuarantined, VMClosedError, VMPool

pytestmark = pytest.mark.usefixtures("place")

MAIN = (
    DEEP_SLEEP
    + """
from walle_name import name

count = 0

def bump():
    global count
    count += 1
    return name, count

def loop():
    while True:
        pass
"""
)


def tasks(folder: Path, count: int) -> list[Path]:
    return [write_task(folder / f"t{n}", MAIN, walle_name=f"name = {n}") for n in range(count)]


@pytest.mark.asyncio
async def test_a_task_keeps_its_vm_while_there_is_room(tmp_path: Path) -> None:
    pool = VMPool(2)
    one, other, third = tasks(tmp_path, 3)
    assert await pool.call(one, "bump") == (0, 1)
    assert await pool.call(other, "bump") == (1, 1)
    assert await pool.call(str(one) + "/", "bump") == (0, 2)
    assert len(pool) == 2
    assert await pool.call(third, "bump") == (2, 1)  # replaces the other's, idle longest
    assert await pool.call(one, "bump") == (0, 3)
    assert await pool.call(other, "bump") == (1, 1)
    assert len(pool) == 2
    pool.close()


@pytest.mark.asyncio
async def test_an_idle_vm_that_is_discarded_is_closed_and_a_busy_one_continues(tmp_path: Path) -> None:
    pool = VMPool(2)
    one, other = tasks(tmp_path, 2)
    assert await pool.call(one, "bump") == (0, 1)
    async with pool.hold(other):
        pool.discard(other)
        pool.discard(one)
        assert len(pool) == 1
        assert await pool.call(other, "bump") == (1, 1)
    pool.discard(one)  # a second discard does nothing
    assert await pool.call(one, "bump") == (0, 1)
    assert await pool.call(other, "bump") == (1, 2)
    pool.close()


@pytest.mark.asyncio
async def test_a_busy_vm_is_never_replaced(tmp_path: Path) -> None:
    pool = VMPool(1)
    one, other = tasks(tmp_path, 2)
    answer = asyncio.Event()

    async def wait() -> int:
        await answer.wait()
        return 7

    asking = asyncio.ensure_future(
        pool.call(one, "walle.engine_ext.vm.callbacks:call", "wait", callbacks={"wait": wait})
    )
    waiting = [asyncio.ensure_future(pool.call(other, "bump")) for _ in range(3)]
    impatient = asyncio.ensure_future(pool.call(other, "bump"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert not any(task.done() for task in (asking, *waiting))
    answer.set()
    assert await asking == 7
    assert sorted(await asyncio.gather(*waiting)) == [(1, 1), (1, 2), (1, 3)]
    pool.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Give stopped calls ten seconds to stop: on a busy machine a VM is abandoned after the usual quarter of one."""
    init = VM.__init__

    def init_patiently(self: VM, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "grace_s": 10.0})

    monkeypatch.setattr(VM, "__init__", init_patiently)


@pytest.mark.asyncio
async def test_an_abandoned_vm_is_replaced(tmp_path: Path) -> None:
    pool = VMPool(1)
    (one,) = tasks(tmp_path, 1)
    await pool.call(one, "bump")
    (abandoned,) = pool.vms()
    with pytest.raises(DeadlineExceeded):
        await pool.call(one, "sleep", 1.5, deadline=0.05)
    assert abandoned.abandoned
    assert await pool.call(one, "bump") == (0, 1)
    pool.close()
    async with asyncio.timeout(30):
        while not abandoned.ended:  # noqa: ASYNC110 -- a VM sends no event; a host that it ends is not the next test's
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("patient")
@pytest.mark.asyncio
async def test_a_call_that_stops_keeps_its_vm(tmp_path: Path) -> None:
    pool = VMPool(1)
    (one,) = tasks(tmp_path, 1)
    await pool.call(one, "bump")
    with pytest.raises(DeadlineExceeded):
        await pool.call(one, "loop", deadline=0.05)
    assert await pool.call(one, "bump") == (0, 2)
    pool.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.asyncio
async def test_a_closed_pool_refuses(tmp_path: Path) -> None:
    pool = VMPool(1)
    one, other = tasks(tmp_path, 2)
    running = asyncio.ensure_future(pool.call(one, "loop"))
    waiting = asyncio.ensure_future(pool.call(other, "bump"))
    await asyncio.sleep(0)
    pool.close()
    for call in (running, waiting):
        with pytest.raises(VMClosedError):
            await call
    with pytest.raises(VMClosedError):
        await pool.call(one, "bump")
    with pytest.raises(ConfigError):
        VMPool(0)


def test_a_pool_serves_several_loops(tmp_path: Path) -> None:
    pool = VMPool(2)
    folders = tasks(tmp_path, 4)
    results: list[Any] = []

    async def some(number: int) -> None:
        for step in range(8):
            name, _ = await pool.call(folders[(number + step) % 4], "bump")
            results.append(name)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(some(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert sorted(results) == sorted([0, 1, 2, 3] * 8)


class InMemory:
    """A bundle in memory, which is freed with its last user."""

    def __init__(self, main: str) -> None:
        self.files = {"main.py": main.encode()}


@pytest.mark.asyncio
async def test_a_bundle_in_memory_is_never_mistaken_for_one_that_was_freed() -> None:
    pool = VMPool(4)
    for number in range(20):
        assert await pool.call(InMemory(f"def number(): return {number}"), "number") == number
    pool.close()


@pytest.mark.asyncio
async def test_a_task_that_cannot_start_leaves_its_turn_to_the_next(tmp_path: Path) -> None:
    pool = VMPool(1)
    busy, other = tasks(tmp_path, 2)
    broken = write_task(tmp_path / "broken", "def f(:")
    answer = asyncio.Event()

    async def wait() -> None:
        await answer.wait()

    ask = "walle.engine_ext.vm.callbacks:call"
    first = asyncio.ensure_future(pool.call(busy, ask, "wait", callbacks={"wait": wait}))
    second = asyncio.ensure_future(pool.call(broken, "f"))
    third = asyncio.ensure_future(pool.call(other, "bump"))
    await asyncio.sleep(0)
    answer.set()
    await first
    with pytest.raises(BytecodeError):
        await second
    assert await asyncio.wait_for(third, 10) == (1, 1)
    pool.close()


@pytest.mark.asyncio
async def test_calls_without_end_of_one_task_do_not_keep_others_out(tmp_path: Path) -> None:
    pool = VMPool(1)
    busy, other, third = tasks(tmp_path, 3)
    finished: list[str] = []

    async def again_and_again() -> None:
        while "third" not in finished:
            await pool.call(busy, "bump")
            finished.append("busy")

    await pool.call(busy, "bump")
    callers = [asyncio.ensure_future(again_and_again()) for _ in range(3)]
    await asyncio.sleep(0)
    for task, name in ((other, "other"), (third, "third")):
        await asyncio.wait_for(pool.call(task, "bump"), 10)
        finished.append(name)
    await asyncio.gather(*callers)
    assert finished.index("other") <= 3  # those that had come before it
    pool.close()


@pytest.mark.asyncio
async def test_calls_take_turns_in_order_of_arrival(tmp_path: Path) -> None:
    pool = VMPool(1)
    folders = tasks(tmp_path, 3)
    order: list[int] = []

    async def call(number: int) -> None:
        order.append((await pool.call(folders[number], "bump"))[0])

    await asyncio.gather(*[call(number) for number in (0, 1, 2, 1, 0, 2)])
    assert order == [0, 1, 2, 1, 0, 2]
    pool.close()


class Limited:
    """A task in a folder with limits."""

    def __init__(self, folder: Path, limits: dict[str, int]) -> None:
        self.folder, self.limits = folder, limits


@pytest.mark.asyncio
async def test_a_vm_that_cannot_start_does_not_count_as_a_strike(tmp_path: Path) -> None:
    pool = VMPool(1)
    (one,) = tasks(tmp_path, 1)
    for _ in range(MAX_STRIKES + 1):
        with pytest.raises(VMClosedError, match="could not start"):
            await pool.call(Limited(one, {"recursion": -1000}), "bump")
    assert await pool.call(one, "bump") == (0, 1)
    pool.close()


@pytest.mark.asyncio
async def test_strikes_follow_the_task_wherever_its_bundle_is() -> None:
    pool = VMPool(2)
    stuck = DEEP_SLEEP + "\ndef ready(): pass\ndef run(): sleep(2.0)\n"
    for _ in range(MAX_STRIKES):
        bundle = InMemory(stuck)
        await pool.call(bundle, "ready")
        with pytest.raises(DeadlineExceeded):
            await pool.call(bundle, "run", deadline=0.2)
    with pytest.raises(TaskQuarantined):
        await pool.call(InMemory(stuck), "run")
    for number in range(20):  # addresses may be used again
        assert await pool.call(InMemory(f"def number(): return {number}"), "number") == number
    pool.close()


@pytest.mark.usefixtures("patient")
def test_a_loop_that_is_closed_early_gives_its_turn_back(tmp_path: Path) -> None:
    pool = VMPool(1)
    one, other = tasks(tmp_path, 2)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    answer = asyncio.Event()
    running = first.create_task(
        pool.call(one, "walle.engine_ext.vm.callbacks:call", "wait", callbacks={"wait": answer.wait})
    )
    first.run_until_complete(asyncio.sleep(0))
    waiting = second.create_task(pool.call(other, "bump"))
    second.run_until_complete(asyncio.sleep(0))
    answer.set()
    assert first.run_until_complete(running)
    first.close()
    second.close()  # the pool gives it its turn
    del waiting
    gc.collect()
    assert asyncio.run(asyncio.wait_for(pool.call(one, "bump"), 30)) == (0, 1)
    pool.close()


@pytest.mark.night
@pytest.mark.usefixtures("patient")
def test_a_loop_that_is_closed_early_stops_its_calls(tmp_path: Path) -> None:
    pool = VMPool(1)
    one, other = tasks(tmp_path, 2)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(pool.call(one, "bump"))
    running = loop.create_task(pool.call(one, "loop"))
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    del running
    gc.collect()
    assert asyncio.run(asyncio.wait_for(pool.call(other, "bump"), 30)) == (1, 1)
    pool.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.asyncio
async def test_a_call_may_be_closed_where_the_pools_lock_is_held(tmp_path: Path) -> None:
    pool = VMPool(1)
    one, other = tasks(tmp_path, 2)
    running, waiting = pool.call(one, "loop"), pool.call(other, "bump")
    for call in (running, waiting):
        call.send(None)
    with pool._locked():  # the garbage collector may run here
        running.close()
        waiting.close()
    assert await asyncio.wait_for(pool.call(other, "bump"), 30) == (1, 1)
    pool.close()
