"""A feature store or a cloud's file that goes back in time: every loss is reported, and both sides go on."""

import asyncio
import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from benchmarks.links.proxy import ProxyLink
from benchmarks.links.shape import LinkShape
from tests.sim.rollbacks import copy_files, put_back, run_seeds, total
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, running, stored, until
from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.features.database import StoreDatabase
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause, LossError
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.put import PayloadError, Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.ingest.pump import pump
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello, Origin, ProtocolError, origins_from_text, origins_to_text

FILES = ("", "-wal")
FOLDER = ("", "-wal", ".lock")


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_random_rollbacks_and_cuts_of_either_side_lose_nothing_silently() -> None:
    sums = total(await run_seeds(range(7_000, 7_020)))
    assert sums["silent"] == {}
    assert sums["false_alarms"] == 0
    assert min(sums["device_restores"], sums["cloud_restores"], sums["cuts"], sums["once"], sums["named"]) > 1


class Rig:
    """A device's store and a cloud; `send` makes outputs and returns when all are acknowledged."""

    def __init__(self, path: Path, cloud: TunnelCloud, make_client: MakeClient) -> None:
        self.path = path
        self.cloud = cloud
        self.make_client = make_client
        self.made = 0

    async def send(self, count: int, *, upload: bool = True) -> tuple[Loss, ...]:
        async with FeatureStore(self.path) as store:
            for _ in range(count):
                await store.put("t", self.made)
                self.made += 1
            await store.flush()
            if upload:
                client = self.make_client(Outbox(store), self.cloud.server.port)
                async with running(client):
                    await client.drained()
                await store.flush()
            return store.report.losses

    async def arrived(self) -> list[int]:
        return [plain.decode(payload) for _, _, payload in await stored(self.cloud.ingest)]

    async def losses(self) -> list[Loss]:
        return [recorded.loss for recorded in await self.cloud.ingest.losses("device-0")]


@pytest.fixture
def rig(tmp_path: Path, cloud: TunnelCloud, make_client: MakeClient) -> Rig:
    return Rig(tmp_path / "features.db", cloud, make_client)


@pytest.mark.asyncio
@pytest.mark.parametrize("files", [FILES, FOLDER])
async def test_a_device_restored_from_an_older_copy_continues_and_reports_it(rig: Rig, files: tuple[str, ...]) -> None:
    async with rig.cloud:
        await rig.send(100)
        copy = copy_files(rig.path, files)
        await rig.send(60)
        put_back(rig.path, copy)
        (loss,) = await rig.send(50)  # the numbers are those of uploads that the cloud has
        assert (loss.first_seq, loss.cause) == (101, LossCause.DEVICE_RESTORED)
        assert await rig.arrived() == list(range(210))
        noticed, reported = await rig.losses()  # the cloud compares the Hello with what it has; the report comes later
        assert reported == loss
        assert (noticed.epoch, noticed.last_seq, noticed.cause) == (loss.epoch, None, LossCause.DEVICE_RESTORED)
        assert 101 <= noticed.first_seq <= 151
        assert await rig.send(5) == ()
        assert await rig.arrived() == list(range(215))


@pytest.mark.asyncio
@pytest.mark.parametrize("files", [FILES, FOLDER])
async def test_uploads_that_a_restored_device_has_still_to_send_arrive_once(rig: Rig, files: tuple[str, ...]) -> None:
    async with rig.cloud:
        await rig.send(10)
        await rig.send(30, upload=False)
        copy = copy_files(rig.path, files)
        await rig.send(20)
        put_back(rig.path, copy)
        await rig.send(5)
        assert await rig.arrived() == list(range(65))


@pytest.mark.asyncio
async def test_a_device_that_lost_unsent_uploads_while_offline_reports_them(rig: Rig) -> None:
    async with rig.cloud:
        await rig.send(10)
        copy = copy_files(rig.path, FILES)
        await rig.send(20, upload=False)
        put_back(rig.path, copy)
        (loss,) = await rig.send(1)
        assert (loss.first_seq, loss.last_seq, loss.cause) == (11, 30, LossCause.DEVICE_RESTORED)
        assert await rig.losses() == [loss]
        assert await rig.arrived() == [*range(10), 30]


@pytest.mark.asyncio
async def test_local_features_that_went_with_a_cut_log_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "features.db"
    async with FeatureStore(path) as store:
        await store.put("local", 1, upload=False)
        await store.flush()
        copy = copy_files(path, FILES)
        epoch = store.state.epoch
        for value in (2, 3):
            await store.put("local", value, upload=False)
            await store.flush()
    put_back(path, copy)
    async with FeatureStore(path) as store:
        assert store.report.lost_commits == 2
        assert "the last 2 transactions are missing" in store.report.lines()[0]
        assert store.state.epoch == epoch  # no number is in doubt
    async with FeatureStore(path) as store:
        assert store.report.lost_commits == 0


