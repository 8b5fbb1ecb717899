"""Backup and restore of a cloud's folder: whole or refused, secrets apart, whatever is done to it in between."""

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from walle.access.audit import read_records, verify
from walle.access.ended_sessions import SESSION_S
from walle.access.identity.refusals import IdentityRefusedError
from walle.base.clock import ManualClock, SystemClock
from walle.cloud import CloudHome
from walle.cloud.upkeep.backup import MANIFEST, BackupError, Manifest, make_backup
from walle.cloud.upkeep.restore import restore_backup, skip_release_numbers
from walle.cloud.upkeep.secret_files import SecretFilesError, is_secret, load_secrets, save_secrets
from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.attribute_table import TableFacts
from walle.deploy.policies.policy import Policy
from walle.deploy.shared_files.folder_store import FolderStore
from walle.protocol import Profile
from walle.trust.signing import Signer

UNACCEPTED = "repos/shop.git/objects/incoming-1/pack/pack-1.pack"  # pack of a push under way
PASSPHRASE = "correct horse battery"
SECRETS = {
    "admin.token",
    "keys/audit.pem",
    "keys/release.pem",
    "keys/timestamp.pem",
    "offline-keys/root.pem",
    "keys/dashboard.key",
    "keys/group-files.key",
    "offline-keys/scenarios.pem",
    "offline-keys/scenario-shop.pem",
}


