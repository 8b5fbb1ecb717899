"""Reset of VMs: no task finds a trace of another, and an interpreter that cannot be reset is discarded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import in_fresh_interpreter, in_interpreter, wait_for_abandoned, write_task
from walle.engine_ext import _core
from walle.engine_ext.vm.vm import VM
from walle.vm import TaskError, VMPool

pytestmark = pytest.mark.usefixtures("place")

# Code of both tasks: access to the interpreter's modules, which a task does not have, and a listing of all objects.
INSIDE = """
import json

real = json.dumps.__globals__["__builtins__"]
load = real["__import__"]
sys, gc = load("sys"), load("gc")

def shown(value):
    if isinstance(value, (int, float, str, bytes, bool, type(None))):
        return repr(value)
    names = [str(getattr(value, name, "")) for name in ("__module__", "__name__", "__qualname__")]
    return ":".join([type(value).__qualname__, *names, repr(value) if isinstance(value, type) else ""])

def subclasses(type_):
    found = [type_.__module__ + "." + type_.__qualname__]
    for one in type.__subclasses__(type_):
        found += subclasses(one)
    return found

def look():
    gc.collect()
    modules = {name: sorted((key, shown(value)) for key, value in vars(module).items() if key != "__builtins__")
               for name, module in sorted(sys.modules.items())}
    return {
        "modules": modules,
        "subclasses": sorted(name for name in subclasses(object) if not name.startswith("main.")),
        "settings": [sys.path, sys.getrecursionlimit(), sys.gettrace() is None, sys.getprofile() is None,
                     [shown(finder) for finder in sys.meta_path], gc.isenabled(), gc.get_threshold(), gc.get_debug(),
                     len(gc.callbacks), len(gc.garbage), sys.get_int_max_str_digits(), sys.getswitchinterval()],
        "traces": sorted({type(one).__qualname__ for one in gc.get_objects() if "Canary" in type(one).__qualname__}),
    }
"""

ACTIONS = """
import abc, collections, collections.abc, decimal, enum, functools, json, random, re, struct, typing
from inside import gc, load, look, real, sys

class Canary:
    pass

class CanaryKey(collections.UserDict):
    pass

def assign_to_modules():
    json = load("json")
    json.patched = Canary()
    json.loads = Canary()
    del json.dumps
    load("math").pi = 3
    random.seed = None

def change_builtins():
    real["len"] = lambda value: 7
    real["canary"] = Canary()

def change_classes():
    collections.UserDict.canary = Canary()
    collections.UserDict.__getitem__ = lambda self, key: Canary()
    collections.UserDict.__len__ = lambda self: 7
    del collections.UserDict.copy
    enum.Enum.canary = Canary()

def change_functions():
    decoder = sys.modules["json.decoder"]
    decoder.JSONDecoder.decode.__code__ = (lambda self, s, _w=None: 7).__code__
    decoder.py_scanstring.__defaults__ = (Canary(),)
    load("json").dumps.__kwdefaults__["indent"] = 7
    load("json").dumps.canary = Canary()

def rename():
    decoder = sys.modules["json.decoder"]
    for one in (decoder.JSONDecoder, decoder.JSONDecodeError, collections.UserDict, load("struct").Struct,
                load("json").dumps, decoder.JSONDecoder.decode, collections.UserDict.copy, functools.partial):
        for name in ("__module__", "__name__", "__qualname__"):
            try:
                setattr(one, name, "canary")
            except TypeError:
                pass  # it is immutable
    load("math").sin.__module__ = "canary"
    names = [load("math").sin.__module__, collections.UserDict.__name__, decoder.JSONDecoder.decode.__module__]
    assert names == ["canary"] * 3

def register_classes():
    collections.abc.Sequence.register(CanaryKey)
    collections.abc.Hashable.register(Canary)
    isinstance(Canary(), collections.abc.Mapping)

def change_sys():
    sys.modules["canary"] = Canary()
    sys.modules["json"] = Canary()
    sys.path.append("/canary")
    sys.meta_path.append(Canary())
    sys.setrecursionlimit(200)
    sys.set_int_max_str_digits(0)
    sys.setswitchinterval(1.5)
    sys.canary = Canary()
    sys.stdout = Canary()

def register_everywhere():
    codecs, atexit, warnings = load("codecs"), load("atexit"), load("warnings")
    canary = Canary()
    codecs.register(lambda name: canary)
    codecs.register_error("canary", lambda error: canary)
    atexit.register(lambda: canary)
    warnings.filters.insert(0, canary)
    load("copyreg").dispatch_table[Canary] = canary
    gc.callbacks.append(lambda *args: canary)
    gc.garbage.append(canary)
    gc.disable()
    gc.set_threshold(1)

