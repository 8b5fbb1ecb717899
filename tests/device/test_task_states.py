"""State of a task on a device through upgrades, a rollback, a failing migration, a restart; its longer history."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.sim.shop_cloud import LIMIT_S, ShopCloud, User, shop_cloud
from tests.sim.visits import TASK_CONFIG, event_at
from walle.base import plain
from walle.pipeline.features.store import OutboxFullError

TASK = "shop/count"
MAIN = """\
def execute(ctx, trigger):
    ctx.state["visits"] = ctx.state.get("visits", 0) + 1
    return {"state": ctx.state, "stored": len(ctx.store.query("shop/count"))}
"""
MIGRATING = """\
def migrate(old_version, state):
    return {"total": 100 * state["visits"], "from": old_version}


def execute(ctx, trigger):
    ctx.state["total"] += 1
    return {"state": ctx.state, "stored": len(ctx.store.query("shop/count"))}
"""
FAILING = MIGRATING.replace("state[", "state['visitors'][")


def config(state: str) -> str:
    return f"{TASK_CONFIG}[state]\n{state}\n"


async def outputs(shop: ShopCloud) -> list[Any]:
    uploads = await shop.cloud.gateway.uploads(TASK, 0, 10_000)
    return [plain.decode(upload.payload) for _, upload in uploads]


async def release(shop: ShopCloud, user: User, version: str, main: str, state: str) -> str:
    """Release a version and visit pages until the release is full."""
    await shop.push(version, main=main, config=config(state))
    release_id = await shop.release(version)
    await shop.until(release_id, "full", users=[user])
    await user.until(lambda: user.has(version))
    await user.device.settled()
    return release_id


@pytest.mark.asyncio
async def test_a_state_goes_through_upgrade_restart_rollback_and_a_migration_that_fails(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            user = User(device)
            await release(shop, user, "v1", MAIN, "version = 1")
            found = await outputs(shop)
            first = len(found)
            assert found == [{"state": {"visits": n + 1}, "stored": min(n, 100)} for n in range(first)]
            upgrade = 'version = 2\non_upgrade = "migrate"\nfeatures = "clear"'
            second = await release(shop, user, "v2", MIGRATING, upgrade)
            found = await outputs(shop)
            kept = sum("visits" in output["state"] for output in found)  # outputs until v2 came
            of_second = found[kept:]
            assert kept >= first
            assert [output["state"] for output in of_second] == [
                {"total": 100 * kept + n + 1, "from": 1} for n in range(len(of_second))
            ]
            assert [output["stored"] for output in of_second] == [min(n, 100) for n in range(len(of_second))]

        async with shop.device(tmp_path / "d0") as device:  # restarted: it migrates nothing again
            user = User(device)
            user.visits = device.store.position // 3 + 1
            await user.visit()
            await device.settled()
            found = await outputs(shop)
            assert found[-1]["state"] == {"total": found[-2]["state"]["total"] + 1, "from": 1}

            await shop.releases.rollback(second, "the test asks for it")
            while not user.has("v1"):
                await device.checkin()
            await user.visit()
            await device.settled()
            found = await outputs(shop)
            assert found[-1]["state"] == {"visits": kept + 1}  # what v1 left, and no visit of v2's

            await shop.push("v3", main=FAILING, config=config('version = 3\non_upgrade = "migrate"'))
            third = await shop.release("v3", beta=["d0"])
            async with asyncio.timeout(LIMIT_S):
                while (shown := await shop.releases.get(third))["totals"]["reverted"] == 0:
                    await user.visit()
            assert "KeyError: 'visitors'" in shown["totals"]["last_error"]
            assert user.has("v1")
            await user.visit()
            await device.settled()
            visits = [output["state"]["visits"] for output in (await outputs(shop))[len(found) - 1 :]]
            assert visits == list(range(kept + 1, kept + 1 + len(visits)))  # v1 never lost its state
            assert len(visits) > 1
            await device.settled()


@pytest.mark.night
@pytest.mark.asyncio
async def test_an_upgrade_of_the_state_that_a_run_holds_up_is_not_a_failure_and_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("walle.device.task_versions._SWITCH_S", 0.1)
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await release(shop, user, "v1", MAIN, "version = 1")
        state = device.store.task_states.active(TASK)
        async with device.stream.between_runs(TASK):  # held like by a run whose outputs wait for room in the outbox
            await shop.push("v2", main=MIGRATING, config=config('version = 2\non_upgrade = "migrate"'))
            release_id = await shop.release("v2", beta=["d0"])
            async with asyncio.timeout(LIMIT_S):
                while caplog.text.count("v2 is not activated yet") < 2:
                    await device.checkin()
                    await asyncio.sleep(0.01)
            assert user.has("v1")
            assert device.store.task_states.active(TASK) == state
        await user.until(lambda: user.has("v2"))
        await user.visit()
        await device.settled()
        assert (await outputs(shop))[-1]["state"]["from"] == 1
        totals = (await shop.releases.get(release_id))["totals"]
        assert (totals["installed"], totals["reverted"], totals["rejected"]) == (1, 0, 0)


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_version_that_fails_is_left_at_once_though_its_run_waits_for_the_cloud(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await release(shop, user, "v1", MAIN, "version = 1")
        await release(shop, user, "v2", MIGRATING, 'version = 2\non_upgrade = "migrate"')
        before = device.store.task_states.of_version(TASK, 1)
        assert before is not None
        full, put_outputs = True, device.store.put_outputs

        async def put_or_refuse(*args: Any, **options: Any) -> None:
            if full:
                raise OutboxFullError(device.store.path, "its outbox is full")
            await put_outputs(*args, **options)

        device.store.put_outputs = put_or_refuse  # type: ignore[method-assign]
        first = 3 * user.visits
        for position in range(first, first + 3):
            await device.on_event(event_at(position), position)
        async with asyncio.timeout(LIMIT_S):
            while not device.stream._queues.by_task[TASK].waits_for_cloud:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.005)
            assert await device.agent.revert(TASK, "it fails")
        assert user.has("v1")
        full = False
        await device.store.put(TASK, {"state": "of no run"})  # a transaction: the run that waits tries again
        await device.stream.settle()
        await device.store.flush()
        state = device.store.task_states.active(TASK)
        assert state is not None
        assert (state.version, state.value) == (1, before.value)  # v2's last run changed nothing in it
        user.visits += 1
        await user.visit()
        assert device.counts.runs_failed == 0
        await device.settled()
        found = await outputs(shop)
        assert [output["state"] for output in found[-3:-1]][1]["from"] == 1  # the output of v2's last run is kept
        assert found[-1]["state"] == {"visits": before.value["visits"] + 1}


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_task_whose_only_version_fails_keeps_its_state_for_the_next_one(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            user = User(device)
            await release(shop, user, "v1", MAIN, "version = 1")
            assert await device.agent.revert(TASK, "it fails")
            assert user.has(None)
            kept = device.store.task_states.active(TASK)
            assert kept is not None
        async with shop.device(tmp_path / "d0") as device:
            user = User(device)
            assert device.store.task_states.active(TASK) == kept
            await release(shop, user, "v2", MAIN, "version = 1")
            found = await outputs(shop)
            assert found[-1]["state"]["visits"] > kept.value["visits"]


@pytest.mark.asyncio
async def test_a_task_without_a_state_gets_an_error_that_names_the_section(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=MAIN)
        await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_failed > 0)
        assert "the task has no state here; add [state] to task.toml" in device.counts.last_error


@pytest.mark.asyncio
async def test_a_version_that_must_migrate_and_cannot_is_refused_before_it_is_activated(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", main=MAIN, config=config('version = 2\non_upgrade = "migrate"'))
        shown = await shop.until(await shop.release("v1"), "failed")
        assert "main has no migrate(old_version, state)" in shown["reason"]


@pytest.mark.asyncio
async def test_a_removed_task_leaves_no_state(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=MAIN, config=config("version = 1"))
        release_id = await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.store.task_states.active(TASK) is not None)
        await shop.releases.rollback(release_id, "the test asks for it")
        await user.until(lambda: user.has(None))
        assert device.store.task_states.active(TASK) is None


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_task_whose_record_is_damaged_is_removed_whole_and_comes_back_from_the_cloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            user = User(device)
            await release(shop, user, "v1", MAIN, "version = 1")
            before = len(await outputs(shop))
        (record,) = (tmp_path / "d0" / "tasks").glob("*/state.json")
        record.write_bytes(b"?" + record.read_bytes()[1:])
        async with shop.device(tmp_path / "d0") as device:
            assert device.store.task_states.active(TASK) is None
            assert list(record.parent.glob("versions/*")) == []
            assert "state.json is corrupted" in caplog.text
            user = User(device)
            user.visits = device.store.position // 3 + 1
            await user.until(lambda: user.has("v1"))
            await user.visit()
            await device.settled()
            assert (await outputs(shop))[before]["state"] == {"visits": 1}


HISTORY = """\
def execute(ctx, trigger):
    before = ctx.history("page_exit", limit=2)
    return [[event.page_id for event in before], len(ctx.history(page_id=trigger["event"]["page_id"]))]
"""


@pytest.mark.asyncio
async def test_a_task_asks_for_older_events_and_its_removal_removes_them(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=HISTORY, config=f"{TASK_CONFIG}[history]\nrows = 1000\n")
        release_id = await shop.release("v1", beta=["d0"])
        await user.until(lambda: user.has("v1"))
        for _ in range(3):
            await user.visit()
        await device.settled()
        last = user.visits - 1
        assert (await outputs(shop))[-1] == [[f"page/{last - 1}", f"page/{last}"], 3]
        assert (tmp_path / "d0" / "history.db").exists()
        await shop.releases.rollback(release_id, "the test asks for it")
        await user.until(lambda: not (tmp_path / "d0" / "history.db").exists())


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_version_that_asks_for_no_history_removes_the_one_before(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user, path = User(device), tmp_path / "d0" / "history.db"
        await shop.push("v1", main=HISTORY, config=f"{TASK_CONFIG}[history]\nrows = 1000\n")
        await shop.until(await shop.release("v1"), "full", users=[user])
        await user.until(path.exists)
        await shop.push("v2", config=TASK_CONFIG)
        await shop.release("v2", beta=["d0"])
        await user.until(lambda: user.has("v2"))
        await user.until(lambda: not path.exists())
