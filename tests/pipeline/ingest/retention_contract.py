"""Topics and their retention."""

import asyncio

import pytest

from tests.pipeline.ingest.upload_samples import SetClock, received, stored
from walle.base.clock import ManualClock
from walle.pipeline.ingest.store.retention import Retention, RetentionRule
from walle.pipeline.ingest.store.upload_store import TopicSize, UploadStore
from walle.pipeline.tunnel.received import Received


class RetentionContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_topics_are_read_in_pages(self, store: UploadStore) -> None:
        names = ["", "a", "A", "é", "\U0001f300", "z"]
        rows = [received(seq, topic=name, payload=bytes(seq)) for seq, name in enumerate(names, 1)]
        await store.accept(rows)
        pages, after = list[str](), None
        while page := await store.topics(after=after, limit=4):
            pages += page
            after = pages[-1]
        assert pages == sorted(names, key=str.encode)
        largest, total = await store.largest_topics(2)
        assert largest == {"z": TopicSize(1, 6), "\U0001f300": TopicSize(1, 5)}
        assert total == TopicSize(6, 21)
        async with asyncio.timeout(30):
            await Retention(store, {"*": RetentionRule(max_bytes=0)}).apply()
        assert await store.count() == 1  # the last upload stays

    @pytest.mark.asyncio
    async def test_old_uploads_are_deleted_by_age_and_bytes_and_positions_stay(self, store: UploadStore) -> None:
        clock = ManualClock(start_s=20.0)
        store.clock = clock
        await store.accept([received(seq, topic="ab"[seq % 2], payload=bytes(100)) for seq in range(1, 1001)])
        assert await store.topics() == {"a": TopicSize(500, 50_000), "b": TopicSize(500, 50_000)}
        rules = {"a": RetentionRule(max_age_s=15.0), "*": RetentionRule(max_bytes=10_050)}  # received before 5 s
        retention = Retention(store, rules)
        await retention.apply()
        rows = await store.query(limit=10_000)
        assert [row.seq for _, row in rows if row.topic == "a"] == [seq for seq in range(500, 1001) if seq % 2 == 0]
        assert [row.seq for _, row in rows if row.topic == "b"] == list(range(801, 1001, 2))
        assert await store.topics() == {"a": TopicSize(251, 25_100), "b": TopicSize(100, 10_000)}
        assert retention.deleted == {"a": TopicSize(249, 24_900), "b": TopicSize(400, 40_000)}
        assert await store.count() == 351
        await clock.advance(10_000)
        await retention.apply()
        assert (await store.accept([received(1001, topic="a")])).highest == {("d", "e"): 1001}
        assert await store.head() == 1001  # no position is used again

    @pytest.mark.asyncio
    async def test_uploads_that_a_group_has_not_committed_are_kept_unless_the_rule_forces(
        self, store: UploadStore
    ) -> None:
        await store.accept([received(seq) for seq in range(1, 101)])
        async with asyncio.timeout(30), store.consume("g", batch_limit=60) as consumer:
            assert await (await anext(consumer)).commit()
            await Retention(store, {"*": RetentionRule(max_bytes=0)}).apply()
            assert [row.seq for row in await stored(store)] == list(range(61, 101))
            await Retention(store, {"*": RetentionRule(max_bytes=0, keep_unconsumed=False)}).apply()
            assert [row.seq for row in await stored(store)] == [100]
            assert [row.seq for row in (await anext(consumer)).uploads] == [100]

    @pytest.mark.asyncio
    @pytest.mark.parametrize("ahead", [20, 700])  # less and more than one deletion looks at
    async def test_uploads_received_while_the_clock_was_ahead_do_not_stop_the_deletion_by_age(
        self, store: UploadStore, ahead: int
    ) -> None:
        store.clock = SetClock(1000.0)

        def at(received_s: float, first: int, last: int, topic: str = "t") -> list[Received]:
            return [
                received(seq, topic=topic)._replace(received_ms=int(received_s * 1000))
                for seq in range(first, last + 1)
            ]

        wrong = 10**9  # wrong time of the clock
        await store.accept(at(100.0, 1, 10))
        await store.accept(at(wrong, 11, 10 + ahead))
        retention = Retention(store, {"t": RetentionRule(max_age_s=500.0)})
        await retention.apply()
        assert await store.count() == ahead  # how old they are is unknown: nothing came after them
        await store.accept(at(450.0, ahead + 11, ahead + 20, topic="other"))
        await store.accept(at(900.0, ahead + 21, ahead + 30))
        await retention.apply()
        left = [row.seq for row in await stored(store)]
        assert left == list(range(ahead + 11, ahead + 31))

    @pytest.mark.asyncio
    async def test_a_deletion_of_large_payloads_is_divided(self, store: UploadStore) -> None:
        await store.accept([received(seq, payload=bytes(5 << 20)) for seq in range(1, 10)])
        arguments = {"before_ms": 10**9, "now_ms": 10**9, "over_bytes": 0, "keep_unconsumed": True, "limit": 500}
        assert await store.trim("t", **arguments) == (4, 20 << 20, 0)  # type: ignore[arg-type]
        store.clock = SetClock(1e6)
        await Retention(store, {"t": RetentionRule(max_age_s=1.0)}).apply()
        assert await store.count() == 1

    @pytest.mark.asyncio
    async def test_a_clock_that_is_set_forward_deletes_nothing_for_an_hour(self, store: UploadStore) -> None:
        store.clock = clock = SetClock(1000.0)
        await store.accept([received(seq)._replace(received_ms=seq * 100_000) for seq in range(1, 11)])
        retention = Retention(store, {"*": RetentionRule(max_age_s=750.0)})
        await retention.apply()
        assert [row.seq for row in await stored(store)] == list(range(3, 11))  # received before 250 s
        clock.now_s, clock.monotonic_s = 1e9, 60.0  # a minute later
        await retention.apply()
        assert [row.seq for row in await stored(store)] == list(range(4, 11))  # aged by a minute
        clock.now_s, clock.monotonic_s = 1120.0, 120.0  # the clock is mended
        await retention.apply()
        assert [row.seq for row in await stored(store)] == list(range(4, 11))
        for minutes in range(3, 63):
            clock.now_s, clock.monotonic_s = 1e9 + 60 * minutes, 60.0 * minutes
            await retention.apply()
        assert await store.count() == 1  # those before aged by an hour, and the last one stays
        clock.now_s, clock.monotonic_s = 2e9, 3700.0
        await store.accept([received(seq)._replace(received_ms=int(1.5e12)) for seq in (11, 12)])
        await retention.apply()
        assert [row.seq for row in await stored(store)] == [11, 12]
        clock.now_s, clock.monotonic_s = 2e9 + 100, 3800.0
        await retention.apply()
        assert await store.count() == 1  # the new time was meant

    @pytest.mark.asyncio
    async def test_deleted_uploads_that_no_group_has_committed_are_counted(self, store: UploadStore) -> None:
        await store.accept([received(seq) for seq in range(1, 101)])
        async with asyncio.timeout(30), store.consume("g", batch_limit=60) as consumer:
            assert await (await anext(consumer)).commit()
            retention = Retention(store, {"*": RetentionRule(max_bytes=0, keep_unconsumed=False)})
            await retention.apply()
        assert (retention.deleted["t"].uploads, retention.unconsumed) == (99, 39)

    @pytest.mark.asyncio
    async def test_uploads_that_two_processes_delete_at_once_are_counted_once(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        await store.accept([received(seq) for seq in range(1, 602)])
        for _ in range(4):
            trims = (
                each.trim("t", before_ms=10**9, now_ms=10**9, over_bytes=0, keep_unconsumed=True, limit=200)
                for each in (store, other)
            )
            await asyncio.gather(*trims)
            left = len(await stored(store))
            assert await store.topics() == {"t": TopicSize(left, left)}
        assert left == 1
