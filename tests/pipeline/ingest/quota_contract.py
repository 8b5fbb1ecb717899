"""Quota of a device."""

import asyncio

import pytest

from tests.pipeline.ingest.upload_samples import Batches, SetClock, is_measuring, received, stored, until
from walle.pipeline.ingest.pump import pump
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.receipt import Accepted
from walle.pipeline.ingest.store.retention import Retention, RetentionRule
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.tunnel.received import Received


class QuotaContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_a_device_stores_no_more_bytes_than_its_quota_until_some_are_deleted(
        self, store: UploadStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = store.clock = SetClock(1_000_000.0)
        store.limit_devices(DeviceQuota(size_bytes=10**6, topics=10))
        forged = [
            received(seq, device="forged", epoch=f"e{epoch}", payload=bytes(10_000))
            for epoch in range(10)
            for seq in range(1, 20)
        ]
        source = Batches(*([row, received(seq, device="true")] for seq, row in enumerate(forged, 1)))
        arrived = source.arrived

        async def arrived_slowly(limit: int) -> list[Received]:
            await until(lambda: not is_measuring(store))
            return await arrived(limit)

        source.arrived = arrived_slowly  # type: ignore[method-assign]
        async with asyncio.timeout(30):
            await pump(source, store)
        size = sum(len(row.payload) for row in await stored(store) if row.device_id == "forged")
        assert 900_000 < size < 1_200_000
        assert set(source.refusals) == {("forged", "quota")}
        assert source.acked["true"] == len(forged)
        assert caplog.text.count("stores no more than 1000000 bytes of a device") == 1

        async with asyncio.timeout(30):
            await Retention(store, {"*": RetentionRule(max_bytes=0)}).apply()
        new = received(1, device="forged", epoch="new")
        assert [key for key, _ in (await store.accept([new])).over_quota] == [("forged", "new")]
        clock.monotonic_s += 601
        assert (await store.accept([new, received(1, device="other")])).highest == {("other", "e"): 1}
        await until(lambda: not is_measuring(store))
        assert await store.accept([new]) == Accepted({("forged", "new"): 1}, [new])

    @pytest.mark.asyncio
    async def test_a_device_makes_no_more_topics_than_its_quota(self, store: UploadStore) -> None:
        store.limit_devices(DeviceQuota(topics=32))
        for seq in range(1, 200):
            await store.accept([received(seq, device="forged", topic=f"forged-{seq}")])
            accepted = await store.accept([received(seq, device="true", topic=f"forged-{seq % 9}")])
            assert accepted.highest == {("true", "e"): seq}
            await until(lambda: not is_measuring(store))
        assert 32 < len(await store.topics()) <= 32 + 2 + 9

    @pytest.mark.asyncio
    async def test_a_device_that_is_not_measured_yet_stores_an_eighth_of_its_quota(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.clock = SetClock(1_000_000.0)
        store.limit_devices(DeviceQuota(size_bytes=16 * 10**6))
        may_read, streams_of = asyncio.Event(), store._streams_of

        async def wait(device_id: str) -> list[int]:
            await may_read.wait()
            return await streams_of(device_id)

        monkeypatch.setattr(store, "_streams_of", wait)
        rows = [received(seq, payload=bytes(10**6)) for seq in range(1, 5)]
        for row in rows[:2]:
            assert (await store.accept([row])).fresh == [row]
        ((_, reason),) = (await store.accept([rows[2]])).over_quota
        assert "is being measured" in reason
        may_read.set()
        await until(lambda: not is_measuring(store))
        assert (await store.accept(rows[2:])).fresh == rows[2:]
