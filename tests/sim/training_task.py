"""A task that trains in the background: its task.toml and main.py.

Run as a program, it is a device in a process of its own, which trains until it is killed, and tells each step:
    python -m tests.sim.training_task CONFIG_FILE
"""

import asyncio
import contextlib
import pickle
import sys
from pathlib import Path

from walle.device import Device, DeviceConfig
from walle.device.task_versions import ActiveVersion
from walle.task.run.run_result import TrainedStep

STEPS = 100  # number after which the training rests
TRAINING_CONFIG = """\
[training]
when = { charging = true }
cpu_percent = 100
rest_s = 3600
"""
TRAINING_MAIN = f"""\
import walle.nn as nn
import walle.np as np
import walle.optim as optim

made = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.score = nn.Linear(8, 2)

    def forward(self, x):
        return self.score(nn.functional.relu(self.hidden(x)))


def trainer():
    if not made:
        nn.manual_seed(1)
        made.append(nn.TrainStep(Net(), nn.functional.cross_entropy, optim.SGD(lr=0.1, momentum=0.9)))
    return made[0]


def train(ctx):
    step, done = trainer(), 0
    if ctx.checkpoint is not None:
        step.load_state_dict(ctx.checkpoint["step"])
        done = ctx.checkpoint["done"]
    random = np.random.default_rng(done)  # stands for the user's data
    x = random.standard_normal((16, 4)).astype("float32")
    loss = step(x, (x[:, 0] > 0).astype("int64"))
    ctx.metric("loss", float(loss))
    ctx.store.put("loss", float(loss), upload=False)
    ctx.checkpoint = {{"step": step.state_dict(frozen=False), "done": done + 1}}
    return done + 1 < {STEPS}


def execute(ctx, trigger):
    return {{"done": 0 if ctx.checkpoint is None else ctx.checkpoint["done"]}}
"""


async def main(config: DeviceConfig) -> None:
    device = Device(config)
    async with device:
        take_step = device._training._step

        async def tell_step(task: str, version: ActiveVersion) -> TrainedStep:
            sys.stdout.write("begun\n")
            sys.stdout.flush()
            return await take_step(task, version)

        device._training._step = tell_step
        device.set_attributes(charging=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(pickle.loads(Path(sys.argv[1]).read_bytes())))
