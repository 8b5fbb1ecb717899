"""Bound and expiry of a task's state on a real device: kills, counts, warnings, the release, and commands."""

import asyncio
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.dashboard.visitor import log_in
from tests.pipeline.slow_entries import SlowState
from tests.sim.shop_cloud import ShopCloud, User, device_config, shop_cloud
from tests.sim.visits import TASK_CONFIG, event_at
from walle.base import plain
from walle.cli import app
from walle.protocol import StatePolicy

ROOT = Path(__file__).parents[2]
TASK = "shop/count"
EVICTING = '[state]\nmax_bytes = 1900\non_full = "evict"\nttl_s = 1\n'
MAIN = """\
def execute(ctx, trigger):
    found = list(ctx.state)
    n = int(trigger["event"]["page_id"].partition("/")[2])
    if n % 8 == 0:
        ctx.state[f"page/{n}"] = "x" * (20 + 60 * (n // 100 % 4 == 1))
    ctx.state.setdefault("all", []).append(n)
    del ctx.state["all"][:-3]
    return [found, ctx.state["all"]]
"""
GROWING = """\
def execute(ctx, trigger):
    ctx.state[trigger["event"]["page_id"]] = "x" * 100
    return len(ctx.state)
"""


async def outputs(shop: ShopCloud) -> list[Any]:
    uploads = await shop.cloud.gateway.uploads(TASK, 0, 10_000)
    return [plain.decode(upload.payload) for _, upload in uploads]


