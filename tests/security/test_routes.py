"""Every route of a gateway, asked by every kind of caller, against the table of routes and roles."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import LIMIT_S, ShopCloud, shop_cloud
from walle.access.access import ANY_SCENARIO, Access, Role
from walle.cloud.api import routes
from walle.cloud.api.routes import ROUTES, Caller, RouteGuard, RouteRule, RouteTable, Where
from walle.cloud.dashboard.sessions import COOKIE
from walle.errors import ConfigError

ROLES: dict[str, dict[str, Role]] = {
    "metrics": {ANY_SCENARIO: Role.METRICS},
    "other": {"bank": Role.RELEASER},  # the wrong scenario
    "reader": {"shop": Role.READER},
    "author": {"shop": Role.AUTHOR},
    "releaser": {"shop": Role.RELEASER},
    "admin": {ANY_SCENARIO: Role.ADMIN},
}
CALLERS = ("nobody", "forger", "device", *ROLES)
HOSTILE = "\x1b[2J<script>alert(1)</script>" + "x" * 20_000


class Asked:
    """A cloud with a release, and a token of each kind of caller."""

    def __init__(self, shop: ShopCloud, release_id: str) -> None:
        self.shop = shop
        self.release_id = release_id
        access = shop.cloud.gateway._home.access  # another process's change would act within half a second
        self.tokens = {name: access.add(name, roles) for name, roles in ROLES.items() if name != "admin"}
        self.tokens["admin"] = shop.cloud.home.admin_token
        self.tokens["forger"] = "walle_" + "A" * 43
        self.sessions = shop.cloud.gateway._callers.sessions
        self.http = httpx.AsyncClient(base_url=shop.cloud.address.url, timeout=LIMIT_S)

    async def status(self, caller: str, method: str, path: str, **more: Any) -> int:
        return (await self.ask(caller, method, path, **more)).status_code

    async def ask(self, caller: str, method: str, path: str, **more: Any) -> httpx.Response:
        """Return the answer's head; of a stream, nothing else is read."""
        rule = RouteTable().find(method, path.partition("?")[0])
        is_page = rule is not None and rule.caller is Caller.SESSION
        headers = {**more.pop("headers", {}), **self.header(caller, is_page=is_page)}
        async with self.http.stream(method, path, headers=headers, **more) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                return answer
            await answer.aread()
            return answer

    def header(self, caller: str, *, is_page: bool = False) -> dict[str, str]:
        if caller == "device":
            return session_headers(self.shop.cloud.home, "d0")
        if is_page and caller in self.tokens:
            begun = self.sessions.begin(self.tokens[caller])
            return {"Cookie": f"{COOKIE}={begun[1] if begun else 'forged.forged'}"}
        return {"Authorization": f"Bearer {self.tokens[caller]}"} if caller != "nobody" else {}


@contextlib.asynccontextmanager
async def _asked(folder: Path) -> AsyncIterator[Asked]:
    async with shop_cloud(folder, outlived=True) as shop:  # the watcher of sse_starlette outlives a stream
        await shop.push("v1")
        asked = Asked(shop, (await shop.releases.create("shop", "count", "v1", start=False))["id"])
        async with asked.http:
            yield asked


@pytest_asyncio.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    async with _asked(tmp_path) as found:
        yield found


