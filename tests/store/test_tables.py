"""The list of tables: what a file and a server are made from it, columns that come later, and files of before."""

import asyncio
import contextlib
import dataclasses
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.access.identity.store import IdentityStore
from walle.base.clock import ManualClock
from walle.deploy.fleet.registry import DeviceRegistry
from walle.protocol import Failure, Outcome, OutcomeBatch, OutcomeKind
from walle.store.errors import StateError
from walle.store.file_connection import file_query
from walle.store.sqlite_file import SqliteFile, make_tables
from walle.store.tables import COUNTERS, EFFECTS, FILES, REVOKED, TABLES, Table

LATER = dataclasses.replace(EFFECTS, described=f"{EFFECTS.described}, weight int since=3 DEFAULT 7, note text? since=3")
FAILURE = Failure(error_type="KeyError", error="'a'", place="", traceback="", log="", count=1)


def columns_in(path: Path, table: Table) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (table.local,))]


def opened(path: Path, tables: Sequence[Table]) -> SqliteFile:
    file = SqliteFile(path, tables)
    file.open()
    return file


def test_every_file_has_its_tables_with_the_columns_of_the_list(tmp_path: Path) -> None:
    for name, tables in FILES.items():
        opened(tmp_path / name, tables)
        for table in tables:
            assert columns_in(tmp_path / name, table) == list(table.names)


def test_a_server_has_the_tables_with_the_columns_of_the_list(postgres: PostgresServer) -> None:
    from walle.store.sync_database import SyncDatabase

    query = "SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position"
    with contextlib.closing(SyncDatabase(postgres.make_database())) as database:
        for table in TABLES:
            assert [name for (name,) in database.read(query, table.name)] == list(table.names)


def test_a_later_column_may_have_an_index(tmp_path: Path) -> None:
    path = tmp_path / "releases.db"
    opened(path, [EFFECTS])
    with contextlib.closing(sqlite3.connect(path)) as db:
        make_tables(db, [dataclasses.replace(LATER, indexes=("effects_by_weight (weight)",))])
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'effects_by_weight'").fetchone() == (1,)


def test_a_file_gets_a_column_that_a_later_step_adds(tmp_path: Path) -> None:
    path = tmp_path / "releases.db"
    opened(path, [EFFECTS])
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO effects (release_id, effect) VALUES ('r1', 'publish')")
        db.commit()
        for _ in range(2):
            make_tables(db, [LATER])
        assert db.execute("SELECT * FROM effects").fetchall() == [(1, "r1", "publish", 7, None)]
    assert columns_in(path, LATER) == list(LATER.names)


def test_a_full_disk_at_the_first_start_of_a_newer_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "identities.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        make_tables(db, [EFFECTS])
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
        make_tables(db, [EFFECTS])  # writes nothing
        full = r"identities\.db: .* full, so that counters cannot be added, .*; free some space on the cloud's disk$"
        with pytest.raises(StateError, match=full):
            make_tables(db, [EFFECTS, COUNTERS])


def test_a_server_gets_a_column_that_a_later_step_adds(postgres: PostgresServer) -> None:
    from walle.store.postgres_database import Connection, PostgresDatabase
    from walle.store.postgres_schema import MIGRATIONS, Migration

    dsn, later = postgres.make_database(), Migration(3, "weights of effects", LATER.server_step(3))

    async def insert(connection: Connection) -> None:
        await connection.execute("INSERT INTO effects (release_id, effect) VALUES ('r1', 'publish')")

    async def run() -> list[tuple[object, ...]]:
        async with PostgresDatabase(dsn) as database:
            await database.write(insert)
        async with PostgresDatabase(dsn, migrations=[*MIGRATIONS, later]) as database:
            return [tuple(row) for row in await database.read("SELECT * FROM effects")]

    assert asyncio.run(run()) == [(1, "r1", "publish", 7, None)]
    assert LATER.server_step(1) == EFFECTS.server_step(1)  # a step that a database has had does not change