def expected_outputs(visits: int) -> tuple[list[Any], SlowState]:
    """Return what MAIN returns on these visits in one process, by the slow reference."""
    state = SlowState(StatePolicy.parse({"max_bytes": 1900, "on_full": "evict", "ttl_s": 1}))
    found: list[Any] = []
    for n in range(visits):

        def visit(value: dict[str, Any], n: int = n) -> None:
            if n % 8 == 0:
                value[f"page/{n}"] = "x" * (20 + 60 * (n // 100 % 4 == 1))
            value["all"] = [*value.get("all", []), n][-3:]

        before = state.run(event_at(3 * n + 2).ts_ms, visit)
        found.append([list(before), state.value["all"]])
    return found, state


@pytest.mark.night
@pytest.mark.system
@pytest.mark.asyncio
async def test_a_device_that_is_killed_evicts_and_expires_as_one_that_is_not(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", main=MAIN, config=TASK_CONFIG + EVICTING)
        await shop.release("v1", beta=["d0"])
        config_file = tmp_path / "config"
        config_file.write_bytes(pickle.dumps(device_config(shop.cloud.address, shop.cloud.home, tmp_path / "d0")))

        async def play(*visits: str) -> asyncio.subprocess.Process:
            command = [sys.executable, "-m", "tests.sim.visits", str(config_file), *visits]
            return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)

        for more in (40, 100, 150, 90):
            before = await shop.received()
            process = await play()
            try:
                async with asyncio.timeout(60):
                    while await shop.received() < before + more:
                        assert process.returncode is None
                        await asyncio.sleep(0.002)
            finally:
                os.kill(process.pid, signal.SIGKILL)
                await process.communicate()
        process = await play("150")
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        assert process.returncode == 0
        visits = int(output.split()[0])
        found, state = expected_outputs(visits)
        assert await outputs(shop) == found
        async with shop.device(tmp_path / "d0") as device:
            active = device.store.task_states.active(TASK)
            assert active is not None
            assert active.data == plain.encode(state.value)
            assert active.times is not None
            assert list(active.times.written_ms.items()) == state.written
        gone = {f"page/{n}" for n in range(0, visits, 8)} - set(state.value) - set(state.evicted)
        assert len(state.evicted) > 5
        assert len(gone) > 5  # removed for their age


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_growing_state_is_shown_before_it_is_full_and_evictions_reach_the_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "walle.task")
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        config = '[state]\nmax_bytes = 2048\non_full = "evict"\n[simulation]\nevents = "simulation/events.jsonl"\n'
        events = "".join(json.dumps(event_at(position).to_dict()) + "\n" for position in range(6))
        files = {"simulation/events.jsonl": events}
        await shop.push("v1", main=GROWING, config=TASK_CONFIG + config, **files)
        release_id = await shop.release("v1", beta=["d0"])
        await user.until(lambda: user.has("v1"))
        while (size := (await device.summary()).states[TASK]).size_bytes < 0.8 * 2048:
            assert "ctx.state has" not in caplog.text
            await user.visit()
        assert (size.max_bytes, size.evicted) == (2048, 0)
        active = device.store.task_states.active(TASK)
        assert active is not None
        assert size.entries == len(active.value)
        for _ in range(12):
            await user.visit()
        assert caplog.text.count("ctx.state has") == 1  # once
        assert "of 2048 bytes in" in caplog.text
        assert "beyond them the oldest entries are evicted. The largest entries: 'page/" in caplog.text
        await device.settled()
        summary = await device.summary()
        size = summary.states[TASK]
        assert 1900 < size.size_bytes <= 2048
        assert size.evicted > 5
        totals = (await shop.releases.get(release_id))["totals"]
        assert (totals["entries_evicted"], totals["state_max_bytes"]) == (size.evicted, 2048)
        assert 1900 < totals["state_bytes"] <= 2048
        bearer = {"Authorization": f"Bearer {shop.cloud.home.admin_token}"}
        metrics = (await shop.http.get("/metrics", headers=bearer)).text
        of_release = f'release="{release_id}",task="{TASK}"'
        assert f"walle_release_state_bytes{{{of_release}}} {totals['state_bytes']}.0" in metrics
        assert f"walle_release_state_limit_bytes{{{of_release}}} 2048.0" in metrics
        assert f'walle_release_dropped_total{{{of_release},what="entries"}} {size.evicted}.0' in metrics
        async with httpx.AsyncClient(base_url=shop.cloud.address.url) as person:
            await log_in(person, shop.cloud.home.admin_token)
            page = (await person.get(f"/dashboard/releases/{release_id}")).text
        assert (
            f'<div class="bad"><dt>largest state</dt><dd>{totals["state_bytes"]:,} B <small>of 2,048 B</small>' in page
        )
        assert f"<dt>state entries evicted</dt><dd>{size.evicted}</dd>" in page
        command = ["release", "status", release_id, "--url", shop.cloud.address.url]
        as_admin = {"WALLE_TOKEN": shop.cloud.home.admin_token}
        shown = (await asyncio.to_thread(CliRunner().invoke, app, command, env=as_admin)).stdout
        assert f"largest state of a device: {totals['state_bytes']:,} of 2,048 bytes" in shown
        assert f"{size.evicted} entries of states were evicted" in shown
        assert "<dt>largest state simulated</dt><dd>219 B <small>of 2,048 B</small>" in page
        assert "largest state in the simulation: 219 of 2,048 bytes (11%)" in shown
        assert "beyond its bound" not in shown + page

        device.agent.outcomes._state_of = lambda _task, _version: (10**9, 10**9)  # the device lies from now on
        await user.visit()
        await device.settled()
        found = (await shop.releases.get(release_id))["totals"]
        assert (found["state_bytes"], found["state_max_bytes"]) == (totals["state_bytes"], 2048)
        assert found["states_refused"] >= 1
        shown = (await asyncio.to_thread(CliRunner().invoke, app, command, env=as_admin)).stdout
        assert f"{found['states_refused']} reports of a state beyond its bound were ignored" in shown
        async with httpx.AsyncClient(base_url=shop.cloud.address.url) as person:
            await log_in(person, shop.cloud.home.admin_token)
            page = (await person.get(f"/dashboard/releases/{release_id}")).text
        assert f"<dt>state beyond its bound</dt><dd>{found['states_refused']} <small>reports, ignored" in page


@pytest.mark.asyncio
async def test_a_state_that_is_refused_at_its_bound_fails_with_its_largest_entries(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=GROWING, config=TASK_CONFIG + "[state]\nmax_bytes = 1024\n")
        await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_failed > 0)
        error = device.counts.last_error
        assert "the state of task 'shop/count' has" in error
        assert "bytes, more than 1024; keep less, or put features, or have old entries removed" in error
        assert 'in [state] of task.toml set ttl_s or on_full = "evict"' in error
        assert "its largest entries: 'page/" in error
        active = device.store.task_states.active(TASK)
        assert active is not None
        assert len(active.data) <= 1024
