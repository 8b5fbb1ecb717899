"""walle.nn and walle.optim inside task VMs: a task trains there, and the next task finds none of its state."""

from pathlib import Path

import pytest

from tests.sim.vm_task import in_fresh_interpreter, in_interpreter, write_task
from walle.engine_ext import _core
from walle.vm import VM

MAIN = """
import walle.nn as nn
import walle.np as np
import walle.optim as optim
from walle.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x)

def train(x, y, steps):
    nn.manual_seed(1)
    step = nn.TrainStep(Net(), functional.mse_loss, optim.Adam(lr=0.05))
    return [float(step(x, y)) for _ in range(steps)]

def weights():
    return nn.Linear(3, 3).weight.data

def names():
    modules = names.__globals__["__builtins__"]["__import__"].__func__.__globals__["sys"].modules
    return sorted(modules)

def refused():
    import walle.nn.train_step
"""
HEAVY = {"dataclasses", "enum", "functools", "inspect", "pathlib", "re", "threading", "typing"}


def samples() -> tuple[_core.ndarray, _core.ndarray]:
    x = _core.arange(0, 0.01, 64, "float32").reshape(32, 2)
    return x, (x[:, :1] * 2 - x[:, 1:]) + 1


@pytest.mark.asyncio
async def test_task_trains_and_the_next_one_begins_afresh(tmp_path: Path) -> None:
    write_task(tmp_path, MAIN)
    destroyed = _core.vm_counts()["discarded"]
    async with in_fresh_interpreter(tmp_path) as vm:
        losses = await vm.call("train", *samples(), 40)
        assert losses[-1] < 0.2 * losses[0]
        assert await vm.call("train", *samples(), 40) == losses
        seeded = (await vm.call("weights")).tolist()
        assert HEAVY.intersection(await vm.call("names")) == set()
        vm.close()
        assert await vm.wait_closed(10)
        counts = _core.vm_counts()
        assert counts["discarded"] == destroyed, counts["discard_reason"]
        async with in_interpreter(tmp_path) as next_vm:  # the same interpreter: the others are in use
            assert (await next_vm.call("weights")).tolist() != seeded  # no seed of the earlier task
            assert await next_vm.call("train", *samples(), 40) == losses


@pytest.mark.asyncio
async def test_parts_are_not_imported_by_their_files(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, MAIN))
    with pytest.raises(Exception, match="train_step"):
        await vm.call("refused")
    vm.close()
    assert await vm.wait_closed(10)
