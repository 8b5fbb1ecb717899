import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import DEEP_SLEEP, write_task
from walle.engine_ext import _core
from walle.engine_ext.vm.vm import VM
from walle.errors import ConfigError, VMError
from walle.vm import DeadlineExceeded, TaskError, VMClosedError

pytestmark = pytest.mark.usefixtures("place")

MAIN = (
    DEEP_SLEEP
    + """
import time

count = 0

def add(a, b):
    return a + b

def echo(value):
    return value

def bump():
    global count
    count += 1
    return count

def patch():
    import json
    json.patched = True

def is_patched():
    import json
    return hasattr(json, "patched")

def divide():
    return inner(0)

def inner(x):
    return 1 / x

def leave():
    raise SystemExit(3)

def loop():
    while True:
        pass

def swallow():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

def swallow_by_calls():
    try:
        loop()
    except BaseException:
        swallow_by_calls()

def tidy(log):
    try:
        loop()
    finally:
        global count
        count = 100

def work(rounds):
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total

class BadText(Exception):
    def __str__(self):
        raise ValueError("no text")

def bad_text():
    raise BadText

class Lingering:
    def __del__(self):
        while True:
            pass

kept = []

def keep_lingering():
    kept.append(Lingering())

def cycle():
    value = []
    value.append([1, {"x": value}])
    return value

def give(kind):
    return {"set": [{"ok": 1, "bad": {1, 2}}], "object": (0, object())}[kind]

def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value
"""
)


@contextlib.asynccontextmanager
async def vm_of(folder: Path, main: str = MAIN, **options: Any) -> AsyncIterator[VM]:
    vm = VM(write_task(folder, main), **options)
    try:
        yield vm
    finally:
        vm.close()
        assert await vm.wait_closed()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**63,
        2**64 - 1,
        1.5,
        float("inf"),
        "héllo \0 𝄞",
        b"\0\xff",
        [],
        (),
        {},
        [1, (2, [3.0]), {"a": {"b": None}, "4": (5,), "ü": b"x", "": True}],
    ],
)
async def test_plain_data_comes_back_unchanged(tmp_path: Path, value: Any) -> None:
    async with vm_of(tmp_path) as vm:
        result = await vm.call("echo", value)
        assert result == value
        assert type(result) is type(value)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "where"),
    [("set", r"result\[0\]\.bad is of type set.*sorted"), ("object", r"result\[1\] is of type object")],
)
async def test_a_value_that_is_not_plain_data_is_named_with_its_place(tmp_path: Path, kind: str, where: str) -> None:
    async with vm_of(tmp_path) as vm:
        with pytest.raises(TaskError, match=where):
            await vm.call("give", kind)
        with pytest.raises(TypeError, match=r"args\[0\]\[1\] is of type set"):
            await vm.call("echo", [0, {1}])
        assert await vm.call("add", 1, 2) == 3


