"""A user with a replayable, endless event stream: page visits of three events, one after the other.

`make_driver` is a driver factory for `walle.actors.wiring.Fleet`. Run as a program, it is a device in a process of its
own, whose user plays until the process is killed, or for VISITS more visits:
    python -m tests.sim.visits CONFIG_FILE [VISITS]
"""

import asyncio
import contextlib
import pickle
import sys
from pathlib import Path
from typing import Any

import httpx

from walle.device import Device, DeviceConfig
from walle.pipeline.events.event import CLICK, PAGE_ENTER, PAGE_EXIT, Event

EVENTS = (PAGE_ENTER, CLICK, PAGE_EXIT)
TASK_CONFIG = '[task]\nname = "count"\n[trigger]\nsequence = ["page_exit"]\n'
TASK_MAIN = """\
def execute(ctx, trigger):
    return {"page": trigger["event"]["page_id"], "events": len(ctx.events)}
"""


def event_at(position: int) -> Event:
    """Return the stream's event at a position; visit n is of page n and has positions 3 n to 3 n + 2."""
    visit, part = divmod(position, len(EVENTS))
    return Event(EVENTS[part], f"page/{visit}", 1_000_000 + position, {"n": visit})


class Visitor:
    """A player that starts where the device resumes, once the device has a task, and checks in periodically."""

    def __init__(self, device: Device, visits: int | None, pause_s: float) -> None:
        self._device = device
        self._visits = visits
        self._pause_s = pause_s
        self._is_stopped = False
        self.done = 0  # visits since the stream began, in earlier processes too

    async def run(self) -> None:
        device = self._device
        while not device.tasks and not self._is_stopped:
            await self._check_in()
            await asyncio.sleep(0.02)
        position = device.resume_from
        until = None if self._visits is None else device.store.position // len(EVENTS) + 1 + self._visits
        while not self._is_stopped and (until is None or position < until * len(EVENTS)):
            for _ in EVENTS[position % len(EVENTS) :]:
                await device.on_event(event_at(position), position, can_wait=True)
                position += 1
            self.done = position // len(EVENTS)
            if self.done % 10 == 0:
                await self._check_in()
            await asyncio.sleep(self._pause_s)

    async def _check_in(self) -> None:
        with contextlib.suppress(httpx.HTTPError):  # the cloud is unreachable for now
            await self._device.checkin()

    def finish(self) -> None:
        self._is_stopped = True

    def counts(self) -> dict[str, Any]:
        return {"visits": self.done}


def make_driver(device: Device, options: dict[str, Any]) -> Visitor:
    return Visitor(device, options.get("visits"), options.get("pause_s", 0.0))


async def main(config: DeviceConfig, visits: int | None) -> None:
    async with Device(config) as device:
        visitor = Visitor(device, visits, 0.001)
        await visitor.run()
        await device.settled()
        summary = await device.summary()
    sys.stdout.write(f"{visitor.done} {summary.produced} {summary.stored}\n")


if __name__ == "__main__":
    asyncio.run(main(pickle.loads(Path(sys.argv[1]).read_bytes()), int(sys.argv[2]) if sys.argv[2:] else None))