@pytest.mark.asyncio
async def test_an_upload_that_is_altered_while_connected_is_reported_and_the_others_arrive(rig: Rig) -> None:
    async with rig.cloud, FeatureStore(rig.path) as store:
        outbox = Outbox(store)
        client = rig.make_client(outbox, rig.cloud.server.port)
        async with running(client), asyncio.timeout(20):
            await store.put("t", 0)
            await store.flush()
            await client.drained()
            epoch = outbox.epoch
            await store.put_all([Put.of("t", value) for value in range(1, 8)])
            altered = store.call(lambda database: alter(database, 5))
            await asyncio.gather(store.flush(), altered)  # the store's thread runs them in this order
            await client.drained()
        assert outbox.epoch != epoch
        arrived = await rig.arrived()
        assert arrived == [0, 1, 2, 3, 5, 6, 7]
        assert await rig.losses() == [Loss(epoch, 5, 5, LossCause.DAMAGED)]


@pytest.mark.asyncio
async def test_no_upload_leaves_under_an_epoch_that_ended_while_its_batch_was_being_written(
    rig: Rig, make_client: MakeClient
) -> None:
    rows, damaged = 40, 20  # one batch, written in pieces
    async with rig.cloud, FeatureStore(rig.path) as store:
        port = rig.cloud.server.port
        slow = ProxyLink(port, LinkShape(delay_ms=10, jitter_ms=0, loss=0.0, bits_per_s=3.2e6), random.Random(1))
        outbox = Outbox(store)
        epoch = outbox.epoch
        await store.put_all([Put.of("t", [seq, random.Random(seq).randbytes(8000)]) for seq in range(1, rows + 1)])
        await store.flush()
        rig.cloud.pumping.cancel()  # no acknowledgement arrives meanwhile, which would end the connection
        async with slow.open() as link, running(make_client(outbox, link.port)), asyncio.timeout(30):
            await until(lambda: rig.cloud.server.counts.uploads > 0)
            await store.call(lambda database: alter(database, damaged))
            assert await outbox.batch(damaged - 1, 10) == []  # another reader finds it: a new epoch begins
            assert outbox.epoch != epoch
            # The client may wait for credit, which acknowledgements give.
            rig.cloud.pumping = asyncio.create_task(pump(rig.cloud.server, rig.cloud.ingest))
            await until(lambda: rig.cloud.server.counts.connections > 1)
            while await rig.cloud.ingest.count() < rows - 1:  # noqa: ASYNC110 - an ingest sets no event
                await asyncio.sleep(0.01)
        uploads = await rig.cloud.ingest.query(limit=1000)
        arrived = [plain.decode(received.payload)[0] for _, received in uploads]
        assert arrived == [seq for seq in range(1, rows + 1) if seq != damaged]
        assert await rig.losses() == [Loss(epoch, damaged, damaged, LossCause.DAMAGED)]


def alter(database: StoreDatabase, seq: int) -> None:
    database._connection.execute("UPDATE outbox SET payload = x'01' WHERE seq = ?", (seq,))


@pytest.mark.asyncio
async def test_a_kill_between_a_new_epoch_and_its_mark_raises_no_alarm(rig: Rig) -> None:
    async with rig.cloud:
        await rig.send(10)
        await rig.send(5, upload=False)
        copy = copy_files(rig.path, FILES)
        await rig.send(1, upload=False)
        put_back(rig.path, copy)
        lock = rig.path.with_name("features.db.lock")
        async with FeatureStore(rig.path) as store:
            assert len(store.report.losses) == 1
            mark = store.state.mark()
            await store.call(lambda database: alter(database, 3))
            assert await Outbox(store).batch(0, 10) == []  # a second new epoch
        write_file(lock, mark.encode())
        assert await rig.send(1) == ()
        assert len(await rig.losses()) == 2


def write_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.asyncio
async def test_a_removed_file_is_reported(rig: Rig) -> None:
    async with rig.cloud:
        await rig.send(3)
        put_back(rig.path, {})
        (loss,) = await rig.send(1)
        assert (loss.first_seq, loss.last_seq) == (1, 3)


