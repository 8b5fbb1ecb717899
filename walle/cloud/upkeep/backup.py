"""Backup of a cloud that runs: its databases, audit log, repositories and files, in a folder with a list of hashes.

The release journal comes first and files after it: whatever it names was stored before. Databases are copied from one
read transaction each, which delays no writer; a repository is copied under its lock, so that a push waits. The folder
gets its name when everything in it is on the disk: a backup that was interrupted never looks whole.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Self

from walle.base.clock import Clock
from walle.base.durable_file import move_folder, sync_tree, write_all, write_file
from walle.cloud.folder.file_places import read_place
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state_place import MOVED, read_database
from walle.cloud.upkeep.scrubbing import STATE_FILE
from walle.cloud.upkeep.secret_files import is_secret, save_secrets
from walle.cloud.upkeep.stored_files import UNREACHED
from walle.errors import ConfigError
from walle.store.file_connection import connect_present

MANIFEST = "backup.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
_PAGES = 1000  # pages of a database between two reports of progress
_SKIPPED_FOLDERS = (
    "inference",
    "coded-files",
    "quarantine",
    f"audit{MOVED}",
)  # made again from the files, or damaged ones
_SKIPPED = ("cloud.lock", "access.spare", "audit/lock", "audit/head.json", STATE_FILE)
_SKIPPED_SUFFIXES = (
    UNREACHED,
    ".unfinished",
    ".db-wal",
    ".db-shm",
    ".db-journal",
    ".lock",
    MOVED,
    f"{MOVED}-wal",
    f"{MOVED}-shm",
)  # skipped outside repos: names of refs end so

type OnProgress = Callable[[int, int, str], None]
"""`on_progress(bytes done, bytes in all, what)`; the sum may grow while a cloud runs."""


class BackupError(ConfigError):
    """A backup that cannot be made, or is not whole. `path` names what is wrong."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


