"""A cloud with something to look at: releases in several states, and the reports of a few hundred devices."""

import random
from typing import Any

from tests.sim.shop_cloud import ShopCloud, until
from walle.protocol import Failure, FailureClass, Outcome, OutcomeBatch, OutcomeKind, Profile
from walle.trust.audience import share

TASK = "shop/count"
HOSTILE = "<img src=x onerror=alert(1)>"
GATE = {"alpha": 0.01, "beta": 0.05, "p_good": 0.02, "p_bad": 0.2}
TRACEBACK = """Traceback (most recent call last):
  File "main.py", line 3, in execute
    return rank(ctx, items)
  File "main.py", line 9, in rank
    return scores[item["id"]]
KeyError: 'id'"""
MODELS = ("P30", "Mi 9", "S20", "Pixel 8")
VERSIONS = {
    "v1": "def execute(ctx, trigger):\n    return trigger['event']['contents']['n']\n",
    "v2": "def execute(ctx, trigger):\n    items = trigger['event']['contents']\n    return items['n']\n",
    "v3": "def execute(ctx, trigger):\n    items = trigger['event']['contents']\n    return items['n'] + 0\n",
    "v4": "# the same, faster\ndef execute(ctx, trigger):\n    return trigger['event']['contents']['n']\n",
}


class Fleet:
    """Devices that report to the monitor of a cloud, as many as it takes."""

    def __init__(self, shop: ShopCloud, count: int, *, seed: int = 1) -> None:
        self.shop = shop
        self.ids = [f"phone-{number:04}" for number in range(count)]
        self._random = random.Random(seed)
        self._batches = 0

    async def show_profiles(self) -> None:
        """Send the profile of each device."""
        headers = {}
        for number, device_id in enumerate(self.ids):
            attributes = {"os": ("android", "ios")[number % 3 == 2], "model": MODELS[number % 4], "note": HOSTILE}
            profile = Profile(device_id, f"10.{number % 3}", attributes, {TASK: "v1"})
            headers[device_id] = profile.to_header().encode()
        await self.shop.cloud.monitor.note_profiles(headers)

    async def report(self, release_id: str, version: str, *, failing: float, runs: int = 10, part: float = 1.0) -> None:
        """Let the devices that are placed below `part` in the release install it and report their first runs."""
        for device_id in self.ids:
            if share(release_id, device_id) >= part:
                continue
            failed = sum(self._random.random() < failing for _ in range(runs))
            failure = Failure(
                error_type="KeyError",
                error="KeyError: 'id'",
                place="main.py:9 in rank",
                traceback=TRACEBACK,
                log=f"info: 3 items\nerror: no id in {HOSTILE}",
                count=failed,
            )
            outcomes = [
                self._outcome(release_id, version, OutcomeKind.INSTALLED),
                self._outcome(
                    release_id,
                    version,
                    OutcomeKind.RUN,
                    ok=runs - failed,
                    failed=failed,
                    error=failure.error if failed else "",
                    place=failure.place if failed else "",
                    failures=(failure,) if failed else (),
                ),
            ]
            await self.send(device_id, *outcomes)

    async def is_noted(self, release_id: str) -> None:
        """Return once the course of the release has what was reported."""

        async def is_there() -> bool:
            points = (await self.shop.cloud.monitor.course(release_id))["points"]
            totals = await self.shop.cloud.monitor.totals(release_id)
            return bool(points and points[-1]["installed"] == totals.installed)

        await until(is_there)

    async def refuse(self, release_id: str, version: str, count: int) -> None:
        """Let the first devices say that their disks are full."""
        for device_id in self.ids[:count]:
            await self.send(
                device_id,
                self._outcome(
                    release_id,
                    version,
                    OutcomeKind.REJECTED,
                    error="No space left on device",
                    failure_class=FailureClass.DEVICE,
                ),
            )

    def _outcome(self, release_id: str, version: str, kind: OutcomeKind, **more: Any) -> Outcome:
        return Outcome(task=TASK, version=version, release=release_id, kind=kind, **more)

    async def send(self, device_id: str, *outcomes: Outcome) -> None:
        self._batches += 1
        await self.shop.cloud.monitor.take(OutcomeBatch(device_id, f"b{self._batches}", outcomes))


async def play(shop: ShopCloud, *, devices: int = 240) -> dict[str, str]:
    """Push four versions and release them; return the ids of a full, a rolled back, a paused and a running release."""
    fleet = Fleet(shop, devices)
    await fleet.show_profiles()
    for version, main in VERSIONS.items():
        await shop.push(version, main=main)
    full = await shop.release("v1", beta=0, steps=[1.0], gate=GATE)
    await shop.until(full, "gray")
    await fleet.report(full, "v1", failing=0.01)
    await shop.until(full, "full")
    bad = await shop.release("v2", beta=0, steps=[0.5, 1.0], gate=GATE)
    await shop.until(bad, "gray")
    for part in (0.03, 0.5):
        await fleet.report(bad, "v2", failing=0.4, part=part)
        await fleet.is_noted(bad)
    await shop.until(bad, "rolled_back")
    paused = await shop.release("v3", beta=0, steps=[0.5, 1.0], gate=GATE, policy={"app_version": ">=10"})
    await shop.until(paused, "gray")
    await fleet.refuse(paused, "v3", 60)
    await shop.until(paused, "paused")
    running = await shop.release("v4", beta=0, steps=[0.5, 1.0], gate={**GATE, "hold_s": 3600})
    await shop.until(running, "gray")
    for part in (0.05, 0.25):
        await fleet.report(running, "v4", failing=0.03, part=part)
        await fleet.is_noted(running)
    return {"full": full, "bad": bad, "paused": paused, "running": running}
