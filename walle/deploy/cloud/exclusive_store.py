"""Exclusive files in one SQLite file: sealed to the key of their device, so that this file does not tell contents.
Those of groups (`walle.deploy.cloud.exclusive_groups`) are in it too, encrypted.

Each change is one transaction, and raises the serial of its device. A file belongs to one key (generation) of a device:
another key of the same id sees none of it. Several processes may have the file open.
"""

import dataclasses
import hashlib
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from walle.clock import Clock, SystemClock
from walle.deploy.cloud.sqlite_file import SqliteFile, SqliteFileError
from walle.errors import DeployError
from walle.protocol import MAX_EXCLUSIVE_FILES, SealedFile

_LOG = logging.getLogger(__name__)

MAX_PAGE = 1000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    device_id TEXT NOT NULL, generation INTEGER NOT NULL, task TEXT NOT NULL, name TEXT NOT NULL,
    sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, put_s REAL NOT NULL, put_by TEXT NOT NULL, sealed BLOB NOT NULL,
    UNIQUE (device_id, task, name)) STRICT;
CREATE TABLE IF NOT EXISTS group_files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, name TEXT NOT NULL, app_version TEXT NOT NULL,
    rule TEXT NOT NULL, columns TEXT NOT NULL, size_bytes INTEGER NOT NULL, put_s REAL NOT NULL, put_by TEXT NOT NULL,
    encrypted BLOB NOT NULL, UNIQUE (task, name, app_version, rule)) STRICT;
