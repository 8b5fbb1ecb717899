import asyncio
import contextlib
import dataclasses
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.sim.postgres_server import PostgresServer
from tests.sim.release_world import table_of
from walle.cloud.api.releases import error_status
from walle.deploy.releases.journal import Journal, PendingEffect
from walle.deploy.releases.release import Effect, Release, ReleaseState, Rollback, Start, advance
from walle.deploy.releases.request import ReleaseRequest
from walle.store.errors import StateError


def _release(number: int = 1) -> Release:
    return Release(
        id=f"ipv-v1-{number}",
        number=number,
        request=ReleaseRequest(scenario="shop", task="ipv", version="v1"),
        created_s=5.0,
        updated_s=5.0,
    )


type Again = Callable[[], AbstractAsyncContextManager[Journal]]


class JournalContract:
    """Tests of every journal; `again`, which opens it once more, is a fixture of its subclasses."""

    path: str  # shown in errors

    @pytest_asyncio.fixture
    async def journal(self, again: Again) -> AsyncIterator[Journal]:
        async with again() as opened:
            yield opened

    @pytest.mark.asyncio
    async def test_a_transition_is_kept_with_its_event_and_effects(self, journal: Journal, again: Again) -> None:
        release = _release()
        assert await journal.record(release, None, ()) == ()
        event = Start(6.0)
        started, effects = advance(release, event)
        (pending,) = await journal.record(started, event, effects)
        assert pending == PendingEffect(1, release.id, Effect.RUN_SIMULATION)
        event_2 = Rollback(7.0, "anna", "no")
        over, effects = advance(started, event_2)
        await journal.record(over, event_2, effects)
        async with again() as other:
            assert await other.releases() == [over]
            assert [one.effect for one in await other.pending()] == [
                Effect.RUN_SIMULATION,
                Effect.PUBLISH,
                Effect.SET_GATE,
            ]
            history = await other.history(release.id)
        assert [(one.event, one.state, one.at_s) for one in history] == [
            ("Create", "created", 5.0),
            ("Start", "simulating", 6.0),
            ("Rollback", "rolled_back", 7.0),
        ]
        assert history[2].details == {"at_s": 7.0, "by": "anna", "reason": "no"}
        await journal.strike(pending)
        assert [one.effect for one in await journal.pending()] == [Effect.PUBLISH, Effect.SET_GATE]

    @pytest.mark.asyncio
    async def test_the_history_says_who_created_a_release(self, journal: Journal, again: Again) -> None:
        release = dataclasses.replace(_release(), created_by="anna")
        await journal.record(release, None, ())
        async with again() as other:
            assert await other.releases() == [release]
            (created,) = await other.history(release.id)
        assert (created.event, created.details) == ("Create", {"by": "anna"})

    @pytest.mark.asyncio
    async def test_counters_never_give_a_number_twice(self, journal: Journal, again: Again) -> None:
        assert await journal.draw("serial", 4) == 1
        assert await journal.draw("release") == 1
        async with again() as other:
            assert await other.draw("serial") == 5
        firsts = await asyncio.gather(*(journal.draw("serial", 3) for _ in range(20)))
        assert sorted(firsts) == list(range(6, 66, 3))

    @pytest.mark.asyncio
    async def test_rows_and_evidence_are_kept(self, journal: Journal, again: Again) -> None:
        (row,) = table_of(ipv="v1").rows.values()
        await journal.save_row(row)
        (newer,) = table_of(ipv="v2").rows.values()
        await journal.save_row(newer)
        await journal.save_evidence({"r1": {"ok": 1}, "r2": {"ok": 2}})
        await journal.save_evidence({"r1": {"ok": 3}})
        async with again() as other:
            assert await other.rows() == [newer]
            assert await other.evidence() == {"r1": {"ok": 3}, "r2": {"ok": 2}}

    @pytest.mark.asyncio
    async def test_a_transition_is_written_whole_or_not_at_all(self, journal: Journal, again: Again) -> None:
        await journal.record(_release(1), None, ())
        clash = dataclasses.replace(_release(2), number=1, state=ReleaseState.GRAY)  # the number is taken
        with pytest.raises(StateError, match=r"(?i)unique") as caught:
            await journal.record(clash, Start(1.0), (Effect.PUBLISH,))
        assert caught.value.path == self.path
        assert await journal.releases() == [_release(1)]
        assert await journal.pending() == []
        assert await journal.history(clash.id) == []
        await journal.record(_release(2), None, ())

    @pytest.mark.asyncio
    async def test_a_cancelled_writer_leaves_a_whole_transaction_behind(self, journal: Journal, again: Again) -> None:
        for number in range(1, 31):
            writer = asyncio.ensure_future(journal.record(_release(number), None, (Effect.PUBLISH, Effect.SET_GATE)))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer
        releases = await journal.releases()
        pending = await journal.pending()
        assert len(pending) == 2 * len(releases)
        assert {one.release_id for one in pending} == {release.id for release in releases}

    @pytest.mark.asyncio
    async def test_the_latest_batches_are_kept_whatever_their_ids_have(self, journal: Journal, again: Again) -> None:
        await journal.save_evidence({"r": 1}, [("d", f"b{number}") for number in range(5)], keep=3)
        await journal.save_evidence({"r": 2}, [("d\0", "half")], keep=3)
        async with again() as other:
            assert await other.batches() == [("d", "b3"), ("d", "b4"), ("d\0", "half")]


