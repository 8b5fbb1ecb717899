"""A gateway in a process of its own, an honest client of it, and its memory: for attacks on it.

It speaks HTTPS, as `walle cloud up` does; its honest devices have sessions.

As a program it is the gateway's process: python -m tests.security.attacked_gateway FOLDER [--small-disk]
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.sim.device_session import session_headers
from tests.sim.fault_disk import SmallDisk, enter_mount_namespace
from walle.access.access import Role
from walle.cli import event_loop
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, Profile

ROOT = Path(__file__).parents[2]
_START_S = 60.0


ATTACKER = "attacker"  # a device
HONEST_DEVICES = 50


@dataclasses.dataclass(frozen=True)
class Target:
    """The address of a gateway, an admin's and a reader's token, and sessions of devices by their id."""

    url: str
    token: str
    reader: str
    sessions: dict[str, str]

    @property
    def place(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname
        assert parts.port
        return parts.hostname, parts.port

    @property
    def tls(self) -> ssl.SSLContext:
        """The context that all connections of this process have."""
        return _trusting_anybody()


@functools.cache
def _trusting_anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the system's authorities are left out: reading them takes 20 ms
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Run this thread, and what it starts, on these cores within the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class AttackedGateway:
    """A running gateway, and the most memory that it and its children had together since `reset`."""

    def __init__(self, process: subprocess.Popen[str], target: Target, folder: Path) -> None:
        self.process = process
        self.target = target
        self.folder = folder
        self.peak_bytes = 0
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._watch_memory, daemon=True)

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, *options: str, cores: Collection[int] | None = None) -> Iterator[Self]:
        """Start the gateway; with --small-disk the parent of its folder is a disk of 96 MiB, if the kernel lets it.

        It has `cores` to itself: what looks at its memory runs where this program does.
        """
        command = [sys.executable, "-m", "tests.security.attacked_gateway", str(folder), *options]
        with on_cores(cores or os.sched_getaffinity(0)):
            begun = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        with begun as process:
            assert process.stdout is not None
            try:
                assert select.select([process.stdout], [], [], _START_S)[0], "the gateway did not start"
                gateway = cls(process, Target(**json.loads(process.stdout.readline())), folder)
                gateway._watch.start()
                yield gateway
                gateway._stopping.set()
                gateway._watch.join()
            finally:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()

    @property
    def git_trust(self) -> tuple[str, str]:
        """Options by which git trusts the gateway's certificate."""
        authority = f"/proc/{self.process.pid}/root{self.folder}/authority/ca.pem"  # the gateway's view of its disk
        return "-c", f"http.sslCAInfo={authority}"

    def reset(self) -> None:
        self.peak_bytes = 0

    def memory_bytes(self) -> int:
        """Return the resident memory of the process and its children, without what they share.

        A child between vfork and exec has all of its parent's memory, and its command line: it is not counted twice.
        """
        total = 0
        for pid in _family(self.process.pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                own = _command(self.process.pid)
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                if pid == self.process.pid or _command(pid) != own:
                    total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
        return total

    def cpu_s(self) -> float:
        """Return the CPU time that the process and its children that have ended have taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def _watch_memory(self) -> None:
        while not self._stopping.wait(0.03):
            self.peak_bytes = max(self.peak_bytes, self.memory_bytes())


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


@dataclasses.dataclass
class CheckIns:
    """Check-ins of honest devices: how long each took, in ms, and how many failed.

    `late_ms` is by how much their own process was late to begin each: what it waits for its core, not for the gateway.
    """

    took_ms: list[float]
    failures: list[str]
    late_ms: list[float]

    def quantile_ms(self, share: float) -> float:
        return quantile(self.took_ms, share)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


class HonestDevices:
    """Devices that check in, each time on a connection of its own, from an address of their own."""

    def __init__(self, target: Target, *, period_s: float = 0.02) -> None:
        command = [sys.executable, "-m", "tests.security.attacked_gateway", "--check-in"]
        self._period_s = period_s
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([dataclasses.asdict(target), period_s]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "begun"

    def stop(self) -> CheckIns:
        out, _ = self._process.communicate("stop\n", timeout=60)
        return CheckIns(**json.loads(out))


# From <linux/in.h>. The port is chosen when the socket connects: `bind` itself searches for one that nobody has used
# within a minute, which takes an attacker milliseconds after some 10,000 connections.
_IP_BIND_ADDRESS_NO_PORT = 24


async def connect(
    target: Target, address: str, *, is_secure: bool = True
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from one of this machine's addresses."""
    own = socket.socket()
    try:
        own.setblocking(False)
        own.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        own.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(own, target.place)
    except BaseException:
        own.close()
        raise
    # From here on the socket is asyncio's, which closes it also where the handshake fails.
    if is_secure:
        return await asyncio.open_connection(sock=own, ssl=target.tls, server_hostname="")
    return await asyncio.open_connection(sock=own)


async def check_in(target: Target, device: str) -> int:
    """Check in once on a connection of its own, from 127.0.0.1; return the status."""
    profile = Profile(device, "10.1", {}, {}).to_header()
    reader, writer = await connect(target, "127.0.0.1")
    try:
        head = f"POST /v1/checkin HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n{PROFILE_HEADER}: {profile}\r\n"
        writer.write(f"{head}{DEVICE_HEADER}: {target.sessions[device]}\r\n\r\n".encode())
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    finally:
        writer.transport.abort()


async def _check_in_until_stopped(target: Target, period_s: float) -> CheckIns:
    found = CheckIns([], [], [])
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_reader(sys.stdin, stop.set)
    under_way = set[asyncio.Task[None]]()

    async def one(number: int) -> None:
        began_s = loop.time()
        try:
            async with asyncio.timeout(20):
                status = await check_in(target, f"honest-{number % HONEST_DEVICES}")
            if status != 204:
                found.failures.append(f"status {status}")
        except (OSError, TimeoutError) as error:
            found.failures.append(repr(error))
        found.took_ms.append((loop.time() - began_s) * 1000)

    for number in range(20):  # the first ones load modules on both sides
        await one(number)
    found.took_ms.clear()
    _say("begun")
    number = 0
    while not stop.is_set():
        task = loop.create_task(one(number))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        number += 1
        due_s = loop.time() + period_s
        await asyncio.sleep(period_s)
        found.late_ms.append((loop.time() - due_s) * 1000)
    if under_way:
        await asyncio.wait(under_way)
    return found


async def _serve(folder: Path) -> None:
    from walle.cloud import Cloud, CloudConfig  # imported in the gateway's process only: it takes a second
    from walle.cloud.http.malloc import keep_what_is_loaded

    async with Cloud(CloudConfig(folder=folder, scenarios=("shop",), https=True)) as cloud:
        devices = [ATTACKER, *(f"honest-{number}" for number in range(HONEST_DEVICES))]
        sessions = {device: session_headers(cloud.home, device)[DEVICE_HEADER] for device in devices}
        reader = cloud.home.access.add("reader", {"shop": Role.READER})
        keep_what_is_loaded()
        target = Target(cloud.address.url, cloud.home.admin_token, reader, sessions)
        _say(json.dumps(dataclasses.asdict(target)))
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()


def main() -> None:
    if sys.argv[1] == "--check-in":
        fields, period_s = json.loads(sys.stdin.readline())
        found = event_loop.run(_check_in_until_stopped(Target(**fields), period_s))
        _say(json.dumps(dataclasses.asdict(found)))
        return
    folder = Path(sys.argv[1])
    with contextlib.ExitStack() as undo:
        if "--small-disk" in sys.argv:
            if not enter_mount_namespace():
                sys.exit("no mount namespace")
            undo.enter_context(SmallDisk(folder.parent, can_mount=True))
        event_loop.run(_serve(folder))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
