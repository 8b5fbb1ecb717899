"""The smoke run of a version on its device before it is activated: what is refused, and what goes on meanwhile."""

import asyncio
import json
import struct
from pathlib import Path

import pytest

from tests.sim.shop_cloud import ShopCloud, User, shop_cloud
from tests.sim.visits import EVENTS, TASK_CONFIG, event_at
from tests.sim.vm_hosts import CRASHES
from walle import cv, np
from walle.client.release_client import ReleaseJson
from walle.device import smoke_run

CONFIG = f"""{TASK_CONFIG}[simulation]
events = "simulation/events.jsonl"
[limits]
memory_mb = 24
deadline_ms = 1000
[files]
"resources/broken.walle" = "shared"
"""
FILES: dict[str, str | bytes] = {"resources/broken.walle": b"no model"}
COUNTING = """\
def execute(ctx, trigger):
    ctx.store.put("page", trigger["event"]["page_id"])
    return len(ctx.store.query("page"))
"""


def lines(visits: int, *, first: int = 0) -> str:
    """Return the events of visits as JSON lines."""
    events = [event_at(position) for position in range(first * len(EVENTS), (first + visits) * len(EVENTS))]
    plain = [{"event_id": one.event_id, "page_id": one.page_id, "ts_ms": one.ts_ms, "contents": {}} for one in events]
    return "".join(json.dumps(one) + "\n" for one in plain)


def on_device(does: str) -> str:
    """Return a task that does this on the device alone: the cloud's simulation, which comes before, passes it."""
    return f"{CRASHES}\ndef execute(ctx, trigger):\n    return 1 if ctx.device['id'] != 'd0' else {does}\n"


BAD = {
    "raises": ("1 // 0", "ZeroDivisionError"),
    "loops": ("any(0 for _ in iter(int, 1))", "ran longer than 1 s"),
    "exceeds its memory": ("[bytearray(10**6) for _ in range(100)]", "memory_mb = 24"),
    "lacks a file": ("ctx.session('miss' + 'ing')", "missing"),
    "has a model that does not load": ("ctx.session('bro' + 'ken')", "not a sound .walle file"),
    "gives another type": ("{1, 2}", "set"),
    "crashes its process": ("run()", "VM host"),
}


async def push(shop: ShopCloud, version: str, main: str, config: str = CONFIG, events: str = lines(2)) -> None:
    await shop.push(version, main=main, config=config, **{"simulation/events.jsonl": events, **FILES})


async def ended(shop: ShopCloud, version: str, user: User) -> ReleaseJson:
    release_id = await shop.release(version, beta=["d0"])
    return await shop.until(release_id, "full", "rolled_back", "failed", users=[user])


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_version_that_fails_on_the_device_is_refused_there_and_the_old_one_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        # A busy machine must not fail a run of the version that continues.
        await push(shop, "v1", COUNTING, CONFIG.replace("deadline_ms = 1000", "deadline_ms = 20000"))
        assert (await ended(shop, "v1", user))["state"] == "full"
        for number, (name, (does, reason)) in enumerate(BAD.items(), 2):
            await push(shop, f"v{number}", on_device(does))
            release_id = await shop.release(f"v{number}", beta=["d0"])
            async with asyncio.timeout(60):
                while (totals := (await shop.releases.get(release_id))["totals"])["rejected"] == 0:
                    await user.visit()
            assert totals["installed"] == 0, name
            (refusal,) = [text for text in caplog.messages if f"v{number} is refused" in text]
            assert "its smoke run failed: " in refusal, name
            assert reason in refusal, name
            await shop.releases.rollback(release_id, reason="next")
        assert user.seen[-1] == "v1"
        assert user.seen.count("v1") == 1  # started once, without an interruption
        await device.settled()
        assert device.counts.runs_failed == 0
        assert device.counts.runs_ok == device.stream.counts.triggers
        last = await device.store.query("shop/count", 0, 10_000)
        assert len(last) == device.stream.counts.triggers  # none lost, and none of a smoke run
        assert not any((tmp_path / "d0" / "smoke").iterdir())


