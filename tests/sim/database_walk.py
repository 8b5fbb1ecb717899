"""A cloud with its state in PostgreSQL, and faults of the server: `python -m tests.sim.database_walk --seconds 5 20`.

A real `walle cloud up`, a device that uploads all the time, check-ins on new connections, and writes (a release that is
paused and resumed). Each fault lasts the given seconds; then all has to go on without a person. At the end the cloud is
stopped during a last outage. Prints one JSON object for each fault, and one for the stop.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.sim.device_session import session_headers
from tests.sim.postgres_server import PostgresServer, free_port, postgres_server
from tests.sim.shop_cloud import GATE, device_config, push, until
from walle.base import plain
from walle.cloud import CloudHome, GatewayAddress
from walle.device import Device
from walle.protocol import PROFILE_HEADER, Profile

_COMMAND = [sys.executable, "-c", "from walle.cli import main; main()"]
LIMIT_S = 240.0
ROLE = "walle"
DATABASE = "state"


class CloudProcess:
    """`walle cloud up` as a process, and what it prints."""

    def __init__(self, folder: Path, database: str, *options: str) -> None:
        arguments = ["cloud", "up", str(folder), f"--database={database}", "--http-port=0", "--tunnel-port=0"]
        self.process = subprocess.Popen(
            [*_COMMAND, *arguments, "--plain-http", "--scenario=shop", "--drain=0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, lambda line: self.lines.append(line))),
            threading.Thread(target=self._read, args=(self.process.stderr, None)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, take: Callable[[Any], None] | None) -> None:
        for line in pipe:
            if take is not None:
                take(json.loads(line))
            else:
                self.errors.append(line.rstrip("\n"))

    async def up(self) -> dict[str, Any]:
        """Return what it says once it is up."""
        await until(lambda: any("url" in line for line in self.lines) or self.process.poll() is not None, LIMIT_S)
        found = [line for line in self.lines if "url" in line]
        assert found, self.errors
        return found[-1]

    async def end(self, number: int, limit_s: float = LIMIT_S) -> float:
        """Send a signal and return the seconds until the process has ended."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        await until(lambda: self.process.poll() is not None, limit_s)
        return time.monotonic() - began_s

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


class Calls:
    """Answers to calls of one kind: how many of each status, and the longest time of one in seconds."""

    def __init__(self) -> None:
        self.answers: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0
        self.without_retry_after = 0

    def note(self, answer: str, took_s: float, headers: Any = None) -> None:
        self.answers[answer] += 1
        self.longest_s = max(self.longest_s, took_s)
        if answer == "503" and headers is not None and "retry-after" not in headers:
            self.without_retry_after += 1

    def to_plain(self) -> dict[str, Any]:
        plain_counts: dict[str, Any] = {**dict(self.answers), "longest_s": round(self.longest_s, 1)}
        if self.without_retry_after:
            plain_counts["without_retry_after"] = self.without_retry_after
        return plain_counts


