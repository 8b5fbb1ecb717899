import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.sim.release_world import table_of
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import ERROR_HEADER, Answerer
from walle.deploy.push.directive_texts import Headers
from walle.deploy.push.middleware import WallePush
from walle.deploy.releases.table import ReleaseTable
from walle.errors import DeployError
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, TASKS_HEADER, TRUST_HEADER, Profile, directives_from_header


def _profile(device_id: str = "d1", **tasks: str) -> bytes:
    return (
        Profile(device_id, "10.0", {}, {f"shop/{task}": version for task, version in tasks.items()})
        .to_header()
        .encode()
    )


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"hello {request.url.path}", headers={"Vary": "Accept"})


async def _parts(_: Request) -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        for number in range(3):
            yield f"part {number}\n".encode()
            await asyncio.sleep(0)

    return StreamingResponse(body())


def _sender(session: bytes | None) -> str:
    """Take the session for the id of the device itself."""
    if session is None:
        raise DeployError("no session")
    return session.decode()


def _ask(answerer: Answerer, raw: bytes) -> Headers:
    """Return the answer to a profile that its own device sent."""
    return answerer.headers(raw, json.loads(raw)["d"] if raw.startswith(b"{") else "d0")


BUSINESS = Starlette(routes=[Route("/hello", _hello), Route("/parts", _parts)])


async def _get(answerer: Answerer, path: str = "/hello", profile: bytes | str | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(WallePush(BUSINESS, answerer, _sender))
    headers = {PROFILE_HEADER: profile, DEVICE_HEADER: "d1"} if profile is not None else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        return await client.get(path, headers=headers)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_the_answer_rides_on_a_business_response() -> None:
    answerer = Answerer(table_of(ipv="v2"))
    response = await _get(answerer, profile=_profile(ipv="v1"))
    assert response.text == "hello /hello"
    (directive,) = directives_from_header(response.headers[TASKS_HEADER])
    assert (directive.task, directive.version) == ("shop/ipv", "v2")
    assert response.headers.get_list("vary") == ["Accept", f"{PROFILE_HEADER}, {DEVICE_HEADER}"]


@pytest.mark.asyncio
@pytest.mark.parametrize("profile", [None, _profile(ipv="v2")])
async def test_a_response_without_an_answer_is_untouched(profile: bytes | None) -> None:
    response = await _get(Answerer(table_of(ipv="v2")), profile=profile)
    assert TASKS_HEADER not in response.headers
    assert ERROR_HEADER not in response.headers
    assert response.headers["vary"] == "Accept"


@pytest.mark.asyncio
async def test_a_streamed_body_streams_on() -> None:
    response = await _get(Answerer(table_of(ipv="v2")), "/parts", _profile())
    assert response.text == "part 0\npart 1\npart 2\n"
    assert TASKS_HEADER in response.headers


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "must be an object"),
        (b'{"d": 7, "a": "", "x": {}, "t": {}}', f"{PROFILE_HEADER}.d: must be str"),
        (b'{"d": "x", "a": "", "x": {}, "t": {"a/b": 1}}', f"{PROFILE_HEADER}.t.a/b"),
        (b"x" * 9000, "9000 bytes, more than"),
        (b"\xff\xfe", "utf-8"),
        (b"[" * 5000, "not JSON"),
    ],
)
async def test_a_broken_profile_breaks_no_business_request(broken: bytes, why: str) -> None:
    answerer = Answerer(table_of(ipv="v2"))
    response = await _get(answerer, profile=broken)
    assert (response.status_code, response.text) == (200, "hello /hello")
    assert why in response.headers[ERROR_HEADER]
    assert TASKS_HEADER not in response.headers
    assert answerer.broken == 1


