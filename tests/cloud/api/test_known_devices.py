"""Devices that a cloud has heard of: over HTTP with roles, on the command line, and on pages."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.access.access import Access, Role
from walle.cli import app
from walle.client.admin_client import AdminClient
from walle.client.cloud_client import CloudRefusedError
from walle.client.release_client import ReleaseClient

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"
FAILING = f"""\
def execute(ctx, trigger):
    ctx.log({HOSTILE!r})
    if trigger["event"]["contents"]["n"] % 2:
        raise ValueError({HOSTILE!r})
    return 1
"""
TOLERANT = {"p_good": 0.98, "p_bad": 0.99, "alpha": 0.01, "beta": 0.01, "trial_runs": 1_000}


async def command(shop: ShopCloud, *arguments: str, token: str | None = None) -> tuple[int, str]:
    token = shop.cloud.home.admin_token if token is None else token
    words = ["device", *arguments, "--url", shop.cloud.address.url]
    done = await asyncio.to_thread(CliRunner().invoke, app, words, env={"WALLE_TOKEN": token})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def token_of(cloud: ShopCloud, name: str, **roles: Role) -> str:
    path = cloud.cloud.config.folder / "access.toml"
    access = Access.load(path)
    token = access.issue(name, roles)
    access.save(path)
    return token


@pytest.mark.asyncio
async def test_a_device_is_listed_with_its_task_its_failures_and_their_log(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", attributes={"os": HOSTILE}) as device:
        user = User(device)
        await shop.push("v1", main=FAILING)
        release_id = await shop.release("v1", beta=["d0"], gate=TOLERANT)
        await user.until(lambda: device.counts.runs_failed >= 2)
        await device.settled()
        async with AdminClient(shop.cloud.address.url, shop.cloud.home.admin_token) as client:

            async def is_active() -> bool:
                page = await client.devices()
                return bool(page["devices"]) and [one["active"] for one in page["devices"][0]["tasks"]] == ["v1"]

            await until(is_active)
            await device.settled()
            known = await client.device("d0")
            assert (known["app_version"], known["attributes"]) == ("10.1", {"os": HOSTILE})
            (task,) = known["tasks"]
            assert (task["task"], task["version"], task["state"], task["release"]) == (
                "shop/count",
                "v1",
                "installed",
                release_id,
            )
            assert (task["ok"], task["failed"]) == (device.counts.runs_ok, device.counts.runs_failed)
            found = await client.device_failures("d0")
            assert sum(one["count"] for one in found) == device.counts.runs_failed
            assert found[0]["place"] == "shop/count/v1/main.py:4 in execute"
            assert found[0]["traceback"].startswith("Traceback")
            assert "onerror" in found[0]["log"]
            with pytest.raises(CloudRefusedError, match="'nobody' is unknown") as unknown:
                await client.device("nobody")
            assert unknown.value.status == 404
        async with ReleaseClient(shop.cloud.address.url, shop.cloud.home.admin_token) as releases:
            assert await releases.attribute_values("os", "shop/count", 600.0) == {HOSTILE: 1}
            assert await releases.attribute_values("os", "shop/other", 600.0) == {}
        status, text = await command(shop, "list", "--failing", "--task", "shop/count")
        assert (status, "d0" in text, "shop/count v1 (installed)" in text) == (0, True, True)
        assert "nothing to show" in (await command(shop, "list", "--version", "v9"))[1]
        assert json.loads((await command(shop, "list", "--json"))[1])["total"] == 1
        _, text = await command(shop, "show", "d0")
        assert "d0: app 10.1" in text
        assert r"os = <img src=x onerror=alert(1)>\x1b[2J" in text
        _, text = await command(shop, "logs", "d0")
        assert '    File "shop/count/v1/main.py", line 4, in execute' in text or "line 4, in execute" in text
        assert r"logged: info: <img src=x onerror=alert(1)>\x1b[2J" in text
        assert "\x1b" not in text
        assert "no failure was reported" in (await command(shop, "logs", "d0", "--task", "shop/other"))[1]


@pytest.mark.night
@pytest.mark.asyncio
async def test_devices_and_failures_are_shown_to_readers_of_their_scenario_only(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        tokens = {
            "shop": token_of(shop, "bert", shop=Role.READER),
            "bank": token_of(shop, "cleo", bank=Role.RELEASER),
        }
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:  # the cloud reads the new tokens
        user = User(device)
        await shop.push("v1", main=FAILING)
        release_id = await shop.release("v1", beta=["d0"], gate=TOLERANT)
        await user.until(lambda: device.counts.runs_failed >= 1)
        await device.settled()
        paths = ["/v1/devices", "/v1/devices/d0", "/v1/device-log/d0", f"/v1/releases/{release_id}/failures"]

        async def answers(token: str) -> list[int]:
            headers = {"Authorization": f"Bearer {token}"} if token else {"Authorization": ""}
            return [(await shop.http.get(path, headers=headers)).status_code for path in paths]

        assert await answers("") == await answers("of-nobody") == [401] * 4
        assert await answers(tokens["shop"]) == [200] * 4
        assert await answers(tokens["bank"]) == [200, 404, 404, 404]
        page = await shop.http.get("/v1/devices", headers={"Authorization": f"Bearer {tokens['bank']}"})
        assert (page.json()["devices"], page.json()["total"]) == ([], 0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "seen_within_s=-1",
        "seen_within_s=nan",
        "state=asleep",
        f"search={'x' * 300}",
    ],
)
async def test_a_wrong_query_is_refused_by_name(tmp_path: Path, query: str) -> None:
    async with shop_cloud(tmp_path) as shop:
        answer = await shop.http.get(f"/v1/devices?{query}")
        assert answer.status_code == 422
        assert query.partition("=")[0] in answer.json()["error"]


@pytest.mark.asyncio
@pytest.mark.parametrize("device_id", ["a/b?c#d\x1b e/log/x", "kiosk/log", "log", "a/device-log/b"])
async def test_an_id_with_slashes_and_controls_is_one_device(tmp_path: Path, device_id: str) -> None:
    async with shop_cloud(tmp_path) as shop:
        batch: dict[str, Any] = {"device_id": device_id, "batch_id": "b1", "outcomes": []}
        headers = session_headers(shop.cloud.home, device_id)
        assert (await shop.http.post("/v1/outcomes", json=batch, headers=headers)).status_code == 204
        async with AdminClient(shop.cloud.address.url, shop.cloud.home.admin_token) as client:
            assert (await client.device(device_id))["device_id"] == device_id
            assert await client.device_failures(device_id) == []
        assert "\x1b" not in (await command(shop, "list"))[1]
