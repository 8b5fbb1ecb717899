"""`walle device-file`: put, list and remove, at a cloud."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.device_session import enrol
from tests.sim.shop_cloud import shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.cli import app
from walle.client.cloud_client import CloudRefusedError
from walle.errors import WalleError

CONFIG = TASK_CONFIG + '[[exclusive]]\nname = "gallery.json"\nmax_bytes = 100\n'


def run(url: str, token: str, *arguments: str) -> Callable[[], Any]:
    """Return a call of a command, for a thread: it returns what is printed, read as JSON if --json is given."""

    def call() -> Any:
        result = CliRunner().invoke(app, ["device-file", *arguments], env={"WALLE_URL": url, "WALLE_TOKEN": token})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0 or "--json" not in arguments, result.output
        return json.loads(result.output) if "--json" in arguments else result.output

    return call


@pytest.mark.asyncio
async def test_files_are_put_listed_and_removed(tmp_path: Path) -> None:
    data = tmp_path / "alice.json"
    await asyncio.to_thread(data.write_text, "{}")
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", config=CONFIG)
        for device_id in ("phone-1", "phone-2"):
            await asyncio.to_thread(enrol, shop.cloud.home, device_id)

        async def walle(*arguments: str) -> Any:
            return await asyncio.to_thread(run(shop.cloud.address.url, shop.cloud.home.admin_token, *arguments))

        both = ("--device", "phone-1", "--device", "phone-2", "--device", "phone-1")
        name = ("shop/count", "gallery.json")
        done = await walle("put", *name, str(data), *both, "--json")
        assert (done["devices"], done["size_bytes"]) == (["phone-1", "phone-2"], 2)
        listed = await walle("list", "shop/count", "--json")
        assert [(file["device_id"], file["name"], file["put_by"]) for file in listed] == [
            ("phone-1", "gallery.json", "admin"),
            ("phone-2", "gallery.json", "admin"),
        ]
        assert await walle("list", "shop/other", "--json") == []
        assert (await walle("remove", *name, "--device", "phone-1", "--json"))["devices"] == ["phone-1"]
        assert [file["device_id"] for file in await walle("list", "shop", "--json")] == ["phone-2"]
        assert "phone-2" in await walle("list", "shop", "--device", "phone-2")
        with pytest.raises(CloudRefusedError, match=r"'phone-1' has no file 'gallery.json' of shop/count"):
            await walle("remove", *name, "--device", "phone-1")
        with pytest.raises(WalleError, match=r"no device 'phone-3' is enrolled.*; done before that for: phone-2"):
            await walle("put", *name, str(data), "--device", "phone-2", "--device", "phone-3")
        group = ("--rule", "version_in(app_version, '>=10')")
        put = (await walle("put", *name, str(data), *group)).replace("\n", " ")
        assert "gallery.json of shop/count, 2 bytes, is there for the group version_in(app_version, '>=10')" in put
        assert (await walle("put", *name, str(data), "--app-version", "<9", "--json"))["app_version"] == "<9"
        listed = await walle("list", "shop/count", "--json")
        assert [one["policy"]["app_version"] for one in listed if "policy" in one] == ["<9", ""]
        assert "app version <9" in await walle("list", "shop")
        assert (await walle("remove", *name, *group, "--json"))["devices"] == []
        with pytest.raises(CloudRefusedError, match=r"shop/count has no file 'gallery.json' for this rule"):
            await walle("remove", *name, *group)
        for both_or_none in ((), ("--device", "phone-2", *group)):
            assert "one of both" in (await walle("put", *name, str(data), *both_or_none)).replace("\n", " ")
        await asyncio.to_thread(data.write_bytes, bytes(101))
        with pytest.raises(CloudRefusedError, match="larger than 100 bytes, its max_bytes"):
            await walle("put", *name, str(data), "--device", "phone-2")
        for wrong in (("count", "gallery.json", str(data)), (*name, str(tmp_path / "absent"))):
            assert "Invalid value" in await walle("put", *wrong, "--device", "phone-2")
        await asyncio.to_thread(data.write_bytes, bytes((4 << 20) + 1))
        assert "at most" in await walle("put", *name, str(data), "--device", "phone-2")
