"""Attacks on exclusive files at a real gateway, and their way to a real device: put, changed, removed, revoked."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.sim.device_session import enrol, session_headers
from tests.sim.release_world import table_of
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.visits import TASK_CONFIG, event_at
from walle.access.access import Role
from walle.access.audit import read_records
from walle.base.clock import SystemClock
from walle.cloud import CloudHome
from walle.cloud.upkeep.backup import make_backup
from walle.cloud.upkeep.restore import restore_backup
from walle.deploy.agent.agent import Agent
from walle.protocol import (
    MAX_EXCLUSIVE_FILES,
    PROFILE_HEADER,
    SEAL_OVERHEAD_BYTES,
    TASKS_HEADER,
    ExclusiveList,
    Profile,
    seal_info,
)
from walle.trust.sealing import SealError, open_sealed

SECRET = b'{"faces": ["who is in the gallery"]}'
_LIMITS = "[limits]\ndeadline_ms = 5000\n"  # beside other tests a run may wait for a core
CONFIG = TASK_CONFIG + _LIMITS + '[output]\ndestination = "app"\n'  # what the test reads is not uploaded
OPTIONAL = CONFIG + '[[exclusive]]\nname = "gallery.json"\nrequired = false\nmax_bytes = 2000\n'
REQUIRED = CONFIG + '[[exclusive]]\nname = "gallery.json"\n'
MAIN = """\
def execute(ctx, trigger):
    data = ctx.exclusive("gallery.json")
    return {"gallery": None if data is None else data.decode()}