@pytest.mark.night
@pytest.mark.asyncio
async def test_each_user_of_the_smoke_events_begins_with_nothing(tmp_path: Path) -> None:
    main = """\
def execute(ctx, trigger):
    if "user" in trigger["event"]["contents"]:
        ctx.state["users"] = sorted({*ctx.state.get("users", []), trigger["event"]["contents"]["user"]})
        if len(ctx.state["users"]) > 1:
            raise ValueError("users share a device")
"""
    events = "".join(
        json.dumps({"stream": user, "event_id": kind, "page_id": "p", "ts_ms": ts_ms, "contents": {"user": user}})
        + "\n"
        for ts_ms, kind in enumerate(("page_enter", "page_exit"))
        for user in ("a", "b")
    )
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await push(shop, "v1", main, CONFIG + "[state]\nversion = 1\n", events)
        release = await ended(shop, "v1", user)
        assert release["state"] == "full", release["reason"]
        assert device.counts.runs_failed == 0


@pytest.mark.asyncio
async def test_a_version_whose_training_fails_on_the_device_is_refused_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = on_device("1") + "\n\ndef train(ctx):\n    return ctx.device['id'] == 'd0' and 1 // 0\n"
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await push(shop, "v1", main, f"{CONFIG}[training]\nwhen = {{ charging = true }}\n")
        release_id = await shop.release("v1", beta=["d0"])
        async with asyncio.timeout(60):
            while (await shop.releases.get(release_id))["totals"]["rejected"] == 0:
                await user.visit()
        (refusal,) = [text for text in caplog.messages if "v1 is refused" in text]
        assert "its smoke run failed: " in refusal
        assert "ZeroDivisionError" in refusal
        assert device.tasks == {}


@pytest.mark.asyncio
async def test_a_smoke_run_begins_with_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    checking = """\
def execute(ctx, trigger):
    ctx.store.put("page", trigger["event"]["page_id"])
    if ctx.device["id"] == "d0" and ctx.device["performance"] != "low":
        raise ValueError("another device")
    if ctx.device["id"] == "d0" and trigger["event"]["page_id"] == "page/1000":
        try:
            ctx.escalate({})
            raise ValueError("it has a cloud")
        except EscalationError:
            pass
        if len(ctx.store.query("page")) != 1 or ctx.history()[0]["page_id"] != "page/1000" or ctx.state:
            raise ValueError(str(len(ctx.store.query("page"))))
    ctx.state["n"] = ctx.state.get("n", 0) + 1
    return ctx.state["n"]
"""
    checking = "EscalationError = Exception\n" + checking
    config = CONFIG + '[history]\n[state]\nversion = 1\n[phases]\nexecute = "auto"\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        for version in ("v1", "v2"):
            await push(shop, version, checking, config, lines(1, first=1000))
            release = await ended(shop, version, user)
            assert release["state"] == "full", release["reason"]
        await device.settled()
        counted = [feature.payload for feature in await device.store.query("shop/count", 0, 10_000)]
        assert len(counted) == device.stream.counts.triggers
        assert device.counts.escalated == 0


