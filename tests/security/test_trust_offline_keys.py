"""A whole cloud whose offline keys are elsewhere: signing, revocation, rotation, and a restore from a backup."""

import asyncio
import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.access.audit import read_records
from walle.base.clock import ManualClock, SystemClock
from walle.cli import app
from walle.client.release_client import ReleaseJson
from walle.cloud import CloudHome
from walle.cloud.folder.epoch import raise_epoch, read_epoch
from walle.cloud.nodes.trust import OnlineRoles
from walle.deploy.releases.table import ReleaseTable
from walle.device import Device
from walle.errors import ConfigError
from walle.protocol import Timestamp
from walle.trust.folder import prepare_trust
from walle.trust.metadata import RoleKeys
from walle.trust.signing import MANIFEST_DOMAIN, Signer

TASK = "shop/count"
SIGNER = """\
import base64, sys
from pathlib import Path
from walle.trust.signing import Signer
data = sys.stdin.buffer.read()
print(base64.b64encode(Signer.load(Path(sys.argv[1])).sign(data)).decode())
"""


async def walle(shop: ShopCloud | None, *arguments: str) -> tuple[int, str]:
    """Return the exit status and output of a command, or the error that it ended with."""
    environment = {}
    if shop is not None:
        environment = {"WALLE_URL": shop.cloud.address.url, "WALLE_TOKEN": shop.cloud.home.admin_token}
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=environment)
    return result.exit_code, result.output + str(result.exception or "")


async def waiting(shop: ShopCloud, release_id: str) -> ReleaseJson:
    """Return the release once it says what it waits for."""
    found: list[ReleaseJson] = []

    async def says() -> bool:
        found[:] = [await shop.releases.get(release_id)]
        return "waits for a signature" in found[0]["reason"]

    await until(says)
    return found[0]


async def installed(user: User, version: str) -> None:
    await user.until(lambda: user.device.tasks.get(TASK) == version)


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_cloud_without_the_offline_keys_waits_for_the_authors_signature(tmp_path: Path) -> None:
    author = tmp_path / "author"
    async with shop_cloud(tmp_path) as shop:
        home = shop.cloud.home
        assert stat.S_IMODE(home.trust.offline.stat().st_mode) == 0o700
        await shop.push("v1")
        first = await shop.release("v1", beta=0)
        async with shop.device(tmp_path / "phone") as phone:
            user = User(phone)
            await shop.until(first, "full", users=[user])  # keys in one folder: nothing is asked
            home.trust.offline.rename(author)
            await shop.push("v2")
            second = await shop.release("v2", beta=0)
            shown = await waiting(shop, second)
            assert shown["state"] == "simulating"
            assert "sign it with: walle sign shop count v2 --key FILE" in shown["reason"]

            key = author / "scenario-shop.pem"
            sign = ("sign", "shop", "count", "v2", f"--repo={tmp_path / 'work'}")
            status, text = await walle(shop, *sign, f"--key={author / 'root.pem'}")
            assert status == 1
            assert "this key does not sign this scenario" in text
            assert (await shop.releases.get(second))["state"] == "simulating"
            status, text = await walle(shop, *sign, f"--key={key}")
            assert (status, text) == (0, f"shop/count v2 is signed by {Signer.load(key).key_id}: it may be released\n")
            assert (await shop.until(second, "full", users=[user]))["reason"] == ""

            # A hook signs too; the cloud announces another key within seconds, without a restart.
            _move_keys(author, home.folder, tmp_path / "keys")
            (tmp_path / "signer.py").write_text(SIGNER)
            new = tmp_path / "keys" / "offline-keys" / "scenario-shop.pem"
            status, text = await walle(None, "trust", "delegate", str(tmp_path / "keys"), "shop", "--new")
            assert status == 0, text
            shutil.copytree(tmp_path / "keys" / "trust", home.trust.public, dirs_exist_ok=True)
            await shop.push("v3")
            third = await shop.release("v3", beta=0)
            await waiting(shop, third)
            hook = f"{sys.executable} {tmp_path / 'signer.py'}"
            sign = ("sign", "shop", "count", "v3", f"--repo={tmp_path / 'work'}")
            assert (await walle(shop, *sign, f"--signer={hook} {new}"))[0] == 0
            await installed(user, "v3")
            assert phone.agent._trust.scenarios is not None
            assert phone.agent._trust.scenarios.version == 2