@dataclasses.dataclass(frozen=True)
class BackupFile:
    """A file of a backup by its path in it, with size and hash."""

    path: str
    size_bytes: int
    sha256: str
    mode: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """List of a backup's files. `damaged` are stored and large files whose bytes do not have the hash of their name.

    `has_uploads` is False where the cloud stores uploads elsewhere (PostgreSQL), which needs a separate backup.
    `has_files` is False where files of versions lie in a bucket, which a restored cloud uses again. `has_state` is
    False where releases, devices, identities, exclusive files and audit log are in a database, which needs a backup of
    its own, made before this.
    """

    made_s: float
    files: tuple[BackupFile, ...]
    audit_number: int
    damaged: tuple[str, ...]
    has_keys: bool
    has_uploads: bool
    has_files: bool = True
    has_state: bool = True

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1).encode() + b"\n"

    @property
    def sha256(self) -> str:
        """The hash of the list, and so of the whole backup; keep it elsewhere."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the list of the backup in `folder`. Raises BackupError where there is none that can be used."""
        path = folder / MANIFEST
        try:
            if path.stat().st_size > MAX_MANIFEST_BYTES:
                raise BackupError(path, f"has more than {MAX_MANIFEST_BYTES} bytes")
            plain = json.loads(path.read_bytes())
            if plain.pop("format") != FORMAT:
                raise BackupError(path, "has another format; restore it with the walle that made it")
            files = tuple(BackupFile(**file) for file in plain.pop("files"))
            manifest = cls(files=files, damaged=tuple(plain.pop("damaged")), **plain)
        except OSError as error:
            raise BackupError(folder, f"is not a finished backup: {MANIFEST}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BackupError(path, f"is not the list of a backup: {error}") from error
        manifest._check(path)
        return manifest

    def _check(self, path: Path) -> None:
        names = set()
        for file in self.files:
            kinds = (type(file.path), type(file.size_bytes), type(file.sha256), type(file.mode))
            if kinds != (str, int, str, int):
                raise BackupError(path, f"{str(file.path)[:100]!r} is not described by path, size, hash and mode")
            parts = PurePosixPath(file.path).parts
            is_plain = PurePosixPath(file.path).as_posix() == file.path and "\0" not in file.path
            if not parts or not is_plain or file.path.startswith("/") or ".." in parts or file.path in names:
                raise BackupError(path, f"{file.path[:100]!r} cannot be the path of a file in it")
            names.add(file.path)


def make_backup(
    folder: Path,
    out: Path,
    clock: Clock,
    *,
    keys: Path | None = None,
    passphrase: str = "",
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Write a backup of the cloud in `folder`, which may run, to the new folder `out`, and return its list.

    Keys, tokens and certificates are left out, or, with `keys`, written to that file, encrypted by `passphrase`.

    Raises:
        BackupError: `folder` is not a cloud's, `out` exists, or a file changed while it was copied.
        SecretFilesError: as `save_secrets`.
        OSError: the disk is full.
    """
    if not (folder / "releases.db").exists() and not (folder / "access.toml").exists():
        raise BackupError(folder, "is not the folder of a cloud")
    if out.exists():
        raise BackupError(out, "exists; name a new folder")
    if out.resolve().is_relative_to(folder.resolve()):
        raise BackupError(out, "is in the cloud's own folder, and would be lost with it")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".unfinished"))
    try:
        copying = _Copying(folder, staging, on_progress or (lambda _done, _all, _what: None))
        copying.run()
        if keys is not None:
            save_secrets(keys, copying.secrets, passphrase)
        manifest = Manifest(
            made_s=round(clock.time(), 3),
            files=tuple(copying.files),
            audit_number=copying.audit_number,
            damaged=tuple(copying.damaged),
            has_keys=keys is not None,
            has_uploads=(folder / "uploads.db").exists(),
            has_files=read_place(folder) is None,
            has_state=not read_database(folder),
        )
        write_file(staging / MANIFEST, manifest.to_bytes())
        sync_tree(staging)
        move_folder(staging, out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return manifest


class _Copying:
    """One run: what was copied so far."""

    def __init__(self, folder: Path, staging: Path, on_progress: OnProgress) -> None:
        self._folder = folder
        self._staging = staging
        self._on_progress = on_progress
        self._done_bytes = 0
        self._all_bytes = sum(path.stat().st_size for path in _files_in(folder, folder))
        self.files: list[BackupFile] = []
        self.secrets: dict[str, bytes] = {}
        self.damaged: list[str] = []
        self.audit_number = 0

    def run(self) -> None:
        names = sorted(path.name for path in self._folder.glob("*.db"))
        names.sort(key=lambda name: (name != "releases.db", name != "monitor.db"))  # the journal before its evidence
        for name in names:
            self._copy_database(name)
        self._copy_audit()
        repos = CloudHome(self._folder).repos
        for scenario in repos.scenarios():
            repository = self._folder / "repos" / f"{scenario}.git"
            large = repository / "lfs"
            with repos.writing(scenario):
                for path in _files_in(repository, self._folder):
                    if not path.is_relative_to(large):
                        self._copy_file(path)
            self._copy_tree(large)
        for path in sorted(self._folder.iterdir()):
            if path.name in ("repos", "audit", *_SKIPPED_FOLDERS) or path.suffix == ".db":
                continue
            self._copy_tree(path)

    def _copy_database(self, name: str) -> None:
        self._say(name)
        target = self._new(name)

        def tell(_status: int, left: int, pages: int) -> None:
            self._on_progress(self._done_bytes, self._all_bytes, f"{name}: {pages - left} of {pages} pages")

        try:
            with (
                contextlib.closing(connect_present(self._folder / name)) as source,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                source.execute("BEGIN")  # one state of the database, however many commits come meanwhile
                source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                source.backup(copy, pages=_PAGES, progress=tell)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file
        except sqlite3.Error as error:
            raise BackupError(self._folder / name, f"cannot be copied: {error}") from error
        target.chmod(0o600)
        with target.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._add(name, target.stat().st_size, sha256, 0o600)

    def _copy_audit(self) -> None:
        """Copy whole records. The log only grows, and removes whole segments."""
        for segment in sorted((self._folder / "audit").glob("*.jsonl")):
            try:
                data = segment.read_bytes()
            except FileNotFoundError:  # removed for its age
                continue
            data = data[: data.rfind(b"\n") + 1]
            if data:
                self.audit_number = int(json.loads(data.rstrip(b"\n").rpartition(b"\n")[2])["number"])
            self._write(segment.relative_to(self._folder).as_posix(), data, 0o600)

    def _copy_tree(self, top: Path) -> None:
        for path in _files_in(top, self._folder):
            self._copy_file(path)

    def _copy_file(self, path: Path) -> None:
        name = path.relative_to(self._folder)
        self._say(name.as_posix())
        try:
            source = path.open("rb")
        except FileNotFoundError:
            if name.parts[0] in ("files", "cloud-files", "repos"):
                raise BackupError(path, "was removed while the backup was made; make it again") from None
            return  # a file that the cloud replaces or removes as it likes
        with source:
            status = os.fstat(source.fileno())
            head = source.read(_CHUNK_BYTES)
            if is_secret(PurePosixPath(name), head):
                self.secrets[name.as_posix()] = head + source.read()
                return
            digest, size_bytes = hashlib.sha256(), 0
            target = self._new(name.as_posix())
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                while head:
                    digest.update(head)
                    size_bytes += len(head)
                    write_all(handle, head)
                    head = source.read(_CHUNK_BYTES)
            finally:
                os.close(handle)
        is_large = name.parts[0] == "repos" and name.parts[2:4] == ("lfs", "objects")
        if (is_large or name.parts[0] in ("files", "cloud-files")) and digest.hexdigest() != path.name:
            self.damaged.append(name.as_posix())
        self._add(name.as_posix(), size_bytes, digest.hexdigest(), status.st_mode & 0o777)

    def _write(self, name: str, data: bytes, mode: int) -> None:
        self._new(name).write_bytes(data)
        self._add(name, len(data), hashlib.sha256(data).hexdigest(), mode)

    def _new(self, name: str) -> Path:
        target = self._staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _add(self, name: str, size_bytes: int, sha256: str, mode: int) -> None:
        self.files.append(BackupFile(name, size_bytes, sha256, mode))
        self._done_bytes += size_bytes
        self._all_bytes = max(self._all_bytes, self._done_bytes)
        self._say(name)

    def _say(self, what: str) -> None:
        self._on_progress(self._done_bytes, self._all_bytes, what)


def _files_in(top: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of a cloud's folder, or `top` itself, that a backup has; links are not followed."""
    found = [top] if top.is_file() else sorted(top.rglob("*"))
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            if not _is_skipped(path.relative_to(folder)) and path.is_file() and not path.is_symlink():
                yield path


def _is_skipped(path: Path) -> bool:
    if path.parts[0] == "repos":  # locks, and what a killed writer left
        is_pack = "objects" in path.parts[:3] and path.name.startswith("tmp_")
        is_new = len(path.parts) > 1 and path.parts[1].startswith(".new.")
        is_incoming = path.parts[2:4] == ("lfs", "incoming") or (path.parts[2:3] == ("lfs",) and path.name[0] == ".")
        is_unaccepted = path.parts[2:3] == ("objects",) and "".join(path.parts[3:4]).startswith("incoming-")
        return path.suffix == ".lock" or is_pack or is_new or is_incoming or is_unaccepted
    return path.as_posix() in _SKIPPED or path.name.endswith(_SKIPPED_SUFFIXES) or path.parts[0] in _SKIPPED_FOLDERS


def summary(manifest: Manifest) -> Mapping[str, Any]:
    """Return what a command says about a backup."""
    return {
        "made_s": manifest.made_s,
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "sha256": manifest.sha256,
        "audit_number": manifest.audit_number,
        "damaged": list(manifest.damaged),
        "has_keys": manifest.has_keys,
        "has_uploads": manifest.has_uploads,
        "has_files": manifest.has_files,
        "has_state": manifest.has_state,
    }
