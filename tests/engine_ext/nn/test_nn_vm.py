"""walle.nn and walle.optim inside task VMs: a task trains there, and the next task finds none of its state."""

from pathlib import Path

import pytest

from tests.sim.vm_task import in_fresh_interpreter, in_interpreter, write_task
from walle import nn
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


TUNING = """
import walle.nn as nn
import walle.np as np
import walle.optim as optim

made = []

def tune(model, x, y, state=None):
    if not made:
        net = nn.from_onnx(model, trainable=["score"])
        made.append(nn.TrainStep(net, nn.functional.mse_loss, optim.SGD(lr=0.1, momentum=0.9)))
    step = made[0]
    if state is not None:
        step.load_state_dict(state)
    loss = float(step(x, y))
    return loss, len(step._plans), step.state_dict(frozen=False)

def refused(name):
    step = made[0]
    try:
        getattr(nn, name)(step if name in ("checkpoint", "resume") else step.model, "file.walle")
    except Exception as error:
        return str(error)

def open_file():
    try:
        nn.from_onnx("file.walle")
    except Exception as error:
        return str(error)
"""


@pytest.mark.asyncio
async def test_task_tunes_a_model_of_its_resources_and_keeps_what_it_trains(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 64)
            self.score = nn.Linear(64, 1)

        def forward(self, x: object) -> object:
            return self.score(nn.functional.tanh(self.body(x)))

    x, y = samples()
    nn.manual_seed(0)  # some first weights leave little to learn for the last layer
    nn.to_walle(Net(), tmp_path / "net.walle", x)
    model = (tmp_path / "net.walle").read_bytes()
    vm = VM(write_task(tmp_path, TUNING))
    losses, plans, state = [], 0, None
    for _ in range(10):
        loss, plans, state = await vm.call("tune", model, x, y, state)
        losses.append(loss)
    assert losses[-1] < 0.7 * losses[0]
    assert plans == 1  # a state from outside plans nothing again
    assert state is not None
    assert {name for name in state if name.startswith("model/")} == {"model/score.weight", "model/score.bias"}
    for name in ("save", "load", "to_walle", "to_onnx", "checkpoint", "resume"):
        assert f"walle.nn.{name} needs a file, and a task has none" in await vm.call("refused", name)
    assert "a task has no file 'file.walle': give nn.from_onnx the bytes of" in await vm.call("open_file")
    vm.close()
    assert await vm.wait_closed(10)
