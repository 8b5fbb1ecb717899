"""Receipt in the cloud: durable before it is acknowledged, once, and retried on a full disk."""

import asyncio
import collections
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.base.clock import ManualClock
from walle.pipeline.features.checksums import first_link, next_link, row_checksum
from walle.pipeline.ingest.pump import pump
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.ingest.store.receipt import Accepted
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello


def received(seq: int, *, device: str = "d", epoch: str = "e", topic: str = "t", payload: bytes = b"x") -> Received:
    return Received(device, epoch, seq, topic, payload, 10 * seq, 10 * seq + 1)


@pytest_asyncio.fixture
async def ingest(tmp_path: Path) -> AsyncIterator[Ingest]:
    async with Ingest(tmp_path / "ingest.db") as opened:
        yield opened


class Source:
    """Fake tunnel server for the pump: batches in, acknowledgements out. Ends after the last batch."""

    def __init__(self, *batches: list[Received]) -> None:
        self.batches = collections.deque(batches)
        self.acks: list[tuple[str, str, int]] = []
        self.disconnects: list[tuple[str, str, str]] = []
        self.returned: list[Received] = []

    async def arrived(self, limit: int) -> list[Received]:
        return self.batches.popleft() if self.batches else []

    def put_back(self, batch: list[Received]) -> None:
        self.returned += batch

    def acknowledge_all(self, highest: Mapping[tuple[str, str], int]) -> None:
        self.acks += [(device_id, epoch, seq) for (device_id, epoch), seq in highest.items()]

    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None:
        self.disconnects.append((device_id, epoch, code))


# --- accept -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_batch_is_stored_with_its_numbers(ingest: Ingest) -> None:
    batch = [received(1), received(1, device="other"), received(2), received(1, epoch="later")]
    accepted = await ingest.accept(batch)
    assert accepted == Accepted({("d", "e"): 2, ("other", "e"): 1, ("d", "later"): 1}, batch)
    assert await ingest.acked("d", "e") == 2
    assert await ingest.acked("d", "later") == 1
    assert await ingest.acked("nobody", "e") == 0
    assert await ingest.count() == 4
    assert [row for _, row in await ingest.query()] == batch


@pytest.mark.asyncio
async def test_known_uploads_are_dropped_and_those_after_a_gap_are_not_accepted(ingest: Ingest) -> None:
    await ingest.accept([received(1), received(2)])
    accepted = await ingest.accept([received(1), received(2), received(3), received(5), received(3)])
    assert accepted == Accepted({("d", "e"): 3}, [received(3)])
    assert await ingest.count() == 3
    assert await ingest.accept([received(4), received(5)]) == Accepted({("d", "e"): 5}, [received(4), received(5)])


@pytest.mark.asyncio
async def test_query_pages_filters_and_keeps_the_order(ingest: Ingest) -> None:
    await ingest.accept([received(n, device=f"d{n % 2}", topic="ab"[n % 3 == 0]) for n in (1, 1, 2)])
    batch = [received(n, device="d9", topic="ab"[n % 3 == 0], payload=bytes([n])) for n in range(1, 11)]
    await ingest.accept(batch)
    assert [row for _, row in await ingest.query(device_id="d9", topic="b")] == [batch[2], batch[5], batch[8]]
    pages, after = [], 0
    while page := await ingest.query(device_id="d9", after=after, limit=3):
        pages.append([row.seq for _, row in page])
        after = page[-1][0]
    assert pages == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]


