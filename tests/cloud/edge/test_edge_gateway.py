"""Edge gateways: what they answer themselves, what they pass on, and who a client is behind them."""

import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.device_session import session_headers
from tests.sim.git_host import address, git, served
from tests.sim.shop_cloud import LIMIT_S, ShopCloud, shop_cloud, until
from walle.access.access import ANY_SCENARIO
from walle.base.clock import SystemClock
from walle.cli import event_loop
from walle.cloud import CloudConfig
from walle.cloud.api.routes import REPEATABLE_POSTS, ROUTES, RouteTable, may_repeat
from walle.cloud.edge.edge_gateway import EdgeGateway, edge_gateway
from walle.cloud.edge.reverse_proxy import (
    _MAX_ANSWERED_PAUSE_S,
    HOLD_S,
    GatewayAwayError,
    ReverseProxy,
    _Body,
    _Room,
)
from walle.cloud.edge.shared_listener import free_port
from walle.cloud.http.edge_mark import EdgeMark
from walle.cloud.http.limits import HttpLimits
from walle.protocol import (
    PROFILE_HEADER,
    TASKS_HEADER,
    TRUST_HEADER,
    Profile,
    directives_from_header,
)

_PROFILE = Profile("d0", "10.1", {}, {}).to_header()


@contextlib.asynccontextmanager
async def _edge_of(shop: ShopCloud) -> AsyncIterator[EdgeGateway]:
    async def find() -> str:
        return shop.cloud.address.inner_url

    cloud = shop.cloud
    async with edge_gateway(cloud.config, find, cloud.home.folder.parent, cloud.monitor) as edge:
        yield edge


@contextlib.asynccontextmanager
async def _shop_with_edge(
    folder: Path, limits: HttpLimits | None = None
) -> AsyncIterator[tuple[ShopCloud, EdgeGateway, httpx.AsyncClient]]:
    app = "tests.cloud.edge.test_edge_gateway:business"
    async with (
        shop_cloud(folder, gateways=1, business_app=app, http_limits=limits or HttpLimits(), outlived=True) as shop,
        _edge_of(shop) as edge,
        httpx.AsyncClient(base_url=edge.address.url, timeout=LIMIT_S) as http,
    ):
        yield shop, edge, http


