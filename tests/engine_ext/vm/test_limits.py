"""Limits of a task: a call that exceeds one is stopped, its error names limit and place, and the next call works."""

import array
import asyncio
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import DEEP_SLEEP, in_interpreter, wait_for_abandoned, write_task
from walle.engine_ext import _core
from walle.engine_ext.vm.pool import MAX_LEAKED_MB, MAX_STRIKES
from walle.engine_ext.vm.vm import VM
from walle.vm import DeadlineExceeded, LimitExceeded, TaskError, TaskQuarantined, VMPool

pytestmark = pytest.mark.usefixtures("place")

MAIN = """
import itertools
import re
import time
import walle.np as np

def fine():
    return 1

def sleep():
    time.sleep(60)

def sleep_little():
    before = time.monotonic()
    time.sleep(0.02)
    return time.monotonic() - before

def sleep_wrongly():
    time.sleep(-1)

def one_giant():
    return len(bytearray(10**12))

def giants():
    kept = []
    while True:
        kept.append(bytes(1_000_000))

def small_ones():
    kept = []
    while True:
        kept.append([])

def endless_generator():
    return list(itertools.count())

def undaunted():
    kept = []
    while True:
        try:
            kept.append(bytearray(5_000_000))
        except MemoryError:
            pass

def content_with_less():
    try:
        bytearray(10**9)
    except MemoryError:
        return 1

def tensors():
    kept = [np.zeros((1000, 1000))]
    while True:
        kept.append(kept[-1] + 1)

def tensors_in_turn():
    for _ in range(50):
        value = np.zeros((1000, 1000)) + 1
    return float(value[0, 0])

def deep():
    return deep()

def deep_in_repr():
    class Mirror:
        def __repr__(self):
            return repr([self])
    return repr(Mirror())

def chatter():
    while True:
        print("x" * 1000)

def large_output():
    return {"values": ["x" * 1000] * 100}

def large_array():
    return np.zeros((200, 200))

def large_question():
    return ask(["x" * 1000] * 100)

def long_engine_call():
    a = np.ones((700, 700))
    for _ in range(1_000_000):
        a = np.matmul(a, a)
"""
LIMITS = {"memory_mb": 24, "output_kb": 64, "log_kb": 32, "recursion": 200}


def vm_of(folder: Path, main: str = MAIN, **options: Any) -> AbstractAsyncContextManager[VM]:
    return in_interpreter(write_task(folder, main), **{"limits": LIMITS, **options})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("function", "limit", "line"),
    [
        ("one_giant", "memory_mb", "return len(bytearray(10**12))"),
        ("giants", "memory_mb", "kept.append(bytes(1_000_000))"),
        ("small_ones", "memory_mb", "kept.append([])"),
        ("endless_generator", "memory_mb", "return list(itertools.count())"),
        ("undaunted", "memory_mb", ""),
        ("content_with_less", "memory_mb", ""),
        ("tensors", "memory_mb", "kept.append(kept[-1] + 1)"),
        ("deep", "recursion", "return deep()"),
        ("deep_in_repr", "recursion", "return repr([self])"),
        ("chatter", "log_kb", 'print("x" * 1000)'),
    ],
)
async def test_a_limit_stops_the_call_and_names_the_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], function: str, limit: str, line: str
) -> None:
    async with vm_of(tmp_path) as vm:
        with pytest.raises(LimitExceeded) as caught:
            await vm.call(function, deadline=60)
        assert (caught.value.limit, caught.value.maximum) == (limit, LIMITS[limit])
        if line and (caught.value.place or limit != "memory_mb"):  # no memory may be left to find the place
            place, _, name = caught.value.place.rpartition(" in ")
            file, _, number = place.rpartition(":")
            assert file == str(tmp_path / "main.py")
            assert name == function or limit == "memory_mb" or function == "deep_in_repr"
            shown = MAIN.splitlines()[int(number) - 1].strip()
            assert shown == line or limit == "memory_mb"  # the stopper may find the task a line further
        assert await vm.call("fine") == 1
        assert vm.alive
    assert len(capfd.readouterr().out) <= LIMITS["log_kb"] << 10


