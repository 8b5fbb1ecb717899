"""The dashboard's releases on a real cloud: login, roles, actions with a name, what is refused, what is shown."""

import asyncio
import contextlib
import dataclasses
import html
import json
import re
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.dashboard.visitor import forms, log_in, visitor, words_of
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.access.access import ANY_SCENARIO, Access, Role
from walle.base.clock import SystemClock
from walle.cloud import Cloud, CloudConfig
from walle.cloud.dashboard import Sessions
from walle.cloud.dashboard.record_quota import MAX_RECORDS_A_DAY
from walle.cloud.dashboard.sessions import COOKIE, LOGIN_COOKIE
from walle.deploy.releases.release import ReleaseState

HOSTILE = "\"'><img src=x onerror=alert(1)>\x1b[2J\u202e"
READER = {"shop": Role.READER}
RELEASER = {"shop": Role.RELEASER}


@pytest_asyncio.fixture
async def shop(tmp_path: Path) -> AsyncIterator[ShopCloud]:
    async with shop_cloud(tmp_path, outlived=True) as found:
        await found.push("v1")
        yield found


def audited(shop: ShopCloud, action: str) -> list[tuple[str, str]]:
    folder = shop.cloud.config.folder / "audit"
    lines = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [(one["who"], one["subject"]) for one in lines if one["action"] == action]


@pytest.mark.asyncio
async def test_a_login_makes_a_session_that_scripts_and_other_sites_cannot_use(shop: ShopCloud) -> None:
    async with httpx.AsyncClient(base_url=shop.cloud.address.url) as http:
        for path in ("/dashboard", "/dashboard/releases/x?y=1"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["location"].startswith("/dashboard/login?next=")) == (303, True)
        assert (await http.get("/dashboard/live", headers={"HX-Request": "true"})).status_code == 401
        wrong = await log_in(http, "walle_wrong")
        assert (wrong.status_code, COOKIE in wrong.headers.get("set-cookie", "")) == (401, False)
        token = shop.cloud.home.admin_token
        by_other = {"Sec-Fetch-Site": "cross-site"}
        assert (await http.post("/dashboard/login", data={"token": token}, headers=by_other)).status_code == 403
        for came_from, leads_to in (
            ("/dashboard/releases/x?y=1", "/dashboard/releases/x?y=1"),
            ("//evil.example/dashboard", "/dashboard"),
            ("https://evil.example/", "/dashboard"),
            ("/dashboard/\\evil\r\nX: y", "/dashboard"),
            ("/dashboard/logout", "/dashboard"),
        ):
            answer = await log_in(http, token, next=came_from)
            assert (answer.status_code, answer.headers["location"]) == (303, leads_to)
        for cookie in answer.headers.get_list("set-cookie"):
            assert {"httponly", "samesite=strict"} <= {one.strip() for one in cookie.lower().split(";")}
        assert [cookie.partition("=")[0] for cookie in answer.headers.get_list("set-cookie")] == [COOKIE, LOGIN_COOKIE]
        assert (await http.get("/dashboard/login")).status_code == 303
        policy = (await http.get("/dashboard")).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        # The cookie is for pages alone: the API takes tokens.
        assert (await http.get("/v1/releases")).status_code == 401
        kept = dict(http.cookies)
        form = forms((await http.get("/dashboard")).text)["/dashboard/logout"]
        assert (await http.post("/dashboard/logout", data=form)).headers["location"] == "/dashboard/login"
        http.cookies.update(kept)
        assert (await http.get("/dashboard")).status_code == 303
    assert ("admin", "") in audited(shop, "dashboard.login")