async def _business(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    """Echo what a request is: its client, scheme, headers, and its body's size and hash."""
    if scope["path"] == "/app/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        _ended.set()
        return
    size, digest = 0, hashlib.sha256()
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        digest.update(message.get("body", b""))
        if not message.get("more_body"):
            break
    shown = {
        "client": scope["client"][0],
        "scheme": scope["scheme"],
        "headers": [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]],
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "size": size,
        "sha256": digest.hexdigest(),
    }
    body = json.dumps(shown).encode()
    headers = [(b"content-length", str(len(body)).encode()), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
    headers += [(b"connection", b"x-secret"), (b"x-secret", b"of this hop")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


_ended = asyncio.Event()


def business():  # type: ignore[no-untyped-def]
    return _business


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_an_edge_answers_profiles_and_files_and_passes_git_releases_and_devices_on(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (shop, edge, http):
        home = shop.cloud.home
        remote = address(edge.address.url, home.admin_token, "shop")
        await shop.push("v1")
        release = await shop.release("v1", beta=["d0"])
        headers = {**session_headers(home, "d0"), PROFILE_HEADER: _PROFILE}

        async def has_v1() -> bool:
            answer = await http.post("/v1/checkin", headers=headers)
            assert answer.status_code == 204, answer.text
            return [one.version for one in directives_from_header(answer.headers.get(TASKS_HEADER, "[]"))] == ["v1"]

        await until(has_v1)
        assert edge.health()["edge"]["passed"] == 0  # the edge has answered by itself
        answer = await http.get("/app/x?q=1", headers=headers)
        assert len(answer.headers.get_list(TASKS_HEADER)) == 1
        assert len(answer.headers.get_list(TRUST_HEADER)) == 1
        (directive,) = directives_from_header(answer.headers[TASKS_HEADER])
        file = await http.get(f"{home.file_addresses.prefix()}/{directive.manifest}")
        assert (file.status_code, hashlib.sha256(file.content).hexdigest()) == (200, directive.manifest)
        part = await http.get(f"{home.file_addresses.prefix()}/{directive.manifest}", headers={"Range": "bytes=1-3"})
        assert (part.status_code, part.content) == (206, file.content[1:4])
        assert (await http.get(f"/cdn/x/{directive.manifest}")).status_code == 403
        # git and releases, through the edge
        clone = tmp_path / "clone"
        await asyncio.to_thread(git, tmp_path, "clone", "-q", "-b", "count", remote, str(clone))
        (clone / "noise.bin").write_bytes(b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(1 << 16)))
        await asyncio.to_thread(git, clone, "add", "-A")
        await asyncio.to_thread(git, clone, "commit", "-q", "-m", "v2")
        await asyncio.to_thread(git, clone, "push", "-q", remote, "count")
        person = {"Authorization": f"Bearer {home.admin_token}"}
        assert (await http.get(f"/v1/releases/{release}", headers=person)).json()["id"] == release
        assert (await http.get("/v1/releases")).status_code == 401
        async with http.stream("GET", f"/v1/releases/{release}/stream", headers=person) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    break
        # a device, whose cloud is the edge
        async with shop.device(tmp_path / "d0", cloud_url=edge.address.url) as device:

            async def is_active() -> bool:
                await device.checkin()
                return device.tasks.get("shop/count") == "v1"

            await until(is_active)


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_request_and_its_answer_come_through_as_they_are(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (_, edge, http):
        sent = {"X-Own": "a", "Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers", "Cookie": "c=1"}
        answer = await http.get("/app/%C3%A9%2Fx?a=%20&b", headers=sent)
        shown = answer.json()
        names = {name for name, _ in shown["headers"]}
        assert (shown["path"], shown["query"], shown["client"]) == ("/app/é/x", "a=%20&b", "127.0.0.1")
        assert shown["scheme"] == "http"
        assert dict(shown["headers"])["host"] == edge.address.url.removeprefix("http://")
        assert {"x-own", "cookie"} <= names
        assert not names & {"x-hop", "te", "x-walle-edge", "keep-alive", "connection"}
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert "x-secret" not in answer.headers
        assert len(answer.headers.get_list("date")) == 1

        async def parts() -> AsyncIterator[bytes]:
            for number in range(64):
                yield bytes([number]) * (1 << 16)

        digest = hashlib.sha256(b"".join([part async for part in parts()])).hexdigest()
        echo = (await http.post("/app/x", content=parts())).json()
        assert (echo["size"], echo["sha256"]) == (4 << 20, digest)
        echo = (await http.put("/app/x", content=b"short")).json()
        assert (echo["size"], dict(echo["headers"])["content-length"]) == (5, "5")
        head = await http.head("/app/x")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        _ended.clear()
        async with http.stream("GET", "/app/endless") as stream:
            async for _ in stream.aiter_bytes():
                break
        await until(_ended.is_set)  # the gateway's app is told that the client has left


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_form_of_a_session_that_has_ended_leads_to_the_login_through_an_edge(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (shop, edge, http):
        for url in (shop.cloud.address.inner_url, edge.address.url):
            headers = {"Accept": "text/html", "Origin": url, "Referer": f"{url}/dashboard/releases"}
            answer = await http.post(f"{url}/dashboard/releases/r/start", headers=headers, data={"form_key": "x"})
            assert (answer.status_code, answer.headers["location"]) == (
                303,
                "/dashboard/login?ended=1&next=%2Fdashboard%2Freleases",
            )


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_client_cannot_claim_another_address_through_an_edge_or_around_it(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (shop, _, http):
        forged = {"X-Walle-Edge": "0" * 64 + " 10.0.0.9 1 https 1", "X-Forwarded-For": "10.0.0.9"}
        forged["X-Forwarded-Proto"] = "https"
        shown = (await http.get("/app/x", headers=forged)).json()
        assert (shown["client"], shown["scheme"]) == ("127.0.0.1", "http")
        key = shop.cloud.home.edge_key
        mark = EdgeMark("10.0.0.9", 1, "https", is_answered=True).value(key).decode()
        shown = (await http.get("/app/x", headers={"X-Walle-Edge": mark})).json()  # even a client that knows the key
        assert (shown["client"], shown["scheme"]) == ("127.0.0.1", "http")
        named = (await http.get("/app/x", headers={"Connection": "x-walle-edge, x-forwarded-for, host"})).json()
        assert named["client"] == "127.0.0.1"
        async with httpx.AsyncClient(base_url=shop.cloud.address.inner_url) as around:
            shown = (await around.get("/app/x", headers=forged)).json()
            assert (shown["client"], shown["scheme"]) == ("127.0.0.1", "http")
            assert "x-walle-edge" not in dict(shown["headers"])
            twice = [("X-Walle-Edge", mark), ("X-Walle-Edge", mark)]
            assert (await around.get("/app/x", headers=twice)).json()["client"] == "127.0.0.1"
            assert (await around.get("/app/x", headers={"X-Walle-Edge": mark})).json()["client"] == "10.0.0.9"


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_clients_that_send_slowly_do_not_block_others(tmp_path: Path) -> None:
    slowly = b"POST /app/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n12"
    patient = HttpLimits(grace_s=600.0, header_s=600.0)  # long limits: the machine may be busy too
    async with _shop_with_edge(tmp_path, patient) as (shop, edge, http), contextlib.AsyncExitStack() as undo:
        port = int(edge.address.url.rpartition(":")[2])
        slow = 1040
        for number in range(slow):
            own = f"127.0.0.{2 + number % 2}"
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(own, 0))
            undo.callback(writer.close)
            writer.write(slowly)
        behind = shop.cloud.gateway._parts["http"]
        await until(lambda: behind.health()["connections"] >= slow)
        assert (await http.get("/app/x")).status_code == 200


@pytest.mark.asyncio
async def test_bodies_are_kept_for_requests_that_may_be_sent_again_and_all_together_are_bounded() -> None:
    scope = {"headers": [(b"content-length", b"6")]}
    room = _Room(8)

    def body(*, may_keep: bool = True) -> _Body:
        parts = [{"type": "http.request", "body": b"abc", "more_body": more} for more in (True, False)]

        async def receive() -> dict[str, Any]:
            return parts.pop(0)

        return _Body(scope, receive, room, may_keep=may_keep)

    first, second, third = body(), body(), body(may_keep=False)
    for one in (first, second, third):
        assert b"".join([part async for part in one]) == b"abcabc"
    assert (first.is_kept, second.is_kept, third.is_kept, room.free_bytes) == (True, False, False, 2)
    first.rewind()
    assert b"".join([part async for part in first]) == b"abcabc"
    first.forget()
    assert room.free_bytes == 8


@pytest.mark.parametrize("host", ["10.0.0.9 1 https", "a\tb", "", "\x7f", "2001:db8::1"])
def test_a_mark_is_read_whatever_host_a_proxy_has_let_a_client_write(host: str) -> None:
    mark = EdgeMark(host, 7, "https", is_answered=True)
    known = host if ":" in host else ""
    assert EdgeMark.read(mark.value(b"key"), b"key") == mark._replace(host=known)
    assert EdgeMark.read(mark.value(b"key"), b"other") is None


_END = b"Connection: close\r\n\r\n"
_SMUGGLED = {
    "two lengths": b"POST /app/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "length and chunks": b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0"
    b"\r\n\r\n",
    "two encodings": b"POST /app/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a hidden encoding": b"POST /app/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "an absolute target": b"GET http://other/v1/releases HTTP/1.1\r\nHost: a\r\n" + _END,
    "a folded header": b"GET /app/x HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n X-Walle-Edge: 2\r\n" + _END,
    "two hosts": b"GET /app/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + _END,
    "a bare line feed": b"GET /app/x HTTP/1.1\r\nHost: a\r\nX: 1\nX-Walle-Edge: 2\r\n" + _END,
}


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_requests_whose_end_or_target_is_not_clear_are_refused_at_the_edge(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (_, edge, _):
        port = int(edge.address.url.rpartition(":")[2])
        for name, sent in _SMUGGLED.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), LIMIT_S)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 400 "), (name, answer)
            assert answer.count(b"HTTP/1.1 ") == 1, name
        assert edge.health()["edge"]["passed"] == 0


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(90)
async def test_requests_wait_while_the_gateway_is_started_again(tmp_path: Path) -> None:
    """Also one that creates: it was not sent yet, so that nothing is done twice."""
    async with contextlib.AsyncExitStack() as undo:
        first = await undo.enter_async_context(contextlib.AsyncExitStack())
        shop = await first.enter_async_context(shop_cloud(tmp_path, gateways=1, outlived=True))
        url = shop.cloud.address.inner_url

        async def find() -> str:
            if not url:
                raise GatewayAwayError("it is being started")
            return url

        edge = await undo.enter_async_context(edge_gateway(shop.cloud.config, find, shop.cloud.home.folder.parent))
        http = await undo.enter_async_context(httpx.AsyncClient(base_url=edge.address.url, timeout=LIMIT_S))
        person = {"Authorization": f"Bearer {shop.cloud.home.admin_token}"}
        device = {**session_headers(shop.cloud.home, "d0"), PROFILE_HEADER: _PROFILE}
        await first.aclose()
        url = ""
        waiting = [
            asyncio.ensure_future(http.get("/v1/releases", headers=person)),
            asyncio.ensure_future(
                http.post("/v1/tokens", headers=person, json={"name": "t", "roles": {"shop": "reader"}})
            ),
        ]
        await until(lambda: edge.health()["edge"]["waiting"] == 2)
        assert (await http.post("/v1/checkin", headers=device)).status_code == 204  # answered by the edge
        again = await undo.enter_async_context(shop_cloud(tmp_path, gateways=1, outlived=True))
        url = again.cloud.address.inner_url
        answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] in ([200, 200], [200, 201]), [one.text for one in answers]
        assert edge.health()["edge"]["held"] == 2

        async def follows() -> bool:
            return (await http.get("/healthz")).status_code == 200 and not edge.health().get("why")

        await until(follows)


class _NotedPauses(SystemClock):
    """Time passes by pauses alone, which are noted and take none."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.mark.asyncio
@pytest.mark.parametrize(("asked", "answers"), [(b"3", 503), (b"1", 503), (b"25", 503), (b"3", 200)])
async def test_a_gateway_that_answers_503_is_retried_after_its_time_and_with_growing_delays(
    asked: bytes, answers: int
) -> None:
    requests = 0

    async def gateway(scope, receive, send):  # type: ignore[no-untyped-def]
        nonlocal requests
        requests += 1
        status = answers if requests > 2 else 503
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", asked)]})
        await send({"type": "http.response.body", "body": b"{}"})

    clock = _NotedPauses()
    with served(gateway) as url:

        async def find() -> str:
            return url

        async with ReverseProxy(find, b"key", clock, connections=4) as proxy:
            transport = httpx.ASGITransport(app=proxy)
            async with httpx.AsyncClient(transport=transport, base_url="http://edge") as http:
                answer = await http.get("/v1/releases")
    assert (answer.status_code, answer.headers["retry-after"]) == (answers, asked.decode())
    assert requests == len(clock.pauses) + 1
    assert all(pause >= int(asked) for pause in clock.pauses)
    assert sum(clock.pauses) <= HOLD_S + _MAX_ANSWERED_PAUSE_S
    if answers == 200:
        assert requests == 3
    else:
        assert requests <= 1 + HOLD_S / int(asked)
        assert (requests == 1) == (int(asked) > HOLD_S)


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_an_edge_takes_reports_itself_with_the_gateways_answers(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (shop, edge, http):
        home, inner = shop.cloud.home, shop.cloud.address.inner_url
        await shop.push("v1")
        release = await shop.release("v1", beta=0)

        async def is_judged() -> bool:
            return bool((await shop.releases.get(release))["totals"]["stage"])

        await until(is_judged)
        d0 = session_headers(home, "d0")
        outcome = {"task": "shop/count", "version": "v1", "release": release, "kind": "run", "error": ""}

        def report(batch_id: str, **fields: Any) -> bytes:
            outcomes = [{**outcome, "ok": 3, "failed": 0}]
            return json.dumps({"device_id": "d0", "batch_id": batch_id, "outcomes": outcomes, **fields}).encode()

        refused: list[tuple[dict[str, str], bytes]] = [
            ({}, report("b")),
            ({**d0, **session_headers(home, "d0", life_s=-1)}, report("b")),
            (d0, b"{"),
            (d0, b"[]"),
            (d0, report("b", device_id="d1")),
            (d0, report("b", outcomes=[{**outcome, "ok": -1, "failed": 0}])),
            (d0, report("b", groups={"os": 1})),
            (d0, report("b", filler="x" * (1 << 20))),
        ]
        for headers, body in refused:
            answers = [await http.post(f"{url}/v1/outcomes", headers=headers, content=body) for url in (inner, "")]
            shown = [(one.status_code, one.text, one.headers.get("www-authenticate")) for one in answers]
            assert shown[0] == shown[1]
            assert shown[0][0] in (401, 403, 413, 422), shown[0]
        assert not (await shop.releases.get(release))["totals"]["ok"]
        taken = [await http.post(f"{url}/v1/outcomes", headers=d0, content=report("b1")) for url in ("", inner, "")]
        assert [one.status_code for one in taken] == [204] * 3
        profile = {**d0, PROFILE_HEADER: _PROFILE}
        answer = await http.post("/v1/outcomes", headers=profile, content=report("b2"))
        assert answer.status_code == 204
        assert len(answer.headers.get_list(TRUST_HEADER)) == 1  # one push answer
        assert (await shop.releases.get(release))["totals"]["ok"] == 6  # each once
        (listed,) = (await shop.http.get("/v1/devices")).json()["devices"]
        assert [(one["task"], one["ok"]) for one in listed["tasks"]] == [("shop/count", 6)]
        assert edge.health()["reports"]["taken"] == 3
        assert edge.health()["edge"]["passed"] == 0
        person = {"Authorization": f"Bearer {home.admin_token}"}
        metrics = (await http.get(f"{edge.address.watch_url}/metrics", headers=person)).text
        assert 'walle_edge_reports_total{result="taken"} 3.0' in metrics


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_health_and_metrics_are_of_one_edge_and_say_that_it_drains(tmp_path: Path) -> None:
    async with _shop_with_edge(tmp_path) as (shop, edge, http):
        assert (await http.get("/healthz")).json() == {"ok": True, "draining": False}
        person = {"Authorization": f"Bearer {shop.cloud.home.admin_token}"}
        assert "sightings" in (await http.get("/healthz", headers=person)).json()
        await http.get("/app/x")
        assert (await http.get(f"{edge.address.watch_url}/metrics")).status_code == 401
        text = (await http.get(f"{edge.address.watch_url}/metrics", headers=person)).text
        assert 'walle_edge_passed_total{status="2xx"} 1.0' in text
        assert "walle_edge_passed_total" not in (await http.get("/metrics", headers=person)).text  # the cloud's
        draining = asyncio.ensure_future(edge.drain(LIMIT_S))
        await until(lambda: edge.health()["draining"])
        for _ in range(2):  # the first reuses the connection, the second is new: no other edge would take it
            answer = await http.get("/healthz")
            assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        draining.cancel()


def test_each_repeatable_post_is_a_route() -> None:
    posts = {rule.path for rule in ROUTES if "POST" in rule.methods.split()}
    assert posts >= REPEATABLE_POSTS
    assert may_repeat("POST", "/git/shop/git-upload-pack")
    assert not may_repeat("POST", "/git/shop/git-receive-pack")
    assert not may_repeat("POST", "/v1/releases")
    assert not may_repeat("POST", "/app/v1/outcomes")
    assert not may_repeat("PUT", "/app/x")
    assert RouteTable().find("POST", "/v1/outcomes") is not None


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_the_token_of_edges_is_made_again_when_it_was_revoked(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path, gateways=1) as shop:
        home = shop.cloud.home
        before = home.edge_token
        home.prepare_edges()
        assert home.edge_token == before
        home.access.revoke("edges")
        home.prepare_edges()
        assert home.edge_token != before
        identity = home.access.identify(home.edge_token)
        assert identity is not None
        assert identity.role(ANY_SCENARIO).name == "READER"


def _run_edge(folder: str, port: int, url: str, sockets: str, ready: Any) -> None:
    """Run an edge in this process until SIGTERM, then drain it."""

    async def find() -> str:
        return url

    async def run() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        config = CloudConfig(folder=Path(folder), http_port=port, gateways=1)
        async with edge_gateway(config, find, Path(sockets)) as edge:
            ready.set()
            await stopping.wait()
            await edge.drain(10.0)

    event_loop.run(run())  # uvloop's where that is installed, as in actors


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_no_check_in_fails_while_edges_are_replaced_ten_times_and_one_is_killed(tmp_path: Path) -> None:
    """By real processes: on new connections and on kept ones."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cloud.edge.test_edge_gateway"])
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    async with contextlib.AsyncExitStack() as undo:
        shop = await undo.enter_async_context(shop_cloud(tmp_path, gateways=1, outlived=True))
        port = free_port("127.0.0.1", 0)
        edges: list[tuple[Any, Any]] = []

        def start() -> None:
            ready = context.Event()
            url = shop.cloud.address.inner_url
            edge = context.Process(target=_run_edge, args=(str(shop.cloud.home.folder), port, url, str(sockets), ready))
            edge.start()
            undo.callback(edge.kill)
            edges.append((edge, ready))

        async def until_ready() -> None:
            edge, ready = edges[-1]
            await until(lambda: ready.is_set() or not edge.is_alive())
            assert edge.is_alive()

        for _ in range(2):
            start()
        for _, ready in edges:
            await until(ready.is_set)
        headers = {**session_headers(shop.cloud.home, "d0"), PROFILE_HEADER: _PROFILE}
        answered = Counter[str]()
        is_over = False
        url = f"http://127.0.0.1:{port}/v1/checkin"

        async def check_in(*, is_kept: bool) -> None:
            limits = httpx.Limits(max_keepalive_connections=1 if is_kept else 0)
            async with httpx.AsyncClient(limits=limits, timeout=LIMIT_S) as http:
                while not is_over:
                    answer = await http.post(url, headers=headers)
                    assert answer.status_code == 204, answer.text
                    answered["kept" if is_kept else "new"] += 1

        async with asyncio.TaskGroup() as clients:
            for number in range(4):
                clients.create_task(check_in(is_kept=number % 2 == 0))
            for _ in range(10):
                start()
                await until_ready()
                edge, _ready = edges.pop(0)
                edge.terminate()
                await asyncio.to_thread(edge.join, LIMIT_S)
                assert edge.exitcode == 0
            is_over = True
        assert min(answered.values()) > 10, answered
        # One that is killed takes its own connections with it, and no other
        edge, _ready = edges.pop(0)
        edge.kill()
        await until(lambda: not edge.is_alive())
        async with httpx.AsyncClient() as http:
            for _ in range(20):
                assert (await http.post(url, headers={**headers, "Connection": "close"})).status_code == 204