@pytest.fixture
def home(tmp_path: Path) -> CloudHome:
    """A cloud's folder with a database, a repository, files and an audit log."""
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("shop",))
    home.files.put(b"a model")
    home.cloud_files.put(b"a larger model")
    home.audit.append("release.start", who="anna")
    with contextlib.closing(sqlite3.connect(home.releases_db)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT")
        database.execute("CREATE TABLE table_rows (task TEXT PRIMARY KEY, task_row TEXT NOT NULL) STRICT")
        database.execute("INSERT INTO counters VALUES ('serial', 7), ('release', 3), ('generation', 9)")
        database.commit()
    (home.folder / "inference").mkdir()
    (home.folder / "inference" / "laid-out").write_text("again")
    (home.folder / "cloud.lock").touch()
    (home.folder / ".x.unfinished").touch()
    pack = home.folder / UNACCEPTED
    pack.parent.mkdir(parents=True)
    pack.touch()
    return home


def backup_of(home: CloudHome, **options: Path | str) -> tuple[Path, Manifest]:
    out = home.folder.parent / "backup"
    return out, make_backup(home.folder, out, ManualClock(), **options)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def home_key(home: CloudHome) -> bytes:
    return Signer.load(home.folder / "keys" / "audit.pem").public_key


def test_a_restored_folder_has_the_contents_of_the_original(home: CloudHome, tmp_path: Path) -> None:
    for _ in range(12):  # the log then has a head
        home.audit.append("release.start", who="anna")
    before = contents(home.folder)
    keys = tmp_path / "keys"
    out, manifest = backup_of(home, keys=keys, passphrase=PASSPHRASE)
    restored = tmp_path / "restored"
    restore_backup(out, restored, ManualClock(), keys=keys, passphrase=PASSPHRASE, sha256=manifest.sha256)
    after = contents(restored)
    changed = {"releases.db", "audit/000000000001.jsonl", "audit/lock", "audit/head.json"}
    left_out = {
        "audit/head.json",
        "inference/laid-out",
        "access.spare",
        "cloud.lock",
        ".x.unfinished",
        "audit/lock",
        "releases.db-wal",
        "releases.db-shm",
        UNACCEPTED,
    }
    locks = {"repos/shop.git/walle.lock", "access.lock"}
    made = {"audit/lock", "audit/head.json", "epoch", "ended-sessions.json", "ended-sessions.lock"}
    assert after.keys() - made == before.keys() - left_out - locks
    for name in after.keys() - changed - made:
        assert after[name] == before[name], name
    assert (restored / "keys" / "release.pem").stat().st_mode & 0o777 == 0o600
    assert restored.stat().st_mode & 0o777 == 0o700
    assert json.loads(after["ended-sessions.json"])["before_s"] == ManualClock().time() + SESSION_S  # all have ended
    assert CloudHome(restored).trusted_keys == home.trusted_keys
    record = read_records(restored / "audit")[-1]
    assert (record.action, record.details["sha256"]) == ("cloud.restore", manifest.sha256)
    assert verify(restored / "audit", public_key=home_key(home)).ok


def test_a_push_does_not_wait_for_the_copy_of_large_files(home: CloudHome, tmp_path: Path) -> None:
    large, names = home.repos.large_files("shop"), []
    for data in (b"-----BEGIN PRIVATE KEY----- of a model", b"to be damaged"):
        names.append(hashlib.sha256(data).hexdigest())
        with large.receiving(names[-1], len(data)) as file:
            file.write(data)
            file.keep()
    damaged = large.checked().path(names[1])
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    (damaged.parent / ".left.unfinished").touch()
    free = {}

    def on_progress(_done: int, _all: int, what: str) -> None:
        if what.startswith("repos/shop.git/"):
            with (home.folder / "repos" / "shop.git" / "walle.lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free[what] = True
                except BlockingIOError:
                    free[what] = False

    out = tmp_path / "backup"
    manifest = make_backup(home.folder, out, ManualClock(), on_progress=on_progress)
    assert {what for what, is_free in free.items() if is_free} == {what for what in free if "/lfs/" in what}
    assert not free["repos/shop.git/HEAD"]
    found = [path.relative_to(out).as_posix() for path in out.rglob("lfs/objects/**/*") if path.is_file()]
    assert sorted(Path(path).name for path in found) == sorted(names)
    assert [Path(path).name for path in manifest.damaged] == [names[1]]
    restore_backup(out, tmp_path / "restored", ManualClock())
    assert CloudHome(tmp_path / "restored").repos.large_files("shop").size_bytes(names[0]) == 38


def test_a_backup_has_no_secret(home: CloudHome, tmp_path: Path) -> None:
    (home.folder / "custom").write_text("-----BEGIN EC PRIVATE KEY-----\nabc\n")
    secrets = [(home.folder / name).read_bytes() for name in SECRETS]
    keys = tmp_path / "keys"
    out, manifest = backup_of(home, keys=keys, passphrase=PASSPHRASE)
    everything = b"".join(contents(out).values()) + keys.read_bytes()
    for secret in secrets:
        assert secret.strip() not in everything
        assert secret.splitlines()[-1 if secret.count(b"\n") == 1 else 1] not in everything
    assert set(load_secrets(keys, PASSPHRASE)) == SECRETS | {"custom"}
    assert manifest.has_keys
    assert keys.stat().st_mode & 0o777 == 0o600


def test_uploaded_attributes_are_restored_and_files_of_groups_with_the_keys(home: CloudHome, tmp_path: Path) -> None:
    facts = TableFacts(key="device_id", columns={"age": ColumnType.INT}, rows=0, put_s=1.0, put_by="anna")
    with home.uploaded.receive() as (path, file):
        file.write(b'{"device_id": "d1", "age": 30}')
        home.uploaded.stage(path, facts).commit()
    home.group_files.put("shop/ipv", "a", Policy(">=10"), b"contents of a group", by="anna")
    keys = tmp_path / "keys"
    out, _ = backup_of(home, keys=keys, passphrase=PASSPHRASE)
    assert b"contents of a group" not in b"".join(contents(out).values())
    device = ec.generate_private_key(ec.SECP256R1())
    der = device.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for name, options in (("with", {"keys": keys, "passphrase": PASSPHRASE}), ("without", {})):
        restore_backup(out, tmp_path / name, ManualClock(), **options)  # type: ignore[arg-type]
        restored = CloudHome(tmp_path / name)
        restored.prepare()
        assert restored.uploaded.read()
        found = restored.uploaded.current.explain(Profile("d1", "10"))
        assert found.uploaded == {"uploaded.age": 30}
        files = restored.group_files.of(found)
        assert [file.name for file in files] == ["a"]
        sealed = [home.group_files.part("d1", 1, der, files), restored.group_files.part("d1", 1, der, files)]
        assert sealed[1] == (sealed[0] if options else ())


def test_a_task_cannot_have_its_files_taken_for_secrets() -> None:
    key = b"-----BEGIN PRIVATE KEY-----"
    for name in ("files/ab/abcd", "cloud-files/ab/abcd", "repos/shop.git/refs/heads/x.pem", "repos/shop.git/keys/y"):
        assert not is_secret(PurePosixPath(name), key)
    for name in ("keys/release.pem", "authority/ca.pem", "join.json", "new.token", "odd"):
        assert is_secret(PurePosixPath(name), key)
    assert not is_secret(PurePosixPath("access.toml"), b"[tokens]")


def test_a_backup_while_the_journal_is_written_has_one_state_of_it(home: CloudHome, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(home.releases_db)) as database:
        database.execute("CREATE TABLE pairs (a INTEGER, b INTEGER, filling BLOB)")
        database.executemany("INSERT INTO pairs VALUES (0, 0, ?)", [(bytes(4000),)] * 500)
        database.commit()
    is_done = threading.Event()

    def write() -> None:
        with contextlib.closing(sqlite3.connect(home.releases_db, timeout=30)) as database:
            number = 0
            while not is_done.is_set():
                number += 1
                database.execute("UPDATE pairs SET a = ?, b = ?", (number, number))
                database.commit()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        out, _ = backup_of(home)
    finally:
        is_done.set()
        writing.join()
    with contextlib.closing(sqlite3.connect(out / "releases.db")) as database:
        rows = database.execute("SELECT DISTINCT a, b FROM pairs").fetchall()
    assert len(rows) == 1
    assert rows[0][0] == rows[0][1]


def _flip(out: Path) -> Path:
    path = next(path for path in sorted((out / "files").rglob("*")) if path.is_file())
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    return path


def _cut(out: Path) -> Path:
    path = out / "releases.db"
    os.truncate(path, 100)
    return path


def _remove(out: Path) -> Path:
    path = out / "access.toml"
    path.unlink()
    return path


def _add(out: Path) -> Path:
    path = out / "keys"
    path.write_text("mallory's")
    return path


def _link(out: Path) -> Path:
    path = out / "access.toml"
    path.unlink()
    path.symlink_to("/etc/passwd")
    return path


@pytest.mark.parametrize("change", [_flip, _cut, _remove, _add, _link])
def test_a_backup_that_was_changed_is_refused_and_nothing_is_left(
    home: CloudHome, tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    out, _ = backup_of(home)
    path = change(out)
    with pytest.raises(BackupError) as caught:
        restore_backup(out, tmp_path / "restored", ManualClock())
    assert caught.value.path == path
    assert not (tmp_path / "restored").exists()
    assert not list(tmp_path.glob(".*unfinished"))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "", ".", "a//b", "a/./b", "nul\0"])
def test_a_list_with_paths_outside_is_refused(home: CloudHome, tmp_path: Path, name: str) -> None:
    out, _ = backup_of(home)
    plain = json.loads((out / MANIFEST).read_text())
    plain["files"][0]["path"] = name
    (out / MANIFEST).write_text(json.dumps(plain))
    with pytest.raises(BackupError, match="cannot be the path of a file in it"):
        restore_backup(out, tmp_path / "restored", ManualClock())


def test_another_backup_than_the_one_that_is_meant_is_refused(home: CloudHome, tmp_path: Path) -> None:
    out, manifest = backup_of(home)
    assert manifest.sha256 == hashlib.sha256((out / MANIFEST).read_bytes()).hexdigest()
    with pytest.raises(BackupError, match="this is another backup"):
        restore_backup(out, tmp_path / "restored", ManualClock(), sha256="0" * 64)


def test_a_folder_in_use_is_neither_overwritten_nor_a_place_for_a_backup(home: CloudHome, tmp_path: Path) -> None:
    out, _ = backup_of(home)
    before = contents(home.folder)
    with pytest.raises(BackupError, match="is in use: it has files; name a new folder, or move it away first"):
        restore_backup(out, home.folder, ManualClock())
    assert contents(home.folder) == before
    for place, match in ((out, "exists; name a new folder"), (home.folder / "b", "in the cloud's own folder")):
        with pytest.raises(BackupError, match=match):
            make_backup(home.folder, place, ManualClock())
    with pytest.raises(BackupError, match="is not the folder of a cloud"):
        make_backup(tmp_path, tmp_path / "b", ManualClock())
    with pytest.raises(BackupError, match="is not a finished backup"):
        restore_backup(tmp_path, tmp_path / "r", ManualClock())


def test_a_damaged_file_of_the_cloud_is_named(home: CloudHome) -> None:
    sha256 = hashlib.sha256(b"a model").hexdigest()
    FolderStore(home.folder / "files").path(sha256).write_bytes(b"a mode1")
    _, manifest = backup_of(home)
    assert manifest.damaged == (f"files/{sha256[:2]}/{sha256}",)


def test_keys_need_their_passphrase(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    save_secrets(path, {"keys/a.pem": b"secret"}, PASSPHRASE)
    assert load_secrets(path, PASSPHRASE) == {"keys/a.pem": b"secret"}
    with pytest.raises(SecretFilesError, match="the passphrase is wrong, or the file was changed"):
        load_secrets(path, PASSPHRASE + "!")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SecretFilesError, match="was changed"):
        load_secrets(path, PASSPHRASE)
    path.write_bytes(b"{}\n")
    with pytest.raises(SecretFilesError, match="is not a file of keys"):
        load_secrets(path, PASSPHRASE)
    with pytest.raises(SecretFilesError, match="exists; name another file"):
        save_secrets(path, {}, PASSPHRASE)
    with pytest.raises(SecretFilesError, match="fewer than 12 characters"):
        save_secrets(tmp_path / "other", {}, "short")


def test_keys_cannot_be_put_outside(home: CloudHome, tmp_path: Path) -> None:
    out, _ = backup_of(home)
    save_secrets(tmp_path / "keys", {"../outside.pem": b"x"}, PASSPHRASE)
    with pytest.raises(BackupError, match="cannot be put there"):
        restore_backup(out, tmp_path / "r", ManualClock(), keys=tmp_path / "keys", passphrase=PASSPHRASE)
    assert not (tmp_path / "outside.pem").exists()


def test_a_full_disk_leaves_no_backup(home: CloudHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("walle.cloud.upkeep.backup.write_all", full)
    with pytest.raises(OSError, match="No space left"):
        backup_of(home)
    assert not (tmp_path / "backup").exists()
    assert not list(tmp_path.glob(".*unfinished"))


def test_releases_are_numbered_above_all_that_the_lost_cloud_can_have_used(home: CloudHome) -> None:
    def counters() -> dict[str, int]:
        with contextlib.closing(sqlite3.connect(home.releases_db)) as database:
            return dict(database.execute("SELECT name, value FROM counters").fetchall())

    clock = ManualClock()
    skip_release_numbers(home.folder, clock)
    first = counters()
    assert first["release"] > 3
    later = ManualClock(clock.time() + 3600)  # restores the same backup again
    skip_release_numbers(home.folder, later)
    second = counters()
    assert second["release"] == first["release"] + 60
    skip_release_numbers(home.folder, ManualClock(1.0))  # a clock that is off takes nothing back
    assert counters() == second


def test_each_branch_is_in_a_backup_whatever_its_name(home: CloudHome) -> None:
    heads = home.folder / "repos" / "shop.git" / "refs" / "heads"
    names = ("main", "tmp_x", "x.unfinished", "x.db-wal", "keys/x.pem", "objects/tmp_y", "inference")
    for name in names:
        (heads / name).parent.mkdir(exist_ok=True)
        (heads / name).write_text("0" * 40 + "\n")
    (heads / "x.lock").touch()  # a killed writer leaves it
    _, manifest = backup_of(home)
    found = {file.path.partition("/heads/")[2] for file in manifest.files if "/heads/" in file.path}
    assert found == set(names)


def test_a_restored_cloud_refuses_earlier_enrolment_tokens(home: CloudHome, tmp_path: Path) -> None:
    token = home.identities().make_token(uses=1, life_s=3600.0)
    out, _ = backup_of(home)
    home.identities().certify("phone", b"key", token, expires_s=4e9)
    restore_backup(out, tmp_path / "restored", SystemClock())
    restored = CloudHome(tmp_path / "restored")
    with pytest.raises(IdentityRefusedError, match="not known"):
        restored.identities().certify("thief", b"another key", token, expires_s=4e9)
    bound = restored.identities().certify(
        "phone", b"key", restored.identities().make_token(life_s=3600.0), expires_s=4e9
    )
    assert bound.generation > 1