CREATE TABLE IF NOT EXISTS group_serial (one INTEGER PRIMARY KEY, serial INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS serials (device_id TEXT PRIMARY KEY, serial INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""


class ExclusiveStoreError(SqliteFileError):
    """The file of exclusive files cannot be read or written. Over HTTP: 503, on a full disk 507."""

    holds = "exclusive files"


class FormerKeyError(DeployError):
    """A file that is sealed to a former key of its device: it was enrolled again meanwhile. Over HTTP: 409."""

    status = 409

    def __init__(self, device_id: str) -> None:
        super().__init__(device_id)
        self.device_id = device_id

    def __str__(self) -> str:
        return f"device {self.device_id[:100]!r} has another key now, to which its files are sealed; put it again"


class TooManyFilesError(DeployError):
    """A device that has as many exclusive files as it may. Over HTTP: 409."""

    status = 409

    def __init__(self, device_id: str) -> None:
        super().__init__(device_id)
        self.device_id = device_id

    def __str__(self) -> str:
        what = f"device {self.device_id[:100]!r} has {MAX_EXCLUSIVE_FILES} exclusive files, as many as it may"
        return f"{what}; remove one: walle file remove"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExclusiveRecord:
    """An exclusive file as its cloud knows it; `size_bytes` is that of the sealed file, `put_s` since the epoch.

    `generation` is that of the device's key to which it is sealed.
    """

    device_id: str
    generation: int
    task: str
    name: str
    size_bytes: int
    put_s: float
    put_by: str

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class DeviceFiles(NamedTuple):
    """All files of one key of a device, and the serial of the device."""

    serial: int
    files: tuple[SealedFile, ...]

    def with_groups(self, serial: int, files: Sequence[SealedFile]) -> "DeviceFiles":
        """Return these and the files of the device's groups, of those that it has not by itself.

        The serial is the sum of both, of which neither ever falls.
        """
        own = {(file.task, file.name) for file in self.files}
        more = [file for file in files if (file.task, file.name) not in own]
        if (left := len(own) + len(more) - MAX_EXCLUSIVE_FILES) > 0:
            _LOG.error(
                "a device has more than %d exclusive files: %d of groups are left out", MAX_EXCLUSIVE_FILES, left
            )
        found = sorted((*self.files, *more[: MAX_EXCLUSIVE_FILES - len(own)]), key=lambda file: (file.task, file.name))
        return DeviceFiles(self.serial + serial, tuple(found))


class ExclusiveStore:
    """The file at `path`, after `open`. Calls block; every call raises ExclusiveStoreError where the file fails."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._file = SqliteFile(path, ExclusiveStoreError, "secure_delete = ON")  # what was removed is not left in it
        self.connection, self.writing = self._file.reading, self._file.writing  # also for `GroupFiles`

    def open(self) -> Self:
        """Make what is absent."""
        self._file.make(_SCHEMA)
        return self

    def put(self, device_id: str, generation: int, task: str, name: str, sealed: bytes, *, by: str) -> None:
        """Give a device a file, in place of any it had by this name; `generation` is that of the key it is sealed to.

        Files of its former keys are removed: no device can open them any more.

        Raises:
            FormerKeyError: a later key of the device has files.
            TooManyFilesError: the device has MAX_EXCLUSIVE_FILES others.
        """
        with self.writing() as db:
            later = "SELECT 1 FROM files WHERE device_id = ? AND generation > ? LIMIT 1"
            if db.execute(later, (device_id, generation)).fetchone() is not None:
                raise FormerKeyError(device_id)
            db.execute("DELETE FROM files WHERE device_id = ? AND generation < ?", (device_id, generation))
            key = (device_id, task, name)
            db.execute("DELETE FROM files WHERE (device_id, task, name) = (?, ?, ?)", key)
            (count,) = db.execute("SELECT count(*) FROM files WHERE device_id = ?", (device_id,)).fetchone()
            if count >= MAX_EXCLUSIVE_FILES:
                raise TooManyFilesError(device_id)
            sha256 = hashlib.sha256(sealed).hexdigest()
            row = (device_id, generation, task, name, sha256, len(sealed), self._clock.time(), by, sealed)
            db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            _raise_serial(db, device_id)

    def has(self, device_id: str, task: str, name: str) -> bool:
        """Return whether a device, with any key, has a file."""
        with self.connection() as db:
            query = "SELECT 1 FROM files WHERE (device_id, task, name) = (?, ?, ?)"
            return db.execute(query, (device_id, task, name)).fetchone() is not None

    def remove(self, device_id: str, task: str, name: str) -> bool:
        """Take a file from a device; return whether it had one."""
        with self.writing() as db:
            key = (device_id, task, name)
            found = db.execute("DELETE FROM files WHERE (device_id, task, name) = (?, ?, ?)", key).rowcount > 0
            if found:
                _raise_serial(db, device_id)
            return found

    def files(self, device_id: str, generation: int) -> DeviceFiles:
        """Return what a key of a device has."""
        with self.connection() as db:
            db.execute("BEGIN")  # serial and files of one state
            serial = db.execute("SELECT serial FROM serials WHERE device_id = ?", (device_id,)).fetchone()
            rows = db.execute(
                "SELECT task, name, sha256, size_bytes FROM files WHERE device_id = ? AND generation = ?"
                " ORDER BY task, name",
                (device_id, generation),
            ).fetchall()
            db.execute("COMMIT")
        return DeviceFiles(serial["serial"] if serial else 0, tuple(SealedFile(**row) for row in rows))

    def sealed(self, device_id: str, generation: int, sha256: str) -> bytes | None:
        """Return the sealed bytes of a file of this key of the device, None where it has none of this hash."""
        with self.connection() as db:
            found = db.execute(
                "SELECT sealed FROM files WHERE device_id = ? AND generation = ? AND sha256 = ?",
                (device_id, generation, sha256),
            ).fetchone()
        return None if found is None else bytes(found["sealed"])

    def records(
        self, scenario: str, *, task: str = "", device_id: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[ExclusiveRecord]:
        """Return files of a scenario's tasks by device, of devices after the id `after`; `task` without the scenario.

        A device's files are together: there may be up to MAX_EXCLUSIVE_FILES more than `limit`.
        """
        where, values = ["task >= ? AND task < ?"], [f"{scenario}/", f"{scenario}0"]  # 0 follows /
        for column, value in (("task", task and f"{scenario}/{task}"), ("device_id", device_id)):
            if value:
                where.append(f"{column} = ?")
                values.append(value)
        columns = "device_id, generation, task, name, size_bytes, put_s, put_by"
        found: list[ExclusiveRecord] = []
        with self.connection() as db:
            query = f"SELECT {columns} FROM files WHERE {' AND '.join(where)} AND device_id > ? ORDER BY 1, 3, 4"  # noqa: S608
            for row in db.execute(query, (*values, after)):
                if len(found) >= limit and row["device_id"] != found[-1].device_id:
                    break
                found.append(ExclusiveRecord(**row))
        return found


def _raise_serial(db: sqlite3.Connection, device_id: str) -> None:
    db.execute(
        "INSERT INTO serials VALUES (?, 1) ON CONFLICT (device_id) DO UPDATE SET serial = serial + 1", (device_id,)
    )