def test_numbers_of_a_file_of_a_version_before_are_not_given_again(tmp_path: Path) -> None:
    """It had them in the sequences and the user_version of SQLite."""
    path = tmp_path / "identities.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE tokens (
                hash TEXT PRIMARY KEY, device_id TEXT NOT NULL, uses_left INTEGER NOT NULL, expires_s REAL NOT NULL,
                purpose TEXT NOT NULL) STRICT, WITHOUT ROWID;
            CREATE TABLE identities (
                device_id TEXT PRIMARY KEY, generation INTEGER NOT NULL, public_key BLOB NOT NULL,
                enrolled_s REAL NOT NULL, expires_s REAL NOT NULL, seen_s REAL NOT NULL, revoked_s REAL,
                reason TEXT NOT NULL) STRICT, WITHOUT ROWID;
            CREATE TABLE revocations (
                version INTEGER PRIMARY KEY AUTOINCREMENT, device_id TEXT NOT NULL, lowest INTEGER NOT NULL,
                until_s REAL NOT NULL) STRICT;
            INSERT INTO revocations VALUES (41, 'gone', 2, 0);
            INSERT INTO identities VALUES ('a', 1, x'00', 1, 4e9, 1, NULL, '');
            PRAGMA user_version = 500;
        """)
    store = IdentityStore.in_file(path, clock=ManualClock()).open()
    assert store.revocations(0) == (0, {})
    assert store.certify("b", b"key", store.make_token(life_s=60.0), expires_s=4e9).generation == 500
    store.revoke("a", "stolen")
    assert store.revocations(0) == (43, {"a": 500, "b": 500})
    with contextlib.closing(sqlite3.connect(path)) as db:  # a version before revokes, without the counter
        more = ", ".join(columns_in(path, REVOKED)[2:])
        db.execute(
            f"INSERT INTO revocations SELECT version + 1, 'z', {more} FROM revocations ORDER BY version DESC LIMIT 1"
        )
        db.commit()
    store.revoke("b", "lost")
    assert store.revocations(0)[0] == 45
    store.follow_restore()
    again = IdentityStore.in_file(path, clock=ManualClock()).open()
    assert again.certify("c", b"key", again.make_token(life_s=60.0), expires_s=4e9).generation > 500


@pytest.mark.asyncio
async def test_failures_of_a_registry_of_a_version_before_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "devices.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE failures (
                number INTEGER PRIMARY KEY AUTOINCREMENT, device_id TEXT NOT NULL, task TEXT NOT NULL,
                version TEXT NOT NULL, release TEXT NOT NULL, kind TEXT NOT NULL, at_s REAL NOT NULL,
                failure TEXT NOT NULL) STRICT;
            INSERT INTO failures VALUES (12, 'a', 'shop/ipv', 'v1', 'r1', 'run', 0, '{}');
            DELETE FROM failures;
        """)
    outcome = Outcome(
        task="shop/ipv", version="v1", release="r1", kind=OutcomeKind.RUN, ok=0, failed=1, failures=(FAILURE,)
    )
    async with DeviceRegistry.in_file(path, ManualClock()) as registry:
        registry.take(OutcomeBatch("a", "b1", (outcome,)))
        assert [one.number for one in await registry.failures("a")] == [13]


def test_a_query_is_changed_for_a_file_where_it_must_be() -> None:
    query = "SELECT strpos(task, $2) FROM device_tasks WHERE device_id = ANY($1) AND ok > $3 FOR UPDATE"
    changed, values = file_query(query, (["a", "b"], "/", 5))
    assert changed == "SELECT instr(task, ?2) FROM tasks WHERE device_id IN (?1, ?4) AND ok > ?3"
    assert values == ["a", "/", 5, "b"]
    assert file_query("SELECT 1 WHERE 1 = ANY($1)", ([],)) == ("SELECT 1 WHERE 1 IN (?1)", [None])
    assert file_query(COUNTERS.insert(), ("a", 1)) == ("INSERT INTO counters (name, value) VALUES (?1, ?2)", ("a", 1))
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE devices (attributes TEXT)")
        db.execute("""INSERT INTO devices VALUES ('{"a": true, "b": 1, "c": 1.5, "d": "x"}')""")
        query = "SELECT a.key, a.value FROM devices AS d, jsonb_each_text(d.attributes::jsonb) AS a"
        assert db.execute(*file_query(query, ())).fetchall() == [("a", "true"), ("b", "1"), ("c", "1.5"), ("d", "x")]
