"""Move of a cloud's state to PostgreSQL, and its backup with pg_dump: nothing is lost, or nothing is moved."""

import asyncio
import contextlib
import hashlib
import json
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.sim.postgres_programs import postgres_program
from tests.sim.postgres_server import PostgresServer
from tests.sim.release_world import table_of
from walle.access.identity.refusals import IdentityRefusedError
from walle.base.clock import ManualClock, SystemClock
from walle.base.device_identity import Revocations
from walle.cloud import CloudHome
from walle.cloud.folder.epoch import read_epoch
from walle.cloud.folder.state import node_state
from walle.cloud.folder.state_place import read_database, write_database
from walle.cloud.upkeep.backup import make_backup, summary
from walle.cloud.upkeep.restore import restore_backup
from walle.deploy.fleet.registry import DeviceQuery
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.release import Effect, Release, ReleaseState, Start, advance
from walle.deploy.releases.request import ReleaseRequest
from walle.errors import ConfigError
from walle.protocol import Failure, Outcome, OutcomeBatch, OutcomeKind
from walle.store.lease import MONITOR, RELEASES

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

from walle.cloud.upkeep import state_move
from walle.cloud.upkeep.state_move import move_state
from walle.store.postgres_database import DatabaseError

CLOCK = SystemClock()
FAILURE = Failure(error_type="KeyError", error="'a'", place="main.py:3 in f", traceback="T", log="", count=1)
OUTCOME = Outcome(
    task="shop/ipv", version="v1", release="r1", kind=OutcomeKind.RUN, ok=3, failed=1, failures=(FAILURE,)
)
CREATED = Release(
    id="ipv-v1-1",
    number=1,
    request=ReleaseRequest(scenario="shop", task="ipv", version="v1"),
    created_s=5.0,
    updated_s=5.0,
)


async def fill(home: CloudHome) -> Release:
    """Put a release with an effect to run, a row, evidence, a device and audit records into a cloud."""
    started, effects = advance(CREATED, Start(6.0))
    async with node_state(home, RELEASES, CLOCK) as state:
        await state.journal.record(CREATED, None, ())
        await state.journal.record(started, Start(6.0), effects)
        await state.journal.draw("serial", 41)
        (row,) = table_of(ipv="v1").rows.values()
        await state.journal.save_row(row)
    async with node_state(home, MONITOR, CLOCK) as state:
        await state.journal.save_evidence({"r1": {"ok": 3}}, [("d\0", "b")], keep=10)
        async with state.registry(ManualClock()) as registry:
            registry.take(OutcomeBatch("d1", "b1", (OUTCOME,)))
    await asyncio.to_thread(fill_identities, home)
    for number in range(12):
        await home.audit.record("release.start", who="anna", details={"number": number})
    return started


def fill_identities(home: CloudHome) -> None:
    identities = home.identities()
    token = identities.make_token(uses=3, life_s=1e6)
    for device_id in ("d1", "d2"):
        identities.certify(device_id, b"key", token, expires_s=4e9)
    identities.revoke("d2", "stolen")
    home.exclusive.put("d1", 1, "shop/ipv", "a", b"sealed", by="anna")
    home.group_files.put("shop/ipv", "b", Policy(">=10"), b"contents", by="anna")