class Walk:
    """A cloud on a database, a device and clients; `fault` measures what they see of one fault."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.folder = folder
        self.server = server
        self.standby: PostgresServer | None = None
        self.disk = folder / "disk"
        self.dsn = server.dsn(DATABASE, user=ROLE)
        self.sent = 0
        self.check_ins, self.writes, self.reads = Calls(), Calls(), Calls()
        self._began_s = time.monotonic()

    def log(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began_s:6.1f} s: {text}\n")

    @contextlib.asynccontextmanager
    async def running(self, *options: str) -> AsyncIterator[CloudProcess]:
        cloud = CloudProcess(self.folder / "cloud", self.dsn, *options)
        try:
            said = await cloud.up()
            self.home = CloudHome(self.folder / "cloud", database=self.dsn)
            self.url = said["url"]
            host, _, port = said["tunnel"].rpartition(":")
            authority = self.home.authority_certificate.read_text()
            self.address = GatewayAddress(self.url, host, int(port), authority)
            self.headers = {"Authorization": f"Bearer {self.home.admin_token}"}
            yield cloud
        finally:
            await asyncio.to_thread(cloud.close)

    async def call(self, method: str, path: str, timeout_s: float = 100.0, **body: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=timeout_s) as http:
            return await http.request(method, path, **body)

    async def release(self, version: str) -> str:
        await push(self.url, self.home.admin_token, self.folder / "work", version, {"note.txt": version})
        body = {"scenario": "shop", "task": "count", "version": version, "beta": ["d0"], "steps": [1.0], "gate": GATE}
        created = (await self.call("POST", "/v1/releases", json=body)).raise_for_status().json()
        return str(created["id"])

    async def state_of(self, release: str) -> str:
        return str((await self.call("GET", f"/v1/releases/{release}")).raise_for_status().json()["state"])

    # --- clients ---

    async def send(self, device: Device, is_over: asyncio.Event) -> None:
        """Upload one number after the other. It is not to be cancelled, which leaves open whether one was sent."""
        while not is_over.is_set():
            await device.tunnel.send("numbers", self.sent)
            self.sent += 1
            await asyncio.sleep(0.1)

    async def check_in(self) -> None:
        headers = {
            **session_headers(self.home, "asking"),
            PROFILE_HEADER: Profile("asking", "10.1", {}, {}).to_header(),
        }
        while True:
            began_s = time.monotonic()
            try:
                async with httpx.AsyncClient(base_url=self.url, timeout=100.0) as http:
                    answer = str((await http.post("/v1/checkin", headers=headers)).status_code)
            except httpx.TransportError as error:
                answer = type(error).__name__
            self.check_ins.note(answer, time.monotonic() - began_s)
            await asyncio.sleep(0.1)

    async def ask(self, calls: Calls, method: str, path: str) -> str:
        began_s = time.monotonic()
        headers = None
        try:
            response = await self.call(method, path)
            answer, headers = str(response.status_code), response.headers
        except httpx.TransportError as error:
            answer = type(error).__name__
        calls.note(answer, time.monotonic() - began_s, headers)
        return answer

    async def write(self, release: str) -> None:
        """Pause and resume a release again and again, from two clients at once."""
        while True:
            for action in ("pause", "resume"):
                await self.ask(self.writes, "POST", f"/v1/releases/{release}/{action}")
                await asyncio.sleep(0.3)

    async def read(self) -> None:
        while True:
            await self.ask(self.reads, "GET", "/v1/cloud")
            await asyncio.sleep(0.5)

    async def health(self) -> dict[str, Any]:
        return dict((await self.call("GET", "/healthz")).json())

    async def is_healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return bool((await self.health())["ok"])
        return False

    async def writes_again(self, release: str) -> bool:
        answers = [await self.ask(Calls(), "POST", f"/v1/releases/{release}/{one}") for one in ("pause", "resume")]
        return any(one == "200" for one in answers)

    async def fences(self) -> dict[str, int]:
        """Return the fencing number of each lease: one that went up says that the cloud lost it."""
        shown = (await self.call("GET", "/v1/cloud")).raise_for_status().json()
        return {one["name"]: one["fence"] for one in shown["leases"] or []}

    async def received(self) -> list[int]:
        from walle.pipeline.ingest.stores import open_uploads

        async with open_uploads(self.dsn) as uploads:
            rows = await uploads.query(topic="numbers", limit=1_000_000)
        return [plain.decode(one.payload) for _, one in rows]

    # --- faults ---

    async def fault(
        self,
        name: str,
        seconds: float,
        fault: Callable[["Walk"], contextlib.AbstractAsyncContextManager[None]],
        cloud: CloudProcess,
        device: Device,
        release: str,
    ) -> dict[str, Any]:
        """Return what clients saw of a fault, and how long it took until all went on."""
        self.check_ins, self.writes, self.reads = Calls(), Calls(), Calls()
        lines = len(cloud.errors)
        began_s = time.monotonic()
        unhealthy_s = None
        is_over = asyncio.Event()
        sending = asyncio.create_task(self.send(device, is_over))
        work = (self.check_in(), self.write(release), self.write(release), self.read())
        tasks = [asyncio.create_task(one) for one in work]
        try:
            async with fault(self):
                while time.monotonic() - began_s < seconds:
                    if unhealthy_s is None and not await self.is_healthy():
                        unhealthy_s = round(time.monotonic() - began_s, 1)
                    await asyncio.sleep(0.2)
                ended_s = time.monotonic()
            self.log(f"{name}: ended; {self.check_ins.to_plain()}, {self.writes.to_plain()}")

            async def after(condition: Callable[[], Awaitable[bool]]) -> float | str:
                try:
                    await until(condition, LIMIT_S)
                except TimeoutError:
                    return f"not in {LIMIT_S:g} s"
                return round(time.monotonic() - ended_s, 1)

            writes_s = await after(lambda: self.writes_again(release))
            healthy_s = await after(self.is_healthy)
        finally:
            for task in tasks:
                task.cancel()
            is_over.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            await sending
        try:
            async with asyncio.timeout(LIMIT_S):
                await device.tunnel.drained()
        except TimeoutError:
            self.log("uploads are not acknowledged")
        settled_s = round(time.monotonic() - ended_s, 1)
        received = await self.received()
        return {
            "fault": name,
            "seconds": seconds,
            "check_ins": self.check_ins.to_plain(),
            "writes": self.writes.to_plain(),
            "status": self.reads.to_plain(),
            "unhealthy_after_s": unhealthy_s,
            "writes_again_s": writes_s,
            "healthy_again_s": healthy_s,
            "uploads_again_s": settled_s,
            "sent": self.sent,
            "lost": len(set(range(self.sent)) - set(received)),
            "twice": len(received) - len(set(received)),
            "runs": cloud.process.poll() is None,
            "log_lines": len(cloud.errors) - lines,
        }


@contextlib.asynccontextmanager
async def restarted(walk: Walk) -> AsyncIterator[None]:
    await asyncio.to_thread(walk.server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(walk.server.start_again)


@contextlib.asynccontextmanager
async def killed(walk: Walk) -> AsyncIterator[None]:
    walk.server.kill()
    try:
        yield
    finally:
        await asyncio.to_thread(walk.server.start_again)


@contextlib.asynccontextmanager
async def frozen(walk: Walk) -> AsyncIterator[None]:
    walk.server.freeze()
    try:
        yield
    finally:
        walk.server.thaw()


@contextlib.asynccontextmanager
async def terminated(walk: Walk) -> AsyncIterator[None]:
    """End every connection of the cloud twice a second."""
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"

    async def run() -> None:
        while True:
            await asyncio.to_thread(walk.server.execute, query)
            await asyncio.sleep(0.5)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def too_many(walk: Walk) -> AsyncIterator[None]:
    """Let the role have no further connections, and end those that it has."""
    await asyncio.to_thread(walk.server.execute, f"ALTER ROLE {ROLE} CONNECTION LIMIT 0")
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"
    await asyncio.to_thread(walk.server.execute, query)
    try:
        yield
    finally:
        await asyncio.to_thread(walk.server.execute, f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")


@contextlib.asynccontextmanager
async def read_only(walk: Walk) -> AsyncIterator[None]:
    """Have the server refuse writes, as a former primary does after a fail-over."""

    def switch(value: str) -> None:
        walk.server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        walk.server.execute("SELECT pg_reload_conf()")

    await asyncio.to_thread(switch, "on")
    try:
        yield
    finally:
        await asyncio.to_thread(switch, "off")


@contextlib.asynccontextmanager
async def full(walk: Walk) -> AsyncIterator[None]:
    """Fill the disk that has the database."""
    path = walk.disk / "full"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        path.unlink()


@contextlib.asynccontextmanager
async def fail_over(walk: Walk) -> AsyncIterator[None]:
    """Kill the server; at the end, its standby takes its place."""
    assert walk.standby is not None
    walk.server.kill()
    try:
        yield
    finally:
        await asyncio.to_thread(walk.standby.promote)


FAULTS: dict[str, Callable[[Walk], contextlib.AbstractAsyncContextManager[None]]] = {
    "restart": restarted,
    "kill": killed,
    "freeze": frozen,
    "terminate": terminated,
    "too many": too_many,
    "read-only": read_only,
    "full": full,
    "fail-over": fail_over,  # the last one: there is no third server
}


@contextlib.contextmanager
def small_disk(folder: Path, server: PostgresServer) -> Iterator[None]:
    """Mount a disk of 64 MiB, on which the server has a folder, within the block; this needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        (folder / "data").mkdir()
        shutil.chown(folder / "data", "postgres")
        folder.parent.chmod(0o711)
        yield
    finally:
        server.stop("immediate")
        subprocess.run(["umount", folder], check=True)


