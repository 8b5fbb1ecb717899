"""A fleet that loses its cloud and comes back at once: each upload is stored once, and no device is cut off.

    python -m tests.sim.mass_reconnect [--devices 5000] [--uploads 64]

Needs two file descriptors for each device. The devices are connections over TLS on loopback that send whole windows;
the cloud is the tunnel's server with its store, in the same process. Exits with 1 if anything is wrong.
"""

import argparse
import asyncio
import collections
import dataclasses
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_cloud import TunnelCloud
from walle import protocol
from walle.pipeline.tunnel.frames import Decoder, Encoder
from walle.pipeline.tunnel.server.server import ServerLimits

_AT_ONCE = 256  # handshakes that the devices have under way, as many as fit into the server's backlog with room
_PAYLOAD_BYTES = 1000


class _Device(asyncio.Protocol):
    """One connection of a device: it says Hello, and sends what was not acknowledged."""

    def __init__(self, device_id: str, frames: list[bytes]) -> None:
        self.acked = 0
        self.welcomed = asyncio.Event()
        self.done = asyncio.Event()
        self.lost = asyncio.Event()
        self.refusals: list[str] = []
        self._device_id = device_id
        self._frames = frames
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(Encoder().encode(protocol.Hello(self._device_id, "epoch", "")))

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if isinstance(frame, protocol.Welcome):
                self.acked = frame.acked
                self.welcomed.set()
            elif isinstance(frame, protocol.Ack):
                self.acked = max(self.acked, frame.seq)
            elif isinstance(frame, protocol.Refusal):
                self.refusals.append(frame.code)
        if self._frames and self.acked == len(self._frames):
            self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        for event in (self.lost, self.welcomed, self.done):
            event.set()

    def send(self) -> None:
        self.transport.write(b"".join(self._frames[self.acked :]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Outcome: uploads in the store, devices whose last upload was acknowledged, refusals by code, seconds."""

    stored: int
    acknowledged: int
    refusals: dict[str, int]
    seconds: float  # time from the cloud's start to the last acknowledgement


class Reconnects:
    """A cloud that goes away under connected devices and comes back, and what the devices send then."""

    def __init__(self, authority: TunnelAuthority, database: Path, *, devices: int, uploads: int) -> None:
        self._authority = authority
        self._database = database
        payload = random.Random(3).randbytes(_PAYLOAD_BYTES)
        encoder = Encoder()
        self._frames = [encoder.encode(protocol.Upload(seq, "t", payload, 0)) for seq in range(1, uploads + 1)]
        self._ids = [f"device-{number}" for number in range(devices)]
        self._contexts = [authority.device_context(device_id) for device_id in self._ids]
        self._refusals = collections.Counter[str]()

    async def run(self) -> Found:
        """Connect all, stop the cloud, start it, connect all at once, and send a window each."""
        async with self._cloud() as cloud:
            devices = await self._connect_all(cloud, [])
        for device in devices:
            await device.lost.wait()
        self._count(devices)
        began_s = time.perf_counter()
        async with self._cloud() as cloud:
            devices = await self._connect_all(cloud, self._frames)
            for device in devices:
                await device.done.wait()
            seconds = time.perf_counter() - began_s
            stored = await cloud.ingest.count()
            self._count(devices)
            acknowledged = sum(device.acked == len(self._frames) for device in devices)
            for device in devices:
                device.transport.abort()
        return Found(stored=stored, acknowledged=acknowledged, refusals=dict(self._refusals), seconds=seconds)

    def _cloud(self) -> TunnelCloud:
        limits = ServerLimits(hello_s=120.0)  # devices and cloud share this machine's processors
        return TunnelCloud(ssl_context=self._authority.server_context(), path=self._database, limits=limits)

    async def _connect_all(self, cloud: TunnelCloud, frames: list[bytes]) -> list[_Device]:
        """Return the connected devices, each of which has sent its frames at its Welcome."""
        loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)

        async def connect(number: int) -> _Device:
            device = _Device(self._ids[number], frames)
            context = self._contexts[number]
            async with slots:
                await loop.create_connection(
                    lambda: device, "127.0.0.1", cloud.server.port, ssl=context, ssl_handshake_timeout=120.0
                )
                await device.welcomed.wait()
            return device

        devices = list(await asyncio.gather(*(connect(number) for number in range(len(self._ids)))))
        for device in devices:
            device.send()
        return devices

    def _count(self, devices: list[_Device]) -> None:
        for device in devices:
            self._refusals.update(device.refusals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=5000)
    parser.add_argument("--uploads", type=int, default=64, help="of each device, at most 256")
    options = parser.parse_args()
    needed, (soft, hard) = 2 * options.devices + 200, resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        if hard < needed:
            sys.exit(f"{options.devices} devices need {needed} file descriptors, {hard} are allowed; see `ulimit -Hn`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    with tempfile.TemporaryDirectory() as folder:
        authority = TunnelAuthority(Path(folder) / "authority")
        reconnects = Reconnects(
            authority, Path(folder) / "uploads.db", devices=options.devices, uploads=options.uploads
        )
        found = asyncio.run(reconnects.run())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sys.stdout.write(f"{found}; peak {peak_mb} MB with all devices\n")
    expected = options.devices * options.uploads
    if found.stored != expected or found.acknowledged != options.devices or set(found.refusals) - {"closing"}:
        sys.exit(f"wrong: {expected} uploads of {options.devices} devices were to be stored and acknowledged")


if __name__ == "__main__":
    main()