def check_identities(home: CloudHome) -> None:
    identities = home.identities()
    assert identities.bound_key("d1") == (1, b"key", 4e9, False)
    assert identities.revocations(0) == (1, {"d2": 2})
    assert home.exclusive.files("d1", 1).serial == 1
    assert home.exclusive.sealed("d1", 1, hashlib.sha256(b"sealed").hexdigest()) == b"sealed"
    assert [file.name for file in home.group_files.files("shop")] == ["b"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a cloud with state in files."""
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("shop",))
    asyncio.run(fill(home))
    return home.folder


def test_everything_moves_and_continues_where_it_was(folder: Path, postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    counts = move_state(folder, dsn)
    expected = {"releases": 1, "transitions": 2, "effects": 1, "table_rows": 1, "counters": 1, "evidence": 1}
    more = {"batches": 1, "devices": 1, "device_tasks": 1, "device_failures": 1, "audit": 12, "audit_heads": 1}
    exclusive = {"exclusive_serials": 1, "exclusive_files": 1, "group_files": 1, "group_serial": 1}
    identities = {"identities": 2, "enrolment_tokens": 1, "revocations": 1}
    assert counts.items() >= (expected | more | exclusive | identities).items()
    assert {path.name for path in folder.glob("*.moved")} == {
        "releases.db.moved", "monitor.db.moved", "devices.db.moved", "audit.moved",
        "identities.db.moved", "exclusive.db.moved",
    }  # fmt: skip
    assert not list(folder.glob("*.db"))

    async def check(home: CloudHome) -> None:
        async with node_state(home, RELEASES, CLOCK) as state:
            assert state.keeper.grant.fence == 2  # the file's count continues
            (release,) = await state.journal.releases()
            assert (release.id, release.state) == (CREATED.id, ReleaseState.SIMULATING)
            (pending,) = await state.journal.pending()
            assert pending.effect is Effect.RUN_SIMULATION
            assert [one.event for one in await state.journal.history(release.id)] == ["Create", "Start"]
            assert await state.journal.rows() == list(table_of(ipv="v1").rows.values())
            assert await state.journal.draw("serial") == 42
            (later,) = await state.journal.record(release, Start(7.0), (Effect.PUBLISH,))
            assert later.number > pending.number
        async with node_state(home, MONITOR, CLOCK) as state:
            assert await state.journal.evidence() == {"r1": {"ok": 3}}
            assert await state.journal.batches() == [("d\0", "b")]
            async with state.registry(ManualClock()) as registry:
                assert (await registry.get("d1")).tasks[0].failed == 1
                registry.take(OutcomeBatch("d1", "b2", (OUTCOME,)))
                numbers = [one.number for one in await registry.failures("d1")]
                assert numbers == [2, 1]

    with contextlib.closing(CloudHome(folder)) as home:
        check_identities(home)
        asyncio.run(check(home))
        assert home.audit.append("x", who="anna").number == 14
        assert home.audit.verified().ok
        assert home.audit.records(after=12)[0].action == "cloud.move_state"
    with pytest.raises(ConfigError, match=r"has its state in postgresql://.* already"):
        move_state(folder, dsn)


def test_characters_that_the_database_does_not_store_are_replaced_in_attributes(
    folder: Path, postgres: PostgresServer
) -> None:
    """A version before kept them in the file: JSON hides them from a look at the text."""
    attributes = json.dumps({"os": "an\0droid", "a\0b": "\ud800", "slash": "\\u0000", "memory_mb": 4096})
    with contextlib.closing(sqlite3.connect(folder / "devices.db")) as db, db:
        db.execute("UPDATE devices SET attributes = ?", (attributes,))
    move_state(folder, postgres.make_database())

    async def check(home: CloudHome) -> None:
        async with node_state(home, MONITOR, CLOCK) as state, state.registry(ManualClock()) as registry:
            values = {"os": "an\ufffddroid", "a\ufffdb": "?", "slash": "\\u0000", "memory_mb": 4096}
            assert (await registry.get("d1")).attributes == values
            assert await registry.attribute_keys() == sorted(values)
            query = DeviceQuery(attribute="os", value="an\ufffddroid")
            assert [one.device_id for one in (await registry.page(query)).devices] == ["d1"]

    with contextlib.closing(CloudHome(folder)) as home:
        asyncio.run(check(home))


def test_a_move_that_fails_moves_nothing(folder: Path, postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    with contextlib.closing(sqlite3.connect(folder / "releases.db")) as db, db:
        db.execute("UPDATE releases SET number = 1")
        db.execute("CREATE TABLE copy AS SELECT * FROM releases")
        db.execute("DROP TABLE releases")
        db.execute("ALTER TABLE copy RENAME TO releases")
        db.execute("INSERT INTO releases SELECT id || 'x', number, release FROM releases")  # two of one number
    with pytest.raises(DatabaseError, match="duplicate key"):
        move_state(folder, dsn)
    assert read_database(folder) == ""
    assert (folder / "releases.db").exists()
    with contextlib.closing(CloudHome(folder)) as home:
        check_identities(home)  # restored to files
    from walle.store.sync_database import SyncDatabase

    with contextlib.closing(SyncDatabase(dsn)) as database:
        for table in ("audit", "identities", "exclusive_files", "moved_files"):
            assert database.read(f"SELECT * FROM walle.{table}") == []
    with contextlib.closing(sqlite3.connect(folder / "releases.db")) as db, db:
        db.execute("DELETE FROM releases WHERE id LIKE '%x'")
    segment = next((folder / "audit").glob("*.jsonl"))
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(b"anna", b"otto", 1))
    with pytest.raises(ConfigError, match=r"has faults, such as .*record 1 was changed"):
        move_state(folder, dsn)
    segment.write_bytes(whole)
    assert move_state(folder, dsn)["releases"] == 1


def test_a_dump_and_a_backup_together_restore_a_cloud(folder: Path, postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.make_database()
    move_state(folder, dsn)
    dump, out, restored = tmp_path / "dump.sql", tmp_path / "backup", tmp_path / "restored"
    subprocess.run(
        [postgres_program("pg_dump"), dsn, "-f", dump], check=True
    )  # dumped before the folder is copied, which has the files that the dump names
    manifest = make_backup(folder, out, CLOCK)
    assert not summary(manifest)["has_state"]
    assert not [file.path for file in manifest.files if ".moved" in file.path or file.path == "releases.db"]
    with contextlib.closing(CloudHome(folder)) as home:
        home.audit.append("lost", who="anna")
        before = home.identities().make_token(life_s=1e6)
        home.identities().certify("lost", b"key of the lost time", before, expires_s=4e9)
        home.identities().revoke("d1", "of the lost time")
        seen = Revocations(*home.identities().revocations(0))  # a gateway that keeps running has seen these
        home.exclusive.put("d1", 1, "shop/ipv", "later", b"sealed", by="anna")
        serial = home.exclusive.files("d1", 1).serial
    name = dsn.partition("?")[0].rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {name} RENAME TO {name}_lost")
    with pytest.raises(DatabaseError, match="does not exist"):
        restore_backup(out, restored, CLOCK)
    assert not restored.exists()
    postgres.execute(f"CREATE DATABASE {name}")
    subprocess.run(
        [postgres_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", dsn, "-f", dump], check=True, capture_output=True
    )
    restore_backup(out, restored, CLOCK)
    with contextlib.closing(CloudHome(restored)) as home:
        assert [release.id for release in home.releases()] == [CREATED.id]
        assert home.audit.verified().ok
        assert [one.action for one in home.audit.records(after=12)] == ["cloud.move_state", "cloud.restore"]
        check_identities(home)
        assert read_epoch(restored) > 1  # serials of exclusive files begin again in a new epoch
        assert home.exclusive.files("d1", 1).serial < serial
        identities = home.identities()
        with pytest.raises(IdentityRefusedError, match="not known"):
            identities.certify("d4", b"key", before, expires_s=4e9)
        identities.revoke("d1", "again")
        identities.revoke("lost", "this cloud does not know it")
        version, lowest = identities.revocations(seen.version)
        assert version > 1_700_000_000  # above all versions of the lost time
        assert lowest.keys() == {"d1", "lost"}
        assert min(lowest.values()) > 20_000_000  # above all keys of the lost time

        async def drawn() -> int:
            async with node_state(home, RELEASES, CLOCK) as state:
                return await state.journal.draw("release")

        assert asyncio.run(drawn()) > 20_000_000  # above all that the lost cloud has drawn


def test_files_that_an_interrupted_move_did_not_rename_are_not_read_again(
    folder: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move was killed between database.toml and the new names of the files; the cloud is started."""
    dsn = postgres.make_database()

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state_move, "_set_aside", killed)
        with pytest.raises(KeyboardInterrupt):
            move_state(folder, dsn)
    with contextlib.closing(CloudHome(folder)) as home:
        assert home.identities_db.exists()
        for path in (home.identities_db, home.exclusive_db):
            home.move_left_file(path)
        check_identities(home)
    assert not list(folder.glob("identities.db")) + list(folder.glob("exclusive.db"))


def test_a_backup_by_the_version_before_is_restored_into_the_database(
    folder: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Its dump has no identities yet, and its folder has them in files."""
    dsn, out, restored = postgres.make_database(), tmp_path / "backup", tmp_path / "restored"
    write_database(folder, dsn)
    manifest = make_backup(folder, out, CLOCK)
    assert {file.path for file in manifest.files} >= {"identities.db", "exclusive.db"}
    restore_backup(out, restored, CLOCK)
    with contextlib.closing(CloudHome(restored)) as home:
        assert home.identities_db.exists() is False
        assert home.exclusive.files("d1", 1).serial == 1
        check_identities(home)
        with pytest.raises(IdentityRefusedError, match="not enrolled"):
            home.identities().certify("d4", b"key", "", expires_s=4e9)
        assert home.database.read("SELECT count(*) FROM walle.enrolment_tokens")[0][0] == 0
