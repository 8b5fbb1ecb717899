"""Devices that go from one member of a sink's group to another and back."""

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.sink_samples import keys_of, uploads_of
from tests.sinks.test_parquet import keys_in
from walle.base.clock import SystemClock
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received
from walle.sinks import RunnerConfig, Sink, SinkError, SinkRow, SinkRunner
from walle.sinks.object_folder import DiskFolder
from walle.sinks.parquet import ParquetSink

LEASE_S = 3.0


class AheadClock(SystemClock):
    """A clock by which every lease of others has ended."""

    def time(self) -> float:
        return super().time() + 2 * LEASE_S


class Gate:
    """A place where a task waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def passing(self) -> None:
        self.reached.set()
        await self.opened.wait()


class GatedFolder(DiskFolder):
    """A folder whose first file waits at a gate."""

    def __init__(self, path: Path, gate: Gate) -> None:
        super().__init__(path)
        self._gate = gate

    async def create(self, path: str, data: bytes) -> bool:
        await self._gate.passing()
        return await super().create(path, data)


class ListSink(Sink):
    """A target that keeps the keys of rows, and has each write wait at a gate."""

    target = "list"

    def __init__(self, keys: list[str], gate: Gate) -> None:
        self.keys = keys
        self._gate = gate

    async def write(self, rows: Sequence[SinkRow]) -> None:
        await self._gate.passing()
        self.keys += [row.key for row in rows]


def runner_of(store: UploadStore, sink: Sink, *, flush_s: float = 0.0) -> SinkRunner:
    config = RunnerConfig(group="g", lease_s=LEASE_S, flush_s=flush_s, batch_limit=100)
    return SinkRunner(store, sink, config, rng=random.Random(1))


async def send_as_another(path: Path, sink: Sink) -> None:
    """Take all devices over, as if their member had stopped renewing its leases, send all, and release them."""
    async with open_uploads(path, clock=AheadClock()) as store:
        await runner_of(store, sink, flush_s=3600.0).run(once=True)


@contextlib.asynccontextmanager
async def running(runner: SinkRunner) -> AsyncIterator["asyncio.Task[bool]"]:
    """A run in the background, which is stopped at the end of the block; its error is raised there."""
    run = asyncio.create_task(runner.run())
    try:
        yield run
    finally:
        runner.stop()
        await run


async def sent_all(store: UploadStore, run: "asyncio.Task[bool]") -> None:
    """Return once the group has committed all uploads, or the run has ended."""
    while not run.done():
        found = (await store.group_lags()).get("g")
        if found is not None and not found.uploads:
            return
        await asyncio.sleep(0.02)


class Balances:
    """The looks of a store's members at each other."""

    def __init__(self, store: UploadStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        real = store.balance

        async def balance(*args: Any, **options: Any) -> dict[int, int]:
            found = await real(*args, **options)
            self._count += 1
            return found

        monkeypatch.setattr(store, "balance", balance)

    async def next(self) -> None:
        """Return after one that begins now or later."""
        until = self._count + 2
        while self._count < until:  # noqa: ASYNC110 - the store sets no event
            await asyncio.sleep(0.01)


async def has_waiting_rows(runner: SinkRunner, count: int) -> None:
    while len(runner._rows) < count:  # noqa: ASYNC110 - the runner sets no event
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_devices_that_come_back_after_another_wrote_their_files_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lake, gate = tmp_path / "uploads.db", tmp_path / "lake", Gate()
    async with asyncio.timeout(60), open_uploads(path, create=True) as store:
        balances = Balances(store, monkeypatch)
        await store.accept(uploads_of(1, 5))
        runner = runner_of(store, ParquetSink(GatedFolder(lake, gate), "g", {}))
        async with running(runner) as run:
            await gate.reached.wait()  # within the write of its first file
            await store.accept(uploads_of(6, 10))
            await send_as_another(path, ParquetSink(DiskFolder(lake), "g", {}))
            await store.accept(uploads_of(11, 15))
            await send_as_another(path, ParquetSink(DiskFolder(lake), "g", {}))
            await balances.next()
            gate.opened.set()
            await store.accept(uploads_of(16, 20))
            await sent_all(store, run)
    assert keys_in(lake) == sorted(keys_of(uploads_of(1, 20)))


@pytest.mark.asyncio
async def test_rows_that_waited_while_another_wrote_them_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lake = tmp_path / "uploads.db", tmp_path / "lake"
    async with asyncio.timeout(60), open_uploads(path, create=True) as store:
        balances = Balances(store, monkeypatch)
        await store.accept(uploads_of(1, 5))
        runner = runner_of(store, ParquetSink(DiskFolder(lake), "g", {}), flush_s=3600.0)
        run = asyncio.create_task(runner.run())
        await has_waiting_rows(runner, 100)
        await store.accept(uploads_of(6, 10))
        await send_as_another(path, ParquetSink(DiskFolder(lake), "g", {}))
        await balances.next()
        await store.accept(uploads_of(11, 15))
        await has_waiting_rows(runner, 100)
        assert {row.received.seq for row in runner._rows} == set(range(11, 16))
        runner.stop()
        await run
        await runner_of(store, ParquetSink(DiskFolder(lake), "g", {})).run(once=True)
    assert keys_in(lake) == sorted(keys_of(uploads_of(1, 15)))


@pytest.mark.asyncio
async def test_a_member_that_has_its_devices_again_sends_nothing_that_another_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least once to a target that keeps repetitions: only the write in progress may be repeated."""
    path, gate, is_open = tmp_path / "uploads.db", Gate(), Gate()
    is_open.opened.set()
    keys: list[str] = []
    async with asyncio.timeout(60), open_uploads(path, create=True) as store:
        balances = Balances(store, monkeypatch)
        await store.accept(uploads_of(1, 5))
        runner = runner_of(store, ListSink(keys, gate))
        async with running(runner) as run:
            await gate.reached.wait()
            await store.accept(uploads_of(6, 10))
            await send_as_another(path, ListSink(keys, is_open))
            await balances.next()
            gate.opened.set()
            await store.accept(uploads_of(11, 15))
            await sent_all(store, run)
    assert sorted(keys) == sorted([*keys_of(uploads_of(1, 15)), *keys_of(uploads_of(1, 5))])


@pytest.mark.asyncio
async def test_a_store_that_went_back_is_found_by_a_member_that_has_its_devices_again(tmp_path: Path) -> None:
    path, lake, gate = tmp_path / "uploads.db", tmp_path / "lake", Gate()

    def of_another_history(uploads: list[Received]) -> list[Received]:
        return [one._replace(epoch="e2") for one in uploads]

    gate.opened.set()
    async with asyncio.timeout(60), open_uploads(path, create=True) as store:
        await store.accept(uploads_of(1, 5))
        async with open_uploads(tmp_path / "backup.db", create=True) as backup:
            await backup.accept(uploads_of(1, 5))
            await backup.join_group("g", "latest")
            await backup.accept(of_another_history(uploads_of(1, 15)))
        runner = runner_of(store, ParquetSink(GatedFolder(lake, gate), "g", {}))
        run = asyncio.create_task(runner.run())
        await sent_all(store, run)
        await store.accept(uploads_of(6, 10))
        await sent_all(store, run)
        await store.accept(uploads_of(11, 15))
        await send_as_another(path, ParquetSink(DiskFolder(lake), "g", {}))
        await store.accept(uploads_of(16, 20))
        await sent_all(store, run)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.move(tmp_path / "backup.db", path)
        with pytest.raises(SinkError, match="went back to a backup"):
            await run
    assert keys_in(lake) == sorted(keys_of(uploads_of(1, 20)))
