"""Identities and exclusive files that a version before left in files of a folder whose state is in PostgreSQL."""

import concurrent.futures
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.access.identity.refusals import IdentityRefusedError
from walle.access.identity.store import IdentityStore, IdentityStoreError
from walle.cloud import CloudHome
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.state_place import choose_database
from walle.cloud.nodes.identity import IdentityNode
from walle.deploy.exclusive_files.groups import GroupFiles, GroupKey
from walle.deploy.exclusive_files.store import ExclusiveStore, ExclusiveStoreError
from walle.deploy.policies.policy import Policy
from walle.errors import ConfigError
from walle.protocol import Profile

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

from walle.cloud.folder.left_files import move_left_file
from walle.store.sync_database import SyncDatabase

TASK = "shop/ipv"
_DAY_S = 86_400.0
_MOVE = """
import os, signal, sys
from pathlib import Path
from walle.cloud.folder import left_files
from walle.store.sync_database import SyncDatabase

def kill(*_, **options):
    os.kill(os.getpid(), signal.SIGKILL)

copied = 0

async def copy_and_kill(connection, rows, copy=left_files.copy_rows):
    global copied
    copied += 1
    return kill() if copied == 3 else await copy(connection, rows)

if sys.argv[3] == "withdrawn":
    left_files.rows_of = kill
elif sys.argv[3] == "half copied":
    left_files.copy_rows = copy_and_kill
else:
    left_files.set_aside = kill
left_files.move_left_file(Path(sys.argv[1]), SyncDatabase(sys.argv[2]))
"""


def certify(store: IdentityStore, device_id: str, token: str, key: bytes = b"key") -> int:
    return store.certify(device_id, key, token, expires_s=4e9).generation