@pytest.mark.asyncio
async def test_a_version_of_a_revoked_key_is_signed_again_while_its_release_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "one") as one, shop.device(tmp_path / "two") as two:
        home = shop.cloud.home
        await shop.push("v1")
        first = await shop.release("v1", beta=["one", "two"])
        user = User(one)
        await installed(user, "v1")
        status, text = await walle(None, "trust", "delegate", str(home.folder), "shop", "--new")
        assert status == 0, text
        trust = one.agent._trust
        await user.until(lambda: trust.scenarios is not None and trust.scenarios.version == 2)
        errors: list[str] = []
        handle = two.agent.handle

        async def handled(*arguments: Any) -> list[Any]:
            found = await handle(*arguments)
            errors.extend(map(str, found))
            return found

        monkeypatch.setattr(two.agent, "handle", handled)

        async def refused() -> bool:
            await two.checkin()
            return any("0 valid signatures" in error for error in errors)

        await until(refused)
        assert two.tasks == {}
        sign = ("sign", "shop", "count", "v1", f"--repo={tmp_path / 'work'}", "--again")
        status, text = await walle(shop, *sign, f"--key={home.trust.offline / 'scenario-shop.pem'}")
        assert status == 0, text
        assert f"{first} continues with it" in text
        await installed(User(two), "v1")
        assert one.tasks == two.tasks == {TASK: "v1"}
        shown = await shop.releases.get(first)
        assert "SignedAgain" in [step["event"] for step in shown["history"]]
        assert shown["state"] in ("beta", "gray", "full")
        done = [one for one in read_records(home.folder / "audit") if one.action == "version.sign_again"]
        assert [(one.who, one.details["releases"]) for one in done] == [("admin", [first])]
        status, text = await walle(shop, *sign, f"--key={home.trust.offline / 'scenario-shop.pem'}")
        assert (status, "continues with it" in text) == (0, False), "nothing is left to do"


def _move_keys(offline: Path, cloud: Path, folder: Path) -> None:
    """Lay out a folder of the author: the offline keys, and copies of the public metadata."""
    folder.mkdir()
    shutil.copytree(offline, folder / "offline-keys")
    shutil.copytree(cloud / "trust", folder / "trust")


