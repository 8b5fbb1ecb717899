"""`walle device enrol|revoke|list` on a running cloud, over HTTP and on its folder."""

import asyncio
import getpass
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from tests.night.cases import at_night
from tests.sim.shop_cloud import ShopCloud, device_config, shop_cloud
from walle.access.audit import read_records
from walle.cli import app
from walle.cli.credentials import Credentials
from walle.cli.device.identity import parse_life_s
from walle.cli.join import Join
from walle.device import Device


class Commands:
    """The commands, for the cloud of a test."""

    def __init__(self, shop: ShopCloud, folder: Path) -> None:
        self.shop = shop
        self.folder = folder
        address, home = shop.cloud.address, shop.cloud.home
        join = Join(
            url=address.url,
            tunnel_host=address.tunnel_host,
            tunnel_port=address.tunnel_port,
            ca_pem=address.ca_pem,
            enrolment_token="",
            trusted_keys=home.trusted_keys,
        )
        join.save(home.folder / "join.json")
        self.where = {
            "folder": ["--cloud", str(home.folder)],
            "http": ["--token-file", str(home.folder / "admin.token"), "--url", address.url],
        }

    async def run(self, *arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["device", *arguments])
        error = "" if isinstance(result.exception, SystemExit | None) else str(result.exception)
        return result.exit_code, result.output + error

    async def enrol(self, way: str, *arguments: str) -> Join:
        """Return the join file that is written."""
        where = self.where[way]
        if way == "http":
            where = [*where[:2], "--join", str(self.shop.cloud.home.folder / "join.json")]
        path = self.folder / "enrolled.json"
        status, output = await self.run("enrol", *arguments, *where, "--output", str(path))
        assert status == 0, output
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert Join.load(path).enrolment_token not in output
        return Join.load(path)

    def device(self, name: str, join: Join) -> Device:
        shop, folder = self.shop, self.folder / "devices" / name
        token = {"enrolment_token": join.enrolment_token, "ca_pem": join.ca_pem}
        return Device(device_config(shop.cloud.address, shop.cloud.home, folder, **token))


@pytest_asyncio.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    async with shop_cloud(tmp_path) as shop:
        yield Commands(shop, tmp_path)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["folder", *at_night("http")])
async def test_a_device_is_enrolled_listed_revoked_and_enrolled_again(commands: Commands, way: str) -> None:
    async def listed() -> dict[str, Any]:
        status, output = await commands.run("list", "--enrolled", *commands.where[way], "--json")
        assert status == 0, output
        (found,) = json.loads(output)["devices"]
        return dict(found)

    join = await commands.enrol(way, "kiosk")
    async with commands.device("kiosk", join) as device:
        await device.checkin()
    first = await listed()
    assert (first["device_id"], first["generation"], first["revoked_s"]) == ("kiosk", 1, None)
    assert first["expires_s"] - first["enrolled_s"] == pytest.approx(30 * 86_400, abs=5)
    status, _ = await commands.run("revoke", "kiosk", "--reason", "stolen", *commands.where[way])
    assert status == 0
    assert (await listed())["reason"] == "stolen"
    status, output = await commands.run("list", "--enrolled", *commands.where[way])
    assert "revoked: stolen" in output
    again = await commands.enrol(way, "kiosk", "--expires", "90m")
    async with commands.device("kiosk", again) as device:
        await device.checkin()
    assert ((await listed())["generation"], (await listed())["revoked_s"]) == (2, None)
    by = {record.action: record for record in read_records(commands.shop.cloud.home.folder / "audit")}
    assert list(by) == ["device.enrolment_token", "device.enrol", "device.revoke"]
    assert all(record.subject == "kiosk" for record in by.values())
    assert by["device.enrol"].details == {"key": 2}
    assert by["device.enrol"].address == "127.0.0.1"
    assert by["device.revoke"].details == {"reason": "stolen"}
    who = "admin" if way == "http" else f"{getpass.getuser()} on the cloud's machine"
    assert {by[action].who for action in ("device.enrolment_token", "device.revoke")} == {who}