@pytest.mark.asyncio
async def test_cycles_and_depth_are_refused(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        with pytest.raises(TaskError, match=r"result\[0\]\[1\]\.x refers to a container that contains it"):
            await vm.call("cycle")
        with pytest.raises(TaskError, match="nested deeper than 100 levels"):
            await vm.call("deep", 100_000)
        assert await vm.call("deep", 90) is not None


@pytest.mark.asyncio
async def test_an_exception_names_the_tasks_file_and_line(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        with pytest.raises(TaskError, match="division by zero") as caught:
            await vm.call("divide")
        assert caught.value.type_name == "ZeroDivisionError"
        lines = MAIN.splitlines()
        for function, line in (("divide", "    return inner(0)"), ("inner", "    return 1 / x")):
            place = f'File "{tmp_path}/main.py", line {lines.index(line) + 1}, in {function}'
            assert place in caught.value.traceback_text
        with pytest.raises(TaskError) as exits:
            await vm.call("leave")
        assert exits.value.type_name == "SystemExit"
        with pytest.raises(TaskError, match="its text could not be read: ValueError"):
            await vm.call("bad_text")
        with pytest.raises(TaskError, match="main has no function 'nothing'"):
            await vm.call("nothing")
        assert await vm.call("add", 1, 2) == 3


@pytest.mark.asyncio
async def test_state_stays_in_its_vm(tmp_path: Path) -> None:
    import json

    async with vm_of(tmp_path / "a") as one, vm_of(tmp_path / "b") as other:
        assert [await one.call("bump") for _ in range(3)] == [1, 2, 3]
        assert await other.call("bump") == 1
        await one.call("patch")
        assert await one.call("is_patched")
        assert not await other.call("is_patched")
        assert not hasattr(json, "patched")
        assert (one.calls, other.calls) == (5, 2)


async def cores_used(*work: Awaitable[Any]) -> float:
    """Return the CPU seconds that this process used for each second in which the work went on."""
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*work)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def hash_for_long() -> bytes:
    return hashlib.pbkdf2_hmac("sha256", b"", b"", 150_000)  # runs without the GIL


@pytest.mark.night
@pytest.mark.in_process
@pytest.mark.asyncio
async def test_two_vms_compute_at_once(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot compute two things at once")
    async with vm_of(tmp_path / "a") as one, vm_of(tmp_path / "b") as other:
        await asyncio.gather(one.call("work", 1), other.call("work", 1))
        best = free = 0.0
        for _ in range(10):  # under one GIL every try would fail
            best = max(best, await cores_used(one.call("work", 1_500_000), other.call("work", 1_500_000)))
            if best > 1.3:
                return
            free = max(free, await cores_used(*[asyncio.to_thread(hash_for_long) for _ in range(2)]))
    if free < 1.5:
        pytest.skip(f"the machine is busy: two threads without a GIL got {free:.2f} cores")
    assert best > 1.3


@pytest.mark.asyncio
@pytest.mark.parametrize("function", ["loop", "swallow", "swallow_by_calls"])
async def test_an_endless_loop_is_stopped_and_the_vm_continues(tmp_path: Path, function: str) -> None:
    async with vm_of(tmp_path, name="shop/ipv", grace_s=2.0) as vm:
        with pytest.raises(DeadlineExceeded) as caught:
            await vm.call(function, deadline=0.05)
        assert caught.value.task == "shop/ipv"
        assert caught.value.limit_s == 0.05
        place, _, name = caught.value.place.rpartition(" in ")
        file, _, line = place.rpartition(":")
        assert file == str(tmp_path / "main.py")
        assert f"def {name}(" in MAIN
        assert MAIN.splitlines()[int(line) - 1].strip() in {"while True:", "pass"}
        assert vm.alive
        assert await vm.call("add", 1, 2) == 3


@pytest.mark.asyncio
async def test_a_stopped_call_may_clean_up(tmp_path: Path) -> None:
    async with vm_of(tmp_path, grace_s=5.0) as vm:
        with pytest.raises(DeadlineExceeded):
            await vm.call("tidy", None, deadline=0.05)
        assert await vm.call("bump") == 101


@pytest.mark.asyncio
async def test_a_call_that_cannot_be_stopped_is_abandoned(tmp_path: Path, place: str) -> None:
    before = _core.vm_abandoned_threads()
    vm = VM(write_task(tmp_path, MAIN), grace_s=0.1)
    waiting = asyncio.ensure_future(vm.call("sleep", 1.0, deadline=0.05))
    queued = asyncio.ensure_future(vm.call("add", 1, 2))
    with pytest.raises(DeadlineExceeded, match=r"main\.py:\d+"):
        await waiting
    with pytest.raises(VMClosedError, match="abandoned"):
        await queued
    assert not vm.alive
    assert _core.vm_abandoned_threads() == before + (place == "process")
    with pytest.raises(VMClosedError):
        await vm.call("add", 1, 2)
    assert await vm.wait_closed()  # the thread ends once the sleep does
    assert _core.vm_abandoned_threads() == before
    if place == "process":
        assert "lowest priority" in _core.vm_counts()["discard_reason"]  # no other task gets a thread that stays slow


@pytest.mark.asyncio
async def test_a_cancelled_caller_stops_its_call(tmp_path: Path) -> None:
    async with vm_of(tmp_path, grace_s=5.0) as vm:
        await vm.call("add", 1, 2)
        running = asyncio.ensure_future(vm.call("loop"))
        queued = asyncio.ensure_future(vm.call("bump"))
        await asyncio.sleep(0)
        queued.cancel()
        running.cancel()
        for task in (running, queued):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await vm.call("bump") == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(vm.call("loop"), 0.02)
        assert await vm.call("bump") == 2


@pytest.mark.asyncio
async def test_closing_stops_the_running_call_and_rejects_queued_ones(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, MAIN), grace_s=5.0)
    calls = [asyncio.ensure_future(vm.call("loop")) for _ in range(3)]
    await asyncio.sleep(0)
    vm.close()
    vm.close()
    for call in calls:
        with pytest.raises(VMClosedError):
            await call
    assert not vm.alive
    with pytest.raises(VMClosedError):
        await vm.call("add", 1, 2)
    assert await vm.wait_closed()


@pytest.mark.asyncio
async def test_a_finalizer_that_never_ends_does_not_hold_the_vm(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        await vm.call("keep_lingering")


@pytest.mark.asyncio
async def test_calls_run_in_order(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        assert await asyncio.gather(*[vm.call("bump") for _ in range(200)]) == list(range(1, 201))


def test_calls_come_from_several_loops_and_threads(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, MAIN))
    results: list[int] = []

    async def some() -> None:
        results.extend(await asyncio.gather(*[vm.call("bump") for _ in range(50)]))

    threads = [threading.Thread(target=lambda: asyncio.run(some())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    vm.close()
    assert sorted(results) == list(range(1, 201))


@pytest.mark.asyncio
async def test_callbacks_return_their_results(tmp_path: Path) -> None:
    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    def fail() -> None:
        raise KeyError("nothing there")

    async def never() -> None:
        await asyncio.Event().wait()

    callbacks: dict[str, Callable[..., Any]] = {
        "double": double,
        "plus": lambda a, b: a + b,
        "fail": fail,
        "unplain": lambda: {1},
        "never": never,
    }
    async with vm_of(tmp_path, grace_s=5.0) as vm:

        async def call_back(*args: Any, **options: Any) -> Any:
            return await vm.call("walle.engine_ext.vm.callbacks:call", *args, callbacks=callbacks, **options)

        assert await call_back("double", 21) == 42
        assert await call_back("plus", [1], [2]) == [1, 2]
        with pytest.raises(TaskError, match="callback 'fail' raised KeyError: 'nothing there'") as caught:
            await call_back("fail")
        assert caught.value.type_name == "CallbackError"
        with pytest.raises(TaskError, match=r"answer is of type set"):
            await call_back("unplain")
        with pytest.raises(TaskError, match="'absent' raised MissingCallback"):
            await call_back("absent")
        with pytest.raises(DeadlineExceeded):
            await call_back("never", deadline=0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call_back("never"), 0.05)
        assert await call_back("double", 1) == 2


@pytest.mark.asyncio
async def test_a_callback_may_call_another_vm(tmp_path: Path) -> None:
    async with vm_of(tmp_path / "a") as one, vm_of(tmp_path / "b") as other:

        async def add(a: int, b: int) -> Any:
            return await other.call("add", a, b)

        assert await one.call("walle.engine_ext.vm.callbacks:call", "add", 1, 2, callbacks={"add": add}) == 3


def test_a_vm_needs_a_task_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        VM(tmp_path / "absent")
    with pytest.raises(ConfigError, match="int is not a task"):
        VM(3)  # type: ignore[arg-type]
    with pytest.raises(VMError, match=r"main\.py: is missing"):
        VM(tmp_path)


def test_vms_come_and_go(tmp_path: Path) -> None:
    folder = write_task(tmp_path, MAIN)

    async def main() -> None:
        for number in range(200):
            vm = VM(folder)
            if number % 4:
                assert await vm.call("add", number, 1) == number + 1
            vm.close()
            assert await vm.wait_closed()

    asyncio.run(main())


def test_dropping_a_vm_closes_it(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, MAIN))
    core = vm._core
    assert asyncio.run(vm.call("add", 1, 2)) == 3
    del vm
    assert core.alive
    del core  # the thread ends by itself; the next VM is not affected
    other = VM(tmp_path)
    assert asyncio.run(other.call("add", 1, 2)) == 3
    other.close()


@pytest.mark.asyncio
async def test_a_callback_that_is_cancelled_returns_an_error_to_its_task(tmp_path: Path) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    vm = VM(write_task(tmp_path, "x = 1"))
    with pytest.raises(TaskError, match=r"give_up.*CancelledError"):
        await asyncio.wait_for(
            vm.call("walle.engine_ext.vm.callbacks:call", "give_up", callbacks={"give_up": give_up}), 10
        )
    vm.close()


class Speechless(Exception):  # noqa: N818 -- its text matters, not its name
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "text"), [(Speechless(), r"Speechless: \(its text"), (ValueError("\ud800"), r"Error: \?")]
)
async def test_a_callbacks_error_without_a_text_reaches_its_task(tmp_path: Path, error: Exception, text: str) -> None:
    def fail() -> None:
        raise error

    vm = VM(write_task(tmp_path, "x = 1"))
    with pytest.raises(TaskError, match=text):
        await asyncio.wait_for(vm.call("walle.engine_ext.vm.callbacks:call", "fail", callbacks={"fail": fail}), 10)
    vm.close()
