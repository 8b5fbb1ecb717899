"""Epochs of a device: uploads that move from one to another, and epochs that it leaves."""

import sys
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.pipeline.ingest.upload_samples import as_read, came_compressed, moved, received, stored
from tests.sim.traced_memory import traced_memory
from walle.pipeline.features.checksums import first_link
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.store import receipt
from walle.pipeline.ingest.store.receipt import Place, StoredStream, StreamKey
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello, Origin, ProtocolError, origins_to_text


async def _losses(store: UploadStore) -> list[Loss]:
    return [recorded.loss for recorded in await store.losses()]


def _gone(epoch: str, first_seq: int) -> Loss:
    """Return the loss of the uploads from a number on, which a device went back to before."""
    return Loss(epoch, first_seq, None, LossCause.DEVICE_RESTORED)


class EpochsContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    @pytest.mark.parametrize("is_one_batch", [False, True])
    async def test_a_moved_upload_is_stored_once(self, store: UploadStore, is_one_batch: bool) -> None:
        """The device restarts in epoch f: its unsent uploads 3, 4, 5 of epoch e become 1, 2, 3."""
        old = [received(seq, payload=bytes([seq])) for seq in (1, 2, 3, 4)]  # 3 and 4 arrived; the device does not know
        await store.accept(old[:2] if is_one_batch else old)
        origins = origins_to_text([Origin("e", 2, 2, 3)])
        assert await store.resume(Hello("d", "f", "", origins=origins)) == (0, first_link("f"))
        moved = [Received("d", "f", seq, "t", bytes([seq + 2]), 10 * (seq + 2), 99) for seq in (1, 2, 3)]
        accepted = await store.accept([*old[2:], *moved] if is_one_batch else moved)
        assert accepted.fresh == ([*old[2:], moved[2]] if is_one_batch else [moved[2]])
        assert await stored(store) == [*old, moved[2]]
        later = received(4, epoch="f", payload=bytes([4]))  # looks like a moved upload, and is none
        assert (await store.accept([later])).fresh == [later]

    @pytest.mark.asyncio
    async def test_a_moved_upload_that_came_compressed_is_stored_once(self, store: UploadStore) -> None:
        old = [came_compressed(seq) for seq in (1, 2)]
        await store.accept(old)
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 0, 0, 3)])))
        new = came_compressed(3)
        repeated = moved([*as_read(old), new], "f")  # compressed otherwise, or with others in a frame
        assert (await store.accept(repeated)).fresh == repeated[2:]
        assert await stored(store) == as_read([*old, repeated[2]])

    @pytest.mark.asyncio
    async def test_a_batch_that_names_many_large_stored_uploads_takes_little_memory(self, store: UploadStore) -> None:
        """A device may claim that small uploads are repeated: what it has stored is far more than a batch."""
        for seq in range(1, 41):
            await store.accept([received(seq, payload=bytes(1 << 20))])
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 0, 0, 40)])))
        repeated = [received(seq, epoch="f") for seq in range(1, 21)]
        repeated += [received(seq, epoch="f", payload=b"1" * (1 << 20)) for seq in range(21, 41)]
        with traced_memory():
            assert (await store.accept(repeated)).fresh == repeated
            peak_bytes = tracemalloc.get_traced_memory()[1]
        assert peak_bytes < 10 << 20  # beside the batch, which was made before

    @pytest.mark.asyncio
    @pytest.mark.parametrize("is_one_batch", [False, True])
    async def test_a_moved_upload_whose_topic_has_a_nul_is_stored_once(
        self, store: UploadStore, is_one_batch: bool
    ) -> None:
        old = [received(seq, topic="a\0b", payload=bytes([seq])) for seq in (1, 2, 3)]
        await store.accept(old[: 1 if is_one_batch else 3])
        origins = origins_to_text([Origin("e", 1, 1, 2)])
        await store.resume(Hello("d", "f", "", origins=origins))
        accepted = await store.accept([*old[1:], *moved(old[1:], "f")] if is_one_batch else moved(old[1:], "f"))
        assert accepted.fresh == (old[1:] if is_one_batch else [])
        assert await store.count() == 3

    @pytest.mark.asyncio
    async def test_an_upload_that_looks_like_a_moved_one_but_differs_is_stored(self, store: UploadStore) -> None:
        await store.accept([received(1), received(2)])
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 1, 1, 1)])))
        different = Received("d", "f", 1, "t", b"another", 20, 21)
        assert (await store.accept([different])).fresh == [different]
        assert await _losses(store) == [_gone("e", 2)]

    @pytest.mark.asyncio
    @pytest.mark.parametrize(("is_one_batch", "times"), [(False, 1), (True, 1), (False, 2), (True, 2)])
    async def test_uploads_that_a_restored_device_makes_again_in_an_older_epoch_are_named(
        self, store: UploadStore, is_one_batch: bool, times: int
    ) -> None:
        """Epoch f took 3, 4, 5 of e over. The device goes back to 3 of e, and makes 4 and 5 again, at other times, and
        of other sizes with `times` 2.
        """
        old = [received(seq, payload=bytes([seq])) for seq in range(1, 6)]
        await store.accept(old[:2])
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 2, 2, 3)])))
        await store.accept(moved(old[2:], "f"))
        await store.resume(Hello("d", "e", "", acked=2))
        assert await _losses(store) == [_gone("f", 4)]
        again = [one._replace(sent_ms=one.sent_ms + 1000, payload=times * one.payload) for one in old[3:]]
        batches = [[old[2], *again]] if is_one_batch else [old[2:3], again[:1], again[1:]]
        fresh = [upload for batch in batches for upload in (await store.accept(batch)).fresh]
        assert fresh == again
        assert await _losses(store) == [_gone("f", 4), _gone("f", 2)]

    @pytest.mark.asyncio
    async def test_uploads_of_an_older_epoch_beyond_those_that_a_new_one_continues_are_named(
        self, store: UploadStore
    ) -> None:
        """The device goes back to 3 of e, the cloud has 6, and the device notices by itself that it went back."""
        await store.accept([received(seq) for seq in range(1, 7)])
        for _ in range(2):
            await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 2, 2, 1)])))
            assert await _losses(store) == [_gone("e", 4)]

    @pytest.mark.asyncio
    async def test_uploads_of_an_older_epoch_that_arrive_after_the_new_ones_hello_are_named_at_the_next(
        self, store: UploadStore
    ) -> None:
        await store.accept([received(seq) for seq in range(1, 4)])
        hello = Hello("d", "f", "", origins=origins_to_text([Origin("e", 2, 2, 1)]))
        await store.resume(hello)
        await store.accept([received(4), *moved([received(3)], "f"), received(2, epoch="f", payload=b"4 again")])
        await store.resume(hello)
        assert await _losses(store) == [_gone("e", 4)]

    @pytest.mark.asyncio
    async def test_uploads_that_another_epoch_took_over_and_a_new_one_does_not_have_are_named(
        self, store: UploadStore
    ) -> None:
        """Epoch f took 3, 4, 5 of e over; then the device went back to 3 of e, and on as epoch g."""
        await store.accept([received(1), received(2)])
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 2, 2, 3)])))
        await store.accept([received(seq, epoch="f") for seq in (1, 2, 3)])
        await store.resume(Hello("d", "g", "", origins=origins_to_text([Origin("e", 2, 2, 1)])))
        assert await _losses(store) == [_gone("f", 2)]

    @pytest.mark.asyncio
    async def test_acknowledged_uploads_of_an_older_epoch_that_are_absent_are_recorded(
        self, store: UploadStore
    ) -> None:
        await store.accept([received(1)])
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 7, 7, 2)])))
        assert await _losses(store) == [Loss("e", 2, 7, LossCause.CLOUD_RESTORED)]

    @pytest.mark.asyncio
    async def test_an_epoch_that_continues_several_is_recorded_as_left_once(self, store: UploadStore) -> None:
        await store.accept([received(1, epoch="a")])
        second = Hello("d", "b", "", origins=origins_to_text([Origin("a", 1, 1, 9)]))
        await store.resume(second)
        origins = [Origin("b", 0, 0, 5), Origin("a", 1, 1, 3)]
        await store.resume(Hello("d", "c", "", origins=origins_to_text(origins)))
        for _ in range(3):
            await store.resume(second)
            left = _gone("c", 6)
            assert await _losses(store) == [left]

    @pytest.mark.asyncio
    async def test_a_device_that_returns_to_an_epoch_that_it_had_left_is_noticed(self, store: UploadStore) -> None:
        old = [received(seq, payload=bytes([seq])) for seq in range(1, 7)]
        await store.accept(old[:3])
        origins = origins_to_text([Origin("e", 3, 3, 2)])
        await store.resume(Hello("d", "f", "token", origins=origins))
        await store.accept([*moved(old[3:5], "f"), received(3, epoch="f", payload=b"made again in e")])

        left = _gone("f", 3)
        for _ in range(2):
            assert (await store.resume(Hello("d", "e", "token", acked=3))).seq == 3
            assert await _losses(store) == [left]
        accepted = await store.accept(old[3:])
        assert accepted.fresh == [old[5]]
        assert accepted.highest == {("d", "e"): 6}

        # It goes back once more, and starts another epoch.
        await store.resume(Hello("d", "g", "token", origins=origins))
        third = received(3, epoch="g")
        assert (await store.accept([*moved(old[3:5], "g"), third])).fresh == [third]
        assert await _losses(store) == [left, _gone("e", 6)]

    @pytest.mark.asyncio
    async def test_an_epoch_that_was_an_origin_first_is_linked_when_its_device_returns_to_it(
        self, store: UploadStore
    ) -> None:
        """The store went back in time and learns of epoch f, which continues e, only as an origin of g."""
        old = [received(seq, payload=bytes([seq])) for seq in range(1, 5)]
        await store.accept(old)
        await store.resume(Hello("d", "g", "", origins=origins_to_text([Origin("f", 0, 0, 0)])))
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 2, 2, 2)])))
        assert (await store.accept(moved(old[2:], "f"))).fresh == []

    @pytest.mark.asyncio
    async def test_a_device_with_many_epochs_of_one_origin_does_not_slow_the_receipt_down(
        self, store: UploadStore
    ) -> None:
        hellos = [Hello("d", f"epoch-{number}", "", origins=f"e:0:0:{2**61}") for number in range(100)]
        for hello in hellos:
            await store.resume(hello)
        uploads = [received(seq, epoch=hellos[-1].epoch) for seq in range(1, 201)]
        places = 0

        def counted(
            batch: Sequence[Received], streams: Mapping[StreamKey, StoredStream]
        ) -> Iterator[tuple[Place, int]]:
            nonlocal places
            for place in receipt.moved_places(batch, streams):
                places += 1
                yield place

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[type(store).__module__], "moved_places", counted)
            assert (await store.accept(uploads)).fresh == uploads
        assert 200 <= places <= 24 * 200

    @pytest.mark.asyncio
    async def test_epochs_that_continue_one_another_are_no_loss(self, store: UploadStore) -> None:
        names = [f"epoch-{number}" for number in range(12)]
        for number, name in enumerate(names):
            before = list(reversed(names[:number]))[: Origin.MAX_COUNT]
            origins = [Origin(older, 1, index + 1, 0) for index, older in enumerate(before)]
            for _ in range(2):
                await store.resume(Hello("d", name, "token", origins=origins_to_text(origins)))
            await store.accept([received(1, epoch=name)])
        assert await store.losses() == []

    @pytest.mark.asyncio
    async def test_uploads_of_an_old_connection_do_not_come_after_their_moved_copies(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        """Without the claim, the old process would store uploads that the new one has under a newer epoch."""
        await store.resume(Hello("d", "e", ""))
        await other.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 0, 0, 2)])))
        moved = [received(seq, epoch="f") for seq in (1, 2)]
        assert (await other.accept(moved)).fresh == moved
        assert (await store.accept([received(1), received(2)])).fresh == []
        assert await stored(store) == moved

    @pytest.mark.asyncio
    async def test_epochs_that_are_left_at_once_are_all_recorded_over_several_hellos(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in (type(store).__module__, "walle.pipeline.ingest.sqlite.streams"):
            monkeypatch.setattr(sys.modules[name], "MAX_ABANDONED", 3, raising=False)
        names = [f"epoch-{number}" for number in range(9)]
        for number, name in enumerate(names):
            origins = [Origin(older, 1, 1, 5) for older in reversed(names[:number])]
            await store.resume(Hello("d", name, "", origins=origins_to_text(origins)))
            await store.accept([received(1, epoch=name)])
        assert await store.losses("d") == []
        for most in (3, 6, 8, 8):
            await store.resume(Hello("d", names[0], "", acked=1))
            assert len(await store.losses("d")) == most

    @pytest.mark.asyncio
    async def test_the_epochs_of_a_device_are_bounded(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(receipt, "MAX_EPOCHS", 20)
        for number in range(20):
            await store.resume(Hello("d", f"e{number}", "", acked=1))
        with pytest.raises(ProtocolError, match=r"hello\.epoch: the device has had 20 epochs"):
            await store.resume(Hello("d", "another", "", acked=1))
        with pytest.raises(ProtocolError, match=r"hello\.epoch"):
            await store.resume(Hello("d", "another", ""))
        assert (await store.resume(Hello("d", "e3", "", acked=1))).seq == 1
        assert (await store.resume(Hello("other", "another", ""))).seq == 0