@pytest.mark.asyncio
async def test_commands_on_the_folder_are_in_the_audit_log(commands: Commands) -> None:
    join = await commands.enrol("folder", "kiosk", "--expires", "90m")
    async with commands.device("kiosk", join) as device:
        await device.checkin()
    assert (await commands.run("revoke", "kiosk", "--reason", "stolen", *commands.where["folder"]))[0] == 0
    audit = commands.shop.cloud.home.folder / "audit"
    records = [record for record in read_records(audit) if record.action.startswith("device.")]
    here = f"{getpass.getuser()} on the cloud's machine"
    assert [(one.action, one.who, one.subject, one.details) for one in records] == [
        ("device.enrolment_token", here, "kiosk", {"uses": 1, "life_s": 5400.0}),
        ("device.enrol", "enrolment token", "kiosk", {"key": 1}),
        ("device.revoke", here, "kiosk", {"reason": "stolen"}),
    ]


@pytest.mark.asyncio
async def test_a_logged_in_admin_enrols_by_a_join_file(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(commands.folder / "config"))
    monkeypatch.delenv("WALLE_TOKEN", raising=False)
    shop = commands.shop.cloud
    Credentials.load().put(shop.address.url, shop.home.admin_token, shop.address.ca_pem)
    path = commands.folder / "kiosk.json"
    join = ("--join", str(shop.home.folder / "join.json"), "--output", str(path))
    status, output = await commands.run("enrol", "kiosk", *join)
    assert status == 0, output
    assert f"walle device run FOLDER --join {path}" in output
    assert Join.load(path).device_id == "kiosk"
    async with commands.device("kiosk", Join.load(path)) as device:
        await device.checkin()


@pytest.mark.asyncio
async def test_the_list_of_known_devices_has_the_state_of_their_keys(commands: Commands) -> None:
    join = await commands.enrol("folder", "kiosk")
    async with commands.device("kiosk", join) as device:
        await device.checkin()
    where = commands.where["http"]
    for key in ("enrolled", "revoked"):
        async with asyncio.timeout(20):
            while True:  # profiles are listed every two seconds
                status, output = await commands.run("list", *where, "--json")
                found = json.loads(output)["devices"] if status == 0 else []
                if found:
                    break
                await asyncio.sleep(0.1)
        assert [(one["device_id"], one["key"]) for one in found] == [("kiosk", key)]
        assert f"key: {key}, certificate until 20" in (await commands.run("show", "kiosk", *where))[1]
        assert (await commands.run("revoke", "kiosk", *where))[0] == 0


@pytest.mark.asyncio
async def test_wrong_uses_say_what_to_do(commands: Commands, tmp_path: Path) -> None:
    folder, http = commands.where["folder"], commands.where["http"]
    join = ["--join", str(commands.shop.cloud.home.folder / "join.json")]
    wrong = {
        "no device 'nobody' is enrolled": ["revoke", "nobody", *folder],
        "'nobody' is enrolled; list": ["revoke", "nobody", *http],
        "name the cloud": ["revoke", "nobody"],
        "--cloud, or a join file": ["enrol", "a"],
        "is not the folder of a cloud": ["enrol", "a", "--cloud", str(tmp_path)],
        "name the file to write": ["enrol", *folder],
        "enrolled once": ["enrol", "a", "--uses", "2", *folder],
        "is not a time": ["enrol", "a", "--expires", "soon", *folder],
        "needs a valid token": ["enrol", "a", *join],
    }
    for message, arguments in wrong.items():
        status, output = await commands.run(*arguments)
        assert status != 0, message
        assert message in " ".join(output.replace("│", " ").split()), output


@pytest.mark.parametrize(("text", "life_s"), [("90m", 5400.0), ("12h", 43_200.0), ("30d", 2_592_000.0)])
def test_times_have_units(text: str, life_s: float) -> None:
    assert parse_life_s(text) == life_s
