"""Contract of the stores of uploads, which the tests of each store inherit."""

import asyncio
import collections
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import pytest
import pytest_asyncio

from walle import plain
from walle.clock import ManualClock, SystemClock
from walle.errors import ConfigError
from walle.pipeline.checksums import first_link, next_link, row_checksum
from walle.pipeline.ingest import receipt
from walle.pipeline.ingest.partitions import PARTITIONS, partition
from walle.pipeline.ingest.pump import PumpStatus, pump
from walle.pipeline.ingest.quarantine import MAX_OF_DEVICE
from walle.pipeline.ingest.receipt import Accepted, LossTotal, Place, StoredStream, StreamKey
from walle.pipeline.ingest.retention import Retention, RetentionRule
from walle.pipeline.ingest.upload_store import GroupLag, IngestError, TopicSize, UploadStore
from walle.pipeline.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.tunnel.server import Received
from walle.protocol import Hello, Origin, ProtocolError, origins_to_text

type MakeStore = Callable[[], UploadStore]
type RefuseTopic = Callable[[str], None]


def received(seq: int, *, device: str = "d", epoch: str = "e", topic: str = "t", payload: bytes = b"x") -> Received:
    return Received(device, epoch, seq, topic, payload, 10 * seq, 10 * seq + 1)


def moved(uploads: list[Received], epoch: str) -> list[Received]:
    """Return the uploads as a new epoch numbers them, from 1."""
    return [upload._replace(epoch=epoch, seq=seq) for seq, upload in enumerate(uploads, 1)]


def chain_of(rows: list[Received], epoch: str = "e") -> int:
    chain = first_link(epoch)
    for row in rows:
        chain = next_link(chain, row_checksum(row.topic, row.payload, row.sent_ms))
    return chain


async def stored(store: UploadStore) -> list[Received]:
    return [row for _, row in await store.query(limit=10**6)]


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Return once `condition` holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the condition is of an object under test, which sets no event
            await asyncio.sleep(0.005)


class SetClock(SystemClock):
    """A clock whose times are set; sleeps are real."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.monotonic_s = 0.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.monotonic_s


class Batches:
    """A tunnel server's side of the pump: batches in, acknowledgements and refusals out. It ends after the last one."""

    def __init__(self, *batches: list[Received]) -> None:
        self.batches = collections.deque(batches)
        self.acked: dict[str, int] = {}
        self.refusals: list[tuple[str, str]] = []
        self.returned: list[Received] = []

    async def arrived(self, limit: int) -> list[Received]:
        return self.batches.popleft() if self.batches else []

    def put_back(self, batch: list[Received]) -> None:
        self.returned += batch

    def acknowledge_all(self, highest: Mapping[tuple[str, str], int]) -> None:
        self.acked |= {device_id: seq for (device_id, _), seq in highest.items()}

    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None:
        self.refusals.append((device_id, code))