@pytest.mark.asyncio
async def test_images_and_arrays_of_events_are_played_too(tmp_path: Path) -> None:
    image = np.zeros((4, 5, 3), dtype="uint8")
    events = [json.loads(line) for line in lines(2).splitlines()]
    for event in events:
        event["contents"] = {"image": {"$image": "frames/1.png"}, "sound": {"$npy": "a.npy"}}
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
    files: dict[str, str | bytes] = {
        "simulation/frames/1.png": bytes(memoryview(cv.imencode(".png", image)[1])),
        "simulation/a.npy": b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header + struct.pack("<2f", 1, 2),
        **FILES,
    }
    text = "".join(f"{json.dumps(event)}\n" for event in events)

    def task(fault: str) -> str:
        return f"""\
def execute(ctx, trigger):
    found = trigger["event"]["contents"]
    if "image" in found and (found["image"].shape != (4, 5, 3) or list(found["sound"]) != [1.0, 2.0]):
        raise ValueError(str(found)[:200])
    if "image" in found and ctx.device["id"] == "d0":
        {fault}
    return 1
"""

    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=task("pass"), config=CONFIG, **{"simulation/events.jsonl": text}, **files)
        release = await ended(shop, "v1", user)
        assert release["state"] == "full", release["reason"]
        (found,) = (tmp_path / "d0" / "tasks").glob("*/versions/*/files/smoke-events")
        assert {path.relative_to(found).as_posix() for path in found.rglob("*.*")} == {
            "events.jsonl",
            "frames/1.png",
            "a.npy",
        }
        await shop.push("v2", main=task("1 // 0"), config=CONFIG, **{"simulation/events.jsonl": text}, **files)
        release_id = await shop.release("v2", beta=["d0"])
        async with asyncio.timeout(60):
            while (totals := (await shop.releases.get(release_id))["totals"])["rejected"] == 0:
                await user.visit()
        assert totals["installed"] == 0
        assert "ZeroDivisionError" in json.dumps(await shop.releases.failures(release_id))
        assert user.has("v1")


@pytest.mark.asyncio
async def test_without_events_a_version_is_only_loaded(tmp_path: Path) -> None:
    config = CONFIG.replace('events.jsonl"', 'events.jsonl"\nsmoke_events = 0')
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await push(shop, "v1", COUNTING, config)
        assert (await ended(shop, "v1", user))["state"] == "full"
        (files,) = (tmp_path / "d0" / "tasks").glob("*/versions/*/files")
        assert not (files / "smoke.jsonl").exists()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_slow_smoke_run_is_tried_again_and_a_slow_device_rejects_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke_run, "_LEAST_S", 0.0)
    monkeypatch.setattr(smoke_run, "_MAX_RUNS", 0)  # no time is left
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await push(shop, "v1", on_device("sum(range(100_000))"))
        assert (await ended(shop, "v1", user))["state"] == "full"


@pytest.mark.asyncio
async def test_what_a_killed_smoke_run_left_is_removed(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        left = tmp_path / "d0" / "smoke" / "tmp1" / "device"
        left.mkdir(parents=True)
        (left / "features.db").write_bytes(b"rest")
        async with shop.device(tmp_path / "d0"):
            assert not (tmp_path / "d0" / "smoke").exists()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_rollback_does_not_wait_for_a_smoke_run(tmp_path: Path) -> None:
    slow = on_device("__import__('time').sleep(60)")
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await push(shop, "v1", COUNTING)
        await ended(shop, "v1", user)
        await push(shop, "v2", slow, CONFIG.replace("deadline_ms = 1000", "deadline_ms = 20000"))
        release_id = await shop.release("v2", beta=["d0"])
        async with asyncio.timeout(20):
            while not (tmp_path / "d0" / "smoke").exists():
                await user.visit()
            await shop.releases.rollback(release_id, reason="no")
            while (await shop.releases.get(release_id))["state"] != "rolled_back" or device.agent._pulls:
                await user.visit()
        assert user.has("v1")


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_release_is_simulated_for_the_devices_that_it_is_for(tmp_path: Path) -> None:
    reading = "def execute(ctx, trigger):\n    return [ctx.device['app_version'], ctx.device['performance']]\n"
    async with (
        shop_cloud(tmp_path) as shop,
        shop.device(tmp_path / "d0") as device,
        shop.device(tmp_path / "d1") as another,  # one alone makes up no group
    ):
        user = User(device)
        async with asyncio.timeout(60):
            while True:
                seen = await shop.releases.preview("shop", "count", rule="", app_version="", seen_within_s=600.0)
                if seen["seen"] == 2:
                    break
                await user.visit()
                await another.checkin()
        await push(shop, "v1", reading)
        release = await ended(shop, "v1", user)
        assert release["state"] == "full", release["reason"]
        assert [(one["app_version"], one["devices"], one["runs"], one["failures"]) for one in release["groups"]] == [
            ("10.1", 2, 2, 0)
        ]
        assert (await device.store.query("shop/count", 0, 1))[0]
