"""A whole cloud whose state is in PostgreSQL: devices, files of their own, commands on its folder, no SQLite file."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.device_session import session_headers
from tests.sim.postgres_server import PostgresServer
from tests.sim.shop_cloud import ShopCloud, device_config, shop_cloud, until
from tests.sim.visits import TASK_CONFIG
from walle.cli import app
from walle.cli.join import Join
from walle.cloud import CloudHome
from walle.cloud.folder.state_place import choose_database
from walle.device import Device
from walle.protocol import PROFILE_HEADER, ExclusiveList, Profile

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CONFIG = TASK_CONFIG + '[[exclusive]]\nname = "gallery.json"\nrequired = false\nmax_bytes = 2000\n'
PATH = "/v1/exclusive/shop/count/gallery.json"


async def walle(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


async def enrol(shop: ShopCloud, name: str, folder: Path) -> Device:
    """Return a device whose token a command on the cloud's folder has made."""
    address, home = shop.cloud.address, shop.cloud.home
    Join(
        url=address.url,
        tunnel_host=address.tunnel_host,
        tunnel_port=address.tunnel_port,
        ca_pem=address.ca_pem,
        enrolment_token="",
        trusted_keys=home.trusted_keys,
    ).save(home.folder / "join.json")
    output = folder / f"{name}.json"
    await walle("device", "enrol", name, "--cloud", str(home.folder), "--output", str(output))
    token = Join.load(output).enrolment_token
    return Device(device_config(address, home, folder / name, enrolment_token=token))


async def exclusive_names(shop: ShopCloud, name: str, os: str = "") -> list[tuple[str, int]]:
    """Return names and sizes in a device's signed list."""
    headers = session_headers(shop.cloud.home, name)
    if os:
        headers[PROFILE_HEADER] = Profile(name, "10.1", {"os": os}).to_header()
    answer = await shop.http.get("/cen/files", headers=headers)
    assert answer.status_code == 200, answer.text
    return [(file.name, file.size_bytes) for file in ExclusiveList.from_bytes(answer.content).files]


def everything(home: CloudHome) -> bytes:
    """Return the rows of all tables of the database, as a dump has them, with their bytes."""
    tables = home.database.read("SELECT schemaname, relname FROM pg_stat_user_tables")
    assert len(tables) > 20
    found = []
    for schema, table in tables:
        for row in home.database.read(f'SELECT * FROM {schema}."{table}"'):
            found += [one if isinstance(one, bytes) else str(one).encode() for one in row]
    return b"|".join(found)


@pytest.mark.asyncio
async def test_a_cloud_on_a_database_has_plain_files_in_its_folder_and_no_secret_in_the_database(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    folder, dsn = tmp_path / "cloud", postgres.make_database()
    choose_database(folder, dsn)
    config: dict[str, Any] = {"database": dsn, "uploads": dsn}
    async with shop_cloud(tmp_path, **config) as shop:
        (folder / "attributes.toml").write_text('[attributes]\nos = "string"\n')
        await shop.push("v1", config=CONFIG)
        tokens = [shop.cloud.home.identities().make_token(life_s=60.0).encode()]
        for name in ("kiosk", "other"):
            async with await enrol(shop, name, tmp_path) as device:
                await device.checkin()
            tokens.append(Join.load(tmp_path / f"{name}.json").enrolment_token.encode())
        assert (await shop.http.put(PATH, params={"device": "kiosk"}, content=b"of the kiosk")).status_code == 204
        rule = {"rule": "os == 'linux'"}
        assert (await shop.http.put(PATH, params=rule, content=b"of a group")).status_code == 204
        own, of_group = await exclusive_names(shop, "kiosk", "linux"), await exclusive_names(shop, "other", "linux")
        assert [name for name, _ in (*own, *of_group)] == ["gallery.json"] * 2
        assert own[0][1] - of_group[0][1] == len("of the kiosk") - len("of a group")
        assert await exclusive_names(shop, "other", "android") == []
        await walle("device", "revoke", "other", "--reason", "stolen", "--cloud", str(folder))

        async def is_refused() -> bool:
            return (
                await shop.http.get("/cen/files", headers=session_headers(shop.cloud.home, "other"))
            ).status_code == 401

        await until(is_refused)
        listed = json.loads(await walle("device", "list", "--enrolled", "--cloud", str(folder), "--json"))["devices"]
        assert [(one["device_id"], one["reason"]) for one in listed] == [("kiosk", ""), ("other", "stolen")]
        by_http = await shop.http.get("/v1/identity/devices")
        assert by_http.json()["devices"] == listed
        shown = (await shop.http.get("/v1/exclusive/shop")).json()
        assert ([one["device_id"] for one in shown["files"]], len(shown["groups"])) == (["kiosk"], 1)
        assert (await shop.http.delete(PATH, params=rule)).status_code == 204
        assert (await shop.http.put(PATH, params=rule, content=b"of a group")).status_code == 204
    async with shop_cloud(tmp_path, **config) as shop:  # everything is there again
        assert await exclusive_names(shop, "kiosk", "linux") == own
        assert await is_refused()
    assert [path.name for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:6] == b"SQLite"] == []
    said = await walle("cloud", "backup", str(folder), str(tmp_path / "backup"))
    assert "without releases, devices, identities, exclusive files and audit log" in " ".join(said.split())
    with contextlib.closing(CloudHome(folder)) as home:
        stored = everything(home)
        secrets = {b"of the kiosk", b"of a group", home.admin_token.encode(), *tokens}
        secrets |= {path.read_bytes().strip() for path in folder.rglob("*") if path.suffix in (".pem", ".key")}
        assert len(secrets) > 10
        assert b"kiosk" in stored
        assert [secret for secret in secrets if secret in stored] == []
        actions = {record.action for record in home.audit.records()}
        assert actions >= {"device.enrolment_token", "device.enrol", "device.revoke", "file.put", "file.remove"}
