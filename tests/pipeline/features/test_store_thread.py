"""The thread of a store: results, errors, cancellation and its end."""

import asyncio
import gc
import threading
import weakref

import pytest

from walle.pipeline.features.store_thread import StoreThread


def _named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def _ended(name: str) -> None:
    async with asyncio.timeout(5):
        while _named(name):  # noqa: ASYNC110 - a thread sets no event at its end
            await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_calls_run_in_order_in_one_thread_and_their_results_and_errors_return() -> None:
    thread = StoreThread("walle-test-order")
    ran: list[tuple[int, int]] = []

    def work(number: int) -> int:
        ran.append((number, threading.get_ident()))
        if number == 3:
            raise KeyError(number)
        return number * 2

    results = await asyncio.gather(
        *(thread.run(lambda number=number: work(number)) for number in range(5)),  # type: ignore[misc]
        return_exceptions=True,
    )
    assert [result for result in results if isinstance(result, int)] == [0, 2, 4, 8]
    assert isinstance(results[3], KeyError)
    assert [number for number, _ in ran] == list(range(5))
    assert {ident for _, ident in ran} == {_named("walle-test-order")[0].ident}
    thread.close()
    await _ended("walle-test-order")
    assert await thread.run(threading.get_ident) == _named("walle-test-order")[0].ident  # the thread starts again
    thread.close()
    await _ended("walle-test-order")


@pytest.mark.asyncio
async def test_a_cancelled_call_does_not_start_and_the_next_one_runs() -> None:
    thread, gate, ran = StoreThread("walle-test-cancel"), threading.Event(), []
    first = asyncio.create_task(thread.run(gate.wait))
    second = asyncio.create_task(thread.run(lambda: ran.append("second")))
    await asyncio.sleep(0.01)
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    gate.set()
    assert await thread.run(lambda: "third") == "third"
    assert ran == []
    thread.close()
    await _ended("walle-test-cancel")


@pytest.mark.asyncio
async def test_a_thread_releases_its_latest_call_and_ends_with_its_owner() -> None:
    class Result:
        pass

    thread = StoreThread("walle-test-owner")
    kept = weakref.ref(await thread.run(Result))
    await asyncio.sleep(0.05)
    assert kept() is None

    class Owner:
        def work(self) -> None:
            pass

    owner = Owner()
    posted = weakref.ref(owner)
    thread.post(owner.work)
    del owner
    await asyncio.sleep(0.05)
    assert posted() is None
    del thread
    gc.collect()
    await _ended("walle-test-owner")


@pytest.mark.asyncio
async def test_a_posted_call_that_fails_is_logged_and_the_next_call_runs(caplog: pytest.LogCaptureFixture) -> None:
    thread = StoreThread("walle-test-post")
    ran: list[str] = []

    def fail() -> None:
        ran.clear()
        raise ZeroDivisionError

    thread.post(lambda: ran.append("before the start"))
    await thread.run(lambda: None)
    thread.post(lambda: ran.append("posted"))
    thread.post(fail)
    thread.post(lambda: ran.append("next"))
    assert await thread.run(lambda: list(ran)) == ["next"]
    assert "ZeroDivisionError" in caplog.text
    thread.close()


def test_a_loop_that_is_closed_meanwhile_does_not_end_the_thread() -> None:
    thread, gate = StoreThread("walle-test-loop"), threading.Event()

    async def start() -> None:
        waiting = asyncio.create_task(thread.run(gate.wait))
        await asyncio.sleep(0.01)
        waiting.cancel()

    asyncio.run(start())
    gate.set()
    assert asyncio.run(thread.run(lambda: 7)) == 7
    thread.close()
