"""Consumer groups."""

import asyncio
import collections

import pytest

from tests.pipeline.ingest.upload_samples import MakeStore, received
from walle.base.clock import ManualClock
from walle.errors import ConfigError
from walle.pipeline.ingest.store.partitions import PARTITIONS, partition
from walle.pipeline.ingest.store.upload_store import GroupLag, UploadStore


class GroupsContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_a_group_reads_all_in_order_and_continues_where_it_committed(
        self, store: UploadStore, make_store: MakeStore
    ) -> None:
        rows = [received(seq, device=f"d{n}") for seq in range(1, 11) for n in range(7)]
        await store.accept(rows)
        async with asyncio.timeout(30), store.consume("g", batch_limit=25) as consumer:
            first, second = await anext(consumer), await anext(consumer)
            assert first.uploads + second.uploads == rows[:50]
            assert await first.commit()
        async with make_store() as again, asyncio.timeout(30), again.consume("g", batch_limit=25) as consumer:
            batch = await anext(consumer)
            assert batch.uploads == rows[25:50]  # the second batch was not committed
            assert len(await anext(consumer)) == 20
            waiting = asyncio.create_task(anext(consumer))
            new = [received(11, device="d3"), received(11, device="d4")]
            await store.accept(new)
            last = await waiting
            assert last.uploads == new
            assert await last.commit()  # the two batches before are committed too
        assert (await store.group_lags())["g"] == GroupLag(0, None)

    @pytest.mark.asyncio
    async def test_a_batch_has_the_positions_of_its_uploads_and_a_poll_ends(self, store: UploadStore) -> None:
        rows = [received(1, device=f"d{number}", topic="ab"[number % 2]) for number in range(40)]
        await store.accept(rows)
        stored = {row: position for position, row in await store.query(limit=100)}
        async with asyncio.timeout(30), store.consume("g", topics=["a"]) as consumer:
            batch = await consumer.poll(0.0)
            assert batch is not None
            assert batch.positions == [stored[row] for row in batch.uploads]
            assert await batch.commit()
            assert await consumer.poll(0.0) is None
        assert await consumer.poll(10.0) is None  # closed

    @pytest.mark.asyncio
    async def test_a_member_that_renews_keeps_its_devices_beyond_its_lease(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        rows = [received(1, device=f"d{number}") for number in range(20)]
        await store.accept(rows)
        async with asyncio.timeout(30), store.consume("g", lease_s=0.6) as first, other.consume("g") as second:
            batch = await anext(first)
            for _ in range(10):
                await first.renew()
                assert await second.poll(0.15) is None
            assert await batch.commit()

    @pytest.mark.asyncio
    async def test_a_group_gets_its_topics_only_and_groups_do_not_touch_one_another(self, store: UploadStore) -> None:
        rows = [received(seq, topic="abc"[seq % 3]) for seq in range(1, 31)]
        await store.accept(rows)
        async with asyncio.timeout(30), store.consume("ab", topics=["a", "b"]) as some, store.consume("all") as every:
            assert (await anext(some)).uploads == [row for row in rows if row.topic in "ab"]
            assert (await anext(every)).uploads == rows
        lags = await store.group_lags()
        assert lags == {"ab": GroupLag(30, 11), "all": GroupLag(30, 11)}
        async with asyncio.timeout(30), store.consume("late", start="latest") as late:
            waiting = asyncio.create_task(anext(late))
            while "late" not in await store.group_lags():  # noqa: ASYNC110 - the store sets no event
                await asyncio.sleep(0.005)
            new = received(31)
            await store.accept([new])
            assert (await waiting).uploads == [new]

    @pytest.mark.asyncio
    async def test_members_share_the_devices_and_take_over_from_one_that_closes(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        devices = [f"device-{n}" for n in range(40)]
        sums = collections.Counter[tuple[str, int]]()
        counts = collections.Counter[str]()
        done = asyncio.Event()
        total = 40 * 30

        async def member(name: str, side: UploadStore, limit: int) -> None:
            async with side.consume("g", batch_limit=16, poll_s=0.01) as consumer:
                async for batch in consumer:
                    sums.update((row.device_id, row.seq) for row in batch.uploads)
                    counts[name] += len(batch)
                    assert await batch.commit()
                    if len(sums) == total:
                        done.set()
                    if counts[name] >= limit:
                        return

        async def send() -> None:
            for seq in range(1, 31):
                await store.accept([received(seq, device=device) for device in devices])
                await asyncio.sleep(0.1)

        async with asyncio.timeout(60):
            tasks = [
                asyncio.create_task(member("a", store, 10**6)),
                asyncio.create_task(member("b", other, 10**6)),
                asyncio.create_task(member("c", other, 50)),  # ends early
            ]
            await send()
            await done.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert set(sums.values()) == {1}  # nobody died: each came once
        assert counts["a"] > total // 10
        assert counts["b"] > total // 10

    @pytest.mark.asyncio
    async def test_uploads_of_a_member_that_vanishes_come_again_to_another(
        self, make_store: MakeStore, store: UploadStore
    ) -> None:
        clock = ManualClock()
        async with make_store() as first, make_store() as second:
            first.clock = second.clock = clock
            await store.accept([received(1), received(2)])
            dead = first.consume("g", lease_s=30.0)
            taken = await anext(dead)
            alive = second.consume("g", lease_s=30.0)
            waiting = asyncio.create_task(anext(alive))
            async with asyncio.timeout(30):
                while not waiting.done():
                    assert clock.time() < 1_700_000_000 + 60
                    await asyncio.sleep(0.02)
                    await clock.advance(1.0)
            assert clock.time() >= 1_700_000_000 + 30
            batch = await waiting
            assert batch.uploads == taken.uploads
            assert dead.take_dropped() == frozenset()
            assert not await taken.commit()  # too late: it comes to the other
            assert partition("d") in dead.take_dropped()
            assert dead.take_dropped() == frozenset()
            assert await batch.commit()
            assert partition("d") not in alive.take_dropped()  # nothing was dropped: it had none before
            await dead.close()
            await alive.close()

    @pytest.mark.asyncio
    async def test_a_member_that_commits_keeps_its_devices(self, store: UploadStore) -> None:
        store.clock = clock = ManualClock()
        await store.accept([received(seq) for seq in range(1, 5)])
        reader = store.consume("g", lease_s=30.0, batch_limit=1)
        batches = [await anext(reader) for _ in range(4)]
        for batch in batches:
            await clock.advance(20.0)
            now_ms = int(clock.time() * 1000)
            taken = await store.balance("g", "other", busy=(), now_ms=now_ms, lease_ms=10)
            assert partition("d") not in taken
            assert await batch.commit()
        await reader.close()
        assert not await batches[0].commit()

    @pytest.mark.asyncio
    async def test_a_lease_of_a_member_whose_clock_was_ahead_is_not_waited_for(self, store: UploadStore) -> None:
        await store.join_group("g", "earliest")
        ahead_ms, now_ms = 10**12, 10**6
        assert len(await store.balance("g", "ahead", busy=(), now_ms=ahead_ms, lease_ms=1000)) == PARTITIONS
        assert len(await store.balance("g", "true", busy=(), now_ms=now_ms, lease_ms=1000)) == PARTITIONS
        assert await store.commit("g", "ahead", {0: 0}, 0) == set()

    @pytest.mark.asyncio
    async def test_a_position_above_the_last_upload_is_not_recorded(self, store: UploadStore) -> None:
        """Its member read it before the store went back in time: uploads that come now would be passed over."""
        await store.accept([received(1)])
        await store.join_group("g", "earliest")
        await store.balance("g", "m", busy=(), now_ms=0, lease_ms=1000)
        assert await store.commit("g", "m", {0: 2, 1: 1}, 0) == {1}
        assert (await store.balance("g", "m", busy=(), now_ms=0, lease_ms=1000))[0] == 0

    @pytest.mark.asyncio
    async def test_arguments_of_a_consumer_that_mean_nothing_are_refused(self, store: UploadStore) -> None:
        for arguments, what in (
            ({"topics": "shop/ipv"}, r"want a list, \['shop/ipv'\]"),
            ({"start": "newest"}, "start 'newest' is unknown"),
            ({"batch_limit": 0}, "must be above 0"),
            ({"lease_s": 0.0}, "must be above 0"),
            ({"lease_s": 1e6}, "is above 3600"),
            ({"topics": ["a\0"]}, "NUL character"),
        ):
            with pytest.raises(ConfigError, match=what):
                store.consume("g", **arguments)

    @pytest.mark.asyncio
    async def test_a_position_never_goes_back_and_a_group_can_be_forgotten(self, store: UploadStore) -> None:
        await store.accept([received(seq) for seq in range(1, 11)])
        part = partition("d")
        await store.join_group("g", "earliest")
        assert len(await store.balance("g", "m", busy=(), now_ms=0, lease_ms=1000)) == PARTITIONS
        assert await store.commit("g", "m", {part: 8}, 0) == {part}
        assert await store.commit("g", "m", {part: 3}, 0) == {part}
        assert await store.commit("g", "nobody", {part: 10}, 0) == set()
        assert (await store.balance("g", "m", busy=(), now_ms=0, lease_ms=1000))[part] == 8
        half = await store.balance("g", "n", busy=(), now_ms=0, lease_ms=1000)
        assert half == {}  # a live member's partitions are not taken; it releases what is above its share
        kept = await store.balance("g", "m", busy=[part], now_ms=0, lease_ms=1000)
        assert part in kept
        assert len(kept) == PARTITIONS // 2
        assert len(await store.balance("g", "n", busy=(), now_ms=0, lease_ms=1000)) == PARTITIONS // 2
        await store.forget_group("g")
        assert await store.group_lags() == {}
