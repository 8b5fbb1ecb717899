"""Callbacks of a run to its device: queries with bounds, and faults of the device that are not the version's."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.shop_cloud import User, shop_cloud
from tests.sim.slow_model import slow_model
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.pipeline.features.database import StoreFullError

READING = """\
def execute(ctx, trigger):
    return [len(ctx.history()), len(ctx.store.query("shop/count"))]
"""
ASKING = """\
def refused(call):
    try:
        call()
    except Exception as error:
        return str(error)


def execute(ctx, trigger):
    query = ctx.store.query
    return {
        "errors": [refused(lambda: query(["shop/count"])), refused(lambda: query("shop/count", "0", 1)),
                   refused(lambda: query("shop/count", skip="1"))],
        "counts": [len(query("shop/count", limit=limit)) for limit in (-1, 0, 1, 1 << 40)],
        "late": len(query("shop/count", 1 << 60)),
    }
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["store", *at_night("history")])
async def test_a_device_whose_disk_fails_does_not_leave_a_version_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=READING, config=f"{TASK_CONFIG}[history]\n")
        release_id = await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_ok > 0)
        history = device._versions._history

        async def full(*_: object) -> Any:
            raise StoreFullError(device.store.path, "cannot be written")

        async def unreadable(*_: object) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patched:
            if fault == "store":
                patched.setattr(device.store, "query", full)
            else:
                patched.setattr(history, "_in_thread", unreadable)
            for _ in range(12):  # more than the failures in a row after which a version is left
                await user.visit()
        assert device.counts.runs_failed >= 12
        assert ("cannot be written" if fault == "store" else "cannot be read") in device.counts.last_error
        assert user.has("v1")
        await user.visit()
        await device.settled()
        totals = (await shop.releases.get(release_id))["totals"]
        assert (totals["failed"], totals["reverted"]) == (0, 0)


@pytest.mark.asyncio
async def test_queries_have_bounds_and_wrong_ones_are_refused_by_name(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=ASKING)
        await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_ok >= 3)
        await device.settled()
        uploads = await shop.cloud.gateway.uploads("shop/count", 0, 1000)
        found = plain.decode(uploads[2][1].payload)
        assert "topic of type list must be text" in found["errors"][0]
        assert "since_ms of a query must be int, is str" in found["errors"][1]
        assert "skip of a query must be int, is str" in found["errors"][2]
        assert (found["counts"], found["late"]) == ([0, 0, 1, 2], 0)


MODEL_MAIN = """\
def execute(ctx, trigger):
    return ctx.session(ctx.device["model"]).run({"x": [[0.0] * 4]})["y"].tolist()
"""


@pytest.mark.night
@pytest.mark.asyncio
async def test_no_version_is_left_for_a_model_that_loads_longer_than_the_deadline(tmp_path: Path) -> None:
    config = f'{TASK_CONFIG}[limits]\ndeadline_ms = 100\n[files]\n"resources/slow.walle" = "shared"\n'
    attributes = {"performance": "low", "model": "slow"}
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", attributes=attributes) as device:
        user = User(device)
        await shop.push("v1", main=MODEL_MAIN, config=config, **{"resources/slow.walle": slow_model()})
        release_id = await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_ok >= 3)
        assert (device.counts.runs_failed, device.counts.last_error) == (0, "")
        assert user.has("v1")
        totals = (await shop.releases.get(release_id))["totals"]
        assert (totals["failed"], totals["reverted"]) == (0, 0)


# Another task's topics: by `ctx`, and as a task that has changed the runtime of its VM does.
FORGING = """\
def refused(call):
    try:
        call()
    except Exception as error:
        return str(error)


def execute(ctx, trigger):
    page = trigger["event"]["page_id"]
    number = int(page.partition("/")[2])
    if number % 4 == 1:
        ctx.store.puts.append(("shop/other", {"forged": 1}))
    elif number % 4 == 2:
        ctx.store.local.append(("other", {"forged": 1}))
    ctx.store.put("pages", page)
    ctx.store._task, other = "shop/other", "other"
    read = refused(lambda: ctx.store.query())
    ctx.store._task = ctx.task
    return {
        "put": refused(lambda: ctx.store.put("shop/other", {"forged": 1})),
        "read": [read, refused(lambda: ctx.store.query("secret", task=other))],
        "own": [len(ctx.store.query()), len(ctx.store.query("pages")), len(ctx.store.query(ctx.task + "/pages"))],
        "declared": ctx.store.query("prices", task="other"),
    }
"""


