"""Import order: in any order, library modules stay for later tasks, and no interpreter is discarded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.sim.vm_task import in_fresh_interpreter, in_interpreter, write_task
from walle.engine_ext import _core
from walle.engine_ext.vm.imports import ALLOWED_IMPORTS
from walle.vm import DeadlineExceeded

NAMES = sorted(ALLOWED_IMPORTS - {"__future__"})

# Takes lists of modules, and for each runs a task that imports them in this order, in a new interpreter: those of the
# earlier tasks are still in use. Prints why interpreters were discarded, as JSON.
IN_FRESH_HOMES = """
import asyncio, json, sys
from walle.engine_ext import _core
from walle.engine_ext.vm.vm import VM

class Memory:
    name = "order"
    def __init__(self, names):
        self.files = {"main.py": "\\n".join(["def run():", *(f"    import {name}" for name in names)]).encode()}

async def main():
    vms = []
    for names in json.load(sys.stdin):
        vms.append((names, VM(Memory(names))))
        await vms[-1][1].call("run", deadline=60)
    assert _core.vm_counts()["created"] == len(vms)
    reasons = []
    for names, vm in vms:
        before = _core.vm_counts()["discarded"]
        vm.close()
        assert await vm.wait_closed(60)
        counts = _core.vm_counts()
        if counts["discarded"] > before:
            reasons.append([names, counts["discard_reason"]])
    print(json.dumps(reasons))

