"""Quarantine: uploads that the database refuses for their contents."""

import asyncio
import sys
from collections.abc import Sequence

import pytest

from tests.pipeline.ingest.upload_samples import Batches, RefuseTopic, chain_of, received, stored
from walle.base import plain
from walle.pipeline.features.losses import LossCause
from walle.pipeline.ingest.pump import PumpStatus, pump
from walle.pipeline.ingest.store.quarantine import MAX_OF_DEVICE
from walle.pipeline.ingest.store.receipt import Accepted, LossTotal
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello


class QuarantineContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_uploads_that_the_database_refuses_are_set_aside_and_delay_no_others(
        self, store: UploadStore, refuse_topic: RefuseTopic
    ) -> None:
        refuse_topic("bad")
        bad = {("d1", 7), ("d1", 8), ("d3", 20)}
        rows = [
            received(seq, device=device, topic="bad" if (device, seq) in bad else "t", payload=bytes([seq]))
            for seq in range(1, 21)
            for device in ("d1", "d2", "d3")
        ]
        source, status, passed = Batches(rows, [received(21, device="d3")]), PumpStatus(), list[Received]()

        async def consume(batch: list[Received]) -> None:
            passed.extend(batch)

        async with asyncio.timeout(30):
            await pump(source, store, consumer=consume, status=status)
        good = [row for row in rows if row.topic == "t"] + [received(21, device="d3")]
        assert await stored(store) == passed == good
        assert source.acked == {"d1": 20, "d2": 20, "d3": 21}
        assert (source.refusals, source.returned, status.error) == ([], [], "")
        assert status.stored == len(good)
        refused = await store.refused()
        assert {(row.device_id, row.seq) for row in refused} == bad
        assert await store.refused_count() == 3
        assert all("refused" in row.reason for row in refused)
        contents = {plain.decode(row.contents)[1] for row in refused if row.contents is not None}
        assert contents == {bytes([7]), bytes([8]), bytes([20])}
        assert (await store.loss_totals())[LossCause.REFUSED] == LossTotal(3, 3)
        assert (await store.resume(Hello("d1", "e", "", acked=20))).chain == chain_of(
            [row for row in rows if row.device_id == "d1"]
        )
        await store.forget_refused("d1")
        assert [row.device_id for row in await store.refused()] == ["d3"]
        await store.forget_refused()
        assert await store.refused_count() == 0

    @pytest.mark.asyncio
    async def test_a_device_with_many_refused_uploads_keeps_them_and_others_continue(
        self, store: UploadStore, refuse_topic: RefuseTopic
    ) -> None:
        refuse_topic("bad")
        rows = [received(seq, device="forged", topic="bad") for seq in range(1, 41)]
        rows[20:20] = [received(seq, device="true") for seq in range(1, 11)]
        source = Batches(rows)
        async with asyncio.timeout(30):
            await pump(source, store)
        assert source.acked == {"forged": MAX_OF_DEVICE, "true": 10}
        assert source.refusals == [("forged", "refused")]
        assert await store.refused_count() == MAX_OF_DEVICE
        assert await store.acked("forged", "e") == MAX_OF_DEVICE
        assert [row.device_id for row in await stored(store)] == ["true"] * 10

    @pytest.mark.asyncio
    async def test_a_fault_of_the_database_sets_no_more_aside_than_it_has_room_for(
        self, store: UploadStore, refuse_topic: RefuseTopic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in [name for name in sys.modules if name.startswith("walle.pipeline.ingest")]:
            if hasattr(sys.modules[module], "MAX_REFUSED"):
                monkeypatch.setattr(sys.modules[module], "MAX_REFUSED", 5)
        refuse_topic("t")
        rows = [received(seq, device=f"d{number}") for seq in (1, 2) for number in range(5)]
        source = Batches(rows)
        async with asyncio.timeout(30):
            await pump(source, store)
        assert await store.refused_count() == 5
        assert sum(source.acked.values()) == 5
        assert len(source.refusals) == 5
        long = received(3, device="d0", payload=bytes(2 << 20))
        await store.forget_refused()
        source = Batches([received(2, device="d0"), long])
        await pump(source, store)
        assert [row.contents is None for row in await store.refused()] == [False, True]

    @pytest.mark.asyncio
    async def test_the_log_names_only_uploads_that_are_set_aside(
        self,
        store: UploadStore,
        other: UploadStore,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def refuse(_: Sequence[Received]) -> Accepted:
            raise IngestError("the database", "refuses it", of_contents=True)

        await store.accept([received(1)])
        await other.resume(Hello("moved", "e", ""))
        monkeypatch.setattr(store, "accept", refuse)
        source = Batches([received(1)], [received(1, device="moved")], [received(3)], [received(2)])
        async with asyncio.timeout(30):
            await pump(source, store)
        logged = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
        assert len(logged) == 1
        assert "upload 2 of device 'd' is set aside" in logged[0]
        assert (source.refusals, source.acked) == ([("moved", "moved"), ("d", "lost")], {"d": 2})
        assert await store.refused_count() == 1

    @pytest.mark.asyncio
    async def test_a_read_of_the_quarantine_is_bounded_in_bytes_and_has_whole_devices(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("walle.pipeline.ingest.store.quarantine.MAX_READ_BYTES", 100_000)
        for seq in (1, 2, 3):
            for device in ("d1", "d2", "d3", "d4"):
                size_bytes = 60_000 if device == "d2" else 15_000
                if device != "d4" or seq == 1:
                    await store.resume(Hello(device, "e", ""))
                    row = received(seq, device=device, payload=bytes(size_bytes))
                    assert await store.set_aside(row, "refused") is not None
        pages = []
        while page := await store.refused():
            pages.append([(row.device_id, row.seq) for row in page])
            for device_id in {row.device_id for row in page}:
                await store.forget_refused(device_id)
        assert pages == [
            [("d1", 1), ("d1", 2), ("d1", 3)],
            [("d2", 1), ("d2", 2), ("d2", 3)],  # one device, however large
            [("d3", 1), ("d4", 1), ("d3", 2), ("d3", 3)],
        ]
