"""Boot of a VM: walle's modules come from bytecode that the process registers, and few library modules are loaded."""

from pathlib import Path

import pytest

import walle.task.run.runner  # noqa: F401 -- registers the modules of a run
from tests.sim.vm_task import in_fresh_interpreter, write_task
from walle.engine_ext.model import GraphBuilder

MAIN = """
import walle.cv as cv
import walle.np as np

def execute(ctx, trigger):
    found = ctx.session("found").run({"x": [0.0, 1.0, 0.0, 2.0]})["places"]
    return found.tolist(), float(np.sum(cv.resize(np.ones((4, 4)), (2, 2))))

def modules():
    return modules.__globals__["__builtins__"]["__import__"].__func__.__globals__["sys"].modules

def ours():
    return {name: module.__spec__ for name, module in modules().items()
            if name.startswith("walle") and not name.endswith("._core")}

def loaders():
    return {name: getattr(spec.loader, "__name__", "another") for name, spec in ours().items()}

def kept():
    return [name for name, spec in ours().items() if spec.loader_state is not None]

def names():
    return sorted(modules())
"""
# Each of these costs a VM more than a tenth of what it has without.
HEAVY = {"collections", "dataclasses", "enum", "functools", "inspect", "os", "pathlib", "re", "threading", "typing"}


@pytest.mark.asyncio
async def test_walles_modules_come_as_bytecode_and_bring_nothing_heavy(tmp_path: Path) -> None:
    graph = GraphBuilder("found")
    graph.output("places", graph.op("NonZero", [graph.input("x", (4,))]))
    write_task(tmp_path, MAIN)
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "found.walle").write_bytes(graph.to_bytes())
    async with in_fresh_interpreter(tmp_path) as vm:
        run = await vm.call("walle.pipeline.stream.context:run", "shop/ipv", {}, [], {})
        assert run["output"] == ([[1, 3]], 4)
        loaders = await vm.call("loaders")
        assert {"walle.np", "walle.engine_ext.cv.sizes", "walle.pipeline.stream.events"} <= set(loaders)
        assert set(loaders.values()) == {"Registered"}
        assert await vm.call("kept") == []
        assert HEAVY.intersection(await vm.call("names")) == set()
