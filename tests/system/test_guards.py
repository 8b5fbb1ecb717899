"""Guards on a whole system: what real devices measure and report rolls a version back."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sim.shop_cloud import User, shop_cloud
from walle.cli import app

DEVICES = 24
FAST = """\
def execute(ctx, trigger):
    ctx.metric("found", 2)
    return 1
"""
SLOW = """\
def execute(ctx, trigger):
    ctx.metric("found", 2)
    return sum(number * number for number in range(200_000)) % 2
"""
# With a large α about ten devices are enough, and without failures the other tests accept later.
GATE = {"p_good": 0.3, "p_bad": 0.8, "alpha": 0.4, "beta": 0.001, "device_runs": 3}


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_slow_version_is_rolled_back_and_the_reason_names_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walle.deploy.gate.guard_test.MIN_CHOICE", 1)  # few devices are here to compare
    monkeypatch.setattr("walle.deploy.gate.guard_test.PARTNERS", 1)
    async with contextlib.AsyncExitStack() as stack:
        shop = await stack.enter_async_context(shop_cloud(tmp_path))
        await shop.push("v1", main=FAST)
        first = await shop.release("v1", beta=0)
        users = [
            User(await stack.enter_async_context(shop.device(tmp_path / f"d{number}", vm_host=False)))
            for number in range(DEVICES)
        ]
        await shop.until(first, "full", users=users[:1])
        await asyncio.gather(*(user.until(lambda user=user: user.has("v1")) for user in users))  # type: ignore[misc]
        await shop.push("v2", main=SLOW)
        gate = {**GATE, "guards": ["latency_ms < 2x", "found > 0.9x"]}
        second = await shop.release("v2", beta=0, steps=[0.5, 1.0], gate=gate)
        shown = await shop.until(second, "rolled_back", "full", "paused", users=users)
        assert shown["state"] == "rolled_back", shown["reason"]
        assert shown["reason"].startswith("50 % step: guard latency_ms < 2x: it is above that on most of ")
        slow, found = (await shop.releases.evidence(second))["guards"]
        assert slow["state"] == "bad"
        assert slow["new"] > 2 * slow["control"] > 0
        assert (found["new"], found["control"]) == (2.0, 2.0)
        assert found["devices"] > 0
        command = ["release", "status", second, "--url", shop.cloud.address.url]
        as_admin = {"WALLE_TOKEN": shop.cloud.home.admin_token}
        text = (await asyncio.to_thread(CliRunner().invoke, app, command, env=as_admin)).stdout
        assert "guard latency_ms < 2x: bad; medians" in text
        await asyncio.gather(*(user.until(lambda user=user: user.has("v1")) for user in users))  # type: ignore[misc]