@pytest.mark.asyncio
async def test_a_fault_of_the_gateway_does_not_fail_the_apps_request(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(ReleaseTable):
        def steps(self, found: int, parts: int) -> Any:
            raise RuntimeError(found, parts)

    response = await _get(Answerer(Faulty()), profile=_profile())
    assert (response.status_code, response.text) == (200, "hello /hello")
    assert response.headers[ERROR_HEADER] == "the profile could not be answered"
    assert "a profile could not be answered" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_scopes_pass_through(kind: str) -> None:
    seen: list[tuple[Any, Any, Any]] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    async def receive() -> dict[str, Any]:
        return {}

    async def send(_: MutableMapping[str, Any]) -> None:
        return

    scope = {"type": kind, "headers": [(PROFILE_HEADER.lower().encode(), _profile())]}
    await WallePush(app, Answerer(table_of(ipv="v2")), _sender)(scope, receive, send)
    assert seen == [(scope, receive, send)]


def test_a_repeated_profile_costs_one_look_up_until_the_table_changes() -> None:
    answerer = Answerer(table_of(ipv="v1"))
    raw = _profile(ipv="v1")
    assert [_ask(answerer, raw) for _ in range(3)] == [(), (), ()]
    assert (answerer.fresh, answerer.repeated, answerer.answered) == (1, 2, 0)
    answerer.swap(table_of(ipv="v2", generation=2))
    ((name, value), _) = _ask(answerer, raw)
    assert name == TASKS_HEADER.lower().encode()
    assert directives_from_header(value.decode())[0].version == "v2"
    assert (answerer.fresh, answerer.repeated, answerer.answered) == (2, 2, 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_profile_of_another_device_is_refused_and_leaves_nothing(is_known: bool) -> None:
    answerer = Answerer(table_of(ipv="v2"))
    raw = _profile("d1", ipv="v1")
    if is_known:
        assert answerer.headers(raw, "d1")[0][0] == TASKS_HEADER.lower().encode()
        answerer.devices.take()
    ((name, value),) = answerer.headers(raw, "d2")
    assert name == ERROR_HEADER.lower().encode()
    assert b"'d1'" in value
    assert b"'d2'" in value
    assert answerer.devices.take() == {}
    assert answerer.recent(10, Policy()) == (("d1",) if is_known else ())
    assert answerer.foreign == 1


@pytest.mark.asyncio
async def test_a_profile_without_a_session_gets_the_reason_and_no_directives() -> None:
    transport = httpx.ASGITransport(WallePush(BUSINESS, Answerer(table_of(ipv="v2")), _sender))
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        response = await client.get("/hello", headers={PROFILE_HEADER: _profile(ipv="v1").decode()})
    assert response.text == "hello /hello"
    assert response.headers[ERROR_HEADER] == "no session"
    assert TASKS_HEADER not in response.headers


def test_an_older_table_replaces_no_newer_one() -> None:
    answerer = Answerer(table_of(ipv="v2", generation=5))
    answerer.swap(table_of(ipv="v1", generation=4))
    assert _ask(answerer, _profile(ipv="v2")) == ()


def test_the_cache_is_bounded() -> None:
    answerer = Answerer(table_of(ipv="v1"), cache_bytes=50_000, recent_devices=10)
    for number in range(1000):
        _ask(answerer, _profile(f"device-{number}"))
    assert 20 < len(answerer.profiles) < 100
    assert answerer.profiles.size_bytes <= 50_000
    assert len(answerer.texts) == 1
    assert answerer.recent(100, Policy()) == tuple(f"device-{number}" for number in range(999, 989, -1))
    assert answerer.recent(2, Policy()) == ("device-999", "device-998")
    assert answerer.recent(2, Policy(">=11")) == ()


def test_a_long_answer_comes_in_parts() -> None:
    versions = {f"task{number}": "v1" for number in range(60)}
    answerer = Answerer(table_of(1, **versions))
    has: dict[str, str] = {}
    rounds = 0
    while headers := _ask(answerer, _profile("d", **has)):
        value = headers[0][1]
        assert len(value) <= 8192
        has |= {one.task.removeprefix("shop/"): one.version for one in directives_from_header(value.decode())}
        rounds += 1
    assert has == versions
    assert rounds < 8


def test_one_directive_goes_out_however_long() -> None:
    answerer = Answerer(table_of(ipv="v1", cv="v1"), max_answer_bytes=10)
    assert len(json.loads(_ask(answerer, _profile())[0][1])) == 1


@pytest.mark.asyncio
async def test_every_answer_to_a_profile_has_the_timestamp_and_a_renewal_keeps_the_cache() -> None:
    table = table_of(ipv="v2")
    answerer = Answerer(ReleaseTable(1, list(table.rows.values()), "first"))
    for profile in (_profile(ipv="v1"), _profile(ipv="v2")):
        assert (await _get(answerer, profile=profile)).headers[TRUST_HEADER] == "first"
    assert TRUST_HEADER not in (await _get(answerer)).headers
    answerer.swap(ReleaseTable(2, list(table.rows.values()), "second"))
    response = await _get(answerer, profile=_profile(ipv="v1"))
    assert (response.headers[TRUST_HEADER], answerer.table.generation) == ("second", 2)
    assert TASKS_HEADER in response.headers
    assert (answerer.repeated, answerer.fresh) == (1, 2)
    answerer.swap(ReleaseTable(1, [], "older"))
    assert (await _get(answerer, profile=_profile(ipv="v1"))).headers[TRUST_HEADER] == "second"
