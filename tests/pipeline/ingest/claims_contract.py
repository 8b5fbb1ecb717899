"""Claims of devices by several processes."""

import asyncio
import collections
import random

import pytest

from tests.pipeline.ingest.upload_samples import MakeStore, chain_of, received, stored
from walle.pipeline.ingest.store.receipt import Accepted
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.protocol import Hello


class ClaimsContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_a_device_that_connects_to_another_process_is_taken_over(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        await store.resume(Hello("d", "e", ""))
        await store.accept([received(1), received(1, device="stays")])
        assert await other.resume(Hello("d", "e", "")) == (1, chain_of([received(1)]))
        late = await store.accept([received(2), received(2, device="stays")])  # the old connection's uploads
        assert late == Accepted({("stays", "e"): 2}, [received(2, device="stays")], frozenset({("d", "e")}))
        assert (await other.accept([received(2)])).fresh == [received(2)]
        await store.resume(Hello("d", "e", ""))
        assert (await other.accept([received(3)])).foreign == {("d", "e")}
        assert (await store.accept([received(3)])).fresh == [received(3)]

    @pytest.mark.asyncio
    async def test_a_store_that_is_closed_has_claimed_no_device(
        self, store: UploadStore, make_store: MakeStore
    ) -> None:
        async with make_store() as closed:
            await closed.resume(Hello("d", "e", ""))
            assert (await store.accept([received(1)])).foreign == {("d", "e")}
        assert (await store.accept([received(1)])).fresh == [received(1)]

    @pytest.mark.asyncio
    async def test_claims_and_batches_at_once_store_each_upload_once(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        rng = random.Random(3)
        total = 120
        sent = collections.Counter[int]()

        async def connection(side: UploadStore) -> bool:
            """Send some uploads; return whether all are stored."""
            highest, _ = await side.resume(Hello("d", "e", ""))
            while highest < total:
                rows = [received(seq) for seq in range(highest + 1, min(total, highest + 10) + 1)]
                accepted = await side.accept(rows)
                sent.update(row.seq for row in accepted.fresh)
                if accepted.foreign or rng.random() < 0.3:
                    return False
                highest = accepted.highest["d", "e"]
            return True

        async def device(seed: int) -> None:
            while not await connection((store, other)[rng.randrange(2)]):  # noqa: ASYNC110 - it connects again
                await asyncio.sleep(0.001 * rng.random())

        async with asyncio.timeout(60):
            await asyncio.gather(*(device(seed) for seed in range(4)))  # connections overlap
        assert sent == collections.Counter(range(1, total + 1))
        assert [row.seq for row in await stored(store)] == list(range(1, total + 1))
