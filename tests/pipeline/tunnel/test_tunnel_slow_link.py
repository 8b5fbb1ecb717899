"""Requests on a slow link while the outbox drains: they go first."""

import asyncio
import random
import statistics
import time

import pytest

from benchmarks.links.proxy import ProxyLink
from benchmarks.links.shape import LinkShape
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, running, until

_SHAPE = LinkShape()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_request_does_not_wait_for_the_outbox_to_drain(cloud: TunnelCloud, make_client: MakeClient) -> None:
    rng = random.Random(11)
    outbox = MemoryOutbox()
    for _ in range(200):
        outbox.add("t", rng.randbytes(10_000))
    latencies: list[float] = []
    async with cloud, ProxyLink(cloud.server.port, _SHAPE, rng).open() as link:
        client = make_client(outbox, link.port)
        async with running(client), asyncio.timeout(60):
            await until(lambda: client.connected)
            draining = asyncio.create_task(client.drained())
            await asyncio.sleep(0.5)  # the buffers on the way fill
            while not draining.done():
                began_s = time.monotonic()
                await client.request("ask", rng.randbytes(200))
                latencies.append(time.monotonic() - began_s)
            await draining
        assert await cloud.ingest.count() == 200
    # An idle link of this kind has p99 at 2.1 round trips. Without a bound on what is in flight, the median is 2.7.
    assert len(latencies) >= 10
    assert statistics.median(latencies) < 2.2 * _SHAPE.round_trip_s
    assert statistics.quantiles(latencies, n=10)[-1] < 4 * _SHAPE.round_trip_s