class TestSqliteJournal(JournalContract):
    @pytest_asyncio.fixture
    async def again(self, tmp_path: Path) -> Again:
        self.path = str(tmp_path / "journal.sqlite")
        return lambda: Journal.in_file(Path(self.path), reserve_bytes=0)


class TestPostgresJournal(JournalContract):
    @pytest_asyncio.fixture
    async def again(self, postgres: PostgresServer) -> Again:
        dsn = self.path = postgres.make_database()
        return functools.partial(postgres_journal, dsn)


@contextlib.asynccontextmanager
async def postgres_journal(dsn: str) -> AsyncIterator[Journal]:
    from walle.store.postgres_database import PostgresDatabase

    async with PostgresDatabase(dsn) as database:
        yield Journal(database)


@pytest_asyncio.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    async with Journal.in_file(tmp_path / "journal.sqlite", reserve_bytes=0) as opened:
        yield opened


@pytest.mark.asyncio
async def test_a_full_disk_is_an_error_that_passes(journal: Journal) -> None:
    await journal.record(_release(1), None, ())
    (pages,) = await journal._database.read("PRAGMA page_count")
    await journal._database.read(f"PRAGMA max_page_count = {pages[0]}")
    with pytest.raises(StateError, match="full; free some space") as caught:
        await journal.save_evidence({str(number): "x" * 10_000 for number in range(50)})
    assert await journal.evidence() == {}
    await journal._database.read("PRAGMA max_page_count = 100000")
    await journal.save_evidence({"r": 1})
    assert await journal.evidence() == {"r": 1}
    assert caught.value.is_full
    assert error_status(caught.value) == 507


@pytest.mark.asyncio
async def test_the_reserve_holds_transitions_in_the_file_and_its_log_that_the_disk_has_no_room_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.sqlite"
    for _ in range(2):  # a reserve that is there is used again
        async with Journal.in_file(path, reserve_bytes=1 << 20) as journal:
            sizes = [file.stat().st_size for file in (path, path.with_name("journal.sqlite-wal"))]
            assert all(1 << 20 < size < 5 << 19 for size in sizes)
            (pages,) = await journal._database.read("PRAGMA page_count")
            await journal._database.read(f"PRAGMA max_page_count = {pages[0]}")
            await journal.save_evidence({str(number): "x" * 10_000 for number in range(50)})
            await journal.save_evidence({str(number): "" for number in range(50)})
            assert sizes == [file.stat().st_size for file in (path, path.with_name("journal.sqlite-wal"))]


@pytest.mark.asyncio
async def test_the_error_names_a_file_that_is_not_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_text("this is not a database, and long enough to be sure of it" * 40)
    with pytest.raises(StateError, match=r"journal\.sqlite: file is not a database"):
        await Journal.in_file(path).__aenter__()
    with pytest.raises(StateError, match="unable to open"):
        await Journal.in_file(tmp_path / "nowhere" / "journal.sqlite").__aenter__()
    with pytest.raises(StateError, match="is not open"):
        await Journal.in_file(path).releases()


@pytest.mark.asyncio
async def test_another_process_may_read_meanwhile(journal: Journal, tmp_path: Path) -> None:
    await journal.record(_release(), None, ())
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite")) as other:
        assert other.execute("SELECT count(*) FROM releases").fetchone() == (1,)