async def walk_all(folder: Path, faults: list[str], seconds: list[float], options: list[str], stops: list[str]) -> None:
    assert not ("full" in faults and "fail-over" in faults), "a standby has no disk of its own here"
    with contextlib.ExitStack() as undo:
        server = undo.enter_context(postgres_server(port=free_port()))
        walk = Walk(folder, server)
        server.execute(f"CREATE ROLE {ROLE} LOGIN")
        small = ""
        if "full" in faults:
            undo.enter_context(small_disk(walk.disk, server))
            server.execute(f"CREATE TABLESPACE small LOCATION '{walk.disk}/data'")
            small = "TABLESPACE small"
        server.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE} {small}")
        if "fail-over" in faults:
            walk.standby = undo.enter_context(postgres_server(port=free_port(), standby_of=server))
            server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")  # an acknowledged upload is on both
            server.execute("SELECT pg_reload_conf()")
            hosts = f"127.0.0.1:{server.port},127.0.0.1:{walk.standby.port}"
            walk.dsn = f"postgresql://{ROLE}@{hosts}/{DATABASE}?target_session_attrs=read-write"
        async with walk.running(*options) as cloud:
            walk.log("up")
            config = device_config(walk.address, walk.home, folder / "d0")
            async with Device(config) as device:
                await device.checkin()
                release = await walk.release("v1")
                await until(lambda: _is(walk, release, "beta"), LIMIT_S)
                for name in faults:
                    for length_s in seconds:
                        found = await walk.fault(name, length_s, FAULTS[name], cloud, device, release)
                        _say(found)
                        for line in cloud.errors[-found["log_lines"] :][:40] if found["log_lines"] else []:
                            walk.log("  " + line[:300])
                        if cloud.process.poll() is not None:
                            return
        for name in stops:
            fault, _, number = name.partition(":")
            async with walk.running(*options) as cloud:
                config = device_config(walk.address, walk.home, folder / f"stop-{fault}-{number}")
                async with Device(config) as device:
                    await device.checkin()
                    sending = asyncio.create_task(walk.send(device, asyncio.Event()))
                    async with FAULTS[fault](walk):
                        await asyncio.sleep(3 if number != "late" else 45)
                        writing = asyncio.create_task(walk.write(release))
                        await asyncio.sleep(1)
                        took_s = await cloud.end(signal.SIGTERM if number == "term" else signal.SIGINT)
                        sending.cancel()
                        writing.cancel()
                    await asyncio.gather(sending, writing, return_exceptions=True)
                _say(
                    {
                        "stop": name,
                        "took_s": round(took_s, 1),
                        "code": cloud.process.returncode,
                        "errors": cloud.errors[-6:],
                    }
                )


def _say(found: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()


async def _is(walk: Walk, release: str, state: str) -> bool:
    return await walk.state_of(release) == state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, nargs="*", default=[5.0, 20.0, 60.0])
    parser.add_argument(
        "--faults", nargs="*", default=[one for one in FAULTS if one != "fail-over"], choices=list(FAULTS)
    )
    parser.add_argument("--stops", nargs="*", default=["restart:int", "freeze:int", "freeze:late"])
    parser.add_argument("--options", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walle-walk-") as folder:
        asyncio.run(walk_all(Path(folder), arguments.faults, arguments.seconds, arguments.options, arguments.stops))