class LeftFolder:
    """The folder of a cloud of the version before, with its database; `token` admits one more device."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        choose_database(folder, dsn)
        (folder / "keys").mkdir()
        (folder / "access.toml").write_text("")
        identities = IdentityStore.in_file(folder / "identities.db").open()
        self.token = identities.make_token(uses=4, life_s=_DAY_S)
        for device_id in ("a", "b", "lost"):
            certify(identities, device_id, self.token)
        identities.revoke("lost", "stolen")
        certify(identities, "b", identities.make_token("b", life_s=_DAY_S), b"second key")
        self.revocations = identities.revocations(0)
        self.records = identities.records()
        exclusive = ExclusiveStore.in_file(folder / "exclusive.db").open()
        for name in ("one", "two", "three"):
            exclusive.put("a", 1, TASK, name, name.encode() * 1000, by="anna")
        exclusive.remove("a", TASK, "two")
        self.files = exclusive.files("a", 1)
        groups = self._groups(exclusive)
        groups.put(TASK, "of all", Policy(">=10"), b"contents", by="anna")
        groups.put(TASK, "of all", Policy(">=10"), b"newer", by="anna")
        self.group = groups.files("shop")

    def _groups(self, store: object) -> GroupFiles:
        return GroupFiles(store, lambda: GroupKey(self.folder / "keys" / "group-files.key"))  # type: ignore[arg-type]

    def check(self, home: CloudHome) -> None:
        """Raise where something of the files is not in the database, or is there twice."""
        identities = home.identities()
        assert identities.revocations(0) == self.revocations
        assert identities.records() == self.records
        assert home.exclusive.files("a", 1) == self.files
        sealed = [home.exclusive.sealed("a", 1, file.sha256) for file in self.files.files]
        assert sealed == [name.encode() * 1000 for name in ("one", "three")]
        assert home.group_files.files("shop") == self.group
        (file,) = home.group_files.of(Profile("d", "10.1", {}))
        assert home.exclusive.group_contents(file.number) is not None
        assert home.group_files.serial() == 2

    def check_goes_on(self, home: CloudHome) -> None:
        """Raise where numbers do not go on above those of the files."""
        identities = home.identities()
        assert identities.certify("c", b"key", self.token, expires_s=4e9) == (1, True)
        with pytest.raises(IdentityRefusedError, match="used up"):
            identities.certify("d", b"key", self.token, expires_s=4e9)
        identities.revoke("c", "")
        assert identities.revocations(self.revocations[0]) == (self.revocations[0] + 1, {"c": 2})
        home.exclusive.put("a", 1, TASK, "four", b"4", by="anna")
        assert home.exclusive.files("a", 1).serial == self.files.serial + 1
        home.group_files.put(TASK, "other", Policy(">=10"), b"x", by="anna")
        assert home.group_files.files("shop")[0].number > self.group[0].number


@pytest.fixture
def left(tmp_path: Path, postgres: PostgresServer) -> LeftFolder:
    return LeftFolder(tmp_path / "cloud", postgres.make_database())


@pytest.fixture
def home(left: LeftFolder) -> Iterator[CloudHome]:
    with contextlib.closing(CloudHome(left.folder)) as made:
        yield made


@pytest.mark.asyncio
async def test_the_next_start_moves_them_and_says_so(left: LeftFolder, home: CloudHome) -> None:
    with pytest.raises(ConfigError, match=r"identities.db is not in the cloud's database yet; start the cloud"):
        home.identities()
    for _ in range(2):
        node = IdentityNode(CloudConfig(folder=left.folder, database=left.dsn))
        await node.start()
        await node.close()
    left.check(home)
    left.check_goes_on(home)
    assert not list(left.folder.glob("*.db"))
    assert sorted(path.name for path in left.folder.glob("*.moved*")) == ["exclusive.db.moved", "identities.db.moved"]
    moved = [record for record in home.audit.records() if record.action == "cloud.move_state"]
    assert [record.details for record in moved] == [
        {"identities": 3, "enrolment_tokens": 2, "revocations": 2, "counters of identities.db": 1},
        {"exclusive_serials": 1, "exclusive_files": 2, "group_serial": 1, "group_files": 1},
    ]


@pytest.mark.parametrize(
    ("name", "when"), [("identities.db", "withdrawn"), ("exclusive.db", "half copied"), ("identities.db", "copied")]
)
def test_a_move_that_is_killed_continues_where_it_was(left: LeftFolder, home: CloudHome, name: str, when: str) -> None:
    program = [sys.executable, "-c", _MOVE, str(left.folder / name), left.dsn, when]
    assert subprocess.run(program, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert (left.folder / name).exists()
    for path in (home.identities_db, home.exclusive_db):
        home.move_left_file(path)
        assert not path.exists()
    left.check(home)
    left.check_goes_on(home)


def test_processes_that_start_at_once_move_each_file_once(left: LeftFolder, home: CloudHome) -> None:
    databases = [SyncDatabase(left.dsn) for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        moving = [pool.submit(move_left_file, path, database) for database in databases
                  for path in (home.identities_db, home.exclusive_db)]  # fmt: skip
        counts = [one.result(60) for one in moving]
    assert sorted(len(one) for one in counts) == [0, 0, 0, 0, 0, 0, 4, 4]
    left.check(home)
    for database in databases:
        database.close()


def test_a_process_of_the_version_before_writes_nothing_that_is_lost(left: LeftFolder, home: CloudHome) -> None:
    """It has the files open while they are moved, and fails afterwards. The empty files that it makes are removed."""
    identities, exclusive = IdentityStore.in_file(home.identities_db), ExclusiveStore.in_file(home.exclusive_db)
    with contextlib.closing(sqlite3.connect(home.identities_db)) as kept:
        kept.execute("SELECT count(*) FROM revocations").fetchone()
        for path in (home.identities_db, home.exclusive_db):
            home.move_left_file(path)
        with pytest.raises(IdentityStoreError, match="no such table"):
            identities.revoke("a", "stolen")
        with pytest.raises(ExclusiveStoreError, match="no such table"):
            exclusive.put("a", 1, TASK, "late", b"x", by="anna")
    for path in (home.identities_db, home.exclusive_db):
        assert path.exists()
        home.move_left_file(path)
        assert not path.exists()
    left.check(home)


def test_a_file_that_was_moved_before_and_comes_back_is_not_read(
    left: LeftFolder, home: CloudHome, caplog: pytest.LogCaptureFixture
) -> None:
    copy = home.identities_db.read_bytes()
    for path in (home.identities_db, home.exclusive_db):
        home.move_left_file(path)
    home.identities().revoke("a", "stolen")
    home.identities_db.write_bytes(copy)  # a backup is put back
    home.move_left_file(home.identities_db)
    assert "was moved to the database before; it is identities.db.2.moved now, and is not read" in caplog.text
    assert home.identities().states(["a"])["a"].revoked_s is not None
    assert (left.folder / "identities.db.moved").exists()


def test_a_damaged_file_moves_nothing(left: LeftFolder, home: CloudHome) -> None:
    home.exclusive_db.write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigError, match=r"exclusive.db cannot be moved to the database: .*not a database"):
        _ = home.exclusive
    assert home.exclusive_db.exists()
    assert home.database.read("SELECT * FROM walle.moved_files") == []


def test_large_files_are_moved_by_parts(left: LeftFolder, home: CloudHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walle.cloud.folder.state_copy._PART_BYTES", 900)
    monkeypatch.setattr("walle.cloud.folder.state_copy._PART_ROWS", 2)
    for path in (home.identities_db, home.exclusive_db):
        home.move_left_file(path)
    left.check(home)


def test_a_file_beside_a_database_with_other_identities_is_refused(tmp_path: Path, left: LeftFolder) -> None:
    own = tmp_path / "own"
    choose_database(own, left.dsn)
    with contextlib.closing(CloudHome(own)) as home:
        home.exclusive.put("z", 1, TASK, "one", b"x", by="anna")
        home.identities().certify("z", b"key", home.identities().make_token(life_s=60.0), expires_s=4e9)
        for path in (left.folder / "identities.db", left.folder / "exclusive.db"):
            with pytest.raises(ConfigError, match=r"is of another cloud, .*; move the file out of the folder"):
                home.move_left_file(path)
            assert path.exists()
        assert [record.device_id for record in home.identities().records()] == ["z"]
        assert home.database.read("SELECT * FROM walle.moved_files") == []
    # The cloud whose files they are goes on with them.
    assert IdentityStore.in_file(left.folder / "identities.db").open().records() == left.records
    assert ExclusiveStore.in_file(left.folder / "exclusive.db").open().files("a", 1) == left.files