@pytest.mark.asyncio
async def test_a_task_neither_puts_nor_reads_another_tasks_topics(tmp_path: Path) -> None:
    config = f'{TASK_CONFIG}[reads]\ntopics = ["other/prices"]\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        for topic in ("shop/other", "shop/other/secret", "shop/other/prices"):
            await device.store.put(topic, [topic], upload=False)
        await shop.push("v1", main=FORGING, config=config)
        await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_ok >= 3 and device.counts.runs_failed >= 2)
        await device.settled()
        uploads = [row for _, row in await shop.cloud.gateway.uploads("shop/count", 0, 1000)]
        last = plain.decode(uploads[2].payload)
        assert "topic 'shop/other' is not of task shop/count" in last["put"]
        assert all("is not of task shop/count; to read it, add 'other" in text for text in last["read"])
        assert last["own"] == [2, 2, 2]
        assert last["declared"] == [["shop/other/prices"]]
        assert await shop.cloud.gateway.uploads("shop/other", 0, 1000) == []
        assert [row.payload for _, row in await shop.cloud.gateway.uploads("shop/count/pages", 0, 1000)]
        assert len(await device.store.query("shop/other")) == 1
        assert await device.store.query("other") == []
        assert "is not of task shop/count" in device.counts.last_error


MANY_TOPICS = """\
def execute(ctx, trigger):
    for number in range(60):
        ctx.store.put(f"{trigger['event']['page_id'].partition('/')[2]}.{number}", 1)
    return 1
"""


@pytest.mark.asyncio
async def test_a_task_cannot_use_up_the_topics_of_its_device(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=MANY_TOPICS)
        await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.counts.runs_failed >= 2)
        assert device.counts.runs_ok == 1
        assert "is beyond the 100 that a task may put" in device.counts.last_error
        await device.settled()
        stored = await device.store.call(lambda database: database.counts())
        assert stored[0] == 61


FAILING = """\
def execute(ctx, trigger):
    total = sum(range(100_000))
    if int(trigger["event"]["page_id"].partition("/")[2]) % 2:
        return {1, 2}  # a set does not cross
    raise ValueError(total)
"""


@pytest.mark.asyncio
async def test_the_app_gets_the_cpu_time_of_failed_runs(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        with device.results("shop/count") as results:
            await shop.push("v1", main=FAILING)
            await shop.release("v1", beta=["d0"])
            await user.until(lambda: device.counts.runs_failed >= 2)
            found = [await anext(results) for _ in range(2)]
    assert {one.failure.error_type for one in found if one.failure is not None} == {"ValueError", "TypeError"}
    assert all(one.cpu_s is not None and 0 < one.cpu_s < 60 for one in found)


OUTPUT_AND_PUT = """\
def execute(ctx, trigger):
    ctx.store.put("sent", 1)
    return len(ctx.store.query()) + 1
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(("destination", "stored"), [("device", [1, 2, 3]), ("app", [])])
async def test_an_output_that_stays_is_not_in_the_cloud_and_what_the_task_puts_is(
    tmp_path: Path, destination: str, stored: list[int]
) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        with device.results("shop/count") as results:
            await shop.push("v1", main=OUTPUT_AND_PUT, config=f'{TASK_CONFIG}[output]\ndestination = "{destination}"\n')
            await shop.release("v1", beta=["d0"])
            await user.until(lambda: device.counts.runs_ok >= 3)
            found = [(await anext(results)).output for _ in range(3)]
        await device.settled()
        assert found == (stored or [1, 1, 1])  # each run counts the outputs that the store has
        assert [plain.decode(one.payload) for one in await device.store.query("shop/count")][:3] == stored
        assert await shop.cloud.gateway.uploads("shop/count", 0, 10) == []
        sent = await shop.cloud.gateway.uploads("shop/count/sent", 0, 1000)
        summary = await device.summary()
        assert len(sent) == summary.produced == device.counts.runs_ok