@pytest.mark.asyncio
async def test_no_other_site_logs_a_browser_in(shop: ShopCloud) -> None:
    """A form without Sec-Fetch-Site, of an older browser: only who has the page of the login can send its form."""
    token, url = shop.cloud.home.admin_token, shop.cloud.address.url
    async with httpx.AsyncClient(base_url=url) as http, httpx.AsyncClient(base_url=url) as other:
        form = forms((await http.get("/dashboard/login")).text)["/dashboard/login"]
        theirs = forms((await other.get("/dashboard/login")).text)["/dashboard/login"]
        assert form["form_key"] != theirs["form_key"]
        for data in ({}, {"form_key": ""}, {"form_key": theirs["form_key"]}, {"form_key": "é"}):
            answer = await http.post("/dashboard/login", data={"token": token, "next": "/dashboard/tasks", **data})
            assert (answer.status_code, COOKIE in http.cookies) == (403, False)
            assert "nothing was done" in words_of(answer.text)
            again = forms(answer.text)["/dashboard/login"]
            assert (again["form_key"], again["next"]) == (form["form_key"], "/dashboard/tasks")
        http.cookies.clear()  # a browser sends no cookie with SameSite=Strict from another site
        assert (await http.post("/dashboard/login", data={"token": token, **form})).status_code == 403
    assert audited(shop, "dashboard.login") == []


@pytest.mark.asyncio
async def test_logins_and_links_of_a_token_fill_no_audit_log(shop: ShopCloud) -> None:
    """Each is a record of the log, whose oldest ones are removed, and needs no role but that of a reader."""
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    async with visitor(shop, "ruth", READER) as ruth, httpx.AsyncClient(base_url=shop.cloud.address.url) as http:
        address = f"/dashboard/releases/{release_id}"
        assert (await ruth.press(f"/dashboard/links/{release_id}", address, hours="1")).status_code == 200
        form = forms((await http.get("/dashboard/login")).text)["/dashboard/login"] | {"token": ruth.token}
        cookie = {"Cookie": f"{LOGIN_COOKIE}={http.cookies[LOGIN_COOKIE]}"}
        for _ in range(MAX_RECORDS_A_DAY - 2):
            assert (await http.post("/dashboard/login", data=form, headers=cookie)).status_code == 303
        http.cookies.clear()
        refused = [await http.post("/dashboard/login", data=form, headers=cookie)]
        assert COOKIE not in http.cookies
        refused.append(await ruth.press(f"/dashboard/links/{release_id}", address, hours="1"))
        for answer in refused:
            assert (answer.status_code, "/dashboard/shared/" in answer.text) == (429, False)
            assert 0 < int(answer.headers["retry-after"]) <= 86_400 / MAX_RECORDS_A_DAY
            assert "the token of ruth has logged in or made links 200 times, the most in a day" in words_of(answer.text)
        assert len(audited(shop, "dashboard.login")) == MAX_RECORDS_A_DAY - 1
        assert len(audited(shop, "dashboard.link")) == 1
        async with visitor(shop, "rolf", RELEASER) as rolf:  # another token's are not spent
            await rolf.get("/dashboard")


@pytest.mark.asyncio
async def test_a_session_that_was_logged_out_is_dead_after_a_restart_and_at_other_gateways(tmp_path: Path) -> None:
    config = CloudConfig(folder=tmp_path / "cloud")
    async with Cloud(config) as cloud, httpx.AsyncClient(base_url=cloud.address.url) as http:
        token = cloud.home.admin_token
        kept = []
        for _ in range(2):
            http.cookies.clear()
            assert (await log_in(http, token)).status_code == 303
            kept.append(dict(http.cookies))
        form = forms((await http.get("/dashboard")).text)["/dashboard/logout"]
        assert (await http.post("/dashboard/logout", data=form)).status_code == 303
        home, clock = cloud.home, SystemClock()
        # The sessions of another gateway or edge, of the same folder.
        elsewhere = Sessions(home.dashboard_key(), home.access, clock, home.ended_sessions(clock))
        found = [elsewhere.find(f"{COOKIE}={cookies[COOKIE]}") for cookies in kept]
        assert [session is not None for session in found] == [True, False]
    async with Cloud(config) as cloud, httpx.AsyncClient(base_url=cloud.address.url) as http:
        for cookies, status in zip(kept, (200, 303), strict=True):
            http.cookies.clear()
            http.cookies.update(cookies)
            assert (await http.get("/dashboard")).status_code == status


