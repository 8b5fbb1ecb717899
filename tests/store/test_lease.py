"""Leases: one holder at a time, and a holder that another one replaced writes nothing. One class for both stores."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.postgres_server import PostgresServer, postgres_server
from walle.base.clock import Clock, ManualClock, SystemClock
from walle.deploy.releases.journal import Journal
from walle.store.errors import StateError
from walle.store.lease import Grant, LeaseKeeper, LeaseLostError, Leases
from walle.store.sqlite_leases import SqliteLeases

# What a process does that is stopped while it has the lease: it says so, waits for a line, and writes.
HOLDER = """
import asyncio, sys
from tests.store.test_lease import {maker}
from walle.store.lease import LeaseLostError

async def main(place):
    async with {maker}(place) as leases:
        grant = await leases.acquire("releases", "stopped", 0.2)
        print(grant.fence, flush=True)
        sys.stdin.readline()
        async with leases.journal(grant) as journal:
            try:
                print(await journal.draw("serial"), flush=True)
            except LeaseLostError as error:
                print(error, flush=True)

asyncio.run(main(sys.argv[1]))
"""


class Store:
    """Leases of one database, and journals in it."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.acquire, self.renew, self.release = leases.acquire, leases.renew, leases.release
        self.state = leases.state

    def journal(self, grant: Grant | None) -> AbstractAsyncContextManager[Journal]:
        raise NotImplementedError


class SqliteStore(Store):
    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(SqliteLeases(path, clock=clock))
        self.path = path

    def journal(self, grant: Grant | None) -> AbstractAsyncContextManager[Journal]:
        return Journal.in_file(self.path, grant=grant, reserve_bytes=0)


@contextlib.asynccontextmanager
async def sqlite_store(place: str) -> AsyncIterator[Store]:
    yield SqliteStore(Path(place), SystemClock())


@contextlib.asynccontextmanager
async def postgres_store(place: str, *, clock: Clock | None = None) -> AsyncIterator[Store]:
    from walle.store.postgres_database import PostgresDatabase
    from walle.store.postgres_leases import PostgresLeases

    class PostgresStore(Store):
        def journal(self, grant: Grant | None) -> AbstractAsyncContextManager[Journal]:
            return Journal(database, grant=grant)

    async with PostgresDatabase(place, clock=clock) as database:
        yield PostgresStore(PostgresLeases(database))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("acquire", "renew", "release", "write")), st.sampled_from("ab"), st.sampled_from((0.0, 60.0))
    ),
    max_size=25,
)


