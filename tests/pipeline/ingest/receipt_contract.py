"""Receipt of batches, and queries of what is stored."""

import asyncio
import random
import sys

import pytest

from tests.pipeline.ingest.upload_samples import MakeStore, as_read, came_compressed, chain_of, received, stored
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.store.receipt import Accepted
from walle.pipeline.ingest.store.upload_store import IngestError, TopicSize, UploadStore
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello


class ReceiptContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_a_batch_is_stored_with_its_numbers(self, store: UploadStore) -> None:
        batch = [received(1), received(1, device="other"), received(2), received(1, epoch="later")]
        accepted = await store.accept(batch)
        assert accepted == Accepted({("d", "e"): 2, ("other", "e"): 1, ("d", "later"): 1}, batch)
        assert await store.acked("d", "e") == 2
        assert await store.acked("d", "later") == 1
        assert await store.acked("nobody", "e") == 0
        assert await store.count() == await store.head() == 4
        assert await stored(store) == batch
        assert [position for position, _ in await store.query()] == [1, 2, 3, 4]

    @pytest.mark.asyncio
    async def test_known_uploads_are_dropped_and_those_after_a_gap_are_not_accepted(self, store: UploadStore) -> None:
        await store.accept([received(1), received(2)])
        accepted = await store.accept([received(1), received(2), received(3), received(5), received(3)])
        assert accepted == Accepted({("d", "e"): 3}, [received(3)])
        assert await store.count() == 3
        assert await store.accept([received(4), received(5)]) == Accepted({("d", "e"): 5}, [received(4), received(5)])
        assert await store.accept([received(9, device="new")]) == Accepted({("new", "e"): 0}, [])

    @pytest.mark.asyncio
    async def test_an_upload_of_another_devices_task_is_recorded_and_the_numbers_continue(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        foreign = frozenset({("d", "bank/fraud")})
        batch = [received(seq, topic="bank/fraud" if seq in (2, 3, 5) else "t") for seq in range(1, 7)]
        batch += [received(1, device="other", topic="bank/fraud")]
        accepted = await store.accept(batch, foreign)
        kept = [row for row in batch if row.topic == "t" or row.device_id == "other"]
        assert accepted == Accepted({("d", "e"): 6, ("other", "e"): 1}, kept, refused=3)
        assert await stored(store) == kept
        assert [loss for _, loss, _ in await store.losses("d")] == [
            Loss("e", 2, 3, LossCause.REFUSED),
            Loss("e", 5, 5, LossCause.REFUSED),
        ]
        assert (await store.accept(batch, foreign)).refused == 0  # sent again: duplicates
        assert len(await store.losses("d")) == 2
        last = await store.accept([received(7, topic="bank/fraud")], foreign)
        assert last == Accepted({("d", "e"): 7}, [], refused=1)
        whole = [row for row in batch if row.device_id == "d"] + [received(7, topic="bank/fraud")]
        assert await other.resume(Hello("d", "e", "", acked=7, acked_chain=chain_of(whole))) == (7, chain_of(whole))

    @pytest.mark.asyncio
    async def test_query_pages_filters_and_keeps_the_order(self, store: UploadStore) -> None:
        await store.accept([received(n, device=f"d{n % 2}", topic="ab"[n % 3 == 0]) for n in (1, 1, 2)])
        batch = [received(n, device="d9", topic="ab"[n % 3 == 0], payload=bytes([n])) for n in range(1, 11)]
        await store.accept(batch)
        assert [row for _, row in await store.query(device_id="d9", topic="b")] == [batch[2], batch[5], batch[8]]
        pages, after = [], 0
        while page := await store.query(device_id="d9", after=after, limit=3):
            pages.append([row.seq for _, row in page])
            after = page[-1][0]
        assert pages == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]

    @pytest.mark.asyncio
    @pytest.mark.parametrize("seed", range(3))
    async def test_any_mess_of_batches_over_two_processes_leaves_each_number_once_without_gaps(
        self, store: UploadStore, other: UploadStore, seed: int
    ) -> None:
        rng = random.Random(seed)
        fresh = []
        for _ in range(20):
            batch = [received(rng.randint(1, 15), device=rng.choice("abc")) for _ in range(rng.randrange(14))]
            accepted = await rng.choice([store, other]).accept(batch)
            fresh += accepted.fresh
            assert set(accepted.highest) == {row[:2] for row in batch}
        assert await stored(store) == fresh
        for device in "abc":
            seqs = [row.seq for row in fresh if row.device_id == device]
            assert seqs == list(range(1, await other.acked(device, "e") + 1))

    @pytest.mark.asyncio
    async def test_concurrent_batches_of_one_device_are_stored_once(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        rows = [received(seq) for seq in range(1, 41)]
        batches = [rows[: rng.randint(1, 40)] for rng in map(random.Random, range(12))]
        results = await asyncio.gather(
            *((store, other)[number % 2].accept(batch) for number, batch in enumerate(batches))
        )
        assert sorted(row.seq for result in results for row in result.fresh) == list(
            range(1, max(map(len, batches)) + 1)
        )
        assert await stored(store) == rows[: max(map(len, batches))]

    @pytest.mark.asyncio
    async def test_all_is_found_again(self, make_store: MakeStore) -> None:
        for start in (1, 3, 5):
            async with make_store() as store:
                await store.accept([received(seq) for seq in range(1, start + 2)])
                assert await store.acked("d", "e") == start + 1
                assert await store.count() == start + 1

    @pytest.mark.asyncio
    async def test_a_closed_store_says_so(self, make_store: MakeStore) -> None:
        store = make_store()
        with pytest.raises(IngestError, match="is not open"):
            await store.count()
        await store.start()
        await store.close()
        await store.close()
        with pytest.raises(IngestError, match="is not open") as raised:
            await store.accept([received(1)])
        assert not raised.value.may_pass
        await store.reopen()
        assert (await store.accept([received(1)])).highest == {("d", "e"): 1}
        await store.close()

    @pytest.mark.asyncio
    async def test_any_text_and_number_of_a_device_is_stored(self, store: UploadStore) -> None:
        rows = [Received("d", "e", 1, "naïve\u2028'\"\\ topic", b"\0\xff", -(2**63), 2**62), received(2, payload=b"")]
        await store.accept(rows)
        assert await stored(store) == rows
        await store.accept([received(3, topic="a\0b")])
        assert await store.acked("d", "e") == 3
        assert await store.resume(Hello("d", "e", "")) == (3, chain_of([*rows, received(3, topic="a\0b")]))

    @pytest.mark.asyncio
    async def test_uploads_that_came_compressed_are_read_as_they_were_sent(self, store: UploadStore) -> None:
        rows = [came_compressed(1), received(2), came_compressed(3), came_compressed(4, topic="u"), received(5)]
        await store.accept(rows[:1])  # alone; on the event loop, where a store commits there
        await store.accept(rows[1:2])
        await asyncio.sleep(0)
        await store.accept(rows[2:3])
        await store.accept(rows[3:])
        expected = as_read(rows)
        assert await stored(store) == expected
        assert [row for _, row in await store.query(device_id="d", topic="t")] == [*expected[:3], expected[4]]
        assert await store.resume(Hello("d", "e", "")) == (5, chain_of(rows))
        async with asyncio.timeout(30), store.consume("g") as consumer:
            assert (await anext(aiter(consumer))).uploads == expected

    @pytest.mark.asyncio
    async def test_the_beginning_of_a_forged_long_topic_is_stored(self, store: UploadStore) -> None:
        topic = "".join(random.Random(1).choices("0123456789abcdef\0\U0001f300", k=100_000))
        batch = [received(1, topic=topic), received(2)]
        await store.accept(batch)
        kept = dict(await store.topics())
        assert kept.pop("t") == TopicSize(1, 1)
        (short,) = kept
        assert [row.topic for row in await stored(store)] == [short, "t"]
        assert short.replace("\ufffd", "\0") == topic[:200]
        assert await store.resume(Hello("d", "e", "")) == (2, chain_of(batch))

    @pytest.mark.asyncio
    async def test_a_read_of_large_payloads_is_bounded(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in [name for name in sys.modules if name.startswith("walle.pipeline.ingest")]:
            if hasattr(sys.modules[module], "MAX_READ_BYTES"):
                monkeypatch.setattr(sys.modules[module], "MAX_READ_BYTES", 50_000)
        rows = [came_compressed(seq) if seq % 2 else received(seq, payload=bytes(20_000)) for seq in range(1, 21)]
        await store.accept(rows)
        rows = as_read(rows)
        found, after = list[Received](), 0
        while page := await store.query(after=after, topic="t"):
            assert len(page) <= 3
            found += [row for _, row in page]
            after = page[-1][0]
        assert found == rows
        async with asyncio.timeout(30), store.consume("g") as consumer:
            used = list[Received]()
            async for batch in consumer:
                assert len(batch) <= 3
                used += batch.uploads
                await batch.commit()
                if len(used) == len(rows):
                    break
            assert used == rows
        huge = received(21, payload=bytes(60_000))  # larger than the bound
        await store.accept([huge, received(22)])
        assert [row for _, row in await store.query(after=after)] == [huge]
