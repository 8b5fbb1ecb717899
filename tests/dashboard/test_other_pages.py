"""Devices, targeting, tasks, features and metrics on the dashboard of a real cloud, with a device and its features."""

import asyncio
import re
import urllib.parse
from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.dashboard.visitor import Visitor, visitor, words_of
from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.access.access import ANY_SCENARIO, Role
from walle.device import Device
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.tunnel.received import Received

HOSTILE = "<img src=x onerror=alert(1)>"
GATE = {"p_good": 0.98, "p_bad": 0.99, "alpha": 0.01, "beta": 0.01, "trial_runs": 1_000}
MAIN = f"""\
def execute(ctx, trigger):
    if trigger["event"]["contents"]["n"] % 2:
        raise ValueError({HOSTILE!r})
    return {{"seen": {HOSTILE!r}}}
"""


class World(NamedTuple):
    shop: ShopCloud
    device: Device
    user: User
    release_id: str
    admin: Visitor
    reader: Visitor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    tmp_path = tmp_path_factory.mktemp("world")
    async with (
        shop_cloud(tmp_path, outlived=True) as shop,
        shop.device(tmp_path / "d/0", attributes={"os": "android", "performance": HOSTILE}) as device,
        visitor(shop, "root") as admin,
        visitor(shop, "ruth", {"shop": Role.READER}) as reader,
    ):
        await shop.push("v1")
        files: dict[str, str | bytes] = {"main": MAIN, "logo.bin": b"\0\1\2", "notes.txt": f"{HOSTILE}\n"}
        await shop.push("v2", **files)
        release_id = await shop.release("v2", beta=["0"], gate=GATE)
        user = User(device)
        await user.until(lambda: device.counts.runs_failed >= 1 and device.counts.runs_ok >= 1)
        await device.settled()

        async def is_received() -> bool:
            return await shop.received() > 0

        async def is_listed() -> bool:  # listed with its profile
            return "android" in await admin.get("/dashboard/device/0")

        await until(is_received)
        await until(is_listed)
        yield World(shop, device, user, release_id, admin, reader)


def linked(page: str) -> list[str]:
    return [one.replace("&amp;", "&") for one in re.findall(r'href="(/dashboard/[^"]+)"', page)]


@pytest.mark.asyncio(loop_scope="module")
async def test_devices_are_found_by_attribute_task_and_failure_and_one_tells_its_story(world: World) -> None:
    for count in range(120):
        batch = {"device_id": f"fleet/{count:03}", "batch_id": "b", "outcomes": []}
        headers = session_headers(world.shop.cloud.home, f"fleet/{count:03}")
        assert (await world.shop.http.post("/v1/outcomes", json=batch, headers=headers)).status_code == 204
    page = await world.admin.get("/dashboard/devices")
    assert "121 devices" in words_of(page)
    found = set()
    while True:
        assert "<img" not in page
        found |= {urllib.parse.unquote(one) for one in linked(page) if one.startswith("/dashboard/device/")}
        following = re.findall(r'rel="next" href="([^"]+)"', page)
        if not following:
            break
        page = await world.admin.get(following[0].replace("&amp;", "&"))
    assert found == {"/dashboard/device/0", *(f"/dashboard/device/fleet/{count:03}" for count in range(120))}
    grouped = await world.reader.get("/dashboard/devices?by=os")
    assert "android 1" in words_of(grouped)
    narrowed = next(one for one in linked(grouped) if "value=android" in one)
    for query, count in (
        (narrowed, 1),
        ("/dashboard/devices?attribute=os&value=ios", 0),
        ("/dashboard/devices?attribute=performance&value=" + urllib.parse.quote(HOSTILE), 1),
        ("/dashboard/devices?failing=true&task=shop/count&version=v2", 1),
        ("/dashboard/devices?search=fleet", 0),  # a reader of shop does not know these devices' tasks
    ):
        assert f"{count} device" in words_of(await world.reader.get(query)), query
    answer = await world.shop.http.get("/v1/devices?attribute=os&value=android")
    assert [one["device_id"] for one in answer.json()["devices"]] == ["0"]
    lost = Loss("an earlier epoch", 5, None, LossCause.DAMAGED)
    report = Received("0", "another epoch", 1, LOSS_TOPIC, lost.encode(), 1, 2)
    await world.shop.cloud.gateway._uploads.store.accept([report])
    story = await world.reader.get("/dashboard/device/0")
    assert "<img" not in story
    text = words_of(story)
    for part in (
        "shop/count v2",
        "ValueError",
        "main.py:3",
        world.release_id,
        "Latest upload",
        "At least 1 upload was lost, how many is unknown yet (damaged)",
        "shop/count v2",
        "android",
        "Connected since",
    ):
        assert part in text, part
    assert "Not connected to this gateway" in words_of(await world.admin.get("/dashboard/device/fleet/001"))
    assert "is unknown" in await world.reader.get("/dashboard/device/fleet/001", 404)
    assert "is unknown" in await world.admin.get("/dashboard/device/none", 404)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_rule_is_previewed_and_a_devices_versions_are_explained(world: World) -> None:
    path = "/dashboard/targeting"
    assert "Whom would a release reach?" in await world.reader.get(path)
    seen = words_of(await world.reader.get(f"{path}?scenario=shop&app_version={urllib.parse.quote('>=10')}"))
    assert "It reaches 1 of the" in seen
    assert world.release_id in seen
    wrong = await world.reader.get(f"{path}?scenario=shop&rule={urllib.parse.quote('os == ')}", 422)
    assert 'role="alert"' in wrong
    assert "does not have the role reader" in await world.reader.get(f"{path}?scenario=bank", 403)
    text = words_of(await world.reader.get(f"{path}?device=0"))
    assert "shop/count: has v2, gets v2" in text
    assert "is unknown" in words_of(await world.reader.get(f"{path}?device=none", 404))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tasks_versions_are_compared_by_lines_and_by_hash(world: World) -> None:
    assert "/dashboard/tasks/shop/count" in linked(await world.reader.get("/dashboard/tasks"))
    page = await world.reader.get("/dashboard/tasks/shop/count")
    assert "<img" not in page
    text = words_of(page)
    assert "From v1 to v2" in text
    assert "logo.bin added 3 B" in text
    assert "not a text" in text
    assert (
        '<span class="plus">+    return {&#34;seen&#34;: &#39;&lt;img src=x onerror=alert(1)&gt;&#39;}</span>' in page
    )
    assert "ae4b3280e56e2faf83f414a6e3dabe9d5fbe18976544c05fed121accb85b53fc" in text  # hash of 00 01 02
    assert world.release_id in text
    assert "Files of v1" in words_of(await world.reader.get("/dashboard/tasks/shop/count?new=v1"))
    back = words_of(await world.reader.get("/dashboard/tasks/shop/count?old=v2&new=v1"))
    assert "logo.bin removed" in back
    assert "does not exist" in await world.reader.get("/dashboard/tasks/shop/count?old=v9&new=v1", 422)
    assert "compared with itself" in await world.reader.get("/dashboard/tasks/shop/count?old=v1&new=v1", 422)
    await world.reader.get("/dashboard/tasks/shop/count?old=../../v1&new=v1", 422)
    await world.reader.get("/dashboard/tasks/bank/count", 403)


