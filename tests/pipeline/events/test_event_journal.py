"""The event journal: what was appended is replayed, after kills, torn ends, flipped bits and full disks."""

import asyncio
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from walle.base.clock import ManualClock
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_journal import MAGIC, EventJournal, EventJournalError
from walle.pipeline.events.ticks import Tick


def event(number: int) -> Event:
    return Event("click", f"page/{number % 7}", 1_000 + number, {"item": f"i{number}", "list": [1, 2.5, None]})


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def replayed(journal: EventJournal, start: int = 0) -> list[tuple[int, Event | Tick]]:
    return [found async for found in journal.replay(start)]


@pytest.mark.asyncio
async def test_events_are_replayed_by_position_also_after_reopening(tmp_path: Path) -> None:
    async with EventJournal(tmp_path / "events") as journal:
        assert [journal.append(event(i)) for i in range(10)] == list(range(10))
        assert await replayed(journal, 7) == [(i, event(i)) for i in (7, 8, 9)]
    async with EventJournal(tmp_path / "events") as journal:
        assert journal.next_position == 10
        assert journal.append(event(10)) == 10
        assert await replayed(journal) == [(i, event(i)) for i in range(11)]


@pytest.mark.asyncio
async def test_files_begin_at_a_size_and_go_when_no_event_of_theirs_is_needed(tmp_path: Path) -> None:
    async with EventJournal(tmp_path, segment_bytes=500) as journal:
        for i in range(100):
            journal.append(event(i))
        assert len(files(tmp_path)) >= 10
        journal.trim(50)
        assert journal.first_position <= 50
        assert [position for position, _ in await replayed(journal, 50)] == list(range(50, 100))
        journal.trim(1_000_000)
        (file,) = files(tmp_path)
        assert journal.size_bytes == file.stat().st_size
    async with EventJournal(tmp_path) as journal:
        assert journal.next_position == 100