@pytest.mark.asyncio
async def test_a_reader_sees_no_buttons_and_a_releasers_name_is_in_the_audit_log(shop: ShopCloud) -> None:
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    address = f"/dashboard/releases/{release_id}"
    async with (
        visitor(shop, "ruth", READER) as ruth,
        visitor(shop, "rolf", RELEASER) as rolf,
        visitor(shop, "otto", {"bank": Role.RELEASER}) as otto,
    ):
        page = await ruth.get(address)
        assert "confirm/" not in page
        assert "you need the role releaser in shop" in words_of(page)
        assert words_of(page).count("reated by admin") == 2  # below the title, and in the history
        assert "you need the role releaser" not in words_of(await rolf.get(address))
        await ruth.get(f"{address}/confirm/rollback", 403)
        key = forms(await ruth.get("/dashboard"))["/dashboard/logout"]["form_key"]
        assert (await ruth.http.post(f"{address}/rollback", data={"form_key": key})).status_code == 403
        for path in (address, f"{address}/live", f"{address}/confirm/rollback", "/dashboard/releases/none-v1-7"):
            assert "does not exist" in await otto.get(path, 404)
        assert release_id not in await otto.get("/dashboard")
        assert release_id in await ruth.get("/dashboard")
        # A form of another session, of none, or that another site sends, does nothing.
        for data, headers in (
            ({"form_key": key}, {}),
            ({}, {}),
            (
                forms(await rolf.get(f"{address}/confirm/rollback"))[f"{address}/rollback"],
                {"Sec-Fetch-Site": "cross-site"},
            ),
        ):
            assert (await rolf.http.post(f"{address}/rollback", data=data, headers=headers)).status_code == 403
        assert (await shop.releases.get(release_id))["state"] == "created"
        assert audited(shop, "release.rollback") == []
        done = await rolf.act(release_id, "rollback", reason="it is slow")
        assert (done.status_code, done.headers["location"]) == (303, f"{address}?did=rollback")
        assert audited(shop, "release.rollback") == [("rolf", release_id)]
        text = words_of(await rolf.get(done.headers["location"]))
        assert "You rolled the release back." in text
        assert "by rolf: it is slow" in text


@pytest.mark.asyncio
async def test_a_person_without_a_role_sees_why_and_may_log_in_with_another_token(shop: ShopCloud) -> None:
    as_browser = {"Accept": "text/html,*/*;q=0.8"}
    for name, roles, leads in (
        ("<i>nora", {}, ["/dashboard/login?again=1"]),
        ("mona", {ANY_SCENARIO: Role.METRICS}, ["/dashboard/metrics", "/dashboard/login?again=1"]),
    ):
        async with visitor(shop, name, roles) as person:
            refused = await person.http.get("/dashboard", headers=as_browser)
            assert (refused.status_code, "<i>" in refused.text) == (403, False)
            assert "does not have the role reader in any scenario" in words_of(refused.text)
            assert re.findall(r'href="([^"]+)"', refused.text) == leads
            assert (await person.http.get("/dashboard/login")).status_code == 303
            again = await person.get("/dashboard/login?again=1")
            assert "You are logged in as" in words_of(again)
            assert (await log_in(person.http, shop.cloud.home.admin_token)).status_code == 303
            assert "Releases" in words_of(await person.get("/dashboard"))


