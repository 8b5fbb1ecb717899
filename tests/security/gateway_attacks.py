"""Attacks on a gateway's HTTP server, each a coroutine that runs for some seconds, from 127.0.0.2.

python -m tests.security.gateway_attacks NAME,NAME... SECONDS [--give-way] < TARGET_JSON
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

import httpx

from tests.security import packs
from tests.security.attacked_gateway import ATTACKER, ROOT, Target, connect
from tests.sim.tasks import FILES
from walle.cli import event_loop
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, Profile

_ADDRESS = "127.0.0.2"
_OF_A_PROFILE = Profile("attacker", "10.1", {}, {}).to_header()
CHECK_IN = (
    f"POST /v1/checkin HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n{PROFILE_HEADER}: {_OF_A_PROFILE}\r\n\r\n".encode()
)

RELEASE = "ipv-v1-1"

type Attack = Callable[[Target, Counter[str]], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(
    target: Target, *, is_secure: bool = True
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await connect(target, _ADDRESS, is_secure=is_secure)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, seen: Counter[str]) -> None:
    line = await reader.readline()
    seen[line.split()[1].decode() if line else "closed"] += 1


def make_release(target: Target) -> None:
    """Push a version, and make the release whose events the attackers ask for."""
    packed, commit = packs.version(FILES)
    assert b"ok refs/tags/ipv/v1" in packs.push(target, packed, new=commit, ref="refs/tags/ipv/v1").content
    body = {"scenario": "shop", "task": "ipv", "version": "v1", "start": False}
    headers = {"authorization": f"Bearer {target.token}"}
    made = httpx.post(f"{target.url}/v1/releases", json=body, headers=headers, verify=False, timeout=60)
    assert made.json()["id"] == RELEASE


def _many(count: int, one: Attack) -> Attack:
    """Run `one` over and over in `count` places."""

    async def repeat(target: Target, seen: Counter[str]) -> None:
        while True:
            try:
                await one(target, seen)
            except (OSError, EOFError) as error:
                seen[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    async def all_of_them(target: Target, seen: Counter[str]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(repeat(target, seen))

    return all_of_them


def _get(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode()


def _post(path: str, token: str = "", *, size_bytes: int | None, session: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json"]
    if token:
        lines.append(f"authorization: Bearer {token}")
    if session:
        lines.append(f"{DEVICE_HEADER}: {session}")
    lines.append("transfer-encoding: chunked" if size_bytes is None else f"content-length: {size_bytes}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send_body(
    target: Target, seen: Counter[str], path: str, body: bytes, *, token: str = "", session: str = ""
) -> None:
    async with connected(target) as (reader, writer):
        writer.write(_post(path, token, size_bytes=len(body), session=session))
        for start in range(0, len(body), 1 << 18):
            writer.write(body[start : start + (1 << 18)])
            await writer.drain()
        await _answer(reader, seen)


async def big_json(target: Target, seen: Counter[str]) -> None:
    """300 MB of JSON without a token."""
    await _send_body(target, seen, "/v1/releases", b'{"steps":[' + b"1," * (150 << 20) + b"1]}")


async def big_json_of_a_reader(target: Target, seen: Counter[str]) -> None:
    """100 MB of JSON with a token."""
    await _send_body(target, seen, "/v1/releases", b'{"steps":[' + b"1," * (50 << 20) + b"1]}", token=target.reader)


async def deep_json(target: Target, seen: Counter[str]) -> None:
    await _send_body(target, seen, "/v1/outcomes", b"[" * 1_000_000, session=target.sessions[ATTACKER])


async def wide_json(target: Target, seen: Counter[str]) -> None:
    await _send_body(target, seen, "/v1/outcomes", b"[" + b"[]," * 340_000 + b"[]]", session=target.sessions[ATTACKER])


async def half_open(target: Target, seen: Counter[str]) -> None:
    """Connections that send nothing."""
    async with connected(target, is_secure=False) as (reader, _):
        await _answer(reader, seen)


async def half_hello(target: Target, seen: Counter[str]) -> None:
    """Connections that begin a handshake of TLS, and send no more."""
    async with connected(target, is_secure=False) as (reader, writer):
        writer.write(b"\x16\x03\x01")
        await _answer(reader, seen)


async def silent(target: Target, seen: Counter[str]) -> None:
    """Connections that send nothing after the handshake of TLS."""
    async with connected(target) as (reader, _):
        await _answer(reader, seen)


async def not_tls(target: Target, seen: Counter[str]) -> None:
    """Records of TLS that are none."""
    async with connected(target, is_secure=False) as (reader, writer):
        writer.write(b"\x16\x03\x01\x40\x00" + bytes(range(256)) * 64)
        await writer.drain()
        await _answer(reader, seen)


async def slow_header(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):
        writer.write(b"POST /v1/checkin HTTP/1.1\r\nhost: x\r\n")
        while not writer.is_closing() and not reader.at_eof():
            writer.write(b"a")
            await asyncio.sleep(0.3)
        await _answer(reader, seen)


async def slow_body(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):
        writer.write(_post("/v1/outcomes", session=target.sessions[ATTACKER], size_bytes=1_000_000))
        while not writer.is_closing() and not reader.at_eof():
            writer.write(b"a")
            await asyncio.sleep(0.3)
        await _answer(reader, seen)


async def slow_reader(target: Target, seen: Counter[str]) -> None:
    """Ask for a large answer, and read none of it."""
    async with connected(target) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(_get("/openapi.json", target.reader) * 2000)
        await asyncio.sleep(30)
        await _answer(reader, seen)


async def streams(target: Target, seen: Counter[str]) -> None:
    """Ask for the events of a release."""
    async with connected(target) as (reader, writer):
        writer.write(_get(f"/v1/releases/{RELEASE}/stream", target.reader))
        await _answer(reader, seen)
        while await reader.read(1 << 16):
            pass


async def pipelined(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):

        async def send() -> None:
            while True:
                writer.write(CHECK_IN * 200)
                await writer.drain()

        sending = asyncio.create_task(send())
        try:
            while data := await reader.read(1 << 16):
                seen["answers"] += data.count(b"HTTP/1.1 ")
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()


async def _flood(target: Target, seen: Counter[str], requests: Iterable[bytes]) -> None:
    async with connected(target) as (reader, writer):
        for request in requests:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            seen[head.split()[1].decode()] += 1
            if length := re.search(rb"content-length: (\d+)", head):
                await reader.readexactly(int(length[1]))


async def flood(target: Target, seen: Counter[str]) -> None:
    """Check in over and over on a connection that is kept."""
    await _flood(target, seen, itertools.repeat(CHECK_IN))


async def flood_of_a_device(target: Target, seen: Counter[str]) -> None:
    """Check in with a profile that is another each time."""

    def requests() -> Iterator[bytes]:
        for number in itertools.count():
            profile = Profile(ATTACKER, f"10.{number}.{id(seen)}", {}, {}).to_header()
            lines = f"{PROFILE_HEADER}: {profile}\r\n{DEVICE_HEADER}: {target.sessions[ATTACKER]}"
            yield f"POST /v1/checkin HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n{lines}\r\n\r\n".encode()

    await _flood(target, seen, requests())


async def flood_of_a_reader(target: Target, seen: Counter[str]) -> None:
    """Ask for lists over and over."""
    paths = ("/v1/devices", "/v1/features?topic=ipv", "/v1/releases", f"/v1/releases/{RELEASE}", "/v1/whoami")
    await _flood(target, seen, itertools.cycle(_get(path, target.reader) for path in paths))


async def fetches(target: Target, seen: Counter[str]) -> None:
    """Begin to clone a repository over and over: each time git runs in a child process."""
    await _flood(target, seen, itertools.repeat(_get("/git/shop.git/info/refs?service=git-upload-pack", target.reader)))


async def stalled_fetches(target: Target, seen: Counter[str]) -> None:
    """Begin a request to git with a body that does not end."""
    async with connected(target) as (reader, writer):
        kind = "content-type: application/x-git-upload-pack-request\r\ncontent-length: 1000000"
        known = f"host: x\r\nauthorization: Bearer {target.reader}\r\n{kind}"
        writer.write(f"POST /git/shop.git/git-upload-pack HTTP/1.1\r\n{known}\r\n\r\n".encode())
        await _answer(reader, seen)


async def churn(target: Target, seen: Counter[str]) -> None:
    async with connected(target):
        seen["connections"] += 1


async def huge_header(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 1_000_000)
        await writer.drain()
        await _answer(reader, seen)


async def many_headers(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 40_000 + b"\r\n")
        await writer.drain()
        await _answer(reader, seen)


async def tiny_chunks(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):
        writer.write(_post("/v1/outcomes", session=target.sessions[ATTACKER], size_bytes=None))
        with contextlib.suppress(OSError):
            for _ in range(20):
                writer.write(b"1\r\na\r\n" * 10_000)
                await writer.drain()
        await _answer(reader, seen)


async def garbage(target: Target, seen: Counter[str]) -> None:
    async with connected(target) as (reader, writer):
        writer.write(bytes(range(256)) * 4000)
        await writer.drain()
        await _answer(reader, seen)


# Attackers are strangers, or have what was stolen from a device, or a reader's token.
ATTACKS: dict[str, Attack] = {
    "big_json": _many(2, big_json),
    "big_json_of_a_reader": _many(4, big_json_of_a_reader),
    "deep_json": _many(8, deep_json),
    "wide_json": _many(8, wide_json),
    "half_open": _many(3000, half_open),
    "half_hello": _many(3000, half_hello),
    "silent": _many(1000, silent),
    "not_tls": _many(50, not_tls),
    "slow_header": _many(1000, slow_header),
    "slow_body": _many(1000, slow_body),
    "slow_reader": _many(500, slow_reader),
    "streams": _many(500, streams),
    "pipelined": _many(20, pipelined),
    "flood": _many(300, flood),
    "flood_of_a_device": _many(300, flood_of_a_device),
    "flood_of_a_reader": _many(300, flood_of_a_reader),
    "fetches": _many(50, fetches),
    "stalled_fetches": _many(50, stalled_fetches),
    "churn": _many(50, churn),
    "huge_header": _many(100, huge_header),
    "many_headers": _many(20, many_headers),
    "tiny_chunks": _many(50, tiny_chunks),
    "garbage": _many(20, garbage),
}


async def run(name: str, target: Target, seconds: float) -> Counter[str]:
    """Run an attack for some seconds; return what the attacker saw: statuses of answers, and errors."""
    seen = Counter[str]()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ATTACKS[name](target, seen)
    return seen


def attack(names: Iterable[str], target: Target, seconds: float, *, gives_way: bool = False) -> dict[str, Counter[str]]:
    """Run attacks one after the other from a process of its own; return what the attacker saw in each.

    An attacker that `gives_way` leaves a core that it shares with honest clients to them: they would have their own.
    """
    command = [sys.executable, "-m", "tests.security.gateway_attacks", ",".join(names), str(seconds)]
    command += ["--give-way"] if gives_way else []
    given = json.dumps(dataclasses.asdict(target))
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=300, check=True)
    return {name: Counter(seen) for name, seen in json.loads(done.stdout).items()}


async def _run_all(names: Sequence[str], target: Target, seconds: float) -> dict[str, Counter[str]]:
    return {name: await run(name, target, seconds) for name in names}


def main(names: str, seconds: str, *options: str) -> None:
    if "--give-way" in options:
        os.nice(19)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard >= 0 else soft, hard))
    target = Target(**json.loads(sys.stdin.readline()))
    sys.stdout.write(json.dumps(event_loop.run(_run_all(names.split(","), target, float(seconds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
