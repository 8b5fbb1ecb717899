"""The contract of every outbox with the tunnel's client."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.sim.fault_proxy import FaultProxy
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import (
    MakeClient,
    running,
    stored,
)
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore

type OutboxUnderTest = MemoryOutbox | Outbox
type Put = Callable[[str, bytes], Awaitable[object]]


class OutboxContract:
    """Tests of the guarantees that the client needs from every outbox."""

    def make(self, folder: Path) -> contextlib.AbstractAsyncContextManager[tuple[OutboxUnderTest, Put]]:
        """Yield an empty outbox, and a function that puts one upload into it durably."""
        raise AssertionError(f"{type(self).__name__} makes no outbox in {folder}")

    @pytest.mark.asyncio
    async def test_numbers_start_at_one_and_have_no_gaps(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put):
            assert outbox.last_seq == 0
            assert outbox.epoch
            assert await outbox.batch(0, 10) == []
            for number in range(5):
                await put(f"topic-{number}", b"payload")
            assert outbox.last_seq == 5
            batch = await outbox.batch(0, 10)
            assert [(upload.seq, upload.topic) for upload in batch] == [(n + 1, f"topic-{n}") for n in range(5)]
            assert await outbox.batch(5, 10) == []

    @pytest.mark.asyncio
    async def test_a_batch_continues_after_a_number_up_to_a_limit(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put):
            for _ in range(5):
                await put("t", b"payload")
            assert [upload.seq for upload in await outbox.batch(1, 2)] == [2, 3]
            assert await outbox.batch(1, 2) == await outbox.batch(1, 2)

    @pytest.mark.asyncio
    async def test_forgotten_uploads_are_not_sent_again(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put):
            for _ in range(5):
                await put("t", b"payload")
            await outbox.forget(3)
            await outbox.forget(2)
            await put("t", b"payload")
            assert [upload.seq for upload in await outbox.batch(3, 10)] == [4, 5, 6]
            await outbox.forget(100)  # late, from an earlier life of the file: harmless
            assert outbox.last_seq == 6
            await put("t", b"payload")
            assert [upload.seq for upload in await outbox.batch(6, 10)] == [7]

    @pytest.mark.asyncio
    async def test_waiting_ends_with_the_next_number(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as (outbox, put), asyncio.timeout(10):
            await put("t", b"payload")
            await outbox.wait_for_more(0)
            waiting = asyncio.create_task(outbox.wait_for_more(1))
            await asyncio.sleep(0)
            assert not waiting.done()
            await put("t", b"payload")
            await waiting
            assert [upload.seq for upload in await outbox.batch(1, 10)] == [2]

    @pytest.mark.asyncio
    async def test_a_client_empties_it_through_cuts(
        self, cloud: TunnelCloud, make_client: MakeClient, tmp_path: Path
    ) -> None:
        async with self.make(tmp_path) as (outbox, put), cloud, FaultProxy(cloud.server.port) as proxy:
            client = make_client(outbox, proxy.port)
            async with running(client), asyncio.timeout(20):
                for round_ in range(4):
                    proxy.cut_after("up", 2_000)
                    for number in range(25):
                        # Uploads that share a frame are compressed together; these stay large.
                        await put("t", random.Random(round_ * 25 + number).randbytes(100))
                await client.drained()
            seqs = [seq for seq, _, _ in await stored(cloud.ingest)]
            assert seqs == list(range(1, 101))
            assert proxy.faults >= 1


class TestMemoryOutbox(OutboxContract):
    @contextlib.asynccontextmanager
    async def make(self, folder: Path) -> AsyncIterator[tuple[OutboxUnderTest, Put]]:
        outbox = MemoryOutbox()
        yield outbox, outbox.put


class TestStoreOutbox(OutboxContract):
    @contextlib.asynccontextmanager
    async def make(self, folder: Path) -> AsyncIterator[tuple[OutboxUnderTest, Put]]:
        async with FeatureStore(folder / "features.db") as store:
            outbox = Outbox(store)
            yield outbox, outbox.put
