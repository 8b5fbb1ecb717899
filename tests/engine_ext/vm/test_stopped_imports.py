"""Imports that a stop or a limit meets: a library module is loaded whole or not at all, and the stop follows."""

import asyncio
import marshal
import time
from pathlib import Path

import pytest

from tests.sim.stopped_imports import CAUSES, campaign
from tests.sim.vm_task import in_fresh_interpreter, in_interpreter, wait_for_abandoned, write_task
from walle.engine_ext import _core
from walle.vm import DeadlineExceeded, TaskError

# Two modules of a library, of which the first imports the second in its midst, which takes some time.
OUTER = "import json.inner_{name}\nvalue = json.inner_{name}.value + 1\n"
INNER = """
from time import monotonic

until = monotonic() + {seconds}
while monotonic() < until:
    pass
value = 1
"""

# A task that imports them.
SLOW_IMPORT = """
import json

sys = json.dumps.__globals__["__builtins__"]["__import__"]("sys")
after = []

def busy():
    while True:
        pass

def run():
    import json.outer_{}
    after.append(1)
    return json.outer_{}.value

def whole():
    import json.outer_{}, json.inner_{}
    return [json.outer_{}.value, json.inner_{}.value, after]

def loaded():
    return [name for name in ("json.inner_{}", "json.outer_{}") if name in sys.modules]
"""


def slow_import(folder: Path, seconds: float) -> Path:
    """Return the folder of a task whose import takes this time; of modules that no other test imports."""
    name = f"of_{folder.name}"
    sources = {f"json.outer_{name}": OUTER.format(name=name), f"json.inner_{name}": INNER.format(seconds=seconds)}
    _core.vm_register_modules(
        {key: (marshal.dumps(compile(text, key, "exec")), f"{key}.py", None) for key, text in sources.items()}
    )
    return write_task(folder, SLOW_IMPORT.replace("{}", name))


@pytest.mark.night
@pytest.mark.asyncio
async def test_libraries_survive_stops_and_limits_in_their_imports(tmp_path: Path) -> None:
    found = await campaign(tmp_path, 400, seed=1028)
    assert found["wrong"] == []
    assert set(found["stopped"]) == set(CAUSES)
    assert all(found["stopped"].values()), found


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_stop_waits_for_the_end_of_an_import_and_no_longer(tmp_path: Path) -> None:
    discarded = _core.vm_counts()["discarded"]
    async with in_fresh_interpreter(slow_import(tmp_path, 1.0), grace_s=0.1) as vm:
        call = asyncio.ensure_future(vm.call("run"))
        await asyncio.sleep(0.5)  # within the import
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(await vm.call("loaded")) == 2
        assert await vm.call("whole") == [2, 1, []]  # the task's next statement did not run
        assert vm.alive
    assert _core.vm_counts()["discarded"] == discarded
    async with in_interpreter(tmp_path) as vm:
        assert await vm.call("whole") == [2, 1, []]


@pytest.mark.asyncio
async def test_the_time_of_an_import_does_not_count_against_the_deadline(tmp_path: Path) -> None:
    async with in_fresh_interpreter(slow_import(tmp_path, 0.3)) as vm:
        assert await vm.call("run", deadline=0.1) == 2
        with pytest.raises(DeadlineExceeded):
            await vm.call("busy", deadline=0.1)


@pytest.mark.asyncio
async def test_the_deadline_continues_after_an_import(tmp_path: Path) -> None:
    folder = slow_import(tmp_path, 0.3)
    with (folder / "main.py").open("a") as file:
        file.write("\ndef late():\n    run()\n    busy()\n")
    async with in_fresh_interpreter(folder) as vm:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"main\.py"):
            await vm.call("late", deadline=0.2)
        assert 0.5 <= time.monotonic() - began < 4


@pytest.mark.night
@pytest.mark.asyncio
async def test_an_endless_import_is_stopped_and_its_interpreter_used_by_no_other_task(tmp_path: Path) -> None:
    wait_for_abandoned()
    discarded = _core.vm_counts()["discarded"]
    async with in_fresh_interpreter(slow_import(tmp_path, 20)) as vm:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await vm.call("run", deadline=0.1)
        assert 5 <= time.monotonic() - began < 20
        assert await vm.call("loaded") == []
    assert _core.vm_counts()["discarded"] == discarded + 1
    assert _core.vm_counts()["discard_reason"] == f"the import of json.outer_of_{tmp_path.name} was cut off"


@pytest.mark.asyncio
async def test_finalizers_of_the_task_do_not_run_within_an_import(tmp_path: Path) -> None:
    main = """
    import json

    gc = json.dumps.__globals__["__builtins__"]["__import__"]("gc")

    class Endless:
        def __init__(self):
            self.me = self

        def __del__(self):
            while True:
                pass

    def run():
        gc.set_threshold(300)  # more than the import's beginning creates, less than the import does
        gc.collect()
        Endless()
        import fractions
        [[] for _ in range(1000)]

    def whole():
        import fractions
        return str(fractions.Fraction(2, 6))
    """
    async with in_fresh_interpreter(write_task(tmp_path, main)) as vm:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):  # raised in the finalizer, once the import has ended
            await vm.call("run", deadline=0.2)
        assert time.monotonic() - began < 4
        assert await vm.call("whole") == "1/3"


@pytest.mark.asyncio
async def test_a_package_that_fails_gets_its_submodules_when_it_is_loaded_again(tmp_path: Path) -> None:
    main = """
    attempts = []

    def run():
        import pack.part
        return pack.part.value, pack.own
    """
    write_task(tmp_path, main, pack__part="value = 1")
    (tmp_path / "pack" / "__init__.py").write_text(
        "from . import part\nimport main\nmain.attempts.append(1)\nif len(main.attempts) == 1:\n    1 / 0\nown = 2\n"
    )
    async with in_interpreter(tmp_path) as vm:
        with pytest.raises(TaskError, match="division by zero"):
            await vm.call("run")
        assert await vm.call("run") == (1, 2)


@pytest.mark.asyncio
async def test_a_submodule_replaces_the_attribute_of_its_package_once(tmp_path: Path) -> None:
    main = """
    import pack.part

    def run():
        import pack.part, pack.again
        return type(pack.part).__name__, pack.again
    """
    write_task(tmp_path, main, pack__part="value = 1", pack__again="again = 2")
    (tmp_path / "pack" / "__init__.py").write_text(
        "part = {}\nfrom .part import value\nfrom .again import again\n", encoding="utf-8"
    )
    async with in_interpreter(tmp_path) as vm:
        assert await vm.call("run") == ("module", 2)
