"""Variants on a whole system: devices of two kinds get other files of one version, are explained, move and go back."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.visits import TASK_CONFIG
from walle.cli import app
from walle.device import Device

VARIANTS = """
[files]
"resources/size.txt" = "shared"
[variants.small]
rule = "performance == 'low'"
files = {"resources/size.txt" = "resources/small.txt"}
"""
MAIN = """\
def execute(ctx, trigger):
    return {"size": bytes(ctx.resource("size.txt")).decode()}
"""
FILES = {"resources/size.txt": "large", "resources/small.txt": "small"}


async def _is_explained(shop: ShopCloud, device_id: str) -> bool:
    """Return whether `walle release explain` says that the device has its variant, once the cloud has heard of it."""
    command = ["release", "explain", "--device", device_id, "--task", "shop/count", "--url", shop.cloud.address.url]
    env = {"WALLE_TOKEN": shop.cloud.home.admin_token}
    shown = (await asyncio.to_thread(CliRunner().invoke, app, command, env=env)).stdout
    return "shop/count: has v1@small, gets v1@small" in shown and "variant small the first of its variants" in shown


def _device(shop: ShopCloud, folder: Path, performance: str) -> Device:
    return shop.device(folder, vm_host=False, attributes={"performance": performance})


def _model(folder: Path) -> str:
    """Return the contents of the one installed file."""
    (found,) = folder.rglob("versions/*/files/resources/size.txt")
    return found.read_text()


@pytest.mark.asyncio
async def test_devices_of_two_kinds_get_other_files_of_one_version(tmp_path: Path) -> None:
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "attributes.toml").write_text('[attributes]\nperformance = "string"\n')
    async with contextlib.AsyncExitStack() as stack:
        shop = await stack.enter_async_context(shop_cloud(tmp_path))
        await shop.push("v1", config=TASK_CONFIG + VARIANTS, main=MAIN, **FILES)
        release = await shop.release("v1", beta=0)
        high = User(await stack.enter_async_context(_device(shop, tmp_path / "high", "high")))
        async with _device(shop, tmp_path / "low", "low") as device:
            low = User(device)
            shown = await shop.until(release, "full", "failed", users=[high, low])
            assert shown["state"] == "full", shown["reason"]
            await high.until(lambda: high.has("v1"))
            await low.until(lambda: low.has("v1@small"))
            assert (_model(tmp_path / "high"), _model(tmp_path / "low")) == ("large", "small")
            await until(lambda: _is_explained(shop, "low"))
            found = (await shop.http.get("/v1/devices", params={"task": "shop/count", "version": "v1"})).json()
            assert {one["device_id"]: one["tasks"][0]["active"] for one in found["devices"]} == {
                "high": "v1", "low": "v1@small",
            }  # fmt: skip
        async with _device(shop, tmp_path / "low", "high") as device:  # a new version of its app, perhaps
            low = User(device)
            await low.until(lambda: low.has("v1"))
            await shop.releases.rollback(release, "too large")
            await low.until(lambda: low.has(None))
        await high.until(lambda: high.has(None))
