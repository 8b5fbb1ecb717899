"""The dashboard in a real browser: keyboard, names for screen readers, a phone, the dark, a cloud that goes away."""

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.dashboard.chromium import PHONE, Browser, Page, chromium, chromium_path
from tests.dashboard.fleet import play
from tests.night.cases import at_night
from tests.sim.shop_cloud import ShopCloud, shop_cloud
from walle.access.access import Role
from walle.cloud import Cloud
from walle.cloud.dashboard.sessions import COOKIE

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(chromium_path() is None, reason="chromium is not on PATH"),
]
AXE = Path(__file__).with_name("axe-4.14.1.min.js")


class World(NamedTuple):
    shop: ShopCloud
    browser: Browser
    ids: dict[str, str]

    @property
    def url(self) -> str:
        return self.shop.cloud.address.url

    def token(self, name: str, role: Role = Role.RELEASER) -> str:
        return self.shop.cloud.gateway._home.access.add(name, {"shop": role})

    @contextlib.asynccontextmanager
    async def person(
        self, name: str, *, size: tuple[int, int] = (1280, 900), dark: bool = False
    ) -> AsyncIterator[Page]:
        """Open a page of a person who is logged in; at its end nothing was complained of."""
        begun = self.shop.cloud.gateway._callers.sessions.begin(self.token(name))
        assert begun is not None
        async with self.browser.page(size=size, dark=dark) as page:
            await page.call(
                "Network.setCookie", name=COOKIE, value=begun[1], url=f"{self.url}/dashboard", httpOnly=True
            )
            yield page
            assert page.complaints == []
            assert page.dialogs == []
            assert {one.split("/")[2] for one in page.requested if one.startswith("http")} <= {self.url.split("/")[2]}

    def release(self, kind: str) -> str:
        return f"{self.url}/dashboard/releases/{self.ids[kind]}"

    def pages(self) -> list[str]:
        paths = [
            "",
            f"/releases/{self.ids['bad']}",
            f"/releases/{self.ids['paused']}",
            f"/releases/{self.ids['running']}/confirm/rollback",
            "/devices?by=model",
            "/device/phone-0001",
            "/targeting?scenario=shop&rule=&app_version=%3E%3D10.1&device=phone-0001",
            "/tasks/shop/count",
            "/features",
        ]
        return [f"{self.url}/dashboard{path}" for path in paths]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with shop_cloud(tmp_path_factory.mktemp("world"), outlived=True) as shop, chromium() as browser:
        yield World(shop, browser, await play(shop))


async def test_a_release_is_rolled_back_by_keyboard_alone(world: World) -> None:
    token = world.token("kim")
    async with world.browser.page() as page:
        await page.go(world.release("running"))
        await page.until("document.activeElement.id === 'token'")
        await page.type(token)
        await page.press("Enter")
        await page.until("document.querySelector('#live h1')")
        assert await page.run("document.querySelector('#live h1').innerText") == "shop/count v4 percentage rollout"
        await page.press("Tab")
        assert await page.run("document.activeElement.innerText") == "Skip to the content"
        await page.tab_to("Pause")
        assert await page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.press("Enter")
        await page.until("document.title.startsWith('Pause ')")
        await page.tab_to("Cancel")
        await page.press("Enter")
        await page.until("document.querySelector('#live h1')")
        await page.tab_to("Pause")
        await page.press("Enter")
        await page.until("document.title.startsWith('Pause ')")
        await page.tab_to("Pause")
        await page.press("Enter")
        await page.until("document.body.innerText.includes('You paused the release.')")
        await page.tab_to("Resume")
        await page.press("Enter")
        await page.until("document.title.startsWith('Resume ')")
        await page.tab_to("Resume")
        await page.press("Enter")
        await page.until("document.body.innerText.includes('You resumed the release.')")
        await page.go(world.release("bad"))
        summary = "KeyError"
        for _ in range(60):
            await page.press("Tab")
            if await page.run(f"document.activeElement.innerText.startsWith({summary!r})"):
                break
        await page.press("Enter")
        await page.until("document.querySelector('details.failure[open] pre').innerText.includes('main.py')")
        assert page.dialogs == []


