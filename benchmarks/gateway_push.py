"""Requests a second of CPU time that a gateway answers with the push answer, beside an app that says hello alone.

python -m benchmarks.gateway_push [--rounds 3] [--seconds 2] [SERVER ...]

Servers, each a process on the event loop of the programs, in turns, with 16 connections that are kept:
`h11` and `httptools` are uvicorn with the app alone; `front` is the app behind the gateway's limits; `push` the app
with the push answer on uvicorn, and `push-front` behind the limits; `gateway` a whole cloud with it as its business
app. All requests carry a profile of ten tasks and a device's session; with `+changed` each profile is another.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import uvicorn

from benchmarks import rules
from benchmarks.headline import print_headline
from tests.sim.device_session import session_headers
from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.cli import event_loop
from walle.cloud import Cloud, CloudConfig, CloudHome
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.http.limits import HttpLimits
from walle.cloud.http.server import HttpFront, serving
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import WallePush
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import (
    DEVICE_HEADER,
    HAVE_HEADER,
    PROFILE_HEADER,
    Attribute,
    Profile,
    ShortProfile,
    part_digest,
    parts_of,
    parts_to_header,
)

SERVERS = (
    *("h11", "httptools", "front", "push", "push+changed", "push+version", "push+full"),
    *("push-front", "push-front+changed", "gateway"),
)
_CONNECTIONS = 16
_TASKS = 10
_DEVICE = "d"
_HELLO = [(b"content-type", b"text/plain"), (b"content-length", b"5")]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the interface's
    await send({"type": "http.response.start", "status": 200, "headers": _HELLO})
    await send({"type": "http.response.body", "body": b"hello"})


def _table() -> ReleaseTable:
    """Return a table of 348 tasks, of which the profiles' ten are for all devices, and the others for none of these."""
    return rules.table_of(lambda number: Policy() if number < _TASKS else Policy(f">=9.{number},<10"), 348, 0)


def make_hello() -> ASGIApp:
    return hello


def _serve(kind: str, said: Connection) -> None:
    event_loop.run(_serve_until_ended(kind, said))


async def _serve_until_ended(kind: str, said: Connection) -> None:
    loop = asyncio.get_running_loop()
    has_message = asyncio.Event()
    loop.add_reader(said.fileno(), has_message.set)
    app = WallePush(hello, Answerer(_table()), lambda _: _DEVICE) if kind.startswith("push") else hello
    if kind == "gateway":
        with tempfile.TemporaryDirectory() as folder:
            config = CloudConfig(folder=Path(folder), business_app="benchmarks.gateway_push:make_hello")
            async with Cloud(config) as cloud:
                session = session_headers(CloudHome(Path(folder)), _DEVICE)[DEVICE_HEADER]
                await _answer_parent(said, has_message, cloud.address.url, session)
    elif kind.startswith(("front", "push-front")):
        async with serving(HttpFront(app, HttpLimits(), lambda _: True, rules=REQUEST_RULES), "127.0.0.1", 0) as url:
            await _answer_parent(said, has_message, url, "")
    else:
        http = "h11" if kind == "h11" else "httptools"
        config_of_uvicorn = uvicorn.Config(app, port=0, http=http, log_level="error", access_log=False, lifespan="off")
        server = uvicorn.Server(config_of_uvicorn)
        running = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn tells its start by a flag only
            await asyncio.sleep(0.01)
        await _answer_parent(said, has_message, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", "")
        server.should_exit = True
        await running


async def _answer_parent(said: Connection, has_message: asyncio.Event, url: str, session: str) -> None:
    said.send((url, session))
    while True:
        await has_message.wait()
        has_message.clear()
        if not said.poll():  # asyncio tells of a message once more after it was read
            continue
        if said.recv() == "end":
            return
        said.send(time.process_time())


class _Client(asyncio.Protocol):
    """A connection that sends a request, and the next one after its answer."""

    def __init__(self, requests: Iterator[bytes], counts: list[int]) -> None:
        self._requests = requests
        self._counts = counts
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"hello"):
            self._received = b""
            self._counts[0] += 1
            self._transport.write(next(self._requests))


async def _load(url: str, session: str, *, how: Collection[str], seconds: float, said: Connection) -> float:
    """Return the requests a second of the server's CPU time."""
    tasks = {f"shop/task-{number}": "v1" for number in range(_TASKS)}
    parts = parts_of(tasks, {})
    digests = [part_digest(part) for part in parts]
    have = parts_to_header(parts)
    lines = f"GET /hello HTTP/1.1\r\nhost: x\r\nuser-agent: app\r\naccept: */*\r\n{DEVICE_HEADER}: {session}\r\n"

    def request(number: int) -> bytes:
        attributes: dict[str, Attribute] = {"model": "P9", "os": "15", "launches": number if "changed" in how else 0}
        app_version = f"10.{number}" if "version" in how else "10.3"
        if "full" in how:
            profile = Profile(_DEVICE, app_version, attributes, tasks).to_header()
        else:
            profile = ShortProfile(app_version, attributes, digests).to_header()
            if number < 2 * _CONNECTIONS:  # the gateway asks devices so at first
                return f"{lines}{PROFILE_HEADER}: {profile}\r\n{HAVE_HEADER}: {have}\r\n\r\n".encode()
        return f"{lines}{PROFILE_HEADER}: {profile}\r\n\r\n".encode()

    same = request(1000)
    others = (request(number) for number in itertools.count()) if how else itertools.repeat(same)
    requests = itertools.chain(map(request, range(_CONNECTIONS)), others)
    counts = [0]
    host, port = url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    for _ in range(_CONNECTIONS):
        await loop.create_connection(lambda: _Client(requests, counts), host, int(port))
    await asyncio.sleep(0.3)
    said.send("time")
    before_s, before = said.recv(), counts[0]
    await asyncio.sleep(seconds)
    said.send("time")
    spent_s: float = said.recv() - before_s
    return (counts[0] - before) / spent_s


def measure(server: str, seconds: float) -> float:
    """Start a server and load it; return the requests a second of its CPU time."""
    kind, *how = server.split("+")
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(kind, theirs))
    process.start()
    try:
        url, session = mine.recv()
        loading = _load(url, session, how=how, seconds=seconds, said=mine)
        return event_loop.run(loading)
    finally:
        mine.send("end")
        process.join(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="*", default=SERVERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {server: [] for server in arguments.servers}
    for _ in range(arguments.rounds):
        for server, rates in found.items():
            rates.append(measure(server, arguments.seconds))
    medians = {server: round(statistics.median(rates)) for server, rates in found.items()}
    best = {server: round(max(rates)) for server, rates in found.items()}
    print(json.dumps({"requests per second of CPU time": medians, "best": best}))
    ours = next((server for server in ("gateway", *SERVERS) if server in medians), "")
    peers = {
        f"uvicorn with {server}, without push": medians[server] for server in ("h11", "httptools") if server in medians
    }
    if ours:
        what = f"requests with a profile that one gateway answers in a second of CPU time ({ours})"
        print_headline(what, unit="a second", better="higher", ours=medians[ours], peers=peers)


if __name__ == "__main__":
    main()
