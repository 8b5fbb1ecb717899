"""The sink to Parquet files, in a folder and in a bucket of a real S3 server."""

import asyncio
import errno
import io
import json
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sim.postgres_server import PostgresServer
from tests.sim.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.sinks.sink_samples import (
    keys_of,
    kill_at_random,
    repeated,
    run_once,
    running,
    store_uploads,
    uploads_of,
    wait_until,
)
from walle.base import durable_file
from walle.deploy.shared_files.s3_store import S3Place
from walle.pipeline.ingest.store.feature_reader import FeatureFilter
from walle.pipeline.ingest.store.partitions import partition
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received
from walle.sinks import RunnerConfig, SinkError, SinkRow, SinkRunner
from walle.sinks.object_folder import BucketFolder, DiskFolder, ObjectFolder
from walle.sinks.parquet import ParquetSink

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow of the extra parquet is not installed")


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all files of the group g."""
    rows: list[dict[str, Any]] = []
    for path in sorted((folder / "g").rglob("*.parquet")):
        rows += parquet.read_table(path, partitioning=None).to_pylist()
    return rows


def count_in(folder: Path) -> int:
    return sum(parquet.read_metadata(path).num_rows for path in (folder / "g").rglob("*.parquet"))


def keys_in(folder: Path) -> list[str]:
    return sorted(row["key"] for row in rows_in(folder))


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 50))
    return path


def as_rows(uploads: list[Received]) -> list[SinkRow]:
    return [SinkRow(position, one) for position, one in enumerate(uploads, 1)]


def test_files_have_each_feature_once_with_its_lineage_and_its_partition(uploads: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run_once(lake, uploads)
    rows = rows_in(lake)
    assert sorted(row["key"] for row in rows) == sorted(keys_of(uploads_of(1, 50)))
    row = next(row for row in rows if row["key"] == "phone-3/e1/7")
    assert json.loads(row["payload"]) == {"page": "item/7", "n": 7}
    assert (row["device"], row["task"], row["version"], row["seq"], row["page"]) == (
        "phone-3", "shop/visits", "v2", 7, "item/7",
    )  # fmt: skip
    for path in (lake / "g").rglob("*.parquet"):
        found = parquet.read_table(path, partitioning=None).to_pylist()
        assert {f"part={partition(one['device']):02}" for one in found} == {path.parent.name}
        assert int(path.stem) == found[0]["position"]
    before = {path: path.read_bytes() for path in lake.rglob("*.parquet")}
    run_once(lake, uploads)
    assert {path: path.read_bytes() for path in lake.rglob("*.parquet")} == before


def test_a_payload_that_cannot_be_read_is_a_row_with_the_reason(tmp_path: Path) -> None:
    path, lake = tmp_path / "uploads.db", tmp_path / "lake"
    store_uploads(path, [Received("d", "e", 1, "shop/visits", b"\xff\xff", 1, 1)])
    run_once(lake, path)
    (row,) = rows_in(lake)
    assert row["payload"] is None
    assert row["error"]


def killed_while_writing(target: object, path: Path | str, rows: Callable[[], int], seed: int, env: Any = None) -> None:
    store_uploads(path, uploads_of(1, 400))
    killed = kill_at_random(
        target, path, "--every-s", "0", "--rows", "100", rows=rows, times=5, seed=seed, env=env
    )  # fmt: skip
    assert killed >= 2


@pytest.mark.night
@pytest.mark.parametrize("seed", range(3))
def test_a_sink_that_is_killed_writes_each_feature_once(seed: int, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    killed_while_writing(lake, tmp_path / "uploads.db", lambda: count_in(lake), seed)
    assert repeated(keys_in(lake)) == []
    assert set(keys_in(lake)) == keys_of(uploads_of(1, 400))
    assert [path for path in lake.rglob("*") if path.is_file() and path.suffix != ".parquet"] == []


@pytest.mark.night
def test_a_sink_from_postgresql_that_is_killed_writes_each_feature_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    killed_while_writing(lake, postgres.make_database(), lambda: count_in(lake), 5)
    assert keys_in(lake) == sorted(keys_of(uploads_of(1, 400)))


@pytest.mark.night
def test_several_processes_write_each_feature_once(uploads: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = ("--every-s", "0.2")
    with running(lake, uploads, *options), running(lake, uploads, *options) as second:
        wait_until(lambda: count_in(lake) >= 1000)
        second.kill()
        store_uploads(uploads, uploads_of(51, 100))
        with running(lake, uploads, *options):
            wait_until(lambda: count_in(lake) >= 2000)
    run_once(lake, uploads)
    assert keys_in(lake) == sorted(keys_of(uploads_of(1, 100)))


@pytest.fixture
def place(s3_bucket: S3Server, request: pytest.FixtureRequest) -> S3Place:
    return S3Place(BUCKET, f"sinks/{random.Random(request.node.name).randrange(10**9)}", s3_bucket.endpoint)


KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


def rows_in_bucket(place: S3Place) -> list[str]:
    folder = BucketFolder(place, KEYS)
    found = [one["path"] for batch in folder._s3.list(folder._bucket) for one in batch]
    keys: list[str] = []
    for path in found:
        table = parquet.read_table(io.BytesIO(asyncio.run(folder.read(path))))
        keys += table.column("key").to_pylist()
    return keys


@pytest.mark.night
def test_a_sink_to_a_bucket_that_is_killed_writes_each_feature_once(place: S3Place, tmp_path: Path) -> None:
    target = f"{place}?endpoint={place.endpoint}"
    folder = BucketFolder(place, KEYS)

    def files() -> int:
        return 20 * sum(len(batch) for batch in folder._s3.list(folder._bucket))

    killed_while_writing(target, tmp_path / "uploads.db", files, 7, env=KEYS)
    keys = rows_in_bucket(place)
    assert repeated(keys) == []
    assert set(keys) == keys_of(uploads_of(1, 400))


def test_a_bucket_that_refuses_the_keys_stops_the_sink(place: S3Place, uploads: Path) -> None:
    keys = {**KEYS, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with running(f"{place}?endpoint={place.endpoint}", uploads, "--once", env=keys) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "check the keys" in " ".join(err.split())


class FolderContract:
    """Tests of each kind of folder; the fixture `folder` is an empty one."""

    @pytest.mark.asyncio
    async def test_one_of_several_writers_of_a_name_writes(self, folder: ObjectFolder) -> None:
        await folder.start()
        made = await asyncio.gather(*(folder.create("g/x.parquet", f"{number}".encode()) for number in range(8)))
        assert sorted(made) == [False] * 7 + [True]
        assert await folder.read("g/x.parquet") == f"{made.index(True)}".encode()

    @pytest.mark.asyncio
    async def test_a_row_is_written_once_whatever_the_batches_and_members(self, folder: ObjectFolder) -> None:
        """Two members of which one does not know that it lost its devices, with other bounds of their batches."""
        rows = as_rows(uploads_of(1, 30, devices=3))
        slow, quick = ParquetSink(folder, "g", {}), ParquetSink(folder, "g", {})
        await slow.start()
        await quick.write(rows[:40])
        await slow.write(rows[:60])  # all again, and more
        await quick.write(rows[40:50])
        part = rows[50].part
        assert quick.written_up_to(part) > 50  # position 50 is not committed then
        await quick.write(rows[50:90])
        await slow.write(rows[60:90])
        third = ParquetSink(folder, "g", {})
        await third.write(rows[:5])
        await third.write(rows[5:])
        keys = await _keys(folder)
        assert sorted(keys) == sorted(row.key for row in rows)

    @pytest.mark.asyncio
    async def test_a_store_that_went_back_is_noticed_and_nothing_is_skipped(self, folder: ObjectFolder) -> None:
        rows = as_rows(uploads_of(1, 10, devices=1))
        await ParquetSink(folder, "g", {}).write(rows)
        other = [row._replace(received=row.received._replace(epoch="e2")) for row in rows]
        with pytest.raises(SinkError, match="went back to a backup"):
            await ParquetSink(folder, "g", {}).write(other)
        with pytest.raises(SinkError, match="went back to a backup"):  # the first rows are equal
            await ParquetSink(folder, "g", {}).write(rows[:5] + other[5:])
        sink = ParquetSink(folder, "g", {})
        await sink.write(rows[:5])
        with pytest.raises(SinkError, match="went back to a backup"):
            await sink.write([row._replace(position=row.position + 50) for row in other])

    @pytest.mark.asyncio
    async def test_partitions_that_moved_are_continued_and_still_compared(self, folder: ObjectFolder) -> None:
        rows = as_rows(uploads_of(1, 20, devices=1))
        await ParquetSink(folder, "g", {}).write(rows[:10])
        sink = ParquetSink(folder, "g", {})
        await sink.write(rows[:5])  # learns of the ten, of which another member commits what this one has not read
        sink.note_moved({rows[0].part})
        await sink.write(rows[10:15])
        sink.note_moved({rows[0].part})
        await sink.write(rows[5:20])  # the other member did not commit further
        assert sorted(await _keys(folder)) == sorted(row.key for row in rows)
        sink.note_moved({rows[0].part})
        other = [row._replace(received=row.received._replace(epoch="e2")) for row in rows]
        with pytest.raises(SinkError, match="went back to a backup"):
            await sink.write(other[12:])

    @pytest.mark.asyncio
    async def test_another_choice_of_the_same_group_is_refused(self, folder: ObjectFolder) -> None:
        rows = as_rows(uploads_of(1, 10, devices=1))
        await ParquetSink(folder, "g", {"task": "shop/visits"}).write(rows)
        with pytest.raises(SinkError, match="use another --group"):
            await ParquetSink(folder, "g", {}).write(rows)


async def _keys(folder: ObjectFolder) -> list[str]:
    if isinstance(folder, DiskFolder):
        return keys_in(folder._path)
    assert isinstance(folder, BucketFolder)
    found = [one["path"] for batch in folder._s3.list(folder._bucket) for one in batch]
    tables = [parquet.read_table(io.BytesIO(await folder.read(path))) for path in found]
    return [key for table in tables for key in table.column("key").to_pylist()]


class TestDiskFolder(FolderContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> ObjectFolder:
        return DiskFolder(tmp_path / "lake")


class TestBucketFolder(FolderContract):
    @pytest.fixture
    def folder(self, place: S3Place) -> ObjectFolder:
        return BucketFolder(place, KEYS)


class DyingSink(ParquetSink):
    """A sink whose process ends at its second write."""

    writes = 0

    async def write(self, rows: Sequence[SinkRow]) -> None:
        self.writes += 1
        if self.writes > 1:
            raise SinkError(self.target, "killed", may_pass=False)
        await super().write(rows)


@pytest.mark.asyncio
async def test_no_position_within_a_file_is_committed(tmp_path: Path) -> None:
    path, lake = tmp_path / "uploads.db", DiskFolder(tmp_path / "lake")
    rows = uploads_of(1, 60, devices=1)
    async with asyncio.timeout(30), open_uploads(path, create=True) as store:
        await store.accept(rows)
        await ParquetSink(lake, "g", {}).write(as_rows(rows))  # written by a process that was killed before its commit
        await store.accept(uploads_of(61, 90, devices=1))

        async def run(sink: ParquetSink, batch_limit: int) -> None:
            config = RunnerConfig(group="g", batch_limit=batch_limit, lease_s=2.0)
            await SinkRunner(store, sink, config, rng=random.Random(1)).run(once=True)

        with pytest.raises(SinkError, match="killed"):
            await run(DyingSink(lake, "g", {}), 25)
        assert (await store.group_lags())["g"].uploads == 90  # the killed run committed nothing
        await run(ParquetSink(lake, "g", {}), 40)
        assert (await store.group_lags())["g"].uploads == 0
    assert keys_in(tmp_path / "lake") == sorted(keys_of(uploads_of(1, 90, devices=1)))


@pytest.mark.asyncio
async def test_batches_of_one_flush_are_committed_up_to_the_last(tmp_path: Path) -> None:
    lake = DiskFolder(tmp_path / "lake")
    async with asyncio.timeout(30), open_uploads(tmp_path / "uploads.db", create=True) as store:
        await store.accept(uploads_of(1, 50))
        config = RunnerConfig(group="g", batch_limit=100, lease_s=2.0, flush_s=3600.0)
        runner = SinkRunner(store, ParquetSink(lake, "g", {}), config, rng=random.Random(1))
        await runner.run(once=True)
        assert (await store.group_lags())["g"].uploads == 0
        assert (runner.status.sent, runner.status.commits) == (1000, 1)
    files = list((tmp_path / "lake").rglob("*.parquet"))
    assert len(files) == len({partition(one.device_id) for one in uploads_of(1, 1)})


@pytest.mark.asyncio
async def test_a_full_disk_is_waited_for(uploads: Path, tmp_path: Path) -> None:
    """A folder that cannot be written, and can later."""
    lake = tmp_path / "lake"
    (lake / "g").mkdir(parents=True)
    blocker = lake / "g" / f"part={partition('phone-0'):02}"
    blocker.write_text("a file where the folder should be")
    async with open_uploads(uploads, create=True) as store:
        config = RunnerConfig(group="g", lease_s=2.0, wanted=FeatureFilter(device="phone-0"))
        runner = SinkRunner(store, ParquetSink(DiskFolder(lake), "g", {}), config, rng=random.Random(1))
        run = asyncio.create_task(runner.run(once=True))
        async with asyncio.timeout(30):
            while not runner.status.retries:  # noqa: ASYNC110 - the runner sets no event
                await asyncio.sleep(0.01)
            assert "cannot be written" in runner.status.error
            blocker.unlink()
            await run
    assert len(rows_in(lake)) == 50


@pytest.mark.asyncio
async def test_a_file_system_that_cannot_keep_exactly_once_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    folder = DiskFolder(tmp_path / "lake")
    await folder.start()  # a rename that replaces no file decides
    assert await folder.create("g/a", b"first")
    assert not await folder.create("g/a", b"second")
    monkeypatch.setattr(durable_file, "_renameat2", lambda: None)
    with pytest.raises(SinkError, match=r"neither hard links nor renames.*name a local or NFS folder") as refused:
        await folder.start()
    assert not refused.value.may_pass
    with pytest.raises(SinkError, match="neither hard links nor renames"):
        await folder.create("g/b", b"first")
    assert [path.name for path in (tmp_path / "lake").rglob("*") if path.is_file()] == ["a"]


@pytest.mark.night
def test_files_that_are_not_the_sinks_are_not_overwritten(uploads: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    path = lake / "g" / f"part={partition('phone-0'):02}" / f"{1:020}.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with running(lake, uploads, "--once") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "is not a file of this sink" in " ".join(err.split())
    assert path.read_bytes() == b"mine"
    assert subprocess.run(["ls", lake / "g"], capture_output=True, check=True).stdout