def set_hooks():
    sys.settrace(lambda *args: None)
    sys.setprofile(lambda *args: None)
    sys.monitoring.use_tool_id(2, "canary")
    sys.monitoring.register_callback(2, sys.monitoring.events.CALL, lambda *args: Canary())
    sys.monitoring.set_events(2, sys.monitoring.events.CALL)
    sys.set_asyncgen_hooks(lambda generator: Canary())

def fill_caches():
    re.compile("canary" * 3)
    typing.List[Canary]
    functools.lru_cache(lambda: Canary())()
    load("struct").calcsize("77i")
    decimal.getcontext().prec = 3
    decimal.DefaultContext.prec = 3
    decimal.DefaultContext.traps[decimal.Inexact] = True

def leave_cycles():
    one, other = Canary(), Canary()
    one.other, other.one, one.names = other, one, {"canary": other}
    load("weakref").finalize(one, print, "canary")
    load("weakref").ref(collections.UserDict, lambda reference: Canary())

def rise_again():
    class Phoenix(Canary):
        def __del__(self):
            load("json").phoenix = self
    phoenix = Phoenix()
    phoenix.self = phoenix

def finalize_slowly():
    class Slow(Canary):
        def __del__(self):
            while True:
                pass
    load("json").slow = Slow()

def keep_variables():
    variable = load("contextvars").ContextVar("canary", default=1)
    variable.set(Canary())

def suspend():
    def numbers():
        canary = Canary()
        yield canary
    load("json").generator = numbers()
    next(load("json").generator)

def change_what_library_objects_hold():
    load("json")._default_encoder.canary = Canary()
    load("json")._default_encoder.indent = 7
    random.Random.canary = random._inst = Canary()

def raise_and_keep():
    try:
        raise ValueError(Canary())
    except ValueError as error:
        load("json").error = error
        sys.last_exc = error

# These cannot be undone.

def change_the_class_of_a_library_object():
    class Encoder(type(load("json")._default_encoder)):
        pass
    load("json")._default_encoder.__class__ = Encoder
"""
LASTING = ("change_the_class_of_a_library_object",)
NAMES = [line.split()[1].partition("(")[0] for line in ACTIONS.splitlines() if line.startswith("def ")]


@pytest.fixture(autouse=True)
def _alone() -> None:
    wait_for_abandoned()


def write_tasks(folder: Path) -> tuple[Path, Path]:
    first = write_task(folder / "first", ACTIONS, inside=INSIDE)
    return first, write_task(folder / "second", "from inside import look\nfrom inside import gc", inside=INSIDE)


@contextlib.asynccontextmanager
async def vm_of(folder: Path) -> AsyncIterator[VM]:
    vm = VM(folder, grace_s=3.0)  # a VM must not be abandoned because the machine is busy
    try:
        yield vm
    finally:
        vm.close()
        assert await vm.wait_closed(60)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}/{key}")
    else:
        yield path, value


async def looked(folder: Path) -> dict[str, Any]:
    async with vm_of(folder) as vm:
        return dict(flat(await vm.call("look")))


async def load_all(first: Path, second: Path) -> dict[str, Any]:
    """Load both tasks' modules, and return the second task's listing of an interpreter that has all of them."""
    async with vm_of(first) as vm:
        await vm.call("look")
    await looked(second)
    return await looked(second)


@pytest.mark.asyncio
@pytest.mark.parametrize("action", [name for name in NAMES if name not in LASTING])
async def test_a_later_task_finds_no_trace(tmp_path: Path, action: str) -> None:
    first, second = write_tasks(tmp_path)
    before = await load_all(first, second)
    counts = _core.vm_counts()
    async with vm_of(first) as vm:
        await vm.call(action)
    now = _core.vm_counts()
    assert now["discarded"] == counts["discarded"], now["discard_reason"]
    assert now["created"] == counts["created"]
    after = await looked(second)
    assert {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)} == {}
    assert after["/traces"] == []


@pytest.mark.in_process
@pytest.mark.asyncio
@pytest.mark.parametrize("action", LASTING)
async def test_an_interpreter_that_cannot_be_reset_is_discarded(tmp_path: Path, action: str) -> None:
    first, second = write_tasks(tmp_path)
    before = await load_all(first, second)
    counts = _core.vm_counts()
    async with vm_of(first) as vm:
        await vm.call(action)
    after = await looked(second)
    assert after["/traces"] == before["/traces"] == []
    assert _core.vm_counts()["discarded"] == counts["discarded"] + 1


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_no_code_of_a_task_runs_once_its_interpreter_is_discarded(tmp_path: Path) -> None:
    main = (
        INSIDE
        + """