def request_of(rule: RouteRule, release_id: str) -> tuple[str, str, dict[str, Any]]:
    """Return method, path and arguments of a well-formed request for the route."""
    method = rule.methods.split()[0]
    path = rule.path.replace("{release_id}", release_id).replace("{scenario}", "shop.git")
    if path.startswith("/v1/versions/"):
        path = path.replace("shop.git", "shop").replace("{task}", "count").replace("{version}", "v1")
    path = path.replace("{device_id:path}", "d0").replace("{name:path}", "nobody-has-this-name")
    path = path.replace("/docs/assets/{path:path}", "/docs/assets/swagger-ui.css").replace("{address:path}", "0" * 64)
    path = path.replace("{group}", "market")
    if path.startswith("/v1/groups/"):
        path = path.replace("shop.git", "shop")
    if path.startswith("/dashboard/tasks/shop"):
        path = "/dashboard/tasks/shop/count"
    if path.startswith("/v1/exclusive/"):
        path = path.replace("shop.git", "shop").replace("{task}", "count").replace("{name}", "a?device=d0")
    path = path.replace("{sha256}", "0" * 64)
    more: dict[str, Any] = {}
    if path.endswith("/info/refs"):
        path += "?service=git-upload-pack"
    if "/git-" in path:
        more = {"headers": {"content-type": f"application/x-{path.rpartition('/')[2]}-request"}, "content": b"0000"}
    path = path.replace("/dashboard/static/{name}", "/dashboard/static/walle.css").replace("{link}", "no-link")
    path = path.replace("{verb}", "pause")
    if (method, path) == ("POST", "/v1/releases"):
        more = {"json": {"scenario": "shop", "task": "count", "version": "v9"}}
    if path in ("/v1/preview", "/v1/releases/retire"):
        more = {"json": {"scenario": "shop"}}
    if path.endswith("/signatures"):
        more = {"json": {"signatures": "none"}}  # refused for the role, before it is read
    if (method, path) == ("POST", "/v1/tokens"):
        more = {"json": {"name": "again", "roles": {"shop": "nothing"}}}
    return method, path, more


def expected(rule: RouteRule, caller: str) -> set[int]:
    """Return the statuses of a refusal that the table asks for; empty if it lets the caller through."""
    if rule.caller in (Caller.ANYONE, Caller.BUSINESS):
        return set()
    if rule.caller is Caller.FILE_ADDRESS:
        return {403, 404}  # no token opens a file
    if rule.caller is Caller.LINK:
        return {403}  # no token opens it, and this link is none
    if rule.caller is Caller.SESSION and caller not in ROLES:
        return {303, 401}  # the page leads to the login
    if rule.caller is Caller.SESSION and rule.methods == "POST":
        return {403, 404}  # a role alone does not do it: each session has its own form
    if rule.caller is Caller.DEVICE:
        return set() if caller == "device" else {404} if rule.path.startswith("/cen/") else {401, 422}
    if caller not in ROLES:
        return {401}
    scenario = ANY_SCENARIO if rule.where is Where.ALL else "shop"
    role = ROLES[caller].get(scenario, ROLES[caller].get(ANY_SCENARIO, Role.NONE))
    if rule.where is Where.SOME:
        role = max(ROLES[caller].values())
    if role >= rule.role:
        return set()
    return {403, 404} if rule.where is Where.ITS and role < Role.READER else {403}


@pytest.mark.asyncio
async def test_each_route_is_open_to_the_callers_of_the_table_only(asked: Asked) -> None:
    wrong = []
    for rule in ROUTES:
        method, path, more = request_of(rule, asked.release_id)
        for caller in CALLERS:
            status = await asked.status(caller, method, path, **more)
            refusals = expected(rule, caller)
            is_open = status not in (401, 403) and (status < 500 or path == "/healthz")
            if (status not in refusals) if refusals else not is_open:
                wrong.append((method, path, caller, status, refusals or "open"))
    assert not wrong


@pytest.mark.asyncio
async def test_each_route_of_the_gateway_has_an_entry_and_one_without_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RouteGuard] = []

    class Kept(RouteGuard):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("walle.cloud.nodes.gateway_http.RouteGuard", Kept)
    async with shop_cloud(tmp_path) as shop:
        (guard,) = made
        app: Any = guard._app
        while not isinstance(app, FastAPI):
            app = app.app
        table = RouteTable()
        found = list(routes._paths(app.routes))
        assert {"/v1/releases/{release_id}", "/cdn/{path:path}", "/metrics", "/docs"} <= {path for path, _ in found}
        for path, methods in found:
            sample = path.replace("{release_id}", "r").replace("{device_id:path}", "d").replace("{name:path}", "n")
            for method in methods if "{path:path}" not in path else ():
                rule = table.find(method, sample)
                assert rule is not None
                assert rule.path == path  # no other route's entry
        unused = {rule.path for rule in ROUTES} - {path for path, _ in found}
        mounted = [path.removesuffix("{path:path}") for path, _ in found if path.endswith("{path:path}")]
        assert not [path for path in unused if not path.startswith(tuple(mounted))]

        @app.get("/v1/secret")
        async def secret() -> str:
            return "secret"

        assert (await shop.http.get("/v1/secret")).status_code == 404
        with pytest.raises(ConfigError, match=r"GET /v1/secret: no entry in .*routes\.py"):
            routes.check_routes(app.routes, table)