@pytest.mark.night
async def test_axe_finds_nothing_serious_in_light_dark_and_on_a_phone(world: World) -> None:
    axe = AXE.read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for size, dark in (((1280, 900), False), (PHONE, True)):
        async with world.person(f"axel-{dark}", size=size, dark=dark) as page:
            for url in world.pages():
                await page.go(url)
                await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                await page.run(f"(() => {{ {axe}\n }})()")
                answer = json.loads(
                    await page.run("axe.run(document, {resultTypes: ['violations']}).then((r) => JSON.stringify(r))")
                )
                serious = [
                    f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
                    for one in answer["violations"]
                    if one["impact"] in ("serious", "critical")
                ]
                if serious:
                    found[f"{url} dark={dark}"] = serious
                width = await page.run("document.documentElement.scrollWidth")
                assert width <= size[0], (url, width)
                background = await page.run("getComputedStyle(document.body).backgroundColor")
                assert (background == "rgb(20, 24, 29)") is dark
    assert not found, json.dumps(found, indent=1)


async def test_a_hostile_author_and_device_script_no_page(world: World) -> None:
    async with world.person("hal") as page:
        for url in world.pages():
            await page.go(url)
            await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert await page.run("document.querySelectorAll('main img').length") == 0
        await page.go(world.release("bad"))
        assert "onerror=alert(1)" in await page.run(
            "document.querySelector('details.failure pre:last-of-type').textContent"
        )
    # And were it written as HTML, the policy would keep it from running.
    async with world.browser.page() as page:
        await page.go(f"{world.url}/dashboard/login")
        await page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title = 1\">')")
        await page.run(
            "(() => { const s = document.createElement('script'); s.textContent = 'document.title = 2';"
            " document.body.append(s); })()"
        )
        await page.until("document.images.length && document.images[0].complete")
        assert await page.run("document.title") == "Log in – Walle"
        assert any("Content Security Policy" in one for one in page.complaints)


@pytest.mark.night
async def test_charts_and_texts_tell_the_same_time_wherever_the_reader_is(world: World) -> None:
    async with world.person("kiri") as page:
        await page.call("Emulation.setTimezoneOverride", timezoneId="Pacific/Kiritimati")
        await page.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="window.texts = []; const fill = CanvasRenderingContext2D.prototype.fillText;"
            "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
            " texts.push(text); return fill.call(this, text, ...at); };",
        )
        await page.go(world.release("bad"))
        await page.until("texts.some((one) => /^\\d+:\\d+:\\d+$/.test(one))")
        spoken = await page.run("document.querySelector('#live time').innerText")
        hour = await page.run("new Date(document.querySelector('#live time').dateTime).toISOString().slice(11, 13)")
        drawn = json.loads(await page.run("JSON.stringify(texts.filter((one) => one.includes(':')))"))
        assert spoken.endswith(" UTC")
        assert all((int(one[:2]) - int(hour)) % 24 in (0, 1, 23) for one in drawn), (spoken, drawn)
        assert (await page.run("document.querySelector('.u-legend').innerText")).startswith("UTC")


@pytest.mark.night
async def test_charts_have_units_labels_that_do_not_overlap_and_the_latest_values(world: World) -> None:
    async with world.person("lars", size=PHONE) as page:
        await page.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="window.texts = []; const fill = CanvasRenderingContext2D.prototype.fillText;"
            "CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {"
            " if (this.textAlign === 'left' && this.textBaseline === 'alphabetic') {"
            " const chart = [...document.querySelectorAll('canvas')].indexOf(this.canvas);"
            " texts.push([chart, text, x, y, this.measureText(text).width, this.canvas.width]); }"
            " else texts.push([-1, text, x, y, 0, 0]); return fill.call(this, text, x, y, ...more); };",
        )
        for kind in ("bad", "paused"):
            await page.go(world.release(kind))
            await page.until("texts.some((one) => one[0] >= 0) && document.querySelectorAll('.u-legend').length > 2")
            texts = json.loads(await page.run("JSON.stringify(texts)"))
            assert any(one[1].endswith(" %") for one in texts if one[0] == -1), kind
            written = {(one[0], one[1], *one[2:]) for one in texts if one[0] >= 0}
            assert {"paused" if kind == "paused" else "rolled back", "unacceptable 20 %"} <= {one[1] for one in written}
            for chart, text, x, y, width, whole in written:
                assert x + width <= whole, (kind, text)
                for other, words, x2, y2, width2, _ in written:
                    if chart == other and text != words and abs(y - y2) < 10:
                        assert x + width <= x2 or x2 + width2 <= x, (kind, text, words)
            legends = json.loads(
                await page.run(
                    "JSON.stringify([...document.querySelectorAll('.u-legend')].map((one) => one.innerText))"
                )
            )
            assert not any("--" in one for one in legends), legends