@pytest.mark.asyncio
async def test_the_cloud_keeps_no_signature_that_does_not_count(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        home = shop.cloud.home
        key = home.trust.scenario_signer("shop")
        assert key is not None
        await shop.push("v1")
        path = "/v1/versions/shop/count/v1"
        asked: dict[str, Any] = (await shop.http.get(f"{path}/manifest")).json()
        assert (asked["threshold"], list(asked["keys"]), asked["signed_by"]) == (1, [key.key_id], [])
        stranger = Signer.generate()
        for name, signer, data in (
            (stranger.key_id, stranger, MANIFEST_DOMAIN),
            (key.key_id, stranger, MANIFEST_DOMAIN),
            (key.key_id, key, MANIFEST_DOMAIN + b"another manifest"),
        ):
            body = {"signatures": {name: _text(signer.sign(data))}}
            answer = await shop.http.post(f"{path}/signatures", json=body)
            assert (answer.status_code, answer.json()["type"]) == (422, "SignatureError")
        many = {"signatures": {str(number): "AA==" for number in range(17)}}
        assert (await shop.http.post(f"{path}/signatures", json=many)).status_code == 422
        assert not (home.folder / "signatures").exists()
        assert not [one for one in read_records(home.folder / "audit") if one.action == "version.sign"]
        for method, part in (("GET", "manifest"), ("POST", "signatures")):
            answer = await shop.http.request(
                method, f"{path}/{part}", json={"signatures": {}}, headers={"Authorization": ""}
            )
            assert answer.status_code == 401
        for name in ("../keys/release.pem", "release.pem", "1.root.json.x", "%2e%2e/keys/release.pem"):
            assert (await shop.http.get(f"/trust/{name}")).status_code == 404


def _text(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


@pytest.mark.night
@pytest.mark.asyncio
async def test_devices_continue_after_a_restore_from_a_backup_and_after_new_online_keys(tmp_path: Path) -> None:
    """Serials are drawn again after a restore; the new epoch, and after it new keys, make devices follow them."""
    backup, home = tmp_path / "backup", tmp_path / "cloud"
    phone = tmp_path / "phone"
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        async with shop.device(phone) as device:
            first = await shop.release("v1", beta=0)
            await shop.until(first, "full", users=[User(device)])
        pinned = shop.cloud.home.trusted_keys
    shutil.copytree(home, backup)
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v2")
        async with shop.device(phone, trusted_keys=pinned) as device:
            await shop.until(await shop.release("v2", beta=0), "full", users=[User(device)])
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    assert read_epoch(home) == 1
    assert read_epoch(home) < raise_epoch(home, SystemClock()) < raise_epoch(home, SystemClock())
    async with shop_cloud(tmp_path) as shop, shop.device(phone, trusted_keys=pinned) as device:
        await installed(User(device), "v1")  # what the backup has
        metrics = (await shop.http.get("/metrics")).text
        assert 'walle_device_alarms_total{kind="metadata"} 0.0' in metrics
    status, text = await walle(None, "trust", "rotate", str(home), "--role=release", "--role=timestamp")
    assert status == 0, text
    async with shop_cloud(tmp_path) as shop, shop.device(phone, trusted_keys=pinned) as device:
        assert device.tasks == {TASK: "v1"}
        await shop.push("v3")
        await shop.until(await shop.release("v3", beta=0), "full", users=[User(device)])
        assert device.agent._trust.root.version == 2


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_restore_without_a_new_epoch_is_an_alarm_that_the_cloud_sees(tmp_path: Path) -> None:
    backup, home, phone = tmp_path / "backup", tmp_path / "cloud", tmp_path / "phone"
    async with shop_cloud(tmp_path) as shop, shop.device(phone) as device:
        await device.checkin()  # enrolled before the backup
    shutil.copytree(home, backup)
    for _ in range(3):  # each start makes a table
        async with shop_cloud(tmp_path) as shop, shop.device(phone) as device:
            generation = (await shop.http.get("/healthz")).json()["generation"]
            await device.checkin()
            await until(lambda: _generation(device) == generation)  # noqa: B023 - it is awaited here
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    async with shop_cloud(tmp_path) as shop, shop.device(phone) as device:

        async def counted() -> bool:
            await device.checkin()
            await device.report()
            return 'walle_device_alarms_total{kind="metadata"} 1.0' in (await shop.http.get("/metrics")).text

        await until(counted)


def _generation(device: Device) -> int:
    timestamp = device.agent._trust.timestamp
    return timestamp.generation if timestamp is not None else 0


def test_an_epoch_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert read_epoch(tmp_path) == 1
    for text in ("", "-1", "1.5", "9" * 30, "one"):
        (tmp_path / "epoch").write_text(text)
        with pytest.raises(ConfigError, match="is not an epoch"):
            read_epoch(tmp_path)


def test_walle_trust_shows_delegates_and_revokes(tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["trust", *arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    folder = str(tmp_path)
    made = run("init", folder, "--scenario=shop", "--fleet=kiosks")
    assert (made["fleet"], made["root_version"], made["scenarios_version"]) == ("kiosks", 1, 1)
    (first,) = made["scenarios"]["shop"]["keys"]
    second = Signer.generate()
    both = run("delegate", folder, "shop", f"--public-key={second.public_key.hex()}", "--keep", "--threshold=2")
    assert both["scenarios"]["shop"]["threshold"] == 2
    assert set(both["scenarios"]["shop"]["keys"]) == {first, second.key_id}
    kept = CliRunner().invoke(app, ["trust", "revoke", folder, "shop", first])
    assert "2 keys must sign scenario shop, and 1 would be left" in str(kept.exception)  # one key alone is refused
    left = run("delegate", folder, "shop", f"--public-key={second.public_key.hex()}")
    assert left["scenarios"]["shop"] == {"keys": {second.key_id: second.public_key.hex()}, "threshold": 1}
    assert run("revoke", folder, "shop", second.key_id)["scenarios"] == {}
    rotated = run("rotate", folder, "--role=root", "--role=scenarios")
    assert (rotated["root_version"], rotated["scenarios_version"]) == (2, 5)
    assert rotated["roles"]["root"]["keys"] != made["roles"]["root"]["keys"]
    assert run("rotate", folder)["root_version"] == 3
    for arguments, error in (
        (("init", folder), "has root metadata already"),
        (("revoke", folder, "shop", "0" * 16), "does not sign scenario shop"),
        (("rotate", folder, "--role=king"), "not one of root, scenarios, release, timestamp"),
        (("delegate", folder, "shop", "--public-key=00"), "is not a public key"),
        (("show", folder + "/trust"), "has no root metadata"),
    ):
        result = CliRunner().invoke(app, ["trust", *arguments])
        assert result.exit_code
        assert error in " ".join((result.output + str(result.exception)).replace("│", " ").split())
    (tmp_path / "offline-keys" / "scenarios.pem").unlink()
    result = CliRunner().invoke(app, ["trust", "delegate", folder, "toys", "--new"])
    assert "run this where the offline keys are kept" in str(result.exception)


def test_a_clouds_folder_from_before_metadata_keeps_its_keys(tmp_path: Path) -> None:
    """Keep its bundle key for the scenarios that it had; give a new scenario a key of its own."""
    bundle, release = Signer.generate(), Signer.generate()
    (tmp_path / "keys").mkdir()
    bundle.save(tmp_path / "keys" / "bundle.pem")
    release.save(tmp_path / "keys" / "release.pem")
    CloudHome(tmp_path).repos.create("shop")
    CloudHome(tmp_path).prepare()
    home = CloudHome(tmp_path)
    root, scenarios = home.trust.root(), home.trust.scenarios()
    assert set(scenarios.delegations["shop"].keys) == {bundle.key_id}
    assert set(root.roles["snapshot"].keys) == {release.key_id}
    assert not (tmp_path / "keys" / "bundle.pem").exists()
    home.prepare(("toys",))
    assert home.trust.root().data == root.data
    again = home.trust.scenarios()
    assert (again.version, set(again.delegations)) == (2, {"shop", "toys"})
    assert bundle.key_id not in again.delegations["toys"].keys
    (tmp_path / "offline-keys").rename(tmp_path / "away")
    home.prepare(("books",))
    assert set(home.trust.scenarios().delegations) == {"shop", "toys"}


@pytest.mark.asyncio
async def test_an_online_key_without_its_role_does_not_start_a_cloud(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path):
        pass
    Signer.generate().save(tmp_path / "cloud" / "keys" / "release.pem")
    with pytest.raises(ConfigError, match="does not have the role snapshot in root version 1; copy keys/ and trust/"):
        async with shop_cloud(tmp_path):
            pass


@pytest.mark.asyncio
async def test_a_timestamp_names_metadata_that_were_added_a_moment_before(tmp_path: Path) -> None:
    """Else the first devices of a version would refuse it permanently: its key is in the newer metadata alone."""
    home = CloudHome(tmp_path)
    home.prepare(("shop",))
    roles = OnlineRoles(home.trust, 1, ManualClock(), timestamp_life_s=60)
    home.trust.delegate("shop", RoleKeys.of([Signer.generate().public_key]).keys, 1, SystemClock())
    stamp = Timestamp.from_header(await roles.stamp(ReleaseTable(1)))
    assert stamp.scenarios == 2
    home.trust.root().verify_timestamp(stamp)
    (home.trust.public / "3.scenarios.json").write_text("{")  # half a copy
    assert Timestamp.from_header(await roles.stamp(ReleaseTable(2))).scenarios == 2


def test_a_revoked_key_is_not_delegated_again_when_the_cloud_starts(tmp_path: Path) -> None:
    """A cloud with its offline keys makes a key for a scenario that has none: never the stolen one again."""
    home = CloudHome(tmp_path)
    home.prepare(("shop",))
    (stolen,) = home.trust.scenarios().delegations["shop"].keys
    assert CliRunner().invoke(app, ["trust", "revoke", str(tmp_path), "shop", stolen]).exit_code == 0
    home.prepare(("shop",))
    (new,) = home.trust.scenarios().delegations["shop"].keys
    assert new != stolen
    signer = home.trust.scenario_signer("shop")
    assert signer is not None
    assert signer.key_id == new


@pytest.mark.parametrize("roles", [["root"], ["targets"], ["root", "targets", "snapshot", "timestamp"]])
def test_a_rotation_that_is_killed_at_any_write_is_finished_or_undone(
    tmp_path: Path, roles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    replace, left = Path.replace, 0

    def dying(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return replace(path, target)

    killed = 0
    for writes in range(30):
        trust = CloudHome(tmp_path / str(writes)).trust
        trust.make("kiosks", ["shop"], SystemClock())
        before = trust.root()
        left = writes
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", dying)
            try:
                trust.rotate(roles, SystemClock())
            except Killed:
                killed += 1
        prepare_trust(trust, ["shop"], SystemClock())  # the cloud does so when it starts
        root = trust.root()
        assert root.version in (before.version, before.version + 1)
        for role in ("snapshot", "timestamp"):
            assert trust.online_signer(role).key_id in root.roles[role].keys
        assert set(trust.scenarios().delegations) == {"shop"}
        trust.rotate(roles, SystemClock())  # every key that it needs is there
        assert trust.root().version == root.version + 1
        assert "shop" in trust.scenarios().delegations
        if killed <= writes:  # the command had made all its writes
            break
    assert 2 <= killed < 30