@pytest.mark.asyncio
@pytest.mark.parametrize("later", [0, 20])
async def test_a_removed_file_is_reported_with_its_earlier_epochs(rig: Rig, later: int) -> None:
    async with rig.cloud:
        await rig.send(10)
        for _ in range(2):  # the store goes on in another epoch, with two uploads of the one before
            await rig.send(2, upload=False)
            copy = copy_files(rig.path, FILES)
            await rig.send(1, upload=False)
            put_back(rig.path, copy)
            await rig.send(5 + later)
        before = await rig.cloud.ingest.query(limit=1000)
        assert len({received.epoch for _, received in before}) == 3
        put_back(rig.path, {})
        losses = await rig.send(1)
        for _, received in before:
            assert any(
                loss.epoch == received.epoch
                and loss.first_seq <= received.seq
                and (loss.last_seq is None or received.seq <= loss.last_seq)
                for loss in losses
            )


@pytest.mark.asyncio
@pytest.mark.parametrize("epochs", [1, 2])
async def test_a_cloud_restored_from_an_older_copy_continues_and_reports_it(rig: Rig, epochs: int) -> None:
    await rig.cloud.start()
    await rig.send(10)
    await rig.cloud.stop()
    copy = copy_files(rig.cloud.path, FILES)
    await rig.cloud.start()
    await rig.send(20)
    if epochs == 2:  # the acknowledged uploads are of an epoch that the device has left
        older = copy_files(rig.path, FILES)
        await rig.send(5, upload=False)
        put_back(rig.path, older)
        rig.made -= 5
    await rig.cloud.stop()
    put_back(rig.cloud.path, copy)
    async with rig.cloud:
        await rig.send(7)
        assert await rig.arrived() == [*range(10), *range(30, 37)]
        loss = (await rig.losses())[0]
        assert (loss.first_seq, loss.last_seq, loss.cause) == (11, 30, LossCause.CLOUD_RESTORED)
        assert len(await rig.losses()) == epochs
        await rig.send(1)
        assert len(await rig.losses()) == epochs


@pytest.mark.asyncio
async def test_a_device_restored_to_before_its_epoch_began_is_reported_by_the_cloud(rig: Rig) -> None:
    async with rig.cloud:
        await rig.send(10)
        older = copy_files(rig.path, FILES)
        await rig.send(5, upload=False)
        folder = copy_files(rig.path, FOLDER)
        put_back(rig.path, older)
        await rig.send(7)  # a new epoch
        epoch = (await stored_epochs(rig))[-1]
        put_back(rig.path, folder)  # the mark is put back too: the device cannot know
        await rig.send(3)
        assert await rig.arrived() == [*range(10), *range(15, 22), *range(10, 15), *range(22, 25)]
        assert (await rig.losses())[-1] == Loss(epoch, 1, None, LossCause.DEVICE_RESTORED)


@pytest.mark.asyncio
async def test_a_device_restored_twice_to_one_epoch_reports_all_that_the_copy_lacks(rig: Rig) -> None:
    async with rig.cloud:
        await rig.send(10)
        copy = copy_files(rig.path, FILES)
        await rig.send(20)
        later = copy_files(rig.path, FILES)
        await rig.send(5, upload=False)
        epoch = (await stored_epochs(rig))[0]
        put_back(rig.path, later)
        await rig.send(3)
        await rig.send(5, upload=False)
        put_back(rig.path, later)
        await rig.send(3)  # a new epoch, which the mark names from now on
        put_back(rig.path, copy)
        losses = await rig.send(1)
        assert Loss(epoch, 11, None, LossCause.DEVICE_RESTORED) in losses


async def stored_epochs(rig: Rig) -> list[str]:
    return [received.epoch for _, received in await rig.cloud.ingest.query(limit=1000)]


@pytest.mark.asyncio
async def test_a_topic_of_reports_cannot_be_put(tmp_path: Path) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        with pytest.raises(PayloadError, match="reserved"):
            await store.put(LOSS_TOPIC, 1)


# --- the cloud's side -------------------------------------------------------------------------------------------------


def received(seq: int, *, epoch: str = "e", topic: str = "t", payload: bytes = b"x") -> Received:
    return Received("d", epoch, seq, topic, payload, 10, 11)


def hello(epoch: str, **fields: object) -> Hello:
    return Hello("d", epoch, "token", **fields)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_uploads_known_under_an_older_epoch_are_dropped(tmp_path: Path) -> None:
    async with Ingest(tmp_path / "uploads.db") as ingest:
        old = [received(seq, payload=bytes([seq])) for seq in range(1, 6)]
        await ingest.accept(old[:4])
        origins = origins_to_text([Origin("e", 3, 3, 3), Origin("unknown", 0, 9, 3)])
        await ingest.resume(hello("f", origins=origins))
        moved = [received(seq - 3, epoch="f", payload=bytes([seq])) for seq in range(4, 7)]
        later = received(4, epoch="f", payload=bytes([4]))  # beyond the moved ones: equal contents are a new upload
        accepted = await ingest.accept([old[4], *moved, later])
        assert accepted.highest == {("d", "e"): 5, ("d", "f"): 4}
        assert accepted.fresh == [old[4], moved[2], later]
        assert await ingest.losses() == []


