"""The watch of a cloud's database: outages, leases, a full disk."""

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest

from tests.sim.postgres_server import postgres_server
from tests.sim.shop_cloud import until
from walle.base.clock import ManualClock, SystemClock
from walle.cloud.folder.folder import CloudHome
from walle.cloud.telemetry.database_watch import DatabaseWatch

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

from walle.store.lease import MONITOR, RELEASES, LeaseState
from walle.store.postgres_connection import outage_of, without_password
from walle.store.postgres_database import DatabaseError, PostgresDatabase
from walle.store.postgres_leases import PostgresLeases

_URL = "postgresql://me@watched/state"


class ScriptedDatabase(PostgresDatabase):
    """A database without a server: it answers with `leases` by name, refuses, or is silent."""

    leases: dict[str, tuple[str, int, float]]
    refusal: str
    is_silent: bool
    opened: int

    async def __aenter__(self) -> Self:
        self._answer()
        type(self).opened += 1
        return self

    async def read(self, query: str, *values: object) -> list[Any]:
        if self.is_silent:
            await asyncio.Event().wait()
        self._answer()
        return [self.leases[str(name)] for name in values if name in self.leases]

    def _answer(self) -> None:
        if self.refusal:
            raise DatabaseError(_URL, self.refusal)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedDatabase]:
    class Scripted(ScriptedDatabase):
        leases = {RELEASES: ("node-a", 4, 7.5)}  # noqa: RUF012 a new class for each test
        refusal = ""
        is_silent = False
        opened = 0

    monkeypatch.setattr("walle.store.postgres_database.PostgresDatabase", Scripted)
    return Scripted


def measured(watch: DatabaseWatch) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in watch.metrics()}


@pytest.mark.asyncio
async def test_an_outage_is_counted_once_and_ends_with_the_next_answer(
    tmp_path: Path, database: type[ScriptedDatabase]
) -> None:
    clock = ManualClock()
    watch = DatabaseWatch(CloudHome(tmp_path, database=_URL), clock)
    assert await watch.leases() is None, "before the first look"
    running = asyncio.create_task(watch.run())
    try:
        await clock.advance(0.0)
        assert await watch.leases() == {RELEASES: LeaseState("node-a", 4, 7.5)}
        assert (watch.health()["ok"], watch.health()["away_s"]) == (True, 0.0)
        database.refusal = "refused"
        for away_s in (2.0, 4.0, 6.0):
            await clock.advance(2.0)
            health = watch.health()
            assert (health["ok"], health["error"], health["away_s"]) == (False, "refused", away_s)
            assert await watch.leases() is None, "what was found before may be wrong"
        assert measured(watch)["walle_database_up"] == 0
        assert measured(watch)["walle_database_outages"] == 1
        database.refusal, database.leases = "", {MONITOR: ("node-b", 1, 9.0)}
        await clock.advance(2.0)
        assert (watch.health()["ok"], watch.health()["error"]) == (True, "")
        assert await watch.leases() == {MONITOR: LeaseState("node-b", 1, 9.0)}
        assert measured(watch)["walle_database_up"] == 1
        assert database.opened == 2, "connections of before the outage are not used again"
        database.refusal = "refused again"
        await clock.advance(2.0)
        assert measured(watch)["walle_database_outages"] == 2
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_database_that_does_not_answer_is_away_after_the_time_of_a_late_look(
    tmp_path: Path, database: type[ScriptedDatabase]
) -> None:
    clock = ManualClock()
    watch = DatabaseWatch(CloudHome(tmp_path, database=_URL), clock)
    running = asyncio.create_task(watch.run())
    try:
        await clock.advance(0.0)
        database.is_silent = True
        await clock.advance(8.0)
        assert watch.health()["ok"]
        assert await watch.leases() is not None
        await clock.advance(0.5)
        health = watch.health()
        assert (health["ok"], health["error"], health["away_s"]) == (False, "does not answer", 8.5)
        assert await watch.leases() is None
        assert measured(watch)["walle_database_up"] == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_full_disk_is_shown_while_the_database_answers(
    tmp_path: Path, database: type[ScriptedDatabase]
) -> None:
    clock = ManualClock()
    url = f"{_URL}-{tmp_path.name}"  # outages are kept by place
    watch = DatabaseWatch(CloudHome(tmp_path, database=url), clock)
    running = asyncio.create_task(watch.run())
    try:
        await clock.advance(0.0)
        outage_of(without_password(url)).full()
        assert (watch.health()["ok"], watch.health()["error"]) == (False, "its disk is full")
        assert measured(watch)["walle_database_up"] == 1
        database.refusal = "refused"
        await clock.advance(2.0)
        assert watch.health()["error"] == "refused", "an outage goes before a full disk"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.night
@pytest.mark.asyncio
async def test_an_outage_is_shown_while_it_lasts(tmp_path: Path) -> None:
    with postgres_server() as server:
        dsn = server.dsn()
        watch = DatabaseWatch(CloudHome(tmp_path, database=dsn), SystemClock())
        running = asyncio.create_task(watch.run())

        async def has_leases() -> bool:
            return bool(await watch.leases())

        async with PostgresDatabase(dsn) as database:
            assert await PostgresLeases(database).acquire("monitor", "me", 60) is not None
        await until(has_leases)
        assert [metric.samples[0].value for metric in watch.metrics()][::2] == [1, 0]
        server.stop()
        await until(lambda: not watch.health()["ok"])
        assert watch.health()["away_s"] > 0
        assert await watch.leases() is None
        assert [metric.samples[0].value for metric in watch.metrics()][::2] == [0, 1]
        server.start()
        await until(lambda: bool(watch.health()["ok"]))
        assert await has_leases()
        assert watch.health()["error"] == ""
        outage_of(without_password(dsn)).full()
        assert watch.health()["error"] == "its disk is full"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
