"""The tunnel on a bad network, and with a device or cloud that is killed: uploads arrive once and in order."""

import asyncio
import random
import socket
import ssl
from typing import Any

import pytest

from tests.sim.fault_proxy import FaultProxy
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import (
    KeepingOutbox,
    MakeClient,
    fill,
    running,
    stored,
    until,
)
from walle.base.clock import ManualClock, SystemClock
from walle.pipeline.tunnel.client.client import (
    TunnelClient,
    TunnelClosedError,
)


async def send_until_struck(proxy: FaultProxy, client: TunnelClient, outbox: MemoryOutbox, rng: random.Random) -> None:
    """Keep uploads going until the fault that was armed has struck."""
    struck = proxy.faults
    while proxy.faults == struck:
        outbox.add("ipv", rng.randbytes(rng.randrange(2_000)))
        await until(lambda: proxy.faults > struck or client._acked == outbox.last_seq)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(6))
async def test_cuts_at_random_points_lose_and_double_nothing(
    cloud: TunnelCloud, make_client: MakeClient, seed: int
) -> None:
    rng = random.Random(seed)
    outbox = KeepingOutbox()
    fill(outbox, 300, size=2_000, seed=seed)
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(20):
            for _ in range(12):
                way = rng.choice(["up", "down"])
                proxy.cut_after(way, rng.randrange(1, 20_000 if way == "up" else 2_500))
                await send_until_struck(proxy, client, outbox, rng)
            await client.drained()
        assert proxy.faults == 12
        assert await stored(cloud.ingest) == outbox.sent
        assert await cloud.ingest.count() == len(outbox.sent)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("seed", range(3))
async def test_a_flipped_bit_costs_the_connection_and_nothing_else(
    cloud: TunnelCloud, make_client: MakeClient, way: str, seed: int
) -> None:
    rng = random.Random(seed)
    outbox = KeepingOutbox()
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(20):
            await until(lambda: client.connected)
            proxy.flip_after(way, rng.randrange(1, 20_000 if way == "up" else 200))
            await send_until_struck(proxy, client, outbox, rng)
            await client.drained()
            await until(lambda: client.connected and client.connections >= 2)
        assert isinstance(client.last_error, ssl.SSLError | ConnectionError | TunnelClosedError)
        assert await stored(cloud.ingest) == outbox.sent


@pytest.mark.asyncio
async def test_a_cloud_that_stops_and_starts_again_continues_from_its_file(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 100)
    await cloud.start()
    async with FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(20):
            for crash in (False, True, True):
                await until(lambda: client.connected)
                arrivals = cloud.server.counts.uploads
                sent += fill(outbox, 500, seed=crash)
                await until(lambda before=arrivals: cloud.server.counts.uploads > before)  # type: ignore[misc]
                await (cloud.crash() if crash else cloud.stop())
                sent += fill(outbox, 50)
                await cloud.start()
                proxy.target_port = cloud.server.port
            await client.drained()
    assert client.connections >= 4
    assert await stored(cloud.ingest) == sent
    await cloud.stop()


@pytest.mark.asyncio
async def test_a_device_that_is_killed_continues_from_its_outbox(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 2_000)
    async with cloud:
        for goal in (50, 500):
            client = make_client(outbox, cloud.server.port)
            task = asyncio.create_task(client.run())
            await until(lambda goal=goal: cloud.server.counts.uploads > goal)  # type: ignore[misc]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(10):
            await client.drained()
        assert await stored(cloud.ingest) == sent


@pytest.mark.asyncio
async def test_the_client_is_patient_with_a_cloud_that_is_away(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 3)
    async with FaultProxy(1) as proxy:  # nothing listens on port 1
        client = make_client(outbox, proxy.port)
        async with running(client), asyncio.timeout(10):
            await until(lambda: proxy.connections >= 3)
            assert not client.connected
            assert client.last_error is not None
            async with cloud:
                proxy.target_port = cloud.server.port
                await client.drained()
                assert await stored(cloud.ingest) == sent


@pytest.mark.asyncio
async def test_backoff_grows_with_jitter_up_to_its_limit(make_client: MakeClient) -> None:
    class Recorder(ManualClock):
        def __init__(self) -> None:
            super().__init__()
            self.slept: list[float] = []

        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            await asyncio.sleep(0)

    def delays(seed: int) -> Any:
        clock = Recorder()
        with socket.socket() as unused:  # bound, not listening: every connection is refused
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            return clock, make_client(
                MemoryOutbox(), port, clock=clock, rng=random.Random(seed), backoff_s=0.5, backoff_max_s=60.0
            )

    all_slept = []
    for seed in range(2):
        clock, client = delays(seed)
        async with running(client):
            await until(lambda clock=clock: len(clock.slept) >= 40)  # type: ignore[misc]
        all_slept.append(clock.slept[:40])
    for slept in all_slept:
        assert all(delay <= 0.5 * 2 ** (attempt + 1) for attempt, delay in enumerate(slept))
        assert all(delay <= 60.0 for delay in slept)
        assert max(slept[10:]) > 30.0
        assert len({round(delay, 6) for delay in slept}) == 40
    assert all_slept[0] != all_slept[1]


@pytest.mark.asyncio
async def test_a_dead_link_is_noticed_by_its_silence(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(outbox, proxy.port, keepalive_s=0.05, connect_s=0.2)
        async with running(client), asyncio.timeout(10):
            await until(lambda: client.connected)
            proxy.swallow = True
            outbox.add("ipv", b"into the void")
            await until(lambda: not client.connected)
            assert "silent" in str(client.last_error)
            proxy.swallow = False
            proxy.cut()
            await client.drained()
            assert [seq for seq, _, _ in await stored(cloud.ingest)] == [1]


@pytest.mark.asyncio
async def test_pings_keep_an_idle_link_up(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port, keepalive_s=0.02)
        async with running(client):
            await until(lambda: client.connected)
            before = cloud.server.counts.bytes_in
            await until(lambda: cloud.server.counts.bytes_in >= before + 5 * 16)  # five pings
            assert client.connected
            assert client.connections == 1


@pytest.mark.asyncio
async def test_a_link_outlives_a_suspended_process(cloud: TunnelCloud, make_client: MakeClient) -> None:
    class Suspended(SystemClock):
        away_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.away_s

    async with cloud:
        clock = Suspended()
        client = make_client(MemoryOutbox(), cloud.server.port, keepalive_s=0.05, clock=clock)
        async with running(client):
            await until(lambda: client.connected)
            before = cloud.server.counts.bytes_in
            clock.away_s = 3600.0
            await until(lambda: cloud.server.counts.bytes_in >= before + 3 * 16)
            assert client.last_error is None
            assert client.connections == 1
