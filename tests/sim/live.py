"""A device in a process of its own whose user's events are live: they come by standard input, once.

    python -m tests.sim.live CONFIG_FILE

Each line is the number of an event of `tests.sim.visits`; it is printed when `on_event` has returned. At the end of the
input the device settles and prints its counts of produced and stored features.
"""

import asyncio
import pickle
import sys
from pathlib import Path

from tests.sim.visits import event_at
from walle.device import Device, DeviceConfig


def _answer(*values: object) -> None:
    sys.stdout.write(" ".join(map(str, values)) + "\n")
    sys.stdout.flush()


async def play(config: DeviceConfig) -> None:
    async with Device(config) as device:
        while not device.tasks:
            await device.checkin()
            await asyncio.sleep(0.01)
        _answer("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            await device.on_event(event_at(int(line)))
            _answer(int(line))
        await device.settled()
        summary = await device.summary()
        _answer(summary.produced, summary.stored)


if __name__ == "__main__":
    asyncio.run(play(pickle.loads(Path(sys.argv[1]).read_bytes())))