class LeaseContract:
    """Tests of every store of leases. A lease of no length has ended at once.

    `place`, where the store is, is a fixture of its subclasses.
    """

    store: str  # the function of this module that opens it

    def opened(self, place: str) -> AbstractAsyncContextManager[Store]:
        found: AbstractAsyncContextManager[Store] = globals()[self.store](place)
        return found

    @pytest.mark.asyncio
    async def test_a_lease_has_one_holder_until_it_ends_or_is_released(self, place: str) -> None:
        async with self.opened(place) as store:
            assert await store.state("releases") is None
            first = await store.acquire("releases", "a", 60)
            assert first == Grant("releases", "a", 1)
            assert await store.acquire("releases", "b", 60) is None
            other = await store.acquire("monitor", "b", 60)
            assert other == Grant("monitor", "b", 1)
            found = await store.state("releases")
            assert found is not None
            assert (found.holder, found.fence) == ("a", 1)
            assert 50 < found.left_s <= 60
            await store.renew(first, 0)  # the lease has ended
            second = await store.acquire("releases", "b", 60)
            assert second == Grant("releases", "b", 2)
            with pytest.raises(LeaseLostError, match="b has it"):
                await store.renew(first, 60)
            await store.release(first)  # the holder has changed
            assert await store.acquire("releases", "a", 60) is None
            await store.release(second)
            assert await store.acquire("releases", "a", 60) == Grant("releases", "a", 3)
            with pytest.raises(LeaseLostError):
                await store.renew(second, 60)

    @pytest.mark.asyncio
    async def test_an_expired_lease_stays_with_its_holder_until_another_takes_it(self, place: str) -> None:
        async with self.opened(place) as store:
            grant = await store.acquire("releases", "a", 0)
            assert grant is not None
            async with store.journal(grant) as journal:
                assert await journal.draw("serial") == 1
            await store.renew(grant, 60)
            assert await store.acquire("releases", "b", 60) is None

    def test_two_holders_write_never_both(self, place: str) -> None:
        number = 0

        @settings(max_examples=25, deadline=None, database=None)
        @given(operations=OPERATIONS)
        def run(operations: list[tuple[str, str, float]]) -> None:
            nonlocal number
            number += 1
            asyncio.run(self._play(place, f"lease-{number}", operations))

        run()

    async def _play(self, place: str, name: str, operations: list[tuple[str, str, float]]) -> None:
        grants: dict[str, Grant] = {}
        current, has_ended, fence = "", True, 0
        async with self.opened(place) as store:
            for operation, holder, life_s in operations:
                if operation == "acquire":
                    grant = await store.acquire(name, holder, life_s)
                    assert (grant is not None) == has_ended
                    if grant is not None:
                        fence += 1
                        assert grant == Grant(name, holder, fence)
                        grants[holder], current, has_ended = grant, holder, life_s == 0
                elif holder not in grants:
                    continue
                elif operation == "write":
                    async with store.journal(grants[holder]) as journal:
                        with contextlib.nullcontext() if holder == current else pytest.raises(LeaseLostError):
                            await journal.confirm()
                elif operation == "release":
                    await store.release(grants[holder])
                    if holder == current:
                        current, has_ended = "", True
                else:
                    with contextlib.nullcontext() if holder == current else pytest.raises(LeaseLostError):
                        await store.renew(grants[holder], life_s)
                    if holder == current:
                        has_ended = life_s == 0

    @pytest.mark.asyncio
    async def test_a_journal_without_the_lease_writes_nothing(self, place: str) -> None:
        async with self.opened(place) as store:
            old = await store.acquire("releases", "a", 0)
            async with store.journal(old) as journal:
                assert await journal.draw("serial") == 1
                new = await store.acquire("releases", "b", 60)
                for write in (
                    journal.draw("serial"),
                    journal.save_evidence({"r": 1}, [("d", "b")], keep=10),
                    journal.confirm(),
                ):
                    with pytest.raises(LeaseLostError, match="b has it"):
                        await write
                assert await journal.evidence() == {}  # reads go on
                assert await journal.batches() == []
            async with store.journal(new) as journal:
                assert await journal.draw("serial") == 2

    def test_a_holder_that_was_stopped_while_another_took_its_lease_writes_nothing(self, place: str) -> None:
        script = HOLDER.format(maker=self.store)
        with subprocess.Popen(
            [sys.executable, "-c", script, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as stopped:
            try:
                assert stopped.stdin is not None
                assert stopped.stdout is not None
                assert stopped.stdout.readline() == "1\n"
                os.kill(stopped.pid, signal.SIGSTOP)

                async def take_over() -> int:
                    async with self.opened(place) as store:
                        grant = None
                        while grant is None:
                            grant = await store.acquire("releases", "next", 60)
                        async with store.journal(grant) as journal:
                            await journal.draw("serial")
                        return grant.fence

                assert asyncio.run(asyncio.wait_for(take_over(), 60)) == 2
                os.kill(stopped.pid, signal.SIGCONT)
                stopped.stdin.write("write\n")
                stopped.stdin.flush()
                assert "lease 'releases' is lost: next has it" in stopped.stdout.readline()
            finally:
                stopped.kill()

        async def drawn() -> int:
            async with self.opened(place) as store, store.journal(None) as journal:
                return await journal.draw("serial")

        assert asyncio.run(drawn()) == 2

    @pytest.mark.asyncio
    async def test_a_standby_takes_over_when_the_holder_ends(
        self, place: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with self.opened(place) as one, self.opened(place) as other:
            standby = LeaseKeeper(other.leases, "releases", SystemClock(), standby_s=0.01)
            async with LeaseKeeper(one.leases, "releases", SystemClock()) as keeper:
                waiting = asyncio.create_task(standby.__aenter__())
                while "standby" not in caplog.text:
                    await one.state("releases")
                assert not waiting.done()
                assert keeper.grant.holder in caplog.text
            async with asyncio.timeout(60):
                await waiting
            assert standby.grant.fence == keeper.grant.fence + 1
            await standby.__aexit__()

    @pytest.mark.asyncio
    async def test_a_successor_waits_only_for_its_predecessor(self, place: str) -> None:
        async with self.opened(place) as store:
            assert await store.acquire("releases", "predecessor", 0.2) is not None
            clock = SystemClock()
            async with LeaseKeeper(store.leases, "releases", clock, is_successor=True, standby_s=0.01) as keeper:
                assert keeper.grant.fence == 2
            assert await store.acquire("releases", "thief", 60) is not None
            refused = LeaseKeeper(store.leases, "releases", clock, is_successor=True, life_s=0.2, standby_s=0.01)
            with pytest.raises(LeaseLostError, match="thief has it"):
                async with asyncio.timeout(60):
                    await refused.__aenter__()

    @pytest.mark.asyncio
    async def test_a_keeper_says_when_its_lease_is_lost(self, place: str, caplog: pytest.LogCaptureFixture) -> None:
        async with self.opened(place) as store:
            clock = ManualClock()
            async with LeaseKeeper(store.leases, "releases", clock, life_s=10) as keeper:
                await store.renew(keeper.grant, 0)  # the keeper seems to have stopped
                thief = await store.acquire("releases", "thief", 60)
                async with asyncio.timeout(60):
                    while not keeper.lost.is_set():
                        await clock.advance(2)
                        await store.state("releases")
            assert "thief has it; nothing was written" in caplog.text
            assert thief is not None
            await store.renew(thief, 60)  # leaving did not release the thief's lease


class TestSqliteLeases(LeaseContract):
    store = "sqlite_store"

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return str(tmp_path / "releases.db")

    def test_the_lease_of_a_process_that_was_killed_is_free_at_once(self, place: str) -> None:
        script = HOLDER.format(maker=self.store).replace("0.2", "3600")
        with subprocess.Popen(
            [sys.executable, "-c", script, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "1\n"
            leases = SqliteLeases(Path(place))
            assert asyncio.run(leases.acquire("releases", "next", 60)) is None
            holder.kill()
        assert asyncio.run(leases.acquire("releases", "next", 60)) == Grant("releases", "next", 2)
        assert [path.name for path in Path(place).parent.glob("*.lock")] == ["releases.db-releases-2.lock"]

    def test_a_holder_keeps_its_lease_on_a_full_disk(self, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
        mounted = subprocess.run(mount, capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
        try:
            leases = SqliteLeases(disk / "releases.db")
            grant = asyncio.run(leases.acquire("releases", "a", 60))
            assert grant is not None
            with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            with pytest.raises(StateError) as caught:
                asyncio.run(leases.acquire("monitor", "a", 60))
            assert caught.value.is_full
            asyncio.run(leases.renew(grant, 60))
            with pytest.raises(LeaseLostError):
                asyncio.run(leases.renew(dataclasses.replace(grant, fence=2), 60))
            (disk / "full").unlink()
            asyncio.run(leases.release(grant))
        finally:
            subprocess.run(["umount", disk], check=True)

    @pytest.mark.asyncio
    async def test_a_lease_that_cannot_be_renewed_for_its_life_is_lost(self, place: str) -> None:
        class Unreachable(SqliteLeases):
            is_down = False

            async def renew(self, grant: Grant, life_s: float) -> None:
                if self.is_down:
                    raise StateError("there", "is not reached")
                await super().renew(grant, life_s)

        clock, leases = ManualClock(), Unreachable(Path(place))
        async with LeaseKeeper(leases, "releases", clock, life_s=10) as keeper:
            leases.is_down = True
            for _ in range(4):
                await clock.advance(2)
            assert not keeper.lost.is_set()
            await clock.advance(4)
            assert keeper.lost.is_set()


class TestPostgresLeases(LeaseContract):
    store = "postgres_store"

    @pytest.fixture
    def place(self, postgres: PostgresServer) -> str:
        return postgres.make_database()

    @pytest.mark.asyncio
    async def test_times_are_those_of_the_server(self, place: str) -> None:
        """A machine whose clock is a day ahead or behind takes no lease before its time, and keeps none longer."""
        async with self.opened(place) as store:
            assert await store.acquire("releases", "a", 60) is not None
        clock = ManualClock(start_s=4e9)
        async with postgres_store(place, clock=clock) as ahead:
            assert await ahead.acquire("releases", "b", 60) is None
            found = await ahead.state("releases")
            assert found is not None
            assert found.left_s <= 60

    @pytest.mark.asyncio
    async def test_a_lease_is_not_taken_while_a_write_of_its_holder_is_uncommitted(self, place: str) -> None:
        from walle.store.postgres_database import Connection, PostgresDatabase

        async with PostgresDatabase(place) as database, self.opened(place) as other:
            grant = await other.acquire("releases", "a", 0)
            is_writing, may_commit = asyncio.Event(), asyncio.Event()

            async def slowly(connection: Connection) -> None:
                is_writing.set()
                await may_commit.wait()

            writing = asyncio.create_task(database.write(slowly, grant=grant))
            await is_writing.wait()
            taking = asyncio.create_task(other.acquire("releases", "b", 60))
            waits = "wait_event_type = 'Lock' AND datname = current_database()"
            waiting = f"SELECT count(*) FROM pg_stat_activity WHERE {waits}"
            async with asyncio.timeout(60):
                while not (await database.read(waiting))[0][0]:
                    await asyncio.wait([taking], timeout=0.01)
            assert not taking.done()
            may_commit.set()
            await writing
            assert await taking == Grant("releases", "b", 2)

    @pytest.mark.asyncio
    async def test_a_holder_continues_while_the_database_is_away_and_a_standby_waits(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with postgres_server() as server:
            async with asyncio.timeout(120), self.opened(server.dsn()) as one, self.opened(server.dsn()) as other:
                clock = ManualClock()
                async with LeaseKeeper(one.leases, "releases", clock, life_s=10) as keeper:
                    server.stop()
                    standby = LeaseKeeper(other.leases, "releases", SystemClock(), standby_s=0.01)
                    waiting = asyncio.create_task(standby.__aenter__())
                    for _ in range(10):
                        await clock.advance(2)
                        await asyncio.sleep(0.3)
                    assert not keeper.lost.is_set()
                    assert not waiting.done()
                    server.start()
                    while True:  # the first to ask has it then: the lease has ended
                        await clock.advance(2)
                        if keeper.lost.is_set() or "standby: " in caplog.text:
                            break
                        await asyncio.sleep(0.05)
                await waiting
                assert standby.grant.fence == 2
                await standby.__aexit__()
