"""Damage of a feature store's file: found by checksums, set aside, salvaged, and reported."""

import asyncio
import contextlib
import functools
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from tests.sim.rollbacks import copy_files, put_back
from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.features.database import StoreCorruptError, StoreDatabase, StoreError
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.store_lock import Mark
from walle.pipeline.features.store_report import StoreReport
from walle.pipeline.features.store_schema import ReplayState, StoreState

TOPICS = ("ipv", "dwell")
ROWS = 300
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.db"


def payload_of(number: int) -> list[object]:
    return [number, random.Random(number).randbytes(20 + number % 200)]


def fill(path: Path, rows: int = ROWS, acked: int = 0) -> str:
    """Make a store with an output of each number, and return its epoch."""

    async def main() -> str:
        async with FeatureStore(path, threshold=10**6, interval_s=60.0) as store:
            for number in range(rows):
                await store.put(TOPICS[number % 2], payload_of(number))
            await store.flush()
            store.forget(acked)
            return store.state.epoch

    return asyncio.run(main())


def execute(statement: str, database: StoreDatabase) -> None:
    database._connection.execute(statement)


def wipe_leaves(path: Path) -> None:
    """Overwrite the head of each page that holds rows."""
    whole = path.read_bytes()
    with path.open("r+b") as file:
        for page in range(1, len(whole) // PAGE):
            if whole[page * PAGE] == 13:
                file.seek(page * PAGE)
                file.write(bytes(50))


def read_file(path: Path) -> bytes:
    return path.read_bytes()


class Contents:
    """All that a store returns."""

    def __init__(self, features: dict[int, object], uploads: dict[int, object], report: StoreReport) -> None:
        self.features = features
        self.uploads = uploads
        self.report = report
        self.lost = {seq for loss in report.losses for seq in range(loss.first_seq, (loss.last_seq or 0) + 1)}


def read(path: Path) -> Contents:
    async def main() -> Contents:
        async with FeatureStore(path) as store:
            outbox = Outbox(store)
            features = [feature for topic in TOPICS for feature in await store.query(topic, limit=10_000)]
            epoch = ""
            while epoch != outbox.epoch:  # a damaged row is found on the way
                epoch = outbox.epoch
                uploads = await outbox.batch(0, 10_000)
            found = [plain.decode(upload.payload) for upload in uploads if upload.topic != LOSS_TOPIC]
            assert [upload.seq for upload in uploads] == list(range(1, len(uploads) + 1))
            reported = {Loss.decode(upload.payload) for upload in uploads if upload.topic == LOSS_TOPIC}
            assert reported >= set(store.report.losses)
            decoded = [plain.decode(feature.payload) for feature in features]
            return Contents({row[0]: row for row in decoded}, {row[0]: row for row in found}, store.report)

    return asyncio.run(main())


def check(contents: Contents, *, whole: bool = False) -> bool:
    """Check that nothing altered was returned and nothing is missing silently; return whether damage was found."""
    expected = {number: payload_of(number) for number in range(ROWS)}
    assert contents.features.items() <= expected.items()
    assert contents.uploads.items() <= expected.items()
    assert {number + 1 for number in expected.keys() - contents.uploads.keys()} <= contents.lost
    report = contents.report
    if report.set_asides:
        assert report.set_asides[0].features == len(contents.features)
    else:
        assert len(contents.features) + report.damaged_features == ROWS
    found = bool(report.set_asides or report.damaged_features or report.losses)
    assert found or (len(contents.features), len(contents.uploads)) == (ROWS, ROWS)
    return found


def test_single_flipped_bits_are_found_or_harmless(path: Path) -> None:
    fill(path)
    whole = {name: path.with_name(name).read_bytes() for name in (path.name, f"{path.name}.lock")}
    rng = random.Random(26)
    found = 0
    for _ in range(26):
        for file in path.parent.iterdir():
            file.unlink()
        for name, data in whole.items():
            path.with_name(name).write_bytes(data)
        damaged = bytearray(whole[path.name])
        bit = rng.randrange(len(damaged) * 8)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found += check(read(path))
    assert found >= 20  # the others fell on bytes that hold nothing


@pytest.mark.parametrize(("seq", "flipped"), [(214, 1), (215, 1), (214, 64)])
def test_an_upload_whose_number_is_damaged_keeps_its_place(path: Path, seq: int, flipped: int) -> None:
    """Of two that have one number then, the chain tells which is which."""
    fill(path)
    whole = {name: path.with_name(name).read_bytes() for name in (path.name, f"{path.name}.lock")}
    value = payload_of(seq - 1)[1]
    assert isinstance(value, bytes)
    number = bytes([0x80 | seq >> 7, seq & 0x7F])
    places = [place for place in range(len(whole[path.name])) if whole[path.name].startswith(value, place)]
    assert len(places) == 2  # one in the feature and one in the upload
    for place in places:
        for file in path.parent.iterdir():
            file.unlink()
        for name, data in whole.items():
            path.with_name(name).write_bytes(data)
        damaged = bytearray(whole[path.name])
        damaged[damaged.rindex(number, place - 80, place) + 1] ^= flipped
        path.write_bytes(damaged)
        contents = read(path)
        check(contents)
        assert len(contents.uploads) == ROWS


def test_flipped_bits_of_the_header_the_schema_and_the_state_lose_nothing_silently(path: Path) -> None:
    fill(path)
    whole = path.read_bytes()
    lock = path.with_name(f"{path.name}.lock").read_bytes()
    state_page = next(
        page
        for page in range(len(whole) // PAGE)
        if whole[page * PAGE] == 13 and whole[page * PAGE + 3 :][:2] == b"\0\1"
    )
    rng = random.Random(3)
    places = [rng.randrange(100) for _ in range(10)]
    places += [PAGE - 1 - rng.randrange(800) for _ in range(10)]
    places += [(state_page + 1) * PAGE - 1 - rng.randrange(60) for _ in range(6)]
    for place in places:
        for file in path.parent.iterdir():
            file.unlink()
        path.with_name(f"{path.name}.lock").write_bytes(lock)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        check(read(path))


def test_a_damaged_page_costs_its_rows_and_is_reported(path: Path) -> None:
    epoch = fill(path, acked=50)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    value = payload_of(190)[1]  # 210 bytes, once in a page of each table
    assert isinstance(value, bytes)
    places = [place for place in range(len(whole)) if whole.startswith(value, place)]
    assert len(places) == 2
    for place in places:
        page = place // PAGE * PAGE
        damaged[page : page + 100] = bytes(100)
    path.write_bytes(damaged)
    contents = read(path)
    (set_aside,) = contents.report.set_asides
    assert set_aside.set_aside.read_bytes() == damaged
    assert ROWS - 100 < len(contents.features) < ROWS
    lost = contents.lost
    assert 0 < len(lost) < 50
    assert contents.uploads.keys() == {number for number in range(50, ROWS) if number + 1 not in lost}
    assert {(loss.epoch, loss.cause) for loss in contents.report.losses} == {(epoch, LossCause.DAMAGED)}
    again = read(path)  # the new file is sound, and continues the numbers of the stream
    assert (again.report.set_asides, again.report.losses) == ((), ())
    assert again.features == contents.features


@pytest.mark.parametrize("kind", ["header", "cut", "emptied"])
def test_a_file_that_cannot_be_opened_is_reported_as_lost(path: Path, kind: str) -> None:
    fill(path, acked=50)
    whole = path.read_bytes()
    damaged = {"header": b"not a database.." + whole[16:], "cut": whole[: len(whole) // 2 + 100], "emptied": b""}[kind]
    path.write_bytes(damaged)
    contents = read(path)
    assert {*range(50, ROWS)} == contents.uploads.keys() | {seq - 1 for seq in contents.lost if seq > 50}
    assert contents.lost
    if kind != "emptied":
        assert contents.report.set_asides[0].set_aside.read_bytes() == damaged


@pytest.mark.asyncio
async def test_the_position_and_the_numbers_survive_a_lost_state_row(path: Path) -> None:
    async with FeatureStore(path) as store:
        await store.put_all([Put.of("t", 1)], position=7, resume_from=3)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE state SET position = 90")
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from) == (7, 3)
        assert store.report.set_asides[0].uploads == 1
        assert store.report.losses == ()
        assert [plain.decode(upload.payload) for upload in await Outbox(store).batch(0, 10)] == [1]


@pytest.mark.asyncio
@pytest.mark.parametrize("tasks", [1, 300])
async def test_no_task_that_is_behind_counts_as_done_after_a_lost_state_row(path: Path, tasks: int) -> None:
    replay = ReplayState({f"task {index}": 40 + index for index in range(tasks)}, ("page \0 é", "b"), 6)
    async with FeatureStore(path) as store:
        store.advance(700, 30, replay)
        await store.flush()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE state SET position = 90")
    async with FeatureStore(path) as store:
        assert store.resume_from == 30
        lines = [line for line in store.report.lines() if "run again" in line]
        if tasks == 1:
            assert (store.position, store.replay, lines) == (700, replay, [])
        else:  # too long for the lock file
            assert (store.position, store.replay) == (29, ReplayState())
            assert "from position 30" in lines[0]
    async with FeatureStore(path) as store:
        assert (store.position, store.report.lines()) == (700 if tasks == 1 else 29, ())


@pytest.mark.asyncio
async def test_a_file_that_went_back_takes_its_tasks_positions_with_it(path: Path) -> None:
    older, newer = ReplayState({"a": 3}, (), 4), ReplayState({"b": 8}, (), 9)
    async with FeatureStore(path) as store:
        store.advance(5, 2, older)
        await store.flush()
        copy = copy_files(path, ("", "-wal"))
        store.advance(9, 7, newer)
        await store.flush()
    put_back(path, copy)
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from, store.replay) == (5, 2, older)
        assert store.report.lost_commits == 1


def test_earlier_epochs_survive_a_lost_state_row(path: Path) -> None:
    epoch = fill(path, acked=50)

    async def reopen() -> list[tuple[str, int, int]]:
        async with FeatureStore(path) as store:
            return [(origin.epoch, origin.offset, origin.upto) for origin in store.state.origins]

    for origins in (1, 2):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE state SET position = 90")
        found = asyncio.run(reopen())
        assert len(found) == origins
        assert found[-1] == (epoch, 50, ROWS - 50)


@pytest.mark.asyncio
async def test_damage_of_an_open_file_is_repaired_by_the_call_that_finds_it(path: Path) -> None:
    async with FeatureStore(path) as store:
        for number in range(ROWS):
            await store.put("ipv", payload_of(number))
        await store.flush()
        outbox = Outbox(store)
        waiting = asyncio.create_task(outbox.wait_for_more(ROWS + 100))
        await store.call(lambda database: database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        await store.call(lambda database: database._connection.execute("PRAGMA shrink_memory").fetchall())
        await store.call(lambda database: database._connection.execute("PRAGMA cache_size = 0").fetchall())
        wipe_leaves(path)
        await store.put("ipv", payload_of(ROWS))
        found = await store.query("ipv", limit=10_000)
        assert plain.decode(found[-1].payload) == payload_of(ROWS)
        assert len(store.report.set_asides) == 1
        await asyncio.wait_for(waiting, 5)  # a new epoch
        uploads = await outbox.batch(0, 10_000)
        assert [upload.topic for upload in uploads] == [LOSS_TOPIC] * ROWS + ["ipv"]
        assert store.report.losses == (Loss.decode(uploads[0].payload),)


@pytest.mark.asyncio
async def test_damage_on_a_full_disk_is_repaired_once_there_is_room(path: Path) -> None:
    async with FeatureStore(path) as store:
        for number in range(ROWS):
            await store.put("ipv", payload_of(number))
        await store.flush()
        await store.call(functools.partial(execute, "PRAGMA wal_checkpoint(TRUNCATE)"))
        await store.call(functools.partial(execute, "PRAGMA cache_size = 0"))
        wipe_leaves(path)
        damaged = read_file(path)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no file can grow beyond
        try:
            with pytest.raises(StoreError):
                await store.query("ipv")
            with pytest.raises(StoreError):
                await store.query("ipv")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert read_file(path) == damaged
        await store.put("ipv", 1)
        assert [plain.decode(feature.payload) for feature in await store.query("ipv")] == [1]
        assert len(store.report.set_asides) == 1


@pytest.mark.asyncio
async def test_an_altered_upload_is_replaced_by_its_report(path: Path) -> None:
    async with FeatureStore(path, clock=ManualClock(5.0)) as store:
        outbox = Outbox(store)
        epoch = outbox.epoch
        for number in range(6):
            await store.put("t", number)
        await store.flush()
        store.forget(1)
        await store.flush()
        for statement in (
            "UPDATE outbox SET payload = x'01' WHERE seq = 3",
            "UPDATE outbox SET topic = 'u' WHERE seq = 5",
        ):
            await store.call(functools.partial(execute, statement))
        assert await outbox.batch(1, 10) == []
        assert outbox.epoch != epoch
        uploads = await outbox.batch(0, 10)
        assert [upload.topic for upload in uploads] == ["t", LOSS_TOPIC, "t", LOSS_TOPIC, "t"]
        assert [plain.decode(upload.payload) for upload in uploads if upload.topic == "t"] == [1, 3, 5]
        assert store.report.losses == tuple(Loss(epoch, seq, seq, LossCause.DAMAGED) for seq in (3, 5))


@pytest.mark.asyncio
@pytest.mark.parametrize("change", ["ts_ms = 9", "payload = 9", "payload = 'text'", "position = 'text'"])
async def test_an_altered_feature_is_left_out_and_counted(path: Path, change: str) -> None:
    async with FeatureStore(path) as store:
        for number in range(4):
            await store.put("t", number, upload=False)
        await store.flush()
        update = f"UPDATE features SET {change} WHERE id = 2"
        await store.call(lambda database: database._connection.execute(update))
        assert [plain.decode(feature.payload) for feature in await store.query("t")] == [0, 2, 3]
        assert store.report.damaged_features == 1
        assert len(await store.query("t")) == 3
        assert store.report.damaged_features == 1


OPENER = """
import asyncio, sys
from walle.pipeline.features.store import FeatureStore
async def main():
    async with FeatureStore(sys.argv[1]):
        print("open", flush=True)
        await asyncio.sleep(60)
print("start", flush=True)
asyncio.run(main())
"""


@pytest.mark.night
def test_kills_during_salvage_lose_nothing_silently(path: Path) -> None:
    epoch = fill(path)
    whole = path.read_bytes()
    rng = random.Random(5)
    moved = 0
    for number in range(6):
        for file in path.parent.iterdir():
            if not file.name.endswith(".lock"):
                file.unlink()
        damaged = bytearray(whole)
        for _ in range(3):
            page = rng.randrange(1, len(whole) // PAGE) * PAGE
            damaged[page : page + 100] = bytes(100)
        path.write_bytes(damaged)
        lock = path.with_name(f"{path.name}.lock")
        mark = lock.read_bytes()
        with subprocess.Popen([sys.executable, "-c", OPENER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"start\n"
            stage = (".salvaged", ".damaged-", "features.db-wal")[number % 3]
            while not any(stage in file.name for file in path.parent.iterdir()):
                time.sleep(0.0005)
            time.sleep(rng.uniform(0.0, 0.004))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        moved += any(".damaged-" in file.name for file in path.parent.iterdir())
        uploads, reported = asyncio.run(unsent(path))
        lost = {loss_seq for loss in reported for loss_seq in range(loss.first_seq, (loss.last_seq or 0) + 1)}
        assert {loss.epoch for loss in reported} <= {epoch}
        assert uploads.isdisjoint({seq - 1 for seq in lost})
        assert uploads | {seq - 1 for seq in lost} == set(range(ROWS))
        lock.write_bytes(mark)
    assert moved >= 2  # those that were killed after they moved the file aside


async def unsent(path: Path) -> tuple[set[int], list[Loss]]:
    """Return the outputs in the outbox, and the losses that are reported there."""
    async with FeatureStore(path) as store:
        outbox = Outbox(store)
        uploads = await outbox.batch(0, 10_000)
        assert [upload.seq for upload in uploads] == list(range(1, outbox.last_seq + 1))
        found = {plain.decode(upload.payload)[0] for upload in uploads if upload.topic != LOSS_TOPIC}
        return found, [Loss.decode(upload.payload) for upload in uploads if upload.topic == LOSS_TOPIC]


def test_a_salvage_that_was_interrupted_is_ended_by_the_next_opening(path: Path) -> None:
    fill(path)
    whole = path.read_bytes()
    path.with_name("features.db.salvaged").write_bytes(whole[: 3 * PAGE])  # incomplete: the damaged file is still there
    assert len(read(path).features) == ROWS
    assert not path.with_name("features.db.salvaged").exists()
    path.rename(path.with_name("features.db.salvaged"))  # complete: the damaged file is gone
    path.with_name("features.db-wal").write_bytes(b"of the damaged file")
    assert len(read(path).features) == ROWS


def test_a_damaged_file_without_a_mark_is_not_touched_if_it_may_be_foreign(path: Path) -> None:
    path.write_bytes(b"not a database.." * 1000)
    with pytest.raises(StoreCorruptError, match="is damaged"):
        read(path)
    assert path.read_bytes() == b"not a database.." * 1000


def test_a_damaged_file_without_a_mark_reports_an_open_end(path: Path) -> None:
    epoch = fill(path)
    path.with_name("features.db.lock").unlink()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO features (topic, ts_ms, position, payload, checksum) VALUES ('x', 1, 1, x'00', 1)")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema WHERE name = 'features_by_topic'")
    contents = read(path)
    assert contents.report.losses == (Loss(epoch, ROWS + 1, None, LossCause.DAMAGED),)
    assert contents.report.set_asides[0].uploads == ROWS


def test_a_mark_is_read_back_and_anything_else_is_none() -> None:
    numbers = dict.fromkeys(("acked", "acked_chain", "last_seq", "last_chain", "resume_from", "commits", "produced"), 3)
    for origins in ("", "cd:1:2:3"):
        for replay in (ReplayState({"a b": 7}, ("c d",), 8).to_text(), None):
            mark = Mark(epoch="ab", origins=origins, position=-1, replay=replay, **numbers)
            found = Mark.decode(mark.encode().ljust(4096, b"\0"))
            assert found is not None
            assert StoreState.from_mark(found) == StoreState.from_mark(mark)
            assert (found.replay is None) == (replay is None)
    for data in (b"", b"\0" * 256, mark.encode()[:-1], mark.encode().replace(b"3", b"4")):
        assert Mark.decode(data) is None
    text = b"walle-3 ab - 1 2 3 4 5 6 7 8"  # the older form has no replay state in the mark
    older = Mark.decode(b"%08x%s" % (zlib.crc32(text), text))
    assert older is not None
    assert (older.produced, older.replay) == (8, None)


# --- older files ------------------------------------------------------------------------------------------------------

FORMAT_1 = """
CREATE TABLE features (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, ts_ms INTEGER NOT NULL, position INTEGER NOT NULL,
    payload BLOB NOT NULL, size_bytes INTEGER AS (length(topic) + length(payload) + 32));
CREATE INDEX features_by_topic ON features (topic, id);
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, created_ms INTEGER NOT NULL,
    size_bytes INTEGER AS (length(topic) + length(payload) + 32));
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), epoch TEXT NOT NULL, last_seq INTEGER NOT NULL,
    position INTEGER NOT NULL, resume_from INTEGER NOT NULL);
INSERT INTO state VALUES (1, 'old', 9, 70, 60);
PRAGMA application_id = 1463897164;
PRAGMA user_version = 1;
"""


@pytest.mark.asyncio
async def test_a_file_of_format_1_is_migrated(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(FORMAT_1)
        for seq in range(5, 10):
            payload = plain.encode(seq)
            db.execute("INSERT INTO features (topic, ts_ms, position, payload) VALUES ('t', ?, 1, ?)", (seq, payload))
            db.execute("INSERT INTO outbox VALUES (?, 't', ?, ?)", (seq, payload, seq))
        db.commit()
    for _ in range(2):
        async with FeatureStore(path) as store:
            assert (store.position, store.resume_from, store.state.produced) == (70, 60, 9)
            (origin,) = store.state.origins
            assert (origin.epoch, origin.acked, origin.offset, origin.upto) == ("old", 4, 4, 5)
            uploads = await Outbox(store).batch(0, 10)
            assert [(upload.seq, plain.decode(upload.payload)) for upload in uploads] == [
                (seq - 4, seq) for seq in range(5, 10)
            ]
            assert [plain.decode(feature.payload) for feature in await store.query("t")] == [5, 6, 7, 8, 9]
            assert store.report == StoreReport((), (), 0)


def test_damaged_files_that_are_set_aside_are_bounded_and_replace_none_at_the_same_time(path: Path) -> None:
    clock = ManualClock()  # one time for all, like that of a clock that is set back at each start
    fill(path)

    async def main() -> list[str]:
        async with FeatureStore(path, clock=clock) as store:
            return [salvaged.set_aside.name for salvaged in store.report.set_asides]

    made = []
    for number in range(5):
        data = bytearray(path.read_bytes())
        data[: 16 + number] = bytes(16 + number)
        path.write_bytes(data)
        made += asyncio.run(main())
        os.utime(path.parent / made[-1], (number, number))
    assert len(made) == 5
    left = {file.name for file in path.parent.glob("*.damaged-*")}
    assert made[-1] in left
    assert len([name for name in left if not name.endswith("-wal")]) == 3
    assert len(set(made[:3])) == 3