TAKERS = {
    "array": "array.array('d', bytes(10**9))",
    "array grows": "grow(array.array('q', [1]), lambda kept: kept.extend(kept))",
    "bytes": "b'x' * 10**9",
    "bytearray grows": "grow(bytearray(1), lambda kept: kept.extend(kept))",
    "str": "'x' * 10**9",
    "int": "1 << (8 * 10**9)",
    "list": "[None] * 10**8",
    "deque": "collections.deque(range(10**8))",
    "BytesIO": "grow(io.BytesIO(b'x'), lambda kept: kept.write(b'x' * 10**6))",
    "StringIO": "grow(io.StringIO('x'), lambda kept: kept.write('x' * 10**6))",
    "zlib": "grow([], lambda kept: kept.append(zlib.compressobj()))",
    "hash": "grow([], lambda kept: kept.append(hashlib.blake2b(bytes(10))))",
    "decimal": "decimal.Context(prec=10**9, Emax=10**9, Emin=-(10**9)).divide(1, 3)",
    "struct": "struct.pack('1000000000x')",
    "regex": "re.compile('a?' * 10**7)",
    "image": "np.zeros((30_000, 30_000), dtype='uint8')",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("what", TAKERS)
async def test_memory_counts_whatever_takes_it(tmp_path: Path, what: str) -> None:
    main = f"""
import array, collections, decimal, hashlib, io, re, struct, zlib
import walle.np as np

def grow(kept, more):
    while True:
        more(kept)

def take():
    return len(repr({TAKERS[what]}))
"""
    async with vm_of(tmp_path, main, limits={"memory_mb": 24}) as vm:
        with pytest.raises(LimitExceeded) as caught:
            await vm.call("take", deadline=60)
        assert caught.value.limit == "memory_mb"


# Vectors of operators that are not arrays, larger than the image and the result together.
WORK = {
    "distanceTransform": "cv.distanceTransform(image(1500, 1), cv.DIST_L2, cv.DIST_MASK_PRECISE)",
    "distanceTransform by a mask": "cv.distanceTransform(image(1700, 1), cv.DIST_L1, 3)",
    "findContours": "cv.findContours(1 - image(1400, 2), cv.RETR_EXTERNAL, cv.CHAIN_APPROX_NONE)",
    "HoughLinesP": "cv.HoughLinesP(image(1700, 1), 1, 3.0, 100000)",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("what", WORK)
async def test_the_work_memory_of_an_operator_counts(tmp_path: Path, what: str) -> None:
    main = f"""
import walle.np as np
import walle.cv as cv

def image(size, step):
    pixels = np.zeros((size, size), "uint8")
    pixels[::step, ::step] = 1
    return pixels

def take():
    {WORK[what]}

def small():
    {WORK[what].replace("1500", "200").replace("1700", "200").replace("1400", "200")}
    return True
"""
    async with vm_of(tmp_path, main, limits={"memory_mb": 24}) as vm:
        assert await vm.call("small", deadline=60)
        with pytest.raises(LimitExceeded) as caught:
            await vm.call("take", deadline=60)
        assert caught.value.limit == "memory_mb"


LEAKS = """
import walle.np as np

kept = []
base = np.arange(100_000)

def nothing():
    return len(kept)

def lists():
    kept.extend([] for _ in range(20_000))

def arrays():
    kept.append(np.ones(200_000))

def views():
    kept.extend(base[i:] for i in range(20_000))

def small_arrays():
    kept.extend(np.ones(1) for _ in range(5_000))

def arguments(array):
    kept.append(array)
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("function", "least", "most"),
    [("lists", 8, 26), ("arrays", 24, 32), ("views", 3, 12), ("small_arrays", 4, 30), ("arguments", 20, 26)],
)
async def test_memory_counts_what_a_task_keeps_between_calls(
    tmp_path: Path, function: str, least: int, most: int
) -> None:
    async with vm_of(tmp_path, LEAKS, limits={"memory_mb": 24}) as vm:
        calls = 0

        async def leak() -> None:
            nonlocal calls
            while calls < 100:
                await vm.call(function, *[array.array("d", bytes(1 << 20))] * (function == "arguments"), deadline=20)
                calls += 1

        with pytest.raises(LimitExceeded, match="exceeded its limit memory_mb = 24") as caught:
            await leak()
        assert caught.value.limit == "memory_mb"
        assert least <= calls <= most  # what is kept takes about the limit
        assert vm.alive


@pytest.mark.asyncio
async def test_arrays_that_a_task_does_not_keep_do_not_count(tmp_path: Path) -> None:
    main = "def same(x):\n    return x"
    async with vm_of(tmp_path, main, limits={"memory_mb": 8, "output_kb": 4096}) as vm:
        for _ in range(40):
            back = await vm.call("same", array.array("d", bytes(1 << 20)), deadline=20)
            assert len(back) == 1 << 17
            del back


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [200_000, 10_000_000])
async def test_iterators_wrapped_again_and_again_reach_the_limit_before_the_stack_ends(
    tmp_path: Path, count: int
) -> None:
    main = f"""
def take():
    kept = iter([1])
    for _ in range({count}):
        kept = map(int, kept)
    return next(kept)
"""
    async with vm_of(tmp_path, main, limits={"memory_mb": 32}, grace_s=30) as vm:
        if count < 300_000:
            assert await vm.call("take") == 1
        else:
            with pytest.raises(LimitExceeded):
                await vm.call("take")


@pytest.mark.asyncio
async def test_memory_that_is_not_counted_cannot_be_allocated(tmp_path: Path) -> None:
    main = (
        DEEP_SLEEP
        + """
load = json.dumps.__globals__["__builtins__"]["__import__"]

def take():
    load("mmap").mmap(-1, 10**9)
"""
    )
    async with vm_of(tmp_path, main) as vm:
        with pytest.raises(TaskError, match="ImportError: mmap cannot be loaded in a VM"):
            await vm.call("take")


@pytest.mark.asyncio
async def test_freed_memory_does_not_count(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        assert await vm.call("tensors_in_turn") == 1
    other = "def run():\n    for _ in range(200): kept = bytearray(10_000_000)\n    return 1"
    async with vm_of(tmp_path / "other", other) as vm:
        assert await vm.call("run") == 1


@pytest.mark.asyncio
async def test_an_output_beyond_its_limit_is_refused(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        with pytest.raises(LimitExceeded, match=r"output_kb = 64 .*result\.values\[\d+\] makes the value larger"):
            await vm.call("large_output")
        with pytest.raises(LimitExceeded, match=r"output_kb = 64 .*result makes the value larger than 65536 bytes"):
            await vm.call("large_array")
        assert await vm.call("fine") == 1
        with pytest.raises(TypeError):
            await vm.call("fine", {1})


@pytest.mark.asyncio
async def test_a_sleep_ends_with_the_call(tmp_path: Path) -> None:
    abandoned = _core.vm_abandoned_threads()
    async with vm_of(tmp_path) as vm:
        with pytest.raises(DeadlineExceeded, match=r"main\.py:\d+") as caught:
            await vm.call("sleep", deadline=0.05)
        assert caught.value.limit == "deadline_ms"
        assert vm.alive
        assert await vm.call("sleep_little") >= 0.02
        with pytest.raises(TaskError, match="sleep length must be non-negative"):
            await vm.call("sleep_wrongly")
    assert _core.vm_abandoned_threads() == abandoned


@pytest.mark.asyncio
async def test_a_long_engine_call_is_stopped(tmp_path: Path) -> None:
    async with vm_of(tmp_path) as vm:
        with pytest.raises(DeadlineExceeded, match=r"main\.py:\d+"):
            await vm.call("long_engine_call", deadline=0.1)
        assert await vm.call("fine") == 1


REGEX = """
import re

def backtrack():
    re.match(r"(a+)+$", "a" * 60 + "b")

def fine():
    return 1
"""


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_a_task_that_cannot_be_stopped_is_quarantined(tmp_path: Path) -> None:
    retired = _core.vm_retired_threads()
    pool = VMPool(1)
    folder, other = write_task(tmp_path / "a", REGEX), write_task(tmp_path / "b", REGEX)
    for _ in range(MAX_STRIKES):
        assert await pool.call(folder, "fine") == 1
        with pytest.raises(DeadlineExceeded, match=r"main\.py:\d+|cannot be interrupted"):
            await pool.call(folder, "backtrack", deadline=0.02)
    with pytest.raises(TaskQuarantined, match="3 of its calls could not be stopped"):
        await pool.call(folder, "fine")
    assert await pool.call(other, "fine") == 1
    pool.close()
    async with asyncio.timeout(60):
        while _core.vm_retired_threads() < retired + MAX_STRIKES:  # noqa: ASYNC110 -- parking sends no event
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_a_task_whose_interpreters_cannot_be_reset_is_quarantined(tmp_path: Path) -> None:
    main = """
    import json

    def spoil():
        json.JSONEncoder.__new__ = None

    def fine():
        return 1
    """
    pool = VMPool(1)
    spoiling, other, honest = (
        write_task(tmp_path / name, source) for name, source in (("a", main), ("b", main + "# another"), ("c", main))
    )
    most = MAX_LEAKED_MB // 4

    async def spoil() -> None:
        await pool.call(spoiling, "spoil")
        assert await pool.call(other, "fine") == 1  # the same interpreter runs it
        assert await pool.call(honest, "fine") == 1  # the reset has ended by now

    async def fail_resets() -> None:
        for _ in range(most):
            await spoil()

    with pytest.raises(TaskQuarantined, match=r"could not be undone \(.+\), which leaked \d+ MB") as caught:
        await fail_resets()
    assert caught.value.leaked_mb >= MAX_LEAKED_MB
    assert caught.value.reset_failure
    for _ in range(most):
        assert await pool.call(other, "fine") == 1
        assert await pool.call(honest, "fine") == 1
    pool.close()


STARVED = """
import asyncio, ctypes, sys
from walle.engine_ext import _core
from walle.vm import VM, VMClosedError

key = ctypes.c_uint()
while ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None) == 0:
    pass

async def main():
    for times in (1, 2):
        try:
            await VM(sys.argv[1]).call("run")
        except VMClosedError as error:
            assert "could not start" in str(error), error
        else:
            raise AssertionError("a VM started without what it needs")
        assert _core.vm_counts()["discarded"] == times

asyncio.run(main())
"""


def test_an_interpreter_that_could_not_boot_counts_as_discarded(tmp_path: Path) -> None:
    write_task(tmp_path, "def run(): return 1")
    subprocess.run([sys.executable, "-c", STARVED, str(tmp_path)], check=True, timeout=120)


@pytest.mark.asyncio
async def test_limits_come_with_the_task(tmp_path: Path) -> None:
    class Version:
        folder = write_task(tmp_path, MAIN)
        name = "shop/ipv v1"
        limits = LIMITS

    pool = VMPool(1)
    with pytest.raises(LimitExceeded, match=r"task shop/ipv v1 exceeded its limit recursion = 200"):
        await pool.call(Version(), "deep")
    assert await pool.call(Version(), "fine") == 1
    pool.close()


LEAVING = """
import json

load = json.dumps.__globals__["__builtins__"]["__import__"]

class Loud:
    def __del__(self):
        print("x" * 10_000)
        raise ValueError("y" * 10_000)

class Greedy:
    def __del__(self, encoder=json.JSONEncoder):
        bytearray(400_000_000)
        encoder.__new__ = None  # the interpreter is discarded if this runs

def leave(kind):
    for _ in range(20):
        one = Loud() if kind == "loud" else Greedy()
        one.self = one
    variable = load("contextvars").ContextVar("kept")
    variable.set(one)
"""


@pytest.mark.in_process
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["loud", "greedy"])
async def test_finalizers_have_the_limits_of_their_task(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    await asyncio.to_thread(wait_for_abandoned)
    destroyed = _core.vm_counts()["discarded"]
    async with vm_of(tmp_path, LEAVING, limits={"memory_mb": 64, "log_kb": 1}) as vm:
        await vm.call("leave", kind)
    assert _core.vm_counts()["discarded"] == destroyed
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    async with vm_of(tmp_path / "next", "def run(): print('heard')") as vm:
        await vm.call("run")
    assert capfd.readouterr().out == "heard\n"


@pytest.mark.asyncio
async def test_a_finalizer_that_cannot_be_stopped_is_a_strike(tmp_path: Path) -> None:
    main = (
        DEEP_SLEEP
        + """
class Lingering:
    def __del__(self, sleep=json.dumps.__globals__["__builtins__"]["__import__"]("time").sleep):
        sleep(1.5)

kept = [Lingering()]

def fine():
    return 1
"""
    )
    pool = VMPool(1)
    lingering, other = write_task(tmp_path / "a", main), write_task(tmp_path / "b", "def fine(): return 1")
    for _ in range(MAX_STRIKES):
        assert await pool.call(lingering, "fine") == 1
        (entry,) = pool._entries.values()
        assert await pool.call(other, "fine") == 1  # the same interpreter runs it
        assert entry.vm is not None
        async with asyncio.timeout(30):
            while not entry.vm.abandoned:  # noqa: ASYNC110 -- the watchdog sends no event
                await asyncio.sleep(0.02)
    with pytest.raises(TaskQuarantined):
        await pool.call(lingering, "fine")
    assert await pool.call(other, "fine") == 1
    pool.close()
