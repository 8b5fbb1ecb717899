"""From git push to every device, and back: a whole cloud and its devices in one process."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.sim.shop_cloud import User, shop_cloud, until
from walle.base import plain
from walle.deploy.git import repo
from walle.device import Device
from walle.task.format.config import TaskConfig

ALWAYS = "def execute(ctx, trigger):\n    raise ValueError('v2 is broken')\n"
HALF = """\
def execute(ctx, trigger):
    if trigger["event"]["contents"]["n"] % 2:
        raise ValueError("v2 is broken on odd pages")
    return {"page": trigger["event"]["page_id"]}
"""


@contextlib.asynccontextmanager
async def opened(*devices: Device) -> AsyncIterator[list[User]]:
    """Give the users of devices, which are at work within the block."""
    async with contextlib.AsyncExitStack() as stack:
        yield [User(await stack.enter_async_context(device)) for device in devices]


@pytest.mark.asyncio
async def test_a_version_reaches_every_device_by_its_steps_and_its_features_the_cloud(tmp_path: Path) -> None:
    async with (
        shop_cloud(tmp_path) as shop,
        opened(*(shop.device(tmp_path / f"d{number}") for number in range(3))) as users,
    ):
        await shop.push("v1")
        release_id = await shop.release("v1", steps=[0.3, 1.0])
        full = await shop.until(release_id, "full", users=users)
        states = [entry["state"] for entry in full["history"]]
        assert list(dict.fromkeys(states)) == ["simulating", "beta", "gray", "full"]
        assert states.count("gray") == 2
        assert len(full["beta_devices"]) == 1
        assert full["totals"]["failed"] == 0
        for user in users:
            await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
            assert user.seen in ([None, "v1"], ["v1"])
            await user.device.settled()
        summaries = [await user.device.summary() for user in users]
        produced = sum(summary.produced for summary in summaries)
        assert produced == sum(summary.stored for summary in summaries) == await shop.received() > 0
        uploads = await shop.cloud.gateway.uploads("shop/count", 0, 10_000)
        pages = {(upload.device_id, plain.decode(upload.payload)["page"]) for _, upload in uploads}
        assert len(pages) == produced  # no page of a device twice


@pytest.mark.asyncio
async def test_a_rollback_by_hand_takes_the_only_version_away(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, opened(shop.device(tmp_path / "d0")) as (user,):
        await shop.push("v1")
        release_id = await shop.release("v1", beta=["d0"])
        await user.until(lambda: user.has("v1"))
        await shop.releases.rollback(release_id, "wrong")
        await user.until(lambda: user.has(None))
        assert (await shop.releases.get(release_id))["reason"] == "by admin: wrong"
        produced = (await user.device.summary()).produced
        await user.visit()
        assert user.seen == [None, "v1", None]
        summary = await user.device.summary()
        assert summary.produced == produced
        assert summary.bare_events > 0


@pytest.mark.night
@pytest.mark.asyncio
async def test_after_ten_failures_in_a_row_a_device_goes_back_before_the_cloud_knows(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, opened(shop.device(tmp_path / "d0")) as (user,):
        await shop.push("v1")
        await shop.until(await shop.release("v1"), "full", users=[user])
        await user.until(lambda: user.has("v1"))
    async with shop_cloud(tmp_path) as shop, opened(shop.device(tmp_path / "d0", report_interval_s=3600)) as (user,):
        await shop.push("v2", main=ALWAYS)
        release_id = await shop.release("v2")
        await user.until(lambda: user.has("v2"))
        await user.until(lambda: user.device.counts.runs_failed >= 10)
        await until(lambda: user.has("v1"))
        summary = await user.device.summary()
        assert summary.runs_failed == 10
        assert "v2 is broken" in summary.last_error
        assert (await shop.releases.get(release_id))["state"] == "beta"  # nothing was reported yet
        for _ in range(5):
            await user.visit()  # the directive of v2 is still there, and does not bring it back
        assert user.has("v1")
        await user.device.report()
        shown = await shop.until(release_id, "rolled_back")
        assert "v2 is broken" in shown["reason"]
        assert (shown["totals"]["failed"], shown["totals"]["reverted"]) == (summary.runs_failed, 1)
        assert user.seen == ["v1", "v2", "v1"]
        assert summary.bare_events == 0


@pytest.mark.asyncio
async def test_a_version_that_fails_on_part_is_rolled_back_and_no_device_is_ever_without(tmp_path: Path) -> None:
    async with (
        shop_cloud(tmp_path) as shop,
        opened(*(shop.device(tmp_path / f"d{number}") for number in range(3))) as users,
    ):
        await shop.push("v1")
        await shop.until(await shop.release("v1"), "full", users=users)
        for user in users:
            await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
        await shop.push("v2", main=HALF)
        shown = await shop.until(await shop.release("v2"), "rolled_back", "full", users=users)
        assert shown["state"] == "rolled_back"
        assert shown["reason"].startswith("beta: ")
        assert "odd pages" in shown["reason"]
        had_v2 = 0
        for user in users:
            await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
            had_v2 += "v2" in user.seen
            assert None not in user.seen[1:]
            assert (await user.device.summary()).bare_events == 0
        assert had_v2 == 1  # the beta device


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_cloud_that_is_restarted_in_mid_release_continues(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        release_id = await shop.release("v1", beta=["d0"], steps=[0.001, 1.0])
        await shop.until(release_id, "beta")
        address = shop.cloud.address
        ports: dict[str, Any] = {"http_port": int(address.url.rpartition(":")[2]), "tunnel_port": address.tunnel_port}
    async with shop_cloud(tmp_path, **ports) as shop:
        assert shop.cloud.address == address
        assert (await shop.releases.get(release_id))["state"] == "beta"
        async with opened(shop.device(tmp_path / "d0")) as (user,):
            await shop.until(release_id, "gray", users=[user])
            assert user.has("v1")
            await user.device.settled()
            received = await shop.received()
    async with shop_cloud(tmp_path, **ports) as shop, opened(shop.device(tmp_path / "d0")) as (user,):
        assert await shop.received() == received > 0
        shown = await shop.until(release_id, "full", users=[user])
        assert shown["totals"]["installed"] == 1
        await user.device.settled()
        assert (await user.device.summary()).produced == await shop.received() > received


@pytest.mark.asyncio
async def test_a_release_reads_its_tree_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop_cloud(tmp_path) as shop, opened(shop.device(tmp_path / "d0")) as (user,):
        await shop.push("v1")
        reads = mock.Mock(side_effect=repo.read_tree)
        parses = mock.Mock(side_effect=TaskConfig.parse)
        monkeypatch.setattr(repo, "read_tree", reads)
        monkeypatch.setattr(TaskConfig, "parse", parses)
        await shop.until(await shop.release("v1"), "full", users=[user])
        assert (reads.call_count, parses.call_count) == (
            1,
            2,
        )  # one more parse: the configuration is shown before the start