@pytest.mark.asyncio
async def test_a_file_that_cannot_be_removed_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    async with EventJournal(tmp_path, segment_bytes=500) as journal:
        for i in range(100):
            journal.append(event(i))
        before = files(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", fail)
            journal.trim(100)
        assert files(tmp_path) == before
        assert "cannot be removed" in caplog.text
        assert len(await replayed(journal)) == 100
        journal.trim(100)
        assert len(files(tmp_path)) == 1


@pytest.mark.asyncio
async def test_a_store_that_is_ahead_sets_the_next_position(tmp_path: Path) -> None:
    async with EventJournal(tmp_path) as journal:
        journal.append(event(0))
    journal = await EventJournal(tmp_path).start(40)
    try:
        assert journal.append(event(40)) == 40
        assert await replayed(journal) == [(0, event(0)), (40, event(40))]
        lost = 39  # positions that the lost end of the journal had
        assert (journal.counts.missing, journal.counts.damaged) == (lost, 0)
    finally:
        await journal.close()


@pytest.mark.asyncio
async def test_an_interrupted_write_is_cut_off_and_the_journal_continues(tmp_path: Path) -> None:
    async with EventJournal(tmp_path) as journal:
        for i in range(5):
            journal.append(event(i))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        async with EventJournal(tmp_path) as journal:
            kept = await replayed(journal)
            assert kept == [(i, event(i)) for i in range(len(kept))]
            assert journal.append(event(99)) == len(kept)
            assert (await replayed(journal))[-1] == (len(kept), event(99))
            assert journal.counts.damaged == 0


@pytest.mark.asyncio
async def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    async with EventJournal(tmp_path, segment_bytes=300) as journal:
        for i in range(20):
            journal.append(event(i))
        expected = dict(await replayed(journal))
    rng = random.Random(7)
    for _ in range(200):
        file = rng.choice(files(tmp_path)[:-1])  # the last file is left out: its end may be cut off instead
        data = bytearray(file.read_bytes())
        at = rng.randrange(len(data) * 8)
        data[at // 8] ^= 1 << at % 8
        intact, _ = file.read_bytes(), file.write_bytes(data)
        async with EventJournal(tmp_path) as journal:
            found = await replayed(journal)
            assert all(expected[position] == one for position, one in found)
            assert journal.counts.damaged == len(expected) - len(found) > 0
        file.write_bytes(intact)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_length", [True, False])
@pytest.mark.parametrize(("start", "needed_from"), [(2, 2), (6, 6), (0, 4), (0, 6), (3, 8)])
async def test_damage_before_what_is_needed_is_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: int, needed_from: int, *, is_length: bool
) -> None:
    async with EventJournal(tmp_path) as journal:
        sizes = [0]
        for i in range(8):
            journal.append(event(i))
            sizes.append(journal.size_bytes)
        journal.skip_to(10)  # the file before does not end the journal, and is not cut
        journal.append(event(10))
    data = bytearray(files(tmp_path)[0].read_bytes())
    data[sizes[5] + (3 if is_length else 12)] ^= 0x40  # byte of event 5: a wrong length loses those behind it
    files(tmp_path)[0].write_bytes(data)
    damaged = {5, 6, 7} if is_length else {5}
    gone = {8, 9} if not is_length else set()  # positions without an event
    async with EventJournal(tmp_path) as journal:
        for _ in range(2):
            found = [position async for position, _ in journal.replay(start, needed_from=needed_from)]
            assert found == [position for position in range(start, 11) if position not in damaged | {8, 9}]
        counted = sum(position >= needed_from for position in damaged | ({8, 9} if is_length else set()))
        assert journal.counts.damaged == counted
        assert journal.counts.missing == sum(position >= needed_from for position in gone)
    assert ("damaged" in caplog.text) == bool(counted)


@pytest.mark.asyncio
async def test_events_are_synced_within_the_interval_and_together(tmp_path: Path) -> None:
    clock = ManualClock()
    async with EventJournal(tmp_path, sync_interval_s=5.0, clock=clock) as journal:
        for i in range(10):
            journal.append(event(i))
        assert journal.counts.syncs == 0
        await clock.advance(5.0)
        await journal.sync()
        assert journal.counts.syncs == 1
        await clock.advance(60.0)
        assert journal.counts.syncs == 1  # nothing was new


@pytest.mark.asyncio
async def test_events_that_come_during_a_sync_wait_for_their_own_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with EventJournal(tmp_path, sync_interval_s=1.0, clock=clock) as journal:
        started, resume = threading.Event(), threading.Event()
        sync_file = os.fdatasync

        def slow_sync(handle: int) -> None:
            started.set()
            resume.wait(10)
            sync_file(handle)

        monkeypatch.setattr(os, "fdatasync", slow_sync)
        journal.append(event(0))
        await clock.advance(1.0)
        await asyncio.to_thread(started.wait, 10)
        journal.append(event(1))
        first = journal._syncing
        assert first is not None
        waiting = asyncio.create_task(journal.sync())  # for both events
        resume.set()
        await first
        await asyncio.sleep(0.05)
        assert journal.counts.syncs == 2
        await waiting
        started.clear()
        resume.clear()
        journal.append(event(2))
        await clock.advance(1.0)
        await asyncio.to_thread(started.wait, 10)
        journal.append(event(3))
        resume.set()
        await asyncio.sleep(0.1)
        assert journal.counts.syncs == 3  # nobody waits for the last event
        await clock.advance(1.0)
        last = journal._syncing
        assert last is not None
        await last
        assert journal.counts.syncs == 4


@pytest.mark.asyncio
async def test_files_that_a_failed_sync_left_are_synced_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync_file = os.fdatasync

    def failing_sync(handle: int) -> None:
        if not synced:
            synced.append("failed")
            raise OSError(errno.EIO, "Input/output error")
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync_file(handle)

    monkeypatch.setattr(os, "fdatasync", failing_sync)
    async with EventJournal(tmp_path, sync_interval_s=3600.0, segment_bytes=300) as journal:
        for i in range(20):
            journal.append(event(i))
        with pytest.raises(EventJournalError, match="cannot be synced"):
            await journal.sync()
        handles = open_files()
        await journal.sync()
        assert {file.name for file in files(tmp_path)} <= set(synced)
        assert (journal.counts.syncs, journal.counts.failed_syncs) == (1, 1)
        assert open_files() < handles  # those of the older files are closed
        synced.clear()
        for i in range(20):
            journal.append(event(i))
        with pytest.raises(EventJournalError, match="cannot be synced"):
            await journal.sync()
        handles = open_files()
        journal.trim(journal.next_position)
        assert open_files() < handles  # the removed files are closed
        synced.clear()
        synced.append("works again")
        await journal.sync()
        assert set(synced[1:]) == {file.name for file in files(tmp_path)}


@pytest.mark.asyncio
async def test_an_interval_of_zero_syncs_each_event(tmp_path: Path) -> None:
    async with EventJournal(tmp_path, sync_interval_s=0.0) as journal:
        for i in range(3):
            journal.append(event(i))
            await journal.synced()
            assert journal.counts.syncs == i + 1


@pytest.mark.asyncio
async def test_an_event_that_cannot_be_recorded_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with EventJournal(tmp_path, max_bytes=1000) as journal:
        with pytest.raises(EventError, match="contents"):
            journal.append(Event("click", "", 1, {"x": object()}))
        with pytest.raises(EventError, match="more than"):
            journal.append(Event("click", "", 1, {"x": "y" * 300_000}))
        empty = journal.size_bytes
        journal.append(event(0))
        each = journal.size_bytes - empty  # the next ones are no larger
        while journal.size_bytes + each <= 1000:
            journal.append(event(0))
        count = journal.next_position
        with pytest.raises(EventJournalError, match=r"is full.*from position 0"):
            journal.append(event(0))
        assert [position for position, _ in await replayed(journal)] == list(range(count))
    with pytest.raises(EventJournalError, match="is not open"):
        journal.append(event(0))


@pytest.mark.asyncio
async def test_a_full_disk_refuses_the_event_and_keeps_those_before(tmp_path: Path) -> None:
    async with EventJournal(tmp_path) as journal:
        for i in range(3):
            journal.append(event(i))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then fails like on a full disk
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (journal.size_bytes + 20, before[1]))  # room for half an event
            with pytest.raises(EventJournalError, match="cannot be written"):
                journal.append(event(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, old)
        assert journal.append(event(3)) == 3
        assert await replayed(journal) == [(i, event(i)) for i in range(4)]
    async with EventJournal(tmp_path) as journal:
        assert journal.counts.torn_bytes == 0


@pytest.mark.asyncio
async def test_another_format_is_refused_with_the_file_named(tmp_path: Path) -> None:
    (tmp_path / f"events-{0:020d}.log").write_bytes(b"WALLEEV9" + bytes(40))
    with pytest.raises(EventJournalError, match=r"events-0+\.log: has another format"):
        await EventJournal(tmp_path).start()
    assert (tmp_path / f"events-{0:020d}.log").read_bytes()[: len(MAGIC)] == b"WALLEEV9"


_WRITER = """
    import asyncio, sys
    from pathlib import Path
    from tests.pipeline.events.test_event_journal import event
    from walle.pipeline.events.event_journal import EventJournal

    async def main():
        async with EventJournal(Path(sys.argv[1]), segment_bytes=2000, sync_interval_s=3600) as journal:
            while True:
                position = journal.append(event(journal.next_position))
                print(position, flush=True)

    asyncio.run(main())
"""


def write_until_killed(folder: Path, events: int) -> int:
    """Append that many events in another process, kill it, and return the last position that it reported."""
    command = [sys.executable, "-c", textwrap.dedent(_WRITER), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as writer:
        assert writer.stdout is not None
        reported = [writer.stdout.readline() for _ in range(events)]
        writer.kill()
        reported += writer.stdout.read().splitlines(keepends=True)
    return max(int(line) for line in reported if line.endswith(b"\n"))


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(5))
async def test_a_killed_process_loses_no_event_that_append_returned_for(tmp_path: Path, seed: int) -> None:
    folder, rng = tmp_path / "events", random.Random(seed)
    for _ in range(2):
        last = await asyncio.to_thread(write_until_killed, folder, rng.randrange(1, 300))
        async with EventJournal(folder) as journal:
            assert journal.next_position in (last + 1, last + 2)  # the last one may have been written and not reported
            assert await replayed(journal) == [(i, event(i)) for i in range(journal.next_position)]
            assert journal.counts.damaged == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [1, 0])
