"""Resumption of devices, and the losses that it shows or that devices report."""

import random

import pytest

from tests.pipeline.ingest.upload_samples import chain_of, received
from walle.pipeline.features.checksums import first_link, next_link, row_checksum
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.ingest.store import receipt
from walle.pipeline.ingest.store.receipt import Accepted, LossTotal
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.protocol import Hello, Origin, ProtocolError, origins_to_text


class LossesContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_resume_returns_number_and_chain(self, store: UploadStore) -> None:
        assert await store.resume(Hello("d", "e", "")) == (0, first_link("e"))
        rows = [received(seq, payload=bytes([seq])) for seq in (1, 2, 3)]
        await store.accept(rows)
        assert await store.resume(Hello("d", "e", "")) == (3, chain_of(rows))
        for hello in (
            Hello("d", "e", "", acked=-1),
            Hello("d", "e", "", acked=1, acked_chain=2**61),
            Hello("d", "e", "", origins="x"),
            Hello("d\0", "e", ""),
            Hello("d", "e\0", ""),
            Hello("d", "e", "", origins="o\0:1:1:1"),
            Hello("d" * 257, "e", ""),
            Hello("d", "".join(random.Random(1).choices("0123456789abcdef", k=16_000)), "", acked=1),
            Hello("d", "e", "", origins=f"{'o' * 257}:1:1:1"),
            Hello("d", "e", "", origins=f"o:0:{2**62}:{2**62}"),
        ):
            with pytest.raises(ProtocolError):
                await store.resume(hello)

    @pytest.mark.asyncio
    async def test_the_longest_names_and_highest_numbers_are_stored(self, store: UploadStore) -> None:
        rng = random.Random(2)
        device, epoch, older = ("".join(chr(rng.randrange(0x10000, 0x20000)) for _ in range(256)) for _ in range(3))
        origins = origins_to_text([Origin(older, 2**62, 2**61, 2**61)])
        await store.resume(Hello(device, epoch, "", acked=2**62 - 1, origins=origins))
        loss = Loss(older, 1, 2**62, LossCause.DAMAGED)
        batch = [received(2**62, device=device, epoch=epoch, topic=LOSS_TOPIC, payload=loss.encode())]
        assert (await store.accept([row._replace(sent_ms=0, received_ms=0) for row in batch])).fresh == []
        assert [recorded.loss for recorded in await store.losses(device)][-1] == loss

    @pytest.mark.asyncio
    async def test_uploads_continue_after_a_loss_that_a_hello_shows(self, store: UploadStore) -> None:
        await store.accept([received(1)])
        assert await store.resume(Hello("d", "e", "", acked=4, acked_chain=9)) == (4, 9)
        assert await store.resume(Hello("d", "e", "", acked=4, acked_chain=9)) == (4, 9)
        assert (await store.accept([received(2), received(5)])).fresh == [received(5)]
        assert await store.resume(Hello("d", "e", "")) == (5, next_link(9, row_checksum("t", b"x", 50)))
        (recorded,) = await store.losses()
        assert recorded[:2] == ("d", Loss("e", 2, 4, LossCause.CLOUD_RESTORED))
        assert await store.losses("nobody") == []

    @pytest.mark.asyncio
    async def test_reports_of_a_device_are_recorded_once_and_are_no_uploads(self, store: UploadStore) -> None:
        losses = [Loss("a", 3, 5, LossCause.DEVICE_RESTORED), Loss("a", 3, None, LossCause.DAMAGED)]
        reports = [loss.encode() for loss in losses]
        payloads = [reports[0], reports[1], reports[0], b"garbage"]
        batch = [received(seq, topic=LOSS_TOPIC, payload=payload) for seq, payload in enumerate(payloads, start=1)]
        accepted = await store.accept([*batch, received(5)])
        assert accepted == Accepted({("d", "e"): 5}, [received(5)])
        assert [recorded.loss for recorded in await store.losses("d")] == losses
        assert await store.count() == 1
        totals = await store.loss_totals("d")
        assert totals[LossCause.DEVICE_RESTORED] == LossTotal(1, 3)
        assert totals[LossCause.DAMAGED] == LossTotal(1, 1, 1)  # at least one: its end is unknown

    @pytest.mark.asyncio
    async def test_reports_without_an_end_are_counted_where_they_are_added_up(self, store: UploadStore) -> None:
        losses = [Loss(f"e{number}", 1, None, LossCause.DAMAGED) for number in range(receipt.MAX_LOSSES + 3)]
        losses.append(Loss("closed", 1, 4, LossCause.DAMAGED))
        await store.accept([received(seq, topic=LOSS_TOPIC, payload=one.encode()) for seq, one in enumerate(losses, 1)])
        count = receipt.MAX_LOSSES + 3
        assert (await store.loss_totals())[LossCause.DAMAGED] == LossTotal(count + 1, count + 4, count)

    @pytest.mark.asyncio
    async def test_reports_of_a_device_beyond_a_bound_are_added_up(self, store: UploadStore) -> None:
        losses = [Loss(f"e{number}", 1, 2**62, LossCause.DEVICE_RESTORED) for number in range(receipt.MAX_LOSSES + 50)]
        reports = [received(seq, topic=LOSS_TOPIC, payload=loss.encode()) for seq, loss in enumerate(losses, 1)]
        damaged = Loss("e", 5, 7, LossCause.DAMAGED).encode()
        reports += [received(len(reports) + 1, topic=LOSS_TOPIC, payload=damaged)]
        reports += [received(1, device="true", topic=LOSS_TOPIC, payload=damaged)]
        for first in range(0, len(reports), 40):
            await store.accept(reports[first : first + 40])
        assert [recorded.loss for recorded in await store.losses("d")] == losses[: receipt.MAX_LOSSES]
        assert len(await store.losses()) == receipt.MAX_LOSSES + 1
        totals = await store.loss_totals()
        assert totals[LossCause.DAMAGED] == LossTotal(2, 6)
        assert totals[LossCause.DEVICE_RESTORED].reports == len(losses)
        assert totals[LossCause.DEVICE_RESTORED].uploads >= 2**62 * receipt.MAX_LOSSES
        assert (await store.loss_totals("true"))[LossCause.DAMAGED] == LossTotal(1, 3)
        assert await store.loss_totals("nobody") == {cause: LossTotal(0, 0) for cause in LossCause}