@settings(deadline=None)  # each example opens a file
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 12)), max_size=12).map(
            lambda pairs: [received(seq, device=device) for device, seq in pairs]
        ),
        max_size=6,
    )
)
def test_any_mess_of_batches_leaves_each_number_once_without_gaps(batches: list[list[Received]]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with Ingest(Path(folder) / "ingest.db") as ingest:
                await check_in(ingest)

    async def check_in(ingest: Ingest) -> None:
        fresh = []
        for batch in batches:
            accepted = await ingest.accept(batch)
            fresh += accepted.fresh
            assert set(accepted.highest) == {row[:2] for row in batch}
        stored = [row for _, row in await ingest.query()]
        assert stored == fresh
        for device in ("a", "b"):
            seqs = [row.seq for row in stored if row.device_id == device]
            assert seqs == list(range(1, await ingest.acked(device, "e") + 1))

    asyncio.run(check())


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_long_query_delays_no_commit(ingest: Ingest) -> None:
    for first in range(1, 150_001, 10_000):
        await ingest.accept([received(seq) for seq in range(first, first + 10_000)])
    query = asyncio.create_task(ingest.query(topic="t", limit=10**6))
    count = asyncio.create_task(ingest.count())
    await asyncio.sleep(0.02)
    await ingest.accept([received(150_001)])
    assert not query.done()
    assert await ingest.acked("d", "e") == 150_001
    assert not query.done()
    assert len(await query) >= 150_000
    assert await count == 150_001


@pytest.mark.asyncio
async def test_a_query_by_topic_reads_the_rows_of_that_topic_only(ingest: Ingest) -> None:
    await ingest.accept([received(seq, topic="rare" if seq % 1000 == 0 else "common") for seq in range(1, 5_001)])
    assert [row.seq for _, row in await ingest.query(topic="rare")] == [1000, 2000, 3000, 4000, 5000]
    steps = 0

    def count_steps() -> int:
        nonlocal steps
        steps += 1
        return 0

    await ingest._read(lambda database: database.set_progress_handler(count_steps, 10))
    assert len(await ingest.query(topic="rare")) == 5
    assert steps < 50  # each step is 10 instructions of SQLite; a scan takes thousands
    steps = 0
    assert len(await ingest.query(topic="absent", after=2)) == 0
    assert steps < 50


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_file_is_found_again(tmp_path: Path) -> None:
    for start in (1, 3, 5):
        async with Ingest(tmp_path / "deep" / "er" / "ingest.db") as ingest:
            await ingest.accept([received(seq) for seq in range(1, start + 2)])
            assert await ingest.acked("d", "e") == start + 1
            assert await ingest.count() == start + 1


_KILLED = """
import asyncio, os, sys
from pathlib import Path
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.server.server import Received

async def main():
    async with Ingest(Path(sys.argv[1])) as ingest:
        seq = 0
        while True:
            batch = [Received("d", "e", seq + n, "t", os.urandom(500), 0, 0) for n in range(1, 51)]
            seq = (await ingest.accept(batch)).highest["d", "e"]
            print(seq, flush=True)

asyncio.run(main())
"""


def test_acknowledged_uploads_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "ingest.db"
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().split()]

    async def look() -> tuple[int, list[int]]:
        async with Ingest(path) as ingest:
            return await ingest.acked("d", "e"), [row.seq for _, row in await ingest.query(limit=10**6)]

    durable, stored = asyncio.run(look())
    assert durable >= acknowledged[-1] >= 1000
    assert durable % 50 == 0  # a batch is there whole or not at all
    assert stored == list(range(1, durable + 1))


@pytest.mark.asyncio
async def test_a_file_that_is_something_else_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(b"not a database at all, but long enough to look at" * 100)
    with pytest.raises(IngestError, match=r"other\.db.*not a database") as raised:
        async with Ingest(path):
            pass
    assert not raised.value.may_pass
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as database:
        database.execute("PRAGMA user_version = 8")
    database.close()
    with pytest.raises(IngestError, match="has format 8"):
        async with Ingest(newer):
            pass
    with pytest.raises(IngestError, match="unable to open"):
        async with Ingest(tmp_path):
            pass


@pytest.mark.asyncio
async def test_a_closed_ingest_says_so(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path / "ingest.db")
    with pytest.raises(IngestError, match="is not open"):
        await ingest.count()
    await ingest.start()
    await ingest.close()
    await ingest.close()
    with pytest.raises(IngestError, match="is not open"):
        await ingest.accept([received(1)])


@pytest.mark.asyncio
async def test_a_full_disk_stores_nothing_of_the_batch(ingest: Ingest) -> None:
    await ingest.accept([received(1)])
    await fill_disk(ingest)
    with pytest.raises(IngestError, match=r"ingest\.db.*full") as raised:
        await ingest.accept([received(2, payload=b"x" * 10), received(3, payload=os.urandom(1 << 20))])
    assert raised.value.may_pass
    assert await ingest.count() == 1
    assert await ingest.acked("d", "e") == 1
    await free_disk(ingest)
    assert (await ingest.accept([received(2), received(3)])).highest == {("d", "e"): 3}
    assert await ingest.count() == 3
    chain = first_link("e")
    for seq in (1, 2, 3):
        chain = next_link(chain, row_checksum("t", b"x", 10 * seq))
    assert await ingest.resume(Hello("d", "e", "")) == (3, chain)


