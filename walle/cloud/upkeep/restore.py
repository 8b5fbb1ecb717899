"""Restore of a cloud from a backup, into a new folder: every hash is verified, and devices are told something newer.

A restored cloud is in the past: its devices have seen directives of higher serials than it has drawn, and refuse them
as replays. `raise_epoch` makes its next orders newer than all those of the lost cloud.
"""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from walle.base.clock import Clock
from walle.base.durable_file import make_folders, move_folder, sync_tree, write_all
from walle.cloud.folder.epoch import raise_epoch
from walle.cloud.folder.folder import CloudHome
from walle.cloud.upkeep.backup import MANIFEST, BackupError, BackupFile, Manifest, OnProgress
from walle.cloud.upkeep.secret_files import load_secrets
from walle.store.tables import JOURNAL, file_schema

if TYPE_CHECKING:
    from walle.store.postgres_database import Connection

_CHUNK_BYTES = 1 << 20
_MINUTE_S = 60


def restore_backup(
    backup: Path,
    folder: Path,
    clock: Clock,
    *,
    keys: Path | None = None,
    passphrase: str = "",
    sha256: str = "",
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Make `folder` from a backup, and return its list. `folder` must not exist, or be empty.

    `keys` is the file of the backup's keys. Without it the folder has none: put them there before the cloud starts,
    else it makes new ones, which no device trusts. `sha256` is the hash that the backup's command printed.

    Raises:
        BackupError: `folder` is in use, or the backup is not whole: a file is missing, was changed or added.
        SecretFilesError: as `load_secrets`.
        DatabaseError: the cloud's database cannot be reached; restore it first.
        OSError: the disk is full.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BackupError(folder, "is in use: it has files; name a new folder, or move it away first")
    manifest = Manifest.load(backup)
    if sha256 and hashlib.sha256((backup / MANIFEST).read_bytes()).hexdigest() != sha256.lower():
        raise BackupError(backup / MANIFEST, f"does not have the hash {sha256[:64]}: this is another backup")
    secrets = load_secrets(keys, passphrase) if keys is not None else {}
    _refuse_others(backup, manifest)
    make_folders(folder.parent)
    undo = contextlib.ExitStack()
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".unfinished"))
    try:
        done_bytes = 0
        for file in manifest.files:
            if on_progress is not None:
                on_progress(done_bytes, manifest.size_bytes, file.path)
            _copy(backup, staging, file)
            done_bytes += file.size_bytes
        for name, data in secrets.items():
            _write_secret(staging, name, data)
        for database in sorted(staging.glob("*.db")):
            _check_database(database)
        home = CloudHome(staging)
        undo.callback(home.close)
        if home.database_url:
            _skip_numbers_in_database(home, clock)
        else:
            skip_release_numbers(staging, clock)
        raise_epoch(staging, clock)
        home.move_left_file(home.identities_db)  # a backup by an earlier version may have it
        if home.database_url or home.identities_db.exists():
            home.identities(clock).follow_restore()
        home.ended_sessions(clock).end_all()  # those that ended after the backup may be among them
        details = {"made_s": manifest.made_s, "sha256": manifest.sha256, "records": manifest.audit_number}
        home.audit.append("cloud.restore", who="operator", subject=str(backup), details=details)
        home.audit.head()
        sync_tree(staging)
        staging.chmod(0o700)
        move_folder(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        undo.close()
    return manifest


def skip_release_numbers(folder: Path, clock: Clock) -> None:
    """Have releases numbered above all that the lost cloud can have used, so that no id stands for two releases.

    They continue from the time in minutes, which grows with each restore, and faster than people make releases.
    """
    _raise_counter(folder, "release", int(clock.time() // _MINUTE_S))


def _skip_numbers_in_database(home: CloudHome, clock: Clock) -> None:
    """Do the same in the database that has the cloud's state, which was restored before the folder."""
    least = int(clock.time() // _MINUTE_S)

    async def write(connection: "Connection") -> None:
        await connection.execute(
            "INSERT INTO walle.counters AS c VALUES ('release', $1)"
            " ON CONFLICT (name) DO UPDATE SET value = greatest(c.value, $1)",
            least,
        )

    home.database.write(write)


def _raise_counter(folder: Path, name: str, least: int) -> None:
    with _journal(folder) as database:
        database.execute(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            (name, least),
        )


@contextlib.contextmanager
def _journal(folder: Path) -> Iterator[sqlite3.Connection]:
    """Give the release journal for one transaction; an empty database where the cloud has never started."""
    path = folder / "releases.db"
    with contextlib.closing(sqlite3.connect(path if path.exists() else ":memory:")) as database:
        database.executescript(file_schema(JOURNAL))
        with database:
            yield database


def _refuse_others(backup: Path, manifest: Manifest) -> None:
    """Raise where the folder has what the list does not name, such as a file that somebody added."""
    known = {file.path for file in manifest.files} | {MANIFEST}
    for path in sorted(backup.rglob("*")):
        name = path.relative_to(backup).as_posix()
        if path.is_symlink() or (not path.is_dir() and name not in known):
            raise BackupError(path, f"is not in the list of the backup ({MANIFEST}); remove it if you know what it is")


def _copy(backup: Path, staging: Path, file: BackupFile) -> None:
    source, target = backup / file.path, staging / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size_bytes = hashlib.sha256(), 0
    try:
        opened = source.open("rb")
    except OSError as error:
        raise BackupError(source, f"cannot be read: {error.strerror}; this backup is incomplete") from error
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file.mode & 0o777)
    with opened:
        try:
            while chunk := opened.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                if size_bytes > file.size_bytes:
                    break
                write_all(handle, chunk)
            os.fchmod(handle, file.mode & 0o777)
        finally:
            os.close(handle)
    if size_bytes != file.size_bytes or digest.hexdigest() != file.sha256:
        raise BackupError(source, "was changed: its hash is not that of the list; this backup is incomplete")


def _write_secret(staging: Path, name: str, data: bytes) -> None:
    target = (staging / name).resolve()
    if not target.is_relative_to(staging.resolve()) or target.exists():
        raise BackupError(staging / name, "is in the file of keys, and cannot be put there")
    make_folders(target.parent, mode=0o700)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)


def _check_database(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise BackupError(path, f"is not a database that can be used: {error}") from error
    if found != "ok":
        raise BackupError(path, f"is damaged: {found}")
