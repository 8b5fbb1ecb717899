"""Features of tasks that a device never had, sent through real tunnels of a real cloud."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.shop_cloud import ShopCloud, shop_cloud, until
from tests.sim.visits import TASK_CONFIG
from walle.base.clock import SystemClock
from walle.cloud.folder.epoch import raise_epoch
from walle.device import Device
from walle.pipeline.features.losses import LossCause
from walle.pipeline.ingest.processes import TunnelProcesses

MAIN = "def execute(ctx, x):\n    return 1\n"


@pytest_asyncio.fixture(params=[1, 2], ids=["one process", "two processes"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ShopCloud]:
    async with shop_cloud(tmp_path, tunnel_processes=request.param) as shop:
        await shop.push("v1", main=MAIN, config=TASK_CONFIG)
        yield shop


async def released(shop: ShopCloud, **body: Any) -> str:
    """Release v1, and return the release's id once devices are answered with it."""
    release_id = await shop.release("v1", **body)
    await until(lambda: "shop/count" in shop.cloud.gateway._answers.answerer.table.rows)
    return release_id


async def sent(device: Device, *topics: str) -> None:
    """Send features by the tunnel itself, as a device that was taken over does, until they are acknowledged."""
    for topic in topics:
        await device.tunnel.send(topic, device.config.device_id)
    await device.settled()


async def stored(shop: ShopCloud) -> list[tuple[str, str]]:
    return [(row.device_id, row.topic) for _, row in await shop.cloud.gateway._uploads.store.query(limit=1000)]


def _counts(shop: ShopCloud, name: str) -> int:
    tunnel = shop.cloud.gateway._tunnel.service
    states = tunnel.states() if isinstance(tunnel, TunnelProcesses) else [tunnel.state()]
    return sum(state.counts[name] for state in states)


@pytest.mark.asyncio
async def test_features_of_a_task_that_a_device_never_had_are_refused_and_counted(
    shop: ShopCloud, tmp_path: Path
) -> None:
    async with shop.device(tmp_path / "a") as inside, shop.device(tmp_path / "b") as outside:
        release_id = await released(shop, beta=["a"])
        await asyncio.gather(
            sent(inside, "shop/count", "shop/count/clicks"),
            sent(outside, "shop/count", "shop/count/clicks", "own", "shop/count"),
        )
        assert sorted(await stored(shop)) == [("a", "shop/count"), ("a", "shop/count/clicks"), ("b", "own")]
        losses = [recorded.loss for recorded in await shop.cloud.gateway._uploads.store.losses("b")]
        assert {loss.cause for loss in losses} == {LossCause.REFUSED}
        assert sum(loss.count for loss in losses) == 3
        assert not await shop.cloud.gateway._uploads.store.losses("a")
        await until(lambda: _counts(shop, "foreign_uploads") == 3)  # a tunnel process reports twice a second
        metrics = (await shop.http.get("/metrics")).text
        assert "walle_tunnel_foreign_uploads_total 3.0" in metrics
        await shop.releases.rollback(release_id)
        await sent(inside, "shop/count")  # a feature that was queued before the device went back
        assert (await stored(shop)).count(("a", "shop/count")) == 2


@pytest.mark.asyncio
async def test_a_release_that_reaches_a_device_has_its_features_taken(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "b") as device:
        await shop.push("v1", main=MAIN, config=TASK_CONFIG)
        await sent(device, "shop/count")  # nothing is known of a task without a release
        first = await released(shop, beta=["a"])
        shop.cloud.gateway._tunnel.service.pump._topics._known.clear()  # type: ignore[union-attr] # as after KNOWN_S
        await sent(device, "shop/count")
        assert await stored(shop) == [("b", "shop/count")]
        await shop.releases.rollback(first)
        await shop.push("v2", main=MAIN, config=TASK_CONFIG)
        await shop.release("v2", beta=0, steps=[1.0])
        shop.cloud.gateway._tunnel.service.pump._topics._foreign.clear()  # type: ignore[union-attr] # as after AGAIN_S

        async def is_taken() -> bool:
            await sent(device, "shop/count")
            shop.cloud.gateway._tunnel.service.pump._topics._foreign.clear()  # type: ignore[union-attr]
            return len(await stored(shop)) > 1

        await until(is_taken)


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_restored_cloud_accepts_uploads_of_releases_it_may_have_lost(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path, outlived=True) as shop:
        await shop.push("v1", main=MAIN, config=TASK_CONFIG)
        await released(shop, beta=["a"])
    raise_epoch(tmp_path / "cloud", SystemClock())
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "b") as device:
        await sent(device, "shop/count")
        assert await stored(shop) == [("b", "shop/count")]