"""
PATH = "/v1/exclusive/shop/count/gallery.json"


async def put(shop: ShopCloud, device: str, data: bytes = SECRET, path: str = PATH, **more: Any) -> httpx.Response:
    return await shop.http.put(path, params={"device": device}, content=data, **more)


async def device_list(shop: ShopCloud, device: str, generation: int = 1) -> ExclusiveList:
    headers = session_headers(shop.cloud.home, device, generation)
    return ExclusiveList.from_bytes((await shop.http.get("/cen/files", headers=headers)).content)


async def gallery(user: User) -> Any:
    """Return what the task reads in a run of now."""
    with user.device.results("shop/count") as results:
        await user.visit()
        result = await anext(aiter(results))
    assert result.failure is None, result.failure
    return result.output["gallery"]


async def until_reads(user: User, text: str | None) -> None:
    async def reads_it() -> bool:
        return bool(await gallery(user) == text)

    await until(reads_it)


@contextlib.asynccontextmanager
async def installed(folder: Path, *names: str, config: str = OPTIONAL) -> AsyncIterator[tuple[ShopCloud, list[User]]]:
    """Give a cloud and devices that have v1 of a task that reads its gallery."""
    async with shop_cloud(folder) as shop, contextlib.AsyncExitStack() as undo:
        await shop.push("v1", config=config, main=MAIN)
        await shop.release("v1", beta=0)
        fast = {"exclusive_interval_s": 0.05, "vm_host": False}
        devices = [await undo.enter_async_context(shop.device(folder / name, **fast)) for name in names]
        users = [User(device) for device in devices]
        for user in users:
            await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
        yield shop, users


@contextlib.asynccontextmanager
async def enrolled(folder: Path, *names: str) -> AsyncIterator[ShopCloud]:
    """Give a cloud whose task lists the file, and that knows these devices; none of them runs."""
    async with shop_cloud(folder) as shop:
        await shop.push("v1", config=OPTIONAL, main=MAIN)
        for name in names:
            await asyncio.to_thread(enrol, shop.cloud.home, name)
        yield shop


@pytest.mark.asyncio
async def test_a_file_is_put_changed_and_removed_without_a_new_version(tmp_path: Path) -> None:
    async with installed(tmp_path, "mine", "other") as (shop, (mine, other)):
        assert (await gallery(mine), await gallery(other)) == (None, None)
        for text in ("first", "second"):
            assert (await put(shop, "mine", text.encode())).status_code == 204
            await until_reads(mine, text)
        assert await gallery(other) is None
        assert not list((tmp_path / "other" / "exclusive" / "sealed").iterdir())
        assert (await shop.http.delete(PATH, params={"device": "mine"})).status_code == 204
        await until_reads(mine, None)

        async def is_deleted() -> bool:
            return not list((tmp_path / "mine" / "exclusive" / "sealed").iterdir())

        await until(is_deleted)  # the list that does not have it comes first


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_group_has_a_file_which_the_devices_own_goes_before(tmp_path: Path) -> None:
    async with installed(tmp_path, "mine", "other") as (shop, (mine, other)):
        (shop.cloud.home.folder / "attributes.toml").write_text('[uploaded]\nis_member = "bool"\n')
        rows = b'{"device_id": "mine", "is_member": true}'
        assert (await shop.http.put("/v1/attributes/device_id", content=rows)).status_code == 200
        rule = {"rule": "uploaded.is_member"}
        for text in ("first", "second"):
            assert (await shop.http.put(PATH, params=rule, content=text.encode())).status_code == 204
            await until_reads(mine, text)
        assert await gallery(other) is None
        listed = (await shop.http.get("/v1/exclusive/shop")).json()
        assert (listed["files"], [one["policy"]["rule"] for one in listed["groups"]]) == ([], ["uploaded.is_member"])
        await put(shop, "mine", b"own")
        await until_reads(mine, "own")
        assert (await shop.http.delete(PATH, params={"device": "mine"})).status_code == 204
        await until_reads(mine, "second")
        rows = rows.replace(b"mine", b"other")  # the device leaves the group, and another joins it
        assert (await shop.http.put("/v1/attributes/device_id", content=rows)).status_code == 200
        await until_reads(mine, None)
        await until_reads(other, "second")
        assert (await shop.http.delete(PATH, params=rule)).status_code == 204
        assert (await shop.http.delete(PATH, params=rule)).status_code == 404
        await until_reads(other, None)


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_device_of_hundreds_of_tasks_gets_its_groups_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_agent = vars(Agent)["tasks"].fget
    many = {f"shop/a_task_of_an_ordinary_name_{number}": "v1" for number in range(348)}
    async with installed(tmp_path, "mine") as (shop, (mine,)):
        (shop.cloud.home.folder / "attributes.toml").write_text('[attributes]\nperformance = "string"\n')
        monkeypatch.setattr(Agent, "tasks", property(lambda agent: {**many, **of_agent(agent)}))
        params = {"rule": "performance == 'low'"}
        assert (await shop.http.put(PATH, params=params, content=b"first")).status_code == 204
        await until_reads(mine, "first")


@pytest.mark.asyncio
async def test_a_question_for_files_of_groups_is_not_answered_as_a_check_in(tmp_path: Path) -> None:
    """It names no tasks, so that all would be due, and charged to the pull budget."""
    async with enrolled(tmp_path, "mine") as shop:
        answerer = shop.cloud.gateway._answers.answerer
        answerer.swap(table_of(10**6, count="v1"))
        headers = {**session_headers(shop.cloud.home, "mine"), PROFILE_HEADER: Profile("mine", "10.1").to_header()}
        assert TASKS_HEADER in (await shop.http.post("/v1/checkin", headers=headers)).headers
        asked = answerer.fresh + answerer.repeated
        for path in ("/cen/files", f"/cen/files/{'0' * 64}"):
            assert TASKS_HEADER not in (await shop.http.get(path, headers=headers)).headers
        assert answerer.fresh + answerer.repeated == asked


@pytest.mark.asyncio
async def test_a_file_of_a_group_is_listed_and_given_to_its_devices_alone(tmp_path: Path) -> None:
    async with enrolled(tmp_path, "mine", "other") as shop:
        home = shop.cloud.home
        (home.folder / "attributes.toml").write_text('[attributes]\nos = "string"\n')
        for params, status in (({"rule": "os == 3"}, 422), ({}, 422), ({"rule": "os == 'a'", "device": "mine"}, 422)):
            assert (await shop.http.put(PATH, params=params, content=b"x")).status_code == status
        assert (await shop.http.put(PATH, params={"rule": "os == 'a'"}, content=SECRET)).status_code == 204

        def headers(device: str, said: str, **attributes: str) -> dict[str, str]:
            return session_headers(home, device) | {PROFILE_HEADER: Profile(said, "10.1", attributes).to_header()}

        async def asked(path: str, sent: dict[str, str]) -> httpx.Response:
            return await shop.http.get(path, headers=sent)

        found = ExclusiveList.from_bytes((await asked("/cen/files", headers("mine", "mine", os="a"))).content)
        (entry,) = found.files
        path = f"/cen/files/{entry.sha256}"
        answer = await asked(path, headers("mine", "mine", os="a"))
        assert (answer.status_code, len(answer.content)) == (200, entry.size_bytes)
        for sent in (
            session_headers(home, "mine"),  # headers without a profile
            headers("mine", "mine", os="b"),
            headers("other", "other", os="a"),  # another device's file has other bytes
        ):
            assert (await asked(path, sent)).status_code == 404
        for sent in (session_headers(home, "mine"), headers("mine", "mine", os="b")):
            none = ExclusiveList.from_bytes((await asked("/cen/files", sent)).content)
            assert (none.files, none.serial) == ((), found.serial)
        assert (await asked("/cen/files", headers("mine", "other", os="a"))).status_code == 422
        assert (await asked("/cen/files", headers("mine", "mine") | {PROFILE_HEADER: "{"})).status_code == 422
        assert all(SECRET not in path.read_bytes() for path in home.folder.glob("exclusive.db*"))


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_files_of_other_devices_do_not_exist_for_a_device(tmp_path: Path) -> None:
    async with enrolled(tmp_path, "mine", "other") as shop:
        await put(shop, "mine")
        (entry,) = (await device_list(shop, "mine")).files
        assert (await device_list(shop, "other")).files == ()
        home, path = shop.cloud.home, f"/cen/files/{entry.sha256}"
        own = session_headers(home, "mine")
        async with httpx.AsyncClient(base_url=shop.cloud.address.url) as stranger:
            assert (await stranger.get(path, headers=own)).status_code == 200
            for headers in (
                {},
                session_headers(home, "other"),
                session_headers(home, "mine", 2),  # another key of the id
                {"Authorization": f"Bearer {home.admin_token}"},
            ):
                answers = [await stranger.get(one, headers=headers) for one in (path, f"/cen/files/{'0' * 64}")]
                assert [answer.status_code for answer in answers] == [404, 404]
                assert answers[0].content == answers[1].content
            for wrong in ("/cen", "/cen/", "/cen/files/..", "/cen/files/%2e%2e/exclusive.db", f"{path}x", f"{path}/x"):
                assert (await stranger.get(wrong, headers=own)).status_code == 404
            assert (await stranger.get("/cen/files")).status_code == 404
            for headers in (session_headers(home, "mine", life_s=-1.0), {"X-Walle-Device": "forged"}):
                assert (await stranger.get(path, headers=headers)).status_code == 401
            assert (await stranger.put(path, headers=own)).status_code == 405


@pytest.mark.asyncio
async def test_only_releasers_of_the_scenario_put_and_remove_and_the_audit_log_says_who(tmp_path: Path) -> None:
    async with enrolled(tmp_path, "mine") as shop:
        access = shop.cloud.gateway._home.access
        roles = {"other": {"bank": Role.RELEASER}, "reader": {"shop": Role.READER}, "author": {"shop": Role.AUTHOR}}
        for name, granted in roles.items():
            headers = {"Authorization": f"Bearer {access.add(name, granted)}"}
            assert (await put(shop, "mine", headers=headers)).status_code == 403
            assert (await shop.http.delete(PATH, params={"device": "mine"}, headers=headers)).status_code == 403
            listed = await shop.http.get("/v1/exclusive/shop", headers=headers)
            assert listed.status_code == (403 if name == "other" else 200)
        assert (await put(shop, "mine", headers={"Authorization": ""})).status_code == 401
        assert (await device_list(shop, "mine")).files == ()
        assert (await put(shop, "mine")).status_code == 204
        (file,) = (await shop.http.get("/v1/exclusive/shop", params={"task": "count"})).json()["files"]
        assert (file["device_id"], file["task"], file["name"]) == ("mine", "shop/count", "gallery.json")
        assert (await shop.http.delete(PATH, params={"device": "mine"})).status_code == 204
        assert (await shop.http.delete(PATH, params={"device": "mine"})).status_code == 404
        records = [one for one in read_records(shop.cloud.home.folder / "audit") if one.action.startswith("file.")]
        assert [(one.action, one.who, one.subject) for one in records] == [  # none of what could not be done
            ("file.put", "admin", "shop/count"),
            ("file.remove", "admin", "shop/count"),
        ]
        assert records[0].details == {"device": "mine", "name": "gallery.json", "size_bytes": len(SECRET)}


@pytest.mark.asyncio
async def test_a_file_that_cannot_be_stored_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with enrolled(tmp_path, "mine") as shop:

        async def refusal(device: str, data: bytes = b"x", path: str = PATH) -> tuple[int, str]:
            answer = await put(shop, device, data, path)
            return answer.status_code, answer.json()["error"]

        status, error = await refusal("mine", b"x" * 2001)
        assert (status, "larger than 2000 bytes, its max_bytes" in error) == (422, True)
        status, error = await refusal("nobody")
        assert (status, "no device 'nobody' is enrolled" in error) == (404, True)
        status, error = await refusal("mine", path="/v1/exclusive/shop/count/other.json")
        assert (status, "no version of shop/count lists 'other.json'" in error) == (422, True)
        for path in ("/v1/exclusive/shop/none/a", "/v1/exclusive/none/count/a"):
            assert (await refusal("mine", path=path))[0] == 422
        with sqlite3.connect(shop.cloud.home.folder / "exclusive.db") as db:
            for number in range(MAX_EXCLUSIVE_FILES):
                row = ("mine", 1, "shop/count", f"n{number}", "0" * 64, 100, 0.0, "test", b"")
                db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.close()
        status, error = await refusal("mine")
        assert (status, "remove one: walle device-file remove" in error) == (409, True)
        shop.cloud.gateway._space._reserve_bytes = 1 << 62
        status, error = await refusal("mine")
        assert (status, "the cloud's disk is full" in error) == (507, True)


# --- stolen disks, keys and devices -----------------------------------------------------------------------------------


@pytest.mark.night
@pytest.mark.asyncio
async def test_the_clouds_disk_and_its_backup_hold_no_contents_and_a_restored_cloud_has_the_files(
    tmp_path: Path,
) -> None:
    async with installed(tmp_path, "mine") as (shop, (mine,)):
        await put(shop, "mine")
        await until_reads(mine, SECRET.decode())
        (entry,) = (await device_list(shop, "mine")).files
        folder, backup = shop.cloud.home.folder, tmp_path / "backup"
        await asyncio.to_thread(make_backup, folder, backup, SystemClock())
        for place in (folder, backup, tmp_path / "mine"):
            held = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            assert not [path for path, data in held.items() if b"gallery" in data and b"faces" in data]
    restored = await asyncio.to_thread(restore_backup, backup, tmp_path / "restored", SystemClock())
    assert "exclusive.db" in {file.path for file in restored.files}
    store = CloudHome(tmp_path / "restored").exclusive
    assert store.files("mine", 1).files == (entry,)
    key = serialization.load_pem_private_key((tmp_path / "mine" / "identity" / "key.pem").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    sealed = store.sealed("mine", 1, entry.sha256)
    assert sealed is not None
    assert open_sealed(sealed, key, seal_info("mine", 1, "shop/count", "gallery.json")) == SECRET
    with pytest.raises(SealError):  # the device's disk and another device's key are not enough
        open_sealed(sealed, ec.generate_private_key(ec.SECP256R1()), seal_info("mine", 1, "shop/count", "gallery.json"))


@pytest.mark.asyncio
async def test_a_revoked_device_gets_nothing_and_its_successor_nothing_of_it(tmp_path: Path) -> None:
    async with enrolled(tmp_path, "mine") as shop:
        await put(shop, "mine")
        (entry,) = (await device_list(shop, "mine")).files
        former = session_headers(shop.cloud.home, "mine")
        assert (await shop.http.post("/v1/identity/revoke", json={"device_id": "mine"})).status_code == 200

        async def is_out() -> bool:
            answers = [
                await shop.http.get(path, headers=former) for path in ("/cen/files", f"/cen/files/{entry.sha256}")
            ]
            return {answer.status_code for answer in answers} == {401}

        await until(is_out)
        refused = await put(shop, "mine")
        assert (refused.status_code, refused.json()["type"]) == (403, "KeyRevokedError")
        async with shop.device(tmp_path / "again" / "mine") as device:  # the same id on another phone, with a new key
            await device.checkin()
            next_owner = session_headers(shop.cloud.home, "mine", 2)
            assert (await device_list(shop, "mine", 2)).files == ()
            assert (await shop.http.get(f"/cen/files/{entry.sha256}", headers=next_owner)).status_code == 404
            assert (await put(shop, "mine", b"the next owner's")).status_code == 204
            (file,) = (await device_list(shop, "mine", 2)).files
            assert file.sha256 != entry.sha256
            assert len((await shop.http.get("/v1/exclusive/shop")).json()["files"]) == 1  # the former's is deleted


@pytest.mark.asyncio
async def test_a_file_is_sealed_to_the_key_that_the_device_has_once_it_has_come(tmp_path: Path) -> None:
    async with enrolled(tmp_path, "mine") as shop:

        async def slowly() -> AsyncIterator[bytes]:
            yield b"a "
            await asyncio.sleep(0.5)  # the gateway looks at the header first
            await asyncio.to_thread(enrol, shop.cloud.home, "mine")  # enrolled with another key
            assert (await put(shop, "mine", b"the next owner's")).status_code == 204
            yield b"slow one"

        assert (await shop.http.put(PATH, params={"device": "mine"}, content=slowly())).status_code == 204
        # The former key has no file; the gateway may know by now that it is revoked.
        former = await shop.http.get("/cen/files", headers=session_headers(shop.cloud.home, "mine", 1))
        assert former.status_code in {401, 403} or ExclusiveList.from_bytes(former.content).files == ()
        (file,) = (await device_list(shop, "mine", 2)).files
        assert file.size_bytes == len(b"a slow one") + SEAL_OVERHEAD_BYTES


# --- required files ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_version_waits_for_the_file_that_it_requires_and_a_lost_one_does_not_count_against_it(
    tmp_path: Path,
) -> None:
    config = REQUIRED + '[simulation]\nevents = "simulation/events.jsonl"\n'
    simulation = {
        "simulation/events.jsonl": "".join(f"{json.dumps(event_at(at).to_dict())}\n" for at in range(3)),
        "simulation/exclusive/gallery.json": "of the simulation",
    }
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", config=config, main=MAIN, **simulation)
        released = await shop.release("v1", beta=0)
        async with shop.device(tmp_path / "mine", exclusive_interval_s=0.05, vm_host=False) as device:
            user = User(device)

            async def has_waited() -> bool:
                await device.checkin()
                return bool(device.agent._active._postponed)

            await until(has_waited)
            assert not device.tasks
            await put(shop, "mine")
            await user.until(lambda: user.has("v1"))
            assert await gallery(user) == SECRET.decode()
            await shop.http.delete(PATH, params={"device": "mine"})

            async def has_failed() -> bool:
                await user.visit()
                return "of shop/count is not on this device now" in device.counts.last_error

            await until(has_failed)
            for _ in range(12):  # ten failures in a row would revert a version
                await user.visit()
            assert user.has("v1")
            await put(shop, "mine")
            await until(lambda: device._exclusive.missing(device._versions.active["shop/count"].manifest) == "")
            assert await gallery(user) == SECRET.decode()
        assert (await shop.releases.get(released))["totals"]["failed"] == 0


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_version_that_waited_for_its_file_is_tried_with_it_before_it_replaces_another(tmp_path: Path) -> None:
    """Its smoke run of when it was pulled said nothing: the runs had no file to read."""
    simulation = {
        "simulation/events.jsonl": "".join(f"{json.dumps(event_at(at).to_dict())}\n" for at in range(3)),
        "simulation/exclusive/gallery.json": SECRET.decode(),
    }
    config = REQUIRED + '[simulation]\nevents = "simulation/events.jsonl"\n'
    main = MAIN.replace("    return", "    assert b'faces' in data, 'no faces'\n    return")
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", config=CONFIG, main="def execute(ctx, trigger):\n    return {'gallery': 'v1'}\n")
        first = await shop.release("v1", beta=0)
        async with shop.device(tmp_path / "mine", exclusive_interval_s=0.05, vm_host=False) as device:
            user = User(device)
            await shop.until(first, "full", users=[user])
            await shop.push("v2", config=config, main=main, **simulation)
            released = await shop.release("v2", beta=0)
            await user.until(lambda: bool(device.agent._active._postponed))
            assert (await put(shop, "mine", b"{}")).status_code == 204

            async def is_refused() -> bool:
                await user.visit()
                totals = (await shop.releases.get(released))["totals"]
                assert totals["installed"] == 0
                return bool(totals["rejected"] == 1)

            await until(is_refused)
            assert user.has("v1")
            assert "no faces" in json.dumps(await shop.releases.failures(released))