@pytest.mark.asyncio
async def test_the_second_of_two_simultaneous_actions_is_refused_with_the_first_actor(shop: ShopCloud) -> None:
    release_id = await shop.release("v1", beta=["nobody"])
    await shop.until(release_id, "beta")
    address = f"/dashboard/releases/{release_id}"
    async with visitor(shop, "anna", RELEASER) as anna, visitor(shop, "bert", RELEASER) as bert:
        form_a, form_b = [forms(await one.get(f"{address}/confirm/pause"))[f"{address}/pause"] for one in (anna, bert)]
        answers = await asyncio.gather(
            anna.http.post(f"{address}/pause", data=form_a), bert.http.post(f"{address}/pause", data=form_b)
        )
        assert sorted(one.status_code for one in answers) == [303, 409]
        late = max(answers, key=lambda one: one.status_code)
        first = "anna" if answers[0].status_code == 303 else "bert"
        assert (
            f"Nothing was done: release {release_id} is already paused; it can be resumed or rolled back"
            in words_of(late.text)
        )
        assert f"The last to act was {first} (pause)" in words_of(late.text)
        assert f"{address}/confirm/resume" in late.text  # the page shows what can be done now
        # Who saw an earlier pause does not overrule a later one.
        stale = forms(await anna.get(f"{address}/confirm/resume"))[f"{address}/resume"]
        assert (await bert.act(release_id, "resume")).status_code == 303
        assert (await bert.act(release_id, "pause")).status_code == 303
        answer = await anna.http.post(f"{address}/resume", data=stale)
        assert (answer.status_code, "check why it is paused now" in answer.text) == (409, True)
        assert (await shop.releases.get(release_id))["state"] == "paused"
        # A rollback is never refused for what was seen.
        stale = forms(await anna.get(f"{address}/confirm/rollback"))[f"{address}/rollback"]
        assert (await bert.act(release_id, "resume")).status_code == 303
        assert (await anna.http.post(f"{address}/rollback", data=stale)).status_code == 303


@pytest.mark.asyncio
async def test_a_read_only_link_shows_one_release_without_a_login(shop: ShopCloud) -> None:
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    other_id = (await shop.releases.create("shop", "count", "v1", policy={"app_version": ">1"}, start=False))["id"]
    async with visitor(shop, "anna", RELEASER) as anna, httpx.AsyncClient(base_url=shop.cloud.address.url) as http:
        page = await anna.press(f"/dashboard/links/{release_id}", f"/dashboard/releases/{release_id}", hours="1")
        (link,) = re.findall(r'value="(/dashboard/shared/[^"]+)"', page.text)
        wrong = await anna.press(f"/dashboard/links/{release_id}", f"/dashboard/releases/{release_id}", hours="9999")
        assert wrong.status_code == 422
        shared = await http.get(link)
        assert (shared.status_code, release_id in shared.text, other_id in shared.text) == (200, True, False)
        assert "<form" not in shared.text
        assert "confirm/" not in shared.text
        assert "<header" not in shared.text
        async with http.stream("GET", f"{link}/live") as live:
            assert live.headers["content-type"].startswith("text/event-stream")
        assert (
            await http.get("/dashboard", headers={"Cookie": f"walle_session={link.rpartition('/')[2]}"})
        ).status_code == 303
        for changed in (link[:-1] + ("A" if link[-1] != "A" else "B"), "/dashboard/shared/x.y"):
            assert (await http.get(changed)).status_code == 403
        assert audited(shop, "dashboard.link") == [("anna", release_id)]
        shop.cloud.gateway._home.access.revoke("anna")
        assert (await http.get(link)).status_code == 403