@pytest.mark.night
async def test_two_people_see_what_the_other_does_at_once(world: World) -> None:
    async with world.person("anna") as anna, world.person("bert") as bert:
        for page in (anna, bert):
            await page.go(f"{world.release('running')}/confirm/pause")
        await anna.run("document.querySelector('button.pause').click()")
        await anna.until("document.body.innerText.includes('You paused the release.')")
        await bert.run("document.querySelector('button.pause').click()")
        await bert.until("document.querySelector('[role=alert]')?.innerText.includes('Nothing was done')")
        assert "anna (pause)" in await bert.run("document.querySelector('[role=alert]').innerText")
        bert.complaints.clear()  # one complaint: the status 409
        await bert.run("document.querySelector('a.resume').click()")
        await bert.until("document.querySelector('button.resume')")
        # A part that a person has opened stays open, and the page follows without a reload.
        await anna.run("document.querySelector('details.failure').open = true")
        await anna.run("document.querySelector('details.failure').isTheSame = true")
        await bert.run("document.querySelector('button.resume').click()")
        await anna.until("document.querySelector('#live h1 .state').innerText === 'percentage rollout'")
        assert await anna.run("document.querySelector('details.failure').isTheSame")
        assert await anna.run("document.querySelector('details.failure').open")


@pytest.mark.night
async def test_a_cloud_that_goes_away_and_comes_back_is_noticed(tmp_path: Path, world: World) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with contextlib.AsyncExitStack() as undo:
        shop = await undo.enter_async_context(shop_cloud(tmp_path, outlived=True, http_port=port))
        await shop.push("v1")
        release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
        config = dataclasses.replace(shop.cloud.config)
        token = shop.cloud.home.admin_token
        page = await undo.enter_async_context(world.browser.page())
        url = shop.cloud.address.url
        await page.go(f"{url}/dashboard/releases/{release_id}")
        await page.until("document.getElementById('token')")
        await page.run(f"document.getElementById('token').value = {token!r}")
        await page.run("document.querySelector('button').click()")
        await page.until("document.querySelector('#live h1')")
        await shop.cloud.gateway.close()
        await page.until("!document.getElementById('connection').hidden")
        await shop.releases.__aexit__(None, None, None)
        await shop.cloud.__aexit__(None, None, None)
        again = await undo.enter_async_context(Cloud(config))
        await page.until("document.getElementById('connection').hidden")
        await again.releases.rollback(release_id, "someone else", "while you looked")
        await page.until("document.querySelector('#live h1 .state').innerText === 'rolled back'")


@pytest.mark.parametrize("late", ["", *at_night("walle.js", "htmx-sse")])
async def test_a_page_whose_first_connection_fails_says_so_and_connects_again(world: World, late: str) -> None:
    async with world.person(f"nils {late}".strip()) as page:
        await page.slow({"/live": None} | ({late: 0.5} if late else {}))
        await page.go(world.release("full"))
        await page.until("!document.getElementById('connection').hidden")
        assert "shop/count" in await page.run("document.querySelector('#live h1').innerText")
        await page.slow({})
        await page.until("document.getElementById('connection').hidden")
        await page.until("document.getElementById('live')._htmx?.sse?.status === 200")
        page.complaints.clear()  # the refused requests


@pytest.mark.night
async def test_a_link_from_elsewhere_finds_the_session_and_a_late_one_the_login(world: World) -> None:
    async with world.person("lena") as page:
        await page.go(f"{world.url}/dashboard/login?next=%2Fdashboard%2Fdevices")
        await page.until("location.pathname === '/dashboard/devices'")
        await page.go(world.release("running"))
        world.shop.cloud.gateway._home.access.revoke("lena")
        await page.until("location.pathname === '/dashboard/login'")
        page.complaints.clear()  # one complaint: the status 401
    await asyncio.sleep(0)
