"""Slots that are taken by priority, and calls that are cancelled while they wait for one."""

import asyncio

import pytest

from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_rig import MakeClient, running
from walle.pipeline.tunnel.client.client import RequestError
from walle.pipeline.tunnel.slots import PrioritySlots


@pytest.mark.asyncio
async def test_holders_and_waiters_that_are_cancelled_together_free_every_slot() -> None:
    slots = PrioritySlots(2)

    async def work() -> None:
        async with slots.slot():
            await asyncio.sleep(60)

    working = [asyncio.create_task(work()) for _ in range(6)]
    await asyncio.sleep(0.01)
    for task in working:
        task.cancel()
    assert [type(end) for end in await asyncio.gather(*working, return_exceptions=True)] == [asyncio.CancelledError] * 6
    async with asyncio.timeout(1), slots.slot(), slots.slot():
        pass


@pytest.mark.asyncio
async def test_requests_that_expire_together_are_all_reported_as_expired(make_client: MakeClient) -> None:
    client = make_client(MemoryOutbox(), 1)  # nothing listens there
    async with running(client):
        asking = [client.request("ask", b"", timeout=0.2) for _ in range(12)]
        ends = await asyncio.gather(*asking, return_exceptions=True)
    assert [(type(end), getattr(end, "code", "")) for end in ends] == [(RequestError, "expired")] * 12