@pytest.mark.asyncio
async def test_thousands_of_releases_come_in_pages_by_state_and_search(shop: ShopCloud) -> None:
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    service = shop.cloud.releases
    first = await service.get(release_id)
    over = (ReleaseState.ROLLED_BACK, ReleaseState.FAILED, ReleaseState.RETIRED)
    for number in range(2, 1500):
        state = over[number // 100 % 3] if number % 100 == 0 else ReleaseState.FULL
        name = f"count-v1-{number}"
        service._releases[name] = dataclasses.replace(first, id=name, number=number, state=state, reason="why " + name)
    async with visitor(shop, "anna", READER) as anna:
        seen, address = [], "/dashboard?show=over"
        text = await anna.get(address)
        assert "14 releases" in words_of(text)
        assert re.findall(r'href="/dashboard/releases/([^"]+)"', text)[:2] == ["count-v1-1400", "count-v1-1300"]
        assert "why count-v1-1400" in text
        address = "/dashboard"
        for _ in range(3):
            text = await anna.get(address)
            seen += re.findall(r'href="/dashboard/releases/([^"]+)"', text)
            (address,) = (one.replace("&amp;", "&") for one in re.findall(r'rel="next" href="([^"]+)"', text))
        assert seen == [f"count-v1-{number}" for number in range(1499, 1499 - 150, -1)]
        assert "1 release." in words_of(await anna.get("/dashboard?search=V1-1234"))
    pages, before = [], 0
    while True:
        answer = await shop.http.get(f"/v1/releases?limit=600&before={before}&state=full&state=gray")
        pages.append(len(answer.json()))
        before = int(answer.headers["X-Walle-Before"])
        assert answer.headers["X-Walle-Total"] == "1484"
        if not before:
            break
    assert pages == [600, 600, 284]
    assert len((await shop.http.get("/v1/releases")).json()) == 1499  # all of them: no page was asked for


@pytest.mark.asyncio
async def test_texts_of_authors_and_devices_are_escaped(shop: ShopCloud, tmp_path: Path) -> None:
    main = f"def execute(ctx, trigger):\n    ctx.log({HOSTILE!r})\n    raise ValueError({HOSTILE!r})\n"
    await shop.push("v2", main=main)
    gate = {"p_good": 0.98, "p_bad": 0.99, "alpha": 0.01, "beta": 0.01, "trial_runs": 1_000}
    async with (
        shop.device(tmp_path / "d0", attributes={"os": HOSTILE}) as device,
        visitor(shop, "anna", READER) as anna,
    ):
        release_id = await shop.release("v2", beta=["d0"], gate=gate)
        user = User(device)
        await user.until(lambda: device.counts.runs_failed >= 2)
        await device.settled()

        async def is_known() -> bool:
            return "alert(1)" in await anna.get(f"/dashboard/releases/{release_id}")

        await until(is_known)
        page = await anna.get(f"/dashboard/releases/{release_id}")
        assert "<img" not in page
        assert "onerror=alert(1)&gt;" in page
        assert not {"\x1b", "\u202e"} & set(page)
        assert re.search(r"main\.py:3", page)
        async with anna.http.stream("GET", f"/dashboard/releases/{release_id}/live") as answer:
            lines = []
            async for line in answer.aiter_lines():
                lines.append(line)
                if not line and any(one.startswith("data:") for one in lines):
                    break
        assert "<img" not in "\n".join(lines)
        quoted = urllib.parse.quote(HOSTILE, safe="")
        for path in (
            f"/dashboard?search={quoted}",
            f"/dashboard/releases/{quoted}",
            f"/dashboard/login?next={quoted}",
        ):
            answer = await anna.http.get(path, headers={"Cookie": ""} if "login" in path else {})
            assert "<img" not in answer.text


@pytest.mark.asyncio
async def test_a_failed_simulation_shows_its_device_event_source_line_and_log(shop: ShopCloud) -> None:
    main = "def execute(ctx, trigger):\n    ctx.log('<b>seen</b>')\n    return trigger['event']['contents']['n']\n"
    config = '[task]\nname = "count"\n[trigger]\nsequence = ["tap"]\nwithout_visit = true\n'
    config += '[simulation]\nevents = "e.jsonl"\n'
    event = '{"event_id": "tap", "page_id": "item/7", "ts_ms": 5, "contents": {"of": "<i>"}}\n'
    await shop.push("v2", main=main, config=config, **{"e.jsonl": event})
    release_id = await shop.release("v2")
    await shop.until(release_id, "failed")
    async with visitor(shop, "anna", READER) as anna:
        page = await anna.get(f"/dashboard/releases/{release_id}")
    assert "<b>" not in page
    assert "<i>" not in page
    words = html.unescape(words_of(page))
    for text in (
        "KeyError main.py:3 in execute KeyError: 'n' in the simulation, 2 times",
        "Source line return trigger['event']['contents']['n']",
        "Simulated device id simulated-low, app_version 1.0, os android, performance low",
        "; on simulated-low, simulated-high",
        "Event tap item/7, the event 0 of the simulation, line 1 of e.jsonl, ts_ms 5",
        "info: <b>seen</b>",
    ):
        assert text in words, words[words.index("Failures") :][:1500]


@pytest.mark.asyncio
async def test_a_live_page_follows_the_release_and_ends_with_its_token(shop: ShopCloud) -> None:
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    async with visitor(shop, "anna", {ANY_SCENARIO: Role.READER}) as anna:
        async with (
            asyncio.timeout(60),
            anna.http.stream("GET", f"/dashboard/releases/{release_id}/live") as answer,
        ):
            lines = answer.aiter_lines()
            async for line in lines:
                if "state created" in line:
                    break
            await shop.releases.rollback(release_id)
            async for line in lines:
                if "state rolled_back" in line:
                    break
            shop.cloud.gateway._home.access.revoke("anna")
            async for _ in lines:
                pass
        assert (await anna.http.get("/dashboard")).status_code == 303


@pytest.mark.asyncio
async def test_live_parts_end_with_the_session_and_when_a_role_changes(shop: ShopCloud) -> None:
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    page = f"/dashboard/releases/{release_id}"
    access = shop.cloud.gateway._home.access
    others = ["/dashboard/features/live"]

    def set_roles(roles: dict[str, Role]) -> None:
        def change(known: Access) -> None:
            (anna,) = (one for one in known.identities if one.name == "anna")
            known._by_hash[anna.sha256] = dataclasses.replace(anna, roles=roles)

        access._change(change)

    async def until_ended(addresses: Sequence[str], end: Callable[[], Awaitable[None]]) -> None:
        """Open streams, `end` them once the first has sent something, and return when all have ended."""
        async with asyncio.timeout(60), contextlib.AsyncExitStack() as undo:
            opened = [await undo.enter_async_context(anna.http.stream("GET", one)) for one in addresses]
            assert {one.status_code for one in opened} == {200}
            lines = [one.aiter_lines() for one in opened]
            await anext(lines[0])
            await end()
            for one in lines:
                async for _ in one:
                    pass

    async def become_reader() -> None:
        set_roles({"shop": Role.READER})

    async def log_out() -> None:
        assert (await anna.press("/dashboard/logout", "/dashboard")).status_code == 303

    async def become_nobody() -> None:
        set_roles({"shop": Role.NONE})

    async with visitor(shop, "anna", {ANY_SCENARIO: Role.ADMIN}) as anna:
        form = await anna.press(f"/dashboard/links/{release_id}", page, hours="1")
        (link,) = re.findall(r'value="(/dashboard/shared/[^"]+)"', form.text)
        await until_ended([f"{page}/live", "/dashboard/live", *others, "/dashboard/metrics/live"], become_reader)
        assert "confirm/" not in await anna.get(page)
        await until_ended([f"{page}/live", "/dashboard/live", *others], log_out)
        await until_ended([f"{link}/live"], become_nobody)


@pytest.mark.asyncio
async def test_a_form_after_the_sessions_end_leads_to_the_login_and_does_nothing(shop: ShopCloud) -> None:
    release_id = (await shop.releases.create("shop", "count", "v1", start=False))["id"]
    page = f"/dashboard/releases/{release_id}/confirm/rollback"
    action = f"/dashboard/releases/{release_id}/rollback"
    url = shop.cloud.address.url
    async with visitor(shop, "anna", RELEASER) as anna:
        form = forms(await anna.get(page))[action]
        anna.http.cookies.clear()
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Referer": f"{url}{page}"}
        answer = await anna.http.post(action, data=form, headers=browser)
        assert answer.status_code == 303
        login = await anna.http.get(answer.headers["location"])
        assert "Your session has ended; nothing was done." in words_of(login.text)
        assert forms(login.text)["/dashboard/login"]["next"] == page
        data = {**forms(login.text)["/dashboard/login"], "token": anna.token}
        assert (await anna.http.post("/dashboard/login", data=data)).headers["location"] == page
        assert (await shop.releases.get(release_id))["state"] == "created"
        assert audited(shop, "release.rollback") == []
        anna.http.cookies.clear()
        for referer in ("https://evil.example/dashboard/x", f"{url}/dashboard/logout", "", "http://[", "\\x"):
            answer = await anna.http.post(action, data=form, headers={**browser, "Referer": referer})
            login = await anna.http.get(answer.headers["location"])
            assert forms(login.text)["/dashboard/login"]["next"] == "/dashboard", referer
        assert (await anna.http.post(action, data=form)).status_code == 401  # a program
        assert (await anna.http.post(action, data=form, headers={**browser, "HX-Request": "true"})).status_code == 401
