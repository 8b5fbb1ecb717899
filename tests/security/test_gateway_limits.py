"""Attacks on the gateway's HTTP server: it stays small, and honest devices are served all the time.

The bounds here are loose, since tests share their machine; benchmarks/gateway_attacks.py has the figures.
"""

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.security.attacked_gateway import AttackedGateway, HonestDevices
from tests.security.gateway_attacks import ATTACKS, CHECK_IN, attack, connected, make_release

MAX_BYTES = 400_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedGateway]:
    with AttackedGateway.started(tmp_path_factory.mktemp("limits") / "cloud") as started:
        yield started


def refused(gateway: AttackedGateway) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {gateway.target.token}"}
    health = httpx.get(f"{gateway.target.url}/healthz", headers=headers, verify=False, timeout=20).json()
    found: dict[str, int] = health["http"]["refused"]
    return found


@pytest.mark.night
def test_honest_devices_are_served_and_memory_is_bounded(gateway: AttackedGateway) -> None:
    make_release(gateway.target)
    honest = HonestDevices(gateway.target)
    gateway.reset()
    attack(ATTACKS, gateway.target, 0.4)
    found = honest.stop()
    assert gateway.peak_bytes < MAX_BYTES
    assert not found.failures
    assert found.quantile_ms(0.5) < 2000


def raw(gateway: AttackedGateway, sent: bytes, *, until_closed: bool = True) -> bytes:
    """Send bytes from a connection of its own; return the first answer, or all of them."""

    async def talk() -> bytes:
        async with connected(gateway.target) as (reader, writer), asyncio.timeout(60):
            writer.write(sent)
            if until_closed:
                return await reader.read()
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            return head + (await reader.readexactly(int(length[1])) if length else b"")

    return asyncio.run(talk())


def test_a_body_is_refused_before_it_is_sent(gateway: AttackedGateway) -> None:
    """The header alone is sent: who waits for the body first would wait in vain."""
    target = gateway.target
    before = refused(gateway)
    for path in ("/v1/releases", "/v1/releases/r/rollback", "/v1/outcomes", "/git/shop.git/git-receive-pack"):
        answer = raw(
            gateway, f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n".encode(), until_closed=False
        )
        assert answer.startswith(b"HTTP/1.1 401 ")
    known = f"host: x\r\nauthorization: Bearer {target.token}\r\ncontent-type: application/json\r\n"
    answer = raw(
        gateway, f"POST /v1/releases HTTP/1.1\r\n{known}content-length: 262145\r\n\r\n".encode(), until_closed=False
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"at most 262144 bytes" in answer
    answer = raw(gateway, b"POST /v1/checkin HTTP/1.1\r\nhost: x\r\ncontent-length: 1025\r\n\r\n", until_closed=False)
    assert answer.startswith(b"HTTP/1.1 413 ")
    after = refused(gateway)
    assert after["unknown"] == before.get("unknown", 0) + 4
    assert after["body"] == before.get("body", 0) + 2


def test_no_line_break_in_a_path_leads_around_a_limit(gateway: AttackedGateway) -> None:
    """The router's `$` matches before a line break at the end; the limits are by whole paths."""
    known = f"host: x\r\nauthorization: Bearer {gateway.target.token}\r\ncontent-length: 262145\r\n\r\n"
    paths = ("/v1/releases%0a", "/v1/versions/shop/x%0Ay/v1/signatures", "/v1/releases/r/start%0A")
    for path in paths:
        answer = raw(gateway, f"POST {path} HTTP/1.1\r\n{known}".encode(), until_closed=False)
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert b"line break" in answer
    for path in ("/v1/releases/r/stream%0a", "/healthz%0a"):
        answer = raw(gateway, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), until_closed=False)
        assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_body_without_a_length_is_refused_once_it_is_too_large(gateway: AttackedGateway) -> None:
    head = f"POST /v1/releases HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.target.token}\r\n"
    head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = (b"10000\r\n" + b"1" * 65536 + b"\r\n") * 5 + b"0\r\n\r\n"
    answer = raw(gateway, head.encode() + chunks, until_closed=False)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_connection_continues_after_a_body_that_was_refused_and_is_small(gateway: AttackedGateway) -> None:
    first = b"POST /v1/outcomes HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\n\r\n" + bytes(20000)
    answer = raw(gateway, first + CHECK_IN + b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    statuses = re.findall(rb"HTTP/1.1 (\d+) ", answer)
    assert statuses == [b"401", b"401", b"404"]


def test_headers_are_bounded(gateway: AttackedGateway) -> None:
    for header in (b"x: " + b"a" * 17_000, b"\r\n".join([b"a: b"] * 101)):
        answer = raw(gateway, b"GET / HTTP/1.1\r\nhost: x\r\n" + header + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")


def test_counts_are_metrics(gateway: AttackedGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.target.token}"}
    text = httpx.get(f"{gateway.target.url}/metrics", headers=headers, verify=False, timeout=20).text
    assert 'walle_http_refused_total{kind="header"}' in text
    assert "walle_http_connections_limit 2048.0" in text
