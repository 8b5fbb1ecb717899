"""The devices of Fig. 12: real clients with durable outboxes, whose uploads and requests are timed."""

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from benchmarks.tunnel_authority import TunnelAuthority
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.tunnel.client.client import TunnelClient

TOPIC = "feature"
_BACKLOG = 64  # unacknowledged uploads of 10 KB while requests are timed
_BACKLOG_BYTES = 10_000
_REQUEST_BYTES = 200


@dataclasses.dataclass(frozen=True)
class CloudAddress:
    host: str
    port: int
    authority: TunnelAuthority  # makes the devices' certificates


@dataclasses.dataclass(frozen=True)
class Acked:
    """One upload. `acked_ms` is from before it was put to its acknowledgement; `seq` finds it in the cloud's file."""

    device_id: str
    seq: int
    size_bytes: int
    acked_ms: float


@dataclasses.dataclass(frozen=True)
class Asked:
    """Requests of one device. `uploaded_kb_per_s` is what the cloud acknowledged meanwhile, in 1,000 bytes a second."""

    times_ms: list[float]
    uploaded_kb_per_s: float


class BenchDevice:
    """One device. Its uploads are sent one at a time, so that `last_seq` is that of the latest.

    `acked` is the number of the latest acknowledged upload.
    """

    def __init__(self, device_id: str, store: FeatureStore, cloud: CloudAddress, rng: random.Random) -> None:
        self.device_id = device_id
        self.outbox = Outbox(store)
        self.client = TunnelClient(
            self.outbox,
            device_id=device_id,
            host=cloud.host,
            port=cloud.port,
            ssl_context=cloud.authority.device_context(device_id),
            rng=rng,
            on_ack=self._note_ack,
        )
        self._rng = rng
        self._came: dict[int, asyncio.Future[float]] = {}
        self._early: dict[int, float] = {}
        self.acked = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(
        cls, device_id: str, folder: Path, cloud: CloudAddress, seed: int
    ) -> AsyncIterator["BenchDevice"]:
        async with FeatureStore(folder / f"{device_id}.db") as store:
            device = cls(device_id, store, cloud, random.Random(f"{seed} {device_id}"))
            running = asyncio.create_task(device.client.run())
            try:
                await device.client.request("ready", b"", timeout=60.0)
                yield device
            finally:
                await device.client.close()
                await running

    def _note_ack(self, seq: int, _latency_s: float) -> None:
        self._early[seq] = time.perf_counter()
        self.acked = seq
        if seq in self._came:
            self._came.pop(seq).set_result(self._early.pop(seq))

    async def upload(self, size_bytes: int) -> Acked:
        """Put one feature of incompressible bytes; return once it is acknowledged."""
        payload = self._rng.randbytes(size_bytes)
        began_s = time.perf_counter()
        await self.outbox.put(TOPIC, payload)
        seq = self.outbox.last_seq
        if seq in self._early:
            acked_s = self._early.pop(seq)
        else:
            came = self._came[seq] = asyncio.get_running_loop().create_future()
            acked_s = await came
        return Acked(self.device_id, seq, size_bytes, (acked_s - began_s) * 1000)

    async def play(self, sizes: Sequence[int], pause_s: float) -> list[Acked]:
        """Upload features of the given sizes, each after a random pause of about `pause_s`."""
        acked = []
        for size_bytes in sizes:
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * pause_s)
            acked.append(await self.upload(size_bytes))
        return acked

    async def request_beside_uploads(self, count: int) -> Asked:
        """Send `count` requests, one after the other, while a full outbox drains."""
        filling = asyncio.create_task(self._keep_full())
        try:
            await asyncio.sleep(2.0)  # the buffers on the way fill
            times_ms = []
            first, since_s = self.acked, time.perf_counter()
            for _ in range(count):
                payload = self._rng.randbytes(_REQUEST_BYTES)
                began_s = time.perf_counter()
                await self.client.request("ask", payload)
                times_ms.append((time.perf_counter() - began_s) * 1000)
            uploaded_kb = (self.acked - first) * _BACKLOG_BYTES / 1000
            uploaded_kb_per_s = uploaded_kb / (time.perf_counter() - since_s)
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        return Asked(times_ms, uploaded_kb_per_s)

    async def _keep_full(self) -> None:
        while True:
            # Not by the outbox's size, from which acknowledged uploads go with the next transaction only.
            for _ in range(max(0, self.acked + _BACKLOG - self.outbox.last_seq)):
                await self.outbox.put(TOPIC, self._rng.randbytes(_BACKLOG_BYTES))
            self._early.clear()
            await asyncio.sleep(0.1)


async def play_all(
    cloud: CloudAddress, folder: Path, sizes: Sequence[Sequence[int]], pause_s: float, seed: int
) -> list[Acked]:
    """Let one device for each list of sizes play; return all of its uploads."""
    async with contextlib.AsyncExitStack() as undo:
        devices = [
            await undo.enter_async_context(BenchDevice.connected(f"device-{number}", folder, cloud, seed))
            for number in range(len(sizes))
        ]
        played = await asyncio.gather(*(device.play(own, pause_s) for device, own in zip(devices, sizes, strict=True)))
    return [acked for one in played for acked in one]


async def time_requests(cloud: CloudAddress, folder: Path, counts: Sequence[int], seed: int) -> list[Asked]:
    """Let one device for each count send that many requests."""
    async with contextlib.AsyncExitStack() as undo:
        devices = [
            await undo.enter_async_context(BenchDevice.connected(f"asking-{number}", folder, cloud, seed))
            for number in range(len(counts))
        ]
        asking = (device.request_beside_uploads(count) for device, count in zip(devices, counts, strict=True))
        return list(await asyncio.gather(*asking))