@pytest.mark.asyncio
async def test_uploads_of_the_older_epoch_may_be_stored_after_the_hello_of_the_new_one(tmp_path: Path) -> None:
    async with Ingest(tmp_path / "uploads.db") as ingest:
        await ingest.resume(hello("f", origins=origins_to_text([Origin("e", 0, 0, 3)])))
        batch = [received(seq, epoch=epoch, payload=bytes([seq])) for epoch in "ef" for seq in (1, 2)]
        batch.append(received(3, epoch="f", payload=b"3"))
        accepted = await ingest.accept(batch)  # uploads that were in the server's queue
        assert accepted.fresh == [*batch[:2], batch[4]]
        assert accepted.highest == {("d", "e"): 2, ("d", "f"): 3}


@pytest.mark.asyncio
async def test_reports_are_recorded_once_and_are_no_uploads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loss = Loss("e", 3, None, LossCause.DEVICE_RESTORED)
    async with Ingest(tmp_path / "uploads.db") as ingest:
        batch = [received(1, topic=LOSS_TOPIC, payload=loss.encode()), received(2)]
        batch += [received(1, epoch="f", topic=LOSS_TOPIC, payload=payload) for payload in (loss.encode(),)]
        batch += [received(2, epoch="f", topic=LOSS_TOPIC, payload=b"\xc1 not a report")]
        accepted = await ingest.accept(batch)
        assert accepted.highest == {("d", "e"): 2, ("d", "f"): 2}
        assert accepted.fresh == [batch[1]]
        ((device_id, recorded, recorded_ms),) = await ingest.losses()
        assert (device_id, recorded, recorded_ms) == ("d", loss, 11)
        assert await ingest.losses("other") == []
    assert "cannot be read" in caplog.text


@pytest.mark.asyncio
async def test_the_time_of_a_loss_is_the_clocks(tmp_path: Path) -> None:
    async with Ingest(tmp_path / "uploads.db", clock=ManualClock(7.0)) as ingest:
        point = await ingest.resume(hello("e", acked=4, acked_chain=9))
        assert point == (4, 9)
        assert [loss.recorded_ms for loss in await ingest.losses()] == [7000]


@pytest.mark.asyncio
async def test_a_cloud_file_of_format_1_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with Ingest(tmp_path / "new.db") as ingest:
        await ingest.accept([received(seq, payload=bytes([seq])) for seq in range(1, 4)])
        expected = await ingest.resume(hello("e"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE streams (stream INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL,"
            " highest INTEGER NOT NULL, UNIQUE (device_id, epoch));"
            "CREATE TABLE uploads (position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL,"
            " topic TEXT NOT NULL, payload BLOB NOT NULL, sent_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL,"
            " UNIQUE (stream, seq));"
            "INSERT INTO streams VALUES (1, 'd', 'e', 3);"
            "PRAGMA user_version = 1"
        )
        db.executemany(
            "INSERT INTO uploads VALUES (?1, 1, ?1, 't', ?2, 10, 11)", [(seq, bytes([seq])) for seq in range(1, 4)]
        )
        db.commit()
    for seq in (4, 5):
        async with Ingest(path) as ingest:
            if seq == 4:
                assert await ingest.resume(hello("e")) == expected
            assert (await ingest.accept([received(seq)])).highest == {("d", "e"): seq}
            assert [row.seq for _, row in await ingest.query(topic="t")] == list(range(1, seq + 1))


def test_origins_and_losses_are_read_back_or_refused() -> None:
    origins = (Origin("a", 1, 2, 3), Origin("b", 0, 0, 0))
    assert origins_from_text(origins_to_text(origins)) == origins
    assert origins_from_text("") == ()
    for text in ("a", "a:1:2", ":1:2:3", "a:1:2:3,", "a:1:2:x", "a:1:2:-3", "a:1:2:²", f"a:1:2:{10**19}"):
        with pytest.raises(ProtocolError, match=r"hello\.origins"):
            origins_from_text(text)
    for value in (
        None,
        [],
        ["e", 1, 2, "unknown"],
        ["e", -1, 2, "damaged"],
        [1, 1, 2, "damaged"],
        ["e", True, 2, "damaged"],
        ["e", 1, 2**63, "damaged"],
        ["e" * 300, 1, 2, "damaged"],
        ["e", 2**62, 0, "damaged"],
    ):
        with pytest.raises(LossError):
            Loss.decode(plain.encode(value))