@pytest.mark.asyncio(loop_scope="module")
async def test_features_are_sampled_and_tailed_without_a_gap(world: World) -> None:
    page = await world.reader.get("/dashboard/features")
    assert "<img" not in page
    seen = {int(one) for one in re.findall(r'id="f-(\d+)"', page)}
    assert seen
    (address,) = re.findall(r'hx-sse:connect="([^"]+)"', page)
    address = address.replace("&amp;", "&")
    got: list[str] = []

    async def tail(more: dict[str, str]) -> str:
        async with asyncio.timeout(60), world.reader.http.stream("GET", address, headers=more) as answer:
            number = ""
            async for line in answer.aiter_lines():
                got.extend(re.findall(r'id="f-(\d+)"', line))
                number = line.removeprefix("id: ") if line.startswith("id: ") else number
                if not line and number:
                    return number
        raise AssertionError("the tail ended")

    before = await world.shop.received()
    await world.user.until(lambda: world.device.counts.runs_ok >= 4)

    async def has_more() -> bool:
        return await world.shop.received() > before

    await until(has_more)
    last = await tail({})
    await world.user.until(lambda: world.device.counts.runs_ok >= 8)
    await tail({"Last-Event-ID": last})
    numbers = [int(one) for one in got]
    assert len(set(numbers)) == len(numbers)
    assert not seen & set(numbers)
    for version, expected in (("v2", True), ("v1", False), ("unknown", False)):
        page = await world.reader.get(f"/dashboard/features?task=shop/count&version={version}")
        assert ("shop/count v2 0" in words_of(page)) is expected
    assert "must be named in full" in await world.reader.get("/dashboard/features?task=count", 422)
    otto = visitor(world.shop, "otto", {"bank": Role.READER})
    async with otto:
        assert 'id="f-' not in await otto.get("/dashboard/features")


@pytest.mark.asyncio(loop_scope="module")
async def test_metrics_are_for_who_may_see_the_whole_cloud(world: World) -> None:
    await world.reader.get("/dashboard/metrics", 403)
    assert "/dashboard/metrics" not in linked(await world.reader.get("/dashboard"))
    text = words_of(await world.admin.get("/dashboard/metrics"))
    for part in ("tunnel", "New uploads that were stored", "Connections of HTTP", "OK"):
        assert part in text, part
    async with visitor(world.shop, "mona", {ANY_SCENARIO: Role.METRICS}) as mona:
        await mona.get("/dashboard/metrics")
        await mona.get("/dashboard/devices", 403)
    async with httpx.AsyncClient(base_url=world.shop.cloud.address.url) as http:
        assert (await http.get("/dashboard/metrics")).status_code == 303