class UploadStoreContract:
    """Tests of a store. A subclass has a fixture `make_store`, which makes stores at one place, and `refuse_topic`.

    The latter makes the database refuse uploads of a topic.
    """

    @pytest_asyncio.fixture
    async def store(self, make_store: MakeStore) -> AsyncIterator[UploadStore]:
        async with make_store() as store:
            yield store

    @pytest_asyncio.fixture
    async def other(self, store: UploadStore, make_store: MakeStore) -> AsyncIterator[UploadStore]:
        """The same store, as another process has it."""
        async with make_store() as other:
            yield other

    # --- receipt ------------------------------------------------------------------------------------------------------

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
    async def test_what_is_known_is_dropped_and_what_follows_a_gap_is_not_taken(self, store: UploadStore) -> None:
        await store.accept([received(1), received(2)])
        accepted = await store.accept([received(1), received(2), received(3), received(5), received(3)])
        assert accepted == Accepted({("d", "e"): 3}, [received(3)])
        assert await store.count() == 3
        assert await store.accept([received(4), received(5)]) == Accepted({("d", "e"): 5}, [received(4), received(5)])
        assert await store.accept([received(9, device="new")]) == Accepted({("new", "e"): 0}, [])

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

    # --- resumption and losses ----------------------------------------------------------------------------------------

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
        later = received(4, epoch="f", payload=bytes([4]))  # not moved, though it looks like one
        assert (await store.accept([later])).fresh == [later]

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

    @pytest.mark.asyncio
    async def test_acknowledged_uploads_of_an_older_epoch_that_are_absent_are_recorded(
        self, store: UploadStore
    ) -> None:
        await store.accept([received(1)])
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 7, 7, 2)])))
        assert [recorded.loss for recorded in await store.losses()] == [Loss("e", 2, 7, LossCause.CLOUD_RESTORED)]

    @pytest.mark.asyncio
    async def test_an_epoch_that_continues_several_is_recorded_as_left_once(self, store: UploadStore) -> None:
        await store.accept([received(1, epoch="a")])
        second = Hello("d", "b", "", origins=origins_to_text([Origin("a", 1, 1, 9)]))
        await store.resume(second)
        origins = [Origin("b", 0, 0, 5), Origin("a", 1, 1, 3)]
        await store.resume(Hello("d", "c", "", origins=origins_to_text(origins)))
        for _ in range(3):
            await store.resume(second)
            left = Loss("c", 6, None, LossCause.DEVICE_RESTORED)
            assert [recorded.loss for recorded in await store.losses()] == [left]

    # --- several processes --------------------------------------------------------------------------------------------

    @pytest.mark.asyncio
    async def test_a_device_that_returns_to_an_epoch_that_it_had_left_is_noticed(self, store: UploadStore) -> None:
        old = [received(seq, payload=bytes([seq])) for seq in range(1, 7)]
        await store.accept(old[:3])
        origins = origins_to_text([Origin("e", 3, 3, 2)])
        await store.resume(Hello("d", "f", "token", origins=origins))
        await store.accept([*moved(old[3:5], "f"), received(3, epoch="f", payload=b"made again in e")])

        left = Loss("f", 3, None, LossCause.DEVICE_RESTORED)
        for _ in range(2):
            assert (await store.resume(Hello("d", "e", "token", acked=3))).seq == 3
            assert [recorded.loss for recorded in await store.losses()] == [left]
        accepted = await store.accept(old[3:])
        assert accepted.fresh == [old[5]]
        assert accepted.highest == {("d", "e"): 6}

        # It goes back once more, and starts another epoch.
        await store.resume(Hello("d", "g", "token", origins=origins))
        third = received(3, epoch="g")
        assert (await store.accept([*moved(old[3:5], "g"), third])).fresh == [third]
        assert [recorded.loss for recorded in await store.losses()] == [left]

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

        def counted(batch: Sequence[Received], streams: Mapping[StreamKey, StoredStream]) -> Iterator[Place]:
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
    async def test_a_device_that_connects_to_another_process_is_taken_over(
        self, store: UploadStore, other: UploadStore
    ) -> None:
        await store.resume(Hello("d", "e", ""))
        await store.accept([received(1), received(1, device="stays")])
        assert await other.resume(Hello("d", "e", "")) == (1, chain_of([received(1)]))
        late = await store.accept([received(2), received(2, device="stays")])  # from its old connection
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

    # --- forged devices and refused contents --------------------------------------------------------------------------

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

    @pytest.mark.asyncio
    async def test_epochs_that_are_left_at_once_are_all_recorded_over_several_hellos(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules[type(store).__module__], "MAX_ABANDONED", 3)
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
    async def test_a_device_with_many_refused_uploads_keeps_them_and_others_go_on(
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
    async def test_a_read_of_the_quarantine_is_bounded_in_bytes_and_has_whole_devices(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("walle.pipeline.ingest.quarantine.MAX_READ_BYTES", 100_000)
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

    @pytest.mark.asyncio
    async def test_a_read_of_large_payloads_is_bounded(
        self, store: UploadStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in [name for name in sys.modules if name.startswith("walle.pipeline.ingest")]:
            if hasattr(sys.modules[module], "MAX_READ_BYTES"):
                monkeypatch.setattr(sys.modules[module], "MAX_READ_BYTES", 50_000)
        rows = [received(seq, payload=bytes(20_000)) for seq in range(1, 21)]
        await store.accept(rows)
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

    # --- consumer groups ----------------------------------------------------------------------------------------------

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
            assert await last.commit()  # and the two before it
        assert (await store.group_lags())["g"] == GroupLag(0, None)

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
            assert not await taken.commit()  # too late: it comes to the other
            assert await batch.commit()
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

    # --- retention ----------------------------------------------------------------------------------------------------

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
    async def test_what_a_group_has_not_committed_is_kept_unless_the_rule_says_otherwise(
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

        wrong = 10**9  # of the clock
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
        clock.now_s, clock.monotonic_s = 1120.0, 120.0  # it is mended
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
        assert await store.count() == 1  # it was meant

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