asyncio.run(main())
"""


def reasons_of(orders: list[list[str]]) -> list[list[object]]:
    done = subprocess.run(
        [sys.executable, "-c", IN_FRESH_HOMES], input=json.dumps(orders), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", ["walle.np", *at_night("walle.nn", "walle.cv", "walle.optim")])
def test_any_module_may_follow_or_precede_the_numeric_ones(first: str) -> None:
    others = [name for name in NAMES if name != first]
    assert reasons_of([[first, other] for other in others] + [[other, first] for other in others]) == []


@pytest.mark.night
def test_every_module_may_come_first() -> None:
    # All the others follow cyclically, so that each module comes somewhere after every other.
    assert reasons_of([NAMES[at:] + NAMES[:at] for at in range(len(NAMES))]) == []


# Modules that load others at first use, and the expression that does so.
USES = {
    "np_names": "import walle.np as np\n    [getattr(np, name) for name in dir(np)]",
    "np_diag": "import walle.np as np\n    np.diag(np.ones((2, 2)))",
    "np_polyfit": "import walle.np as np\n    np.polyfit([1, 2, 3], [1, 2, 3], 1)",
    "np_seed": "from walle.np import random\n    random.seed(3)\n    random.rand(3)",
    "method": "made.std()",
    "error": "try:\n        made.reshape(7, 7)\n    except ValueError: pass\n    except Exception as error: str(error)",
    "cv_names": "import walle.cv as cv\n    [getattr(cv, name) for name in dir(cv)]",
    "cv_resize": "import walle.cv as cv\n    cv.resize(made.reshape(2, 2), (4, 4))",
    "nn_names": "import walle.nn as nn\n    [getattr(nn, name) for name in dir(nn)]",
    "nn_subclass": "import walle.nn as nn\n    class Own(nn.Module): pass\n    nn.Sequential(Own(), nn.Linear(4, 2))",
    "optim_names": "import walle.optim as optim\n    [getattr(optim, name) for name in dir(optim)]",
    "nn_seed": "import walle.nn as nn\n    nn.manual_seed(3)\n    nn.Linear(4, 2)(made)",
    "nn_functions": "from walle.nn import functional\n    [getattr(functional, name) for name in dir(functional)]",
    "strptime": "import datetime\n    datetime.datetime.strptime('2020', '%Y')",
    "typing": "import typing\n    typing.Pattern, typing.ContextManager",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("use", USES)
async def test_modules_loaded_at_first_use_stay_too(tmp_path: Path, use: str) -> None:
    imports = "".join(f"\n    import {name}" for name in NAMES)
    loaded = "return sorted(run.__globals__['__builtins__']['__import__'].__func__.__globals__['sys'].modules)"
    write_task(tmp_path, f"def run(made):\n    {USES[use]}{imports}\n    {loaded}\n\ndef look():\n    {loaded}\n")
    destroyed = _core.vm_counts()["discarded"]
    async with in_fresh_interpreter(tmp_path) as vm:
        found = await vm.call("run", array())
        vm.close()
        assert await vm.wait_closed(10)
        counts = _core.vm_counts()
        assert counts["discarded"] == destroyed, counts["discard_reason"]
        async with in_interpreter(tmp_path) as next_vm:  # the same interpreter: the others are in use
            assert await next_vm.call("look") == found


def array() -> _core.ndarray:
    return _core.arange(0, 1, 4, "float32")


@pytest.mark.asyncio
async def test_importing_the_numeric_modules_loads_none_of_their_parts(tmp_path: Path) -> None:
    main = """
    import walle.np as np, walle.cv as cv

    def look():
        modules = look.__globals__["__builtins__"]["__import__"].__func__.__globals__["sys"].modules
        return sorted(name for name in modules if name.startswith(("walle.engine_ext.np.", "walle.engine_ext.cv.")))

    def use():
        np.ones(3)
        return look()
    """
    async with in_fresh_interpreter(write_task(tmp_path, main)) as vm:
        assert await vm.call("look") == []
        assert await vm.call("use") == ["walle.engine_ext.np.base", "walle.engine_ext.np.creation"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "statement", ["from json import nothing", "import walle.np.nothing", "import collections.nothing"]
)
async def test_an_import_that_fails_leaves_nothing(tmp_path: Path, statement: str) -> None:
    main = f"def run():\n    try:\n        {statement}\n    except ImportError as error:\n        return str(error)\n"
    counts = _core.vm_counts()
    async with in_interpreter(write_task(tmp_path, main)) as vm:
        assert await vm.call("run")
    now = _core.vm_counts()
    assert now["discarded"] == counts["discarded"], now["discard_reason"]


@pytest.mark.asyncio
async def test_a_stop_while_modules_load_leaves_nothing(tmp_path: Path) -> None:
    main = """
    import walle.cv as cv
    import walle.np as np

    def run():
        for module in (np, cv):
            for name in dir(module):
                getattr(module, name)

    def use():
        import json
        return float(np.linalg.norm(cv.resize(np.ones((4, 4)), (2, 2))))
    """
    destroyed = _core.vm_counts()["discarded"]
    stops = 0
    for deadline in (0.0002, 0.0005, 0.001, 0.002, 0.01, 0.06):  # time of the task's own code; loading does not count
        async with in_fresh_interpreter(write_task(tmp_path, main)) as vm:
            try:
                await vm.call("run", deadline=deadline)
            except DeadlineExceeded:
                stops += 1
            assert await vm.call("use", deadline=60) == 2
    counts = _core.vm_counts()
    assert stops > 0
    assert counts["discarded"] == destroyed, counts["discard_reason"]


@pytest.mark.asyncio
async def test_every_way_to_import_gives_the_tasks_own_copy(tmp_path: Path) -> None:
    main = """
    from walle import np, cv
    import walle.np as same
    import walle
    from json import tool, decoder

    def run():
        import json
        np.ones = 1
        np.random.rand = 2
        return [np is same is walle.np, hasattr(np, "_np"), hasattr(cv, "_cv"), hasattr(np.random, "_core"),
                np.__spec__, cv.__spec__, tool.__spec__, decoder is json.decoder, same.ones, same.random.rand]

    def again():
        return [callable(np.ones), callable(np.random.rand), "ones" in dir(np), "ones" in np.__all__]
    """
    for _ in range(2):
        async with in_interpreter(write_task(tmp_path, main)) as vm:
            assert await vm.call("again") == [True] * 4
            assert await vm.call("run") == [True, False, False, False, None, None, None, True, 1, 2]


@pytest.mark.asyncio
async def test_methods_and_errors_of_arrays_need_no_import(tmp_path: Path) -> None:
    main = """
    def run(x):
        try:
            x.reshape(7, 7)
        except Exception as error:
            return x.argsort().tolist(), type(error).__name__

    def reach():
        import walle.engine_ext.np
    """
    async with in_interpreter(write_task(tmp_path, main)) as vm:
        assert await vm.call("run", array()) == ([0, 1, 2, 3], "ShapeError")
        with pytest.raises(ImportError, match=r"imports 'walle\.engine_ext\.np'"):
            await vm.call("reach")