class Recreated:
    def __del__(self):
        one = type(self)()
        one.me = one
        while True:
            pass

def recreate_itself():
    one = Recreated()
    one.me = one
"""
    )
    counts = _core.vm_counts()
    async with in_fresh_interpreter(write_task(tmp_path, main), grace_s=0.5) as vm:
        await vm.call("recreate_itself")
    now = _core.vm_counts()
    assert now["discarded"] == counts["discarded"] + 1
    assert vm.reset_failure == now["discard_reason"]
    assert vm.leaked_bytes > 0
    threads = counts["threads"] + now["created"] - counts["created"] - 1
    async with asyncio.timeout(60):
        while _core.vm_counts()["threads"] > threads:  # noqa: ASYNC110 -- the thread's end sends no event
            await asyncio.sleep(0.02)


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_only_what_a_finalizer_raises_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main = """
    class Bad:
        def __del__(self):
            raise ValueError("of the task")

    def run():
        Bad()
    """
    async with vm_of(write_task(tmp_path, main)) as vm:
        await vm.call("run")
    reported = "".join(capfd.readouterr())
    assert "ValueError: of the task" in reported
    assert "unraisablehook" not in reported
    assert "Forbidden" not in reported


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_a_module_that_is_loaded_while_others_are_changed_does_not_see_it(tmp_path: Path) -> None:
    main = """
    import json
    load = json.dumps.__globals__["__builtins__"]["__import__"]

    def spoil():
        mine = load("functools").reduce = lambda *args: None
        import statistics
        return [load("statistics").reduce is mine, load("functools").reduce is mine]
    """
    counts = _core.vm_counts()
    async with in_fresh_interpreter(write_task(tmp_path, main)) as vm:  # one that has not loaded the task's imports
        assert await vm.call("spoil") == [False, True]
    async with in_interpreter(tmp_path) as vm:
        assert await vm.call("spoil") == [False, True]
    assert _core.vm_counts()["discarded"] == counts["discarded"]


@pytest.mark.asyncio
async def test_an_assignment_to_a_library_module_stays_within_its_task(tmp_path: Path) -> None:
    main = """
    import json, random

    def patch():
        json.loads = None
        return hasattr(random, "_os"), json.loads

    def used():
        import statistics
        return json.loads is None, statistics.mean([1, 2])
    """
    async with vm_of(write_task(tmp_path, main)) as vm:
        assert await vm.call("patch") == (False, None)
        assert await vm.call("used") == (True, 1.5)
    async with vm_of(tmp_path) as vm:
        assert await vm.call("used") == (False, 1.5)


@pytest.mark.asyncio
async def test_a_task_has_no_threads(tmp_path: Path) -> None:
    main = INSIDE + "\ndef thread():\n    load('_thread').start_new_thread(print, ())\n"
    async with vm_of(write_task(tmp_path, main)) as vm:
        with pytest.raises(TaskError, match="thread is not supported for isolated subinterpreters"):
            await vm.call("thread")


def memory_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0])


@pytest.mark.night
@pytest.mark.asyncio
async def test_loading_and_unloading_leaks_no_memory(tmp_path: Path) -> None:
    main = "import dataclasses, json, re, walle.np as np\nclass Own: pass\nkept = [bytes(1000) for _ in range(1000)]\n"
    main += "def run(): return float(np.sum(np.ones((8, 8))))"
    folder = write_task(tmp_path, main)

    async def cycle(times: int) -> None:
        for _ in range(times):
            async with vm_of(folder) as vm:
                assert await vm.call("run") == 64

    await cycle(60)
    counts, before_kb = _core.vm_counts(), memory_kb()
    await cycle(300)
    now = _core.vm_counts()
    assert (now["created"], now["discarded"]) == (counts["created"], counts["discarded"]), now["discard_reason"]
    assert memory_kb() < before_kb * 1.05


@pytest.mark.asyncio
async def test_few_vms_serve_many_tasks(tmp_path: Path) -> None:
    folders = [write_task(tmp_path / f"t{n}", f"def run(x): return x + {n}") for n in range(40)]
    pool = VMPool(2)
    made = _core.vm_counts()["created"]
    for _ in range(3):
        assert await asyncio.gather(*[pool.call(folder, "run", 1) for folder in folders]) == [n + 1 for n in range(40)]
    assert _core.vm_counts()["created"] <= made + 2
    pool.close()