@pytest.mark.asyncio
async def test_the_business_app_gets_the_other_paths_and_only_those() -> None:
    async def business(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("business")(scope, receive, send)

    def client(*, has_business: bool) -> httpx.AsyncClient:
        guard = RouteGuard(business, _Nobody(), RouteTable(has_business=has_business))
        return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://cloud")

    async with client(has_business=True) as http:
        assert (await http.put("/orders/7")).text == "business"
        for method, path in (("GET", "/metrics"), ("GET", "/v1/releases"), ("GET", "/docs")):
            assert (await http.request(method, path)).status_code == 401
        for method, path in (("PUT", "/v1/releases"), ("DELETE", "/metrics"), ("POST", "/cdn/x")):
            answer = await http.request(method, path)
            assert (answer.status_code, method in answer.headers["allow"]) == (405, False)
    async with client(has_business=False) as http:
        assert (await http.get("/orders/7")).status_code == 404


class _Nobody:
    def identify(self, token: str) -> None: ...
    def identify_header(self, authorization: str) -> None: ...


@pytest.mark.asyncio
async def test_hidden_releases_look_like_missing_ones(asked: Asked) -> None:
    for path in ("", "/failures", "/stream", "/start", "/pause", "/resume", "/rollback"):
        method = "GET" if path in ("", "/failures", "/stream") else "POST"
        answers = [
            await asked.ask("other", method, f"/v1/releases/{name}{path}") for name in (asked.release_id, "count-v1-9")
        ]
        seen = {(one.status_code, one.text.replace(asked.release_id, "count-v1-9")) for one in answers}
        assert len(seen) == 1, (path, seen)
        assert seen.pop()[0] == 404
    assert (await asked.ask("other", "GET", "/v1/releases")).json() == []
    assert [one["id"] for one in (await asked.ask("reader", "GET", "/v1/releases")).json()] == [asked.release_id]
    body = {"task": "count", "version": "v1"}
    for caller in ("other", "author"):
        texts = {
            (await asked.ask(caller, "POST", "/v1/releases", json={**body, "scenario": name})).text.replace(name, "")
            for name in ("shop", "nonesuch")
        }
        assert len(texts) == 1
    for there in ("shop", "nonesuch"):
        answer = await asked.ask("other", "GET", f"/git/{there}.git/info/refs?service=git-upload-pack")
        assert (answer.status_code, there in answer.text) == (403, True)


@pytest.mark.asyncio
async def test_health_and_metrics_tell_strangers_nothing(asked: Asked) -> None:
    assert (await asked.ask("nobody", "GET", "/healthz")).json() == {"ok": True}
    for caller in ("reader", "releaser", "device"):
        assert (await asked.ask(caller, "GET", "/healthz")).json() == {"ok": True}
    for caller in ("metrics", "admin"):
        assert {"tunnel", "uploads", "tokens"} <= (await asked.ask(caller, "GET", "/healthz")).json().keys()
        assert "walle_releases" in (await asked.ask(caller, "GET", "/metrics")).text
    for path in ("/", "/dashboard/login", "/dashboard/devices", "/dashboard/features"):
        assert asked.release_id not in (await asked.ask("nobody", "GET", path)).text


@pytest.mark.asyncio
async def test_no_answer_to_a_person_is_taken_for_a_page_or_shown_in_a_frame(asked: Asked) -> None:
    for rule in ROUTES:
        if rule.caller not in (Caller.PERSON, Caller.SESSION):
            continue
        method, path, more = request_of(rule, asked.release_id)
        for caller in ("nobody", "admin"):
            token = {"Authorization": f"Bearer {asked.tokens[caller]}"} if caller in asked.tokens else {}
            options = {**more, "headers": {**more.get("headers", {}), **token}}
            async with asked.http.stream(method, path, **options) as answer:
                assert (path, caller, answer.headers.get_list("x-content-type-options")) == (path, caller, ["nosniff"])
                if answer.headers.get("content-type", "").startswith("text/html"):
                    policy = answer.headers["content-security-policy"]
                    assert (path, "frame-ancestors 'none'" in policy) == (path, True)


@pytest.mark.asyncio
async def test_a_password_that_a_browser_keeps_opens_pages_alone(asked: Asked) -> None:
    """Else any site could make the browser of someone who read /docs take a release back."""
    admin = ("me", asked.tokens["admin"])
    for rule in ROUTES:
        if rule.caller is Caller.PERSON:
            method, path, more = request_of(rule, asked.release_id)
            async with asked.http.stream(method, path, auth=admin, **more) as answer:
                assert (answer.status_code == 401) is not rule.is_page, (method, path)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    path = f"/v1/releases/{asked.release_id}/rollback"
    assert (await asked.http.post(path, auth=admin, headers=form)).status_code == 401
    document = (await asked.http.get("/openapi.json", auth=admin)).json()
    assert document["components"]["securitySchemes"] == {"HTTPBearer": {"type": "http", "scheme": "bearer"}}


@pytest.mark.asyncio
async def test_two_authorization_headers_are_none() -> None:
    access = Access()
    valid, wrong = f"Bearer {access.issue('root', {ANY_SCENARIO: Role.ADMIN})}", "Bearer wrong"

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("inside")(scope, receive, send)

    transport = httpx.ASGITransport(RouteGuard(inner, access, RouteTable()))
    async with httpx.AsyncClient(transport=transport, base_url="http://cloud") as http:
        for values, status in (((valid,), 200), ((wrong, valid), 401), ((valid, wrong), 401), ((valid, valid), 401)):
            headers = [("Authorization", value) for value in values]
            assert (await http.get("/v1/tokens", headers=headers)).status_code == status


@pytest.mark.asyncio
async def test_texts_of_authors_and_devices_are_bounded_and_without_control_characters(asked: Asked) -> None:
    (await asked.ask("releaser", "POST", f"/v1/releases/{asked.release_id}/rollback", json={"reason": HOSTILE}))
    for path in ("", f"/{asked.release_id}", f"/{asked.release_id}/stream"):
        async with asked.http.stream("GET", f"/v1/releases{path}", headers=asked.header("reader")) as answer:
            text = (await answer.aread()).decode()
        if path.endswith("stream"):
            text = next(line for line in text.splitlines() if line.startswith("data:")).removeprefix("data:")
        found = json.loads(text)
        reason = (found[0] if isinstance(found, list) else found)["reason"]
        assert r"\x1b[2J" in reason
        assert reason.isprintable()
        assert len(reason) < 17_000


@pytest.mark.asyncio
async def test_a_stream_ends_when_its_token_is_revoked(asked: Asked) -> None:
    async with (
        asyncio.timeout(10),
        asked.http.stream("GET", f"/v1/releases/{asked.release_id}/stream", headers=asked.header("reader")) as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(("id", "event", "data"))
        assert await asked.status("admin", "DELETE", "/v1/tokens/reader") == 204
        async for _ in lines:
            pass
    assert await asked.status("reader", "GET", "/v1/releases") == 401


def test_every_role_and_place_of_the_table_is_shown_in_words() -> None:
    assert {rule.caller for rule in ROUTES} == set(Caller) - {Caller.BUSINESS}
    assert routes.BUSINESS.caller is Caller.BUSINESS
    assert all(rule.role is Role.NONE or rule.caller in (Caller.PERSON, Caller.SESSION) for rule in ROUTES)