async def test_half_an_event_that_cannot_be_cut_off_is_followed_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    def write_half(handle: int, data: bytes) -> None:
        os.write(handle, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    whole = [(position, event(position)) for position in range(before + 1)]
    async with EventJournal(tmp_path) as journal:
        for position in range(before):
            journal.append(event(position))
        with monkeypatch.context() as patched:
            patched.setattr("walle.pipeline.events.event_journal.write_all", write_half)
            patched.setattr(os, "truncate", fail)
            with pytest.raises(EventJournalError, match="cannot be written"):
                journal.append(event(99))
        assert journal.append(event(before)) == before
        journal.trim(0)
        assert await replayed(journal) == whole
    async with EventJournal(tmp_path) as journal:
        assert await replayed(journal) == whole
        assert journal.next_position == before + 1


@pytest.mark.asyncio
async def test_a_process_without_file_handles_syncs_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> int:
        raise OSError(24, "Too many open files")

    async with EventJournal(tmp_path, sync_interval_s=0.0) as journal:
        journal.append(event(0))
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", fail)
            with pytest.raises(EventJournalError, match="Too many open files") as failed:
                await journal.synced()
        assert failed.value.recorded
        assert (journal.counts.syncs, journal.counts.failed_syncs) == (0, 1)
        await journal.synced()
        assert journal.counts.syncs == 1


@pytest.mark.asyncio
async def test_positions_of_other_events_are_skipped_and_events_are_recorded_together(tmp_path: Path) -> None:
    async with EventJournal(tmp_path) as journal:
        assert journal.append_all([event(0), event(1)]) == 0
        journal.skip_to(2)  # the next one anyway
        assert len(files(tmp_path)) == 1
        journal.skip_to(10)
        journal.skip_to(5)
        assert journal.append_all([event(10), event(11)]) == 10
        with pytest.raises(EventError):
            journal.append_all([event(12), Event("click", "", 1, {"no": object()})])
    async with EventJournal(tmp_path) as journal:
        assert [position for position, _ in await replayed(journal)] == [0, 1, 10, 11]
        assert (journal.counts.missing, journal.counts.damaged) == (8, 0)
