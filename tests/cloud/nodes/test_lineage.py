"""Versions of features, through a whole cloud and a device: releases, a rollback, and a tunnel that was away."""

import asyncio
import hashlib
import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sim.shop_cloud import LIMIT_S, ShopCloud, User, shop_cloud, until
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.cli import app

_MAIN = """\
def execute(ctx, trigger):
    ctx.store.put("aside", {"made_by": "VERSION"})
    return {"page": trigger["event"]["page_id"], "made_by": "VERSION"}
"""


async def stored(shop: ShopCloud, topic: str = "shop/count") -> list[tuple[str, str]]:
    """Return, of each stored feature, the version that its payload names and that which it carries."""
    uploads = await shop.cloud.gateway.uploads(topic, 0, 10_000)
    return [(plain.decode(one.payload)["made_by"], one.version) for _, one in uploads]


async def release(shop: ShopCloud, version: str, user: User) -> str:
    model = {"resources/model.bin": f"model of {version}"}
    config = TASK_CONFIG + '[files]\n"resources/model.bin" = "shared"\n'
    await shop.push(version, main=_MAIN.replace("VERSION", version), config=config, **model)
    release_id = await shop.release(version, beta=[user.device.config.device_id])
    await user.until(lambda: user.has(version))
    await user.visit()
    return release_id


@pytest.mark.night
@pytest.mark.asyncio
async def test_each_feature_has_the_version_that_made_it_over_releases_and_a_rollback(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        first = await release(shop, "v1", user)
        await shop.until(first, "full", users=[user])
        second = await release(shop, "v2", user)
        await shop.releases.rollback(second, "wrong")
        await user.until(lambda: user.has("v1"))
        await user.visit()
        await device.settled()
        produced = (await device.summary()).produced
        await until(lambda: _has(shop, produced))
        for topic in ("shop/count", "shop/count/aside"):
            rows = await stored(shop, topic)
            assert all(named == carried for named, carried in rows)
            order = [
                version for number, (version, _) in enumerate(rows) if not number or rows[number - 1][0] != version
            ]
            assert order == ["v1", "v2", "v1"]
        found = (await shop.http.get("/v1/features", params={"version": "v2", "limit": 1000})).text
        assert found.count('"version":"v2"') == 2 * len([one for one in await stored(shop) if one[0] == "v2"]) > 0
        assert '"version":"v1"' not in found
        arguments = ["features", "made-by", "shop/count", "v2", "--json", "--url", shop.cloud.address.url]
        token = {"WALLE_TOKEN": shop.cloud.home.admin_token}
        shown = json.loads((await asyncio.to_thread(CliRunner().invoke, app, arguments, env=token)).stdout)
        assert (shown["task"], shown["version"]) == ("shop/count", "v2")
        hashes = {one["path"]: one["sha256"] for one in shown["files"]}
        assert hashes["resources/model.bin"] == hashlib.sha256(b"model of v2").hexdigest()


async def _has(shop: ShopCloud, produced: int) -> bool:
    return len(await stored(shop)) + len(await stored(shop, "shop/count/aside")) == produced


@pytest.mark.asyncio
async def test_a_feature_that_waited_for_the_tunnel_is_of_the_version_that_made_it(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # the port is bound, and nobody listens
        port = nobody.getsockname()[1]
        async with shop_cloud(tmp_path) as shop:
            async with shop.device(tmp_path / "d0", tunnel_port=port) as device:
                user = User(device)
                first = await release(shop, "v1", user)
                await shop.until(first, "full", users=[user])
                await release(shop, "v2", user)
                await device.stream.settle()
                produced = (await device.summary()).produced
            assert await stored(shop) == []
            async with shop.device(tmp_path / "d0") as device, asyncio.timeout(LIMIT_S):
                await device.settled()
                await until(lambda: _has(shop, produced))
            rows = await stored(shop)
            assert {named for named, _ in rows} == {"v1", "v2"}
            assert all(named == carried for named, carried in rows)