@pytest.mark.asyncio
async def test_uploads_continue_after_a_loss_that_a_hello_reports(ingest: Ingest) -> None:
    await ingest.accept([received(1)])  # the stream is in memory now
    assert await ingest.resume(Hello("d", "e", "", acked=4, acked_chain=9)) == (4, 9)
    assert (await ingest.accept([received(2), received(5)])).fresh == [received(5)]
    assert await ingest.resume(Hello("d", "e", "")) == (5, next_link(9, row_checksum("t", b"x", 50)))


async def fill_disk(ingest: Ingest) -> None:
    """Let SQLite meet its own bound on the file: it reports the same error as for a disk without space."""
    await ingest._run(lambda database: database.execute("PRAGMA max_page_count = 1").fetchall())


async def free_disk(ingest: Ingest) -> None:
    await ingest._run(lambda database: database.execute("PRAGMA max_page_count = 1000000").fetchall())


# --- pump -------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_pump_stores_acknowledges_then_hands_on_what_is_new(ingest: Ingest) -> None:
    source = Source([received(1), received(1, device="other"), received(2)], [received(2), received(3)])
    handed: list[tuple[list[Received], int, int]] = []

    async def consumer(batch: list[Received]) -> None:
        handed.append((batch, await ingest.count(), len(source.acks)))

    await pump(source, ingest, consumer=consumer)
    assert source.acks == [("d", "e", 2), ("other", "e", 1), ("d", "e", 3)]
    first = [received(1), received(1, device="other"), received(2)]
    assert handed == [(first, 3, 2), ([received(3)], 4, 3)]


@pytest.mark.asyncio
async def test_pump_waits_out_a_full_disk_and_acknowledges_nothing_meanwhile(
    ingest: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    await fill_disk(ingest)
    batch = [received(n, payload=os.urandom(5_000)) for n in range(1, 20)]
    source = Source(batch)
    clock = WatchedClock()
    pumping = asyncio.create_task(pump(source, ingest, retry_s=5.0, clock=clock))
    for _ in range(3):
        await clock.slept.wait()
        clock.slept.clear()
        assert source.acks == []
        await clock.advance(5.0)
    assert sum("nothing is acknowledged" in record.message for record in caplog.records) == 1
    await clock.slept.wait()
    await free_disk(ingest)
    await clock.advance(5.0)
    await pumping
    assert source.acks == [("d", "e", 19)]
    assert source.returned == []
    assert [row for _, row in await ingest.query()] == batch


class WatchedClock(ManualClock):
    def __init__(self) -> None:
        super().__init__()
        self.slept = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.set()
        await super().sleep(seconds)


@pytest.mark.asyncio
async def test_a_cancelled_pump_returns_its_uploads_to_the_queue(ingest: Ingest) -> None:
    await fill_disk(ingest)
    batch = [received(1, payload=os.urandom(50_000))]
    source = Source(batch)
    clock = WatchedClock()
    pumping = asyncio.create_task(pump(source, ingest, clock=clock))
    await clock.slept.wait()
    pumping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pumping
    assert source.returned == batch
    assert source.acks == []


@pytest.mark.asyncio
async def test_a_pump_on_a_broken_file_ends_with_the_error(tmp_path: Path) -> None:
    source = Source([received(1)])
    ingest = Ingest(tmp_path / "never-opened.db")
    with pytest.raises(IngestError, match="is not open"):
        await pump(source, ingest)
    assert source.returned == [received(1)]


@pytest.mark.asyncio
async def test_a_consumer_that_fails_stops_nothing(ingest: Ingest, caplog: pytest.LogCaptureFixture) -> None:
    async def consumer(batch: list[Received]) -> None:
        raise ValueError(f"cannot take {batch[0].seq}")

    source = Source([received(1)], [received(2)])
    await pump(source, ingest, consumer=consumer)
    assert source.acks == [("d", "e", 1), ("d", "e", 2)]
    assert "cannot take 2" in caplog.text


@pytest.mark.asyncio
async def test_a_device_whose_uploads_got_lost_in_between_is_made_to_send_them_again(ingest: Ingest) -> None:
    source = Source([received(2), received(3), received(1, device="other")])
    await pump(source, ingest)
    assert source.disconnects == [("d", "e", "lost")]
    assert source.acks == [("d", "e", 0), ("other", "e", 1)]
    assert await ingest.count() == 1
