"""Exclusive files in one SQLite file, for the processes of one machine."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from walle.base.clock import Clock
from walle.deploy.exclusive_files.store import (
    DeviceFiles,
    ExclusiveRecord,
    ExclusiveStore,
    ExclusiveStoreError,
    FormerKeyError,
    GroupRow,
    TooManyFilesError,
)
from walle.protocol import MAX_EXCLUSIVE_FILES, SealedFile
from walle.store.sqlite_file import SqliteFile

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
_OF_GROUP = "(task, name, app_version, rule) = (?, ?, ?, ?)"


class SqliteExclusiveStore(ExclusiveStore):
    """The store in the file at `path`."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.path = path
        self._file = SqliteFile(path, ExclusiveStoreError, "secure_delete = ON")  # what was removed is not left in it

    def open(self) -> Self:
        self._file.make(_SCHEMA)
        return self

    def _put(self, record: ExclusiveRecord, sha256: str, sealed: bytes) -> None:
        device_id = record.device_id
        with self._file.writing() as db:
            later = "SELECT 1 FROM files WHERE device_id = ? AND generation > ? LIMIT 1"
            if db.execute(later, (device_id, record.generation)).fetchone() is not None:
                raise FormerKeyError(device_id)
            db.execute("DELETE FROM files WHERE device_id = ? AND generation < ?", (device_id, record.generation))
            key = (device_id, record.task, record.name)
            db.execute("DELETE FROM files WHERE (device_id, task, name) = (?, ?, ?)", key)
            (count,) = db.execute("SELECT count(*) FROM files WHERE device_id = ?", (device_id,)).fetchone()
            if count >= MAX_EXCLUSIVE_FILES:
                raise TooManyFilesError(device_id)
            row = (device_id, record.generation, record.task, record.name, sha256, record.size_bytes)
            db.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, record.put_s, record.put_by, sealed)
            )
            _raise_serial(db, device_id)

    def has(self, device_id: str, task: str, name: str) -> bool:
        with self._file.reading() as db:
            query = "SELECT 1 FROM files WHERE (device_id, task, name) = (?, ?, ?)"
            return db.execute(query, (device_id, task, name)).fetchone() is not None

    def remove(self, device_id: str, task: str, name: str) -> bool:
        with self._file.writing() as db:
            key = (device_id, task, name)
            found = db.execute("DELETE FROM files WHERE (device_id, task, name) = (?, ?, ?)", key).rowcount > 0
            if found:
                _raise_serial(db, device_id)
            return found

    def files(self, device_id: str, generation: int) -> DeviceFiles:
        with self._file.reading() as db:
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
        with self._file.reading() as db:
            found = db.execute(
                "SELECT sealed FROM files WHERE device_id = ? AND generation = ? AND sha256 = ?",
                (device_id, generation, sha256),
            ).fetchone()
        return None if found is None else bytes(found["sealed"])

    def _records(self, scenario: str, task: str, device_id: str, after: str, count: int) -> Iterable[ExclusiveRecord]:
        where, values = ["task >= ? AND task < ?"], [f"{scenario}/", f"{scenario}0"]  # 0 follows /
        for column, value in (("task", task), ("device_id", device_id)):
            if value:
                where.append(f"{column} = ?")
                values.append(value)
        columns = "device_id, generation, task, name, size_bytes, put_s, put_by"
        with self._file.reading() as db:
            query = (
                f"SELECT {columns} FROM files WHERE {' AND '.join(where)} AND device_id > ?"  # noqa: S608
                " ORDER BY device_id, task, name LIMIT ?"
            )
            return [ExclusiveRecord(**row) for row in db.execute(query, (*values, after, count))]

    def put_group(self, row: GroupRow, encrypted: bytes, *, most: int) -> bool:
        key = (row.task, row.name, row.app_version, row.rule)
        with self._file.writing() as db:
            (others,) = db.execute(f"SELECT count(*) FROM group_files WHERE NOT {_OF_GROUP}", key).fetchone()  # noqa: S608
            if others >= most:
                return False
            db.execute(f"DELETE FROM group_files WHERE {_OF_GROUP}", key)  # noqa: S608
            db.execute(
                "INSERT INTO group_files (task, name, app_version, rule, columns, size_bytes, put_s, put_by, encrypted)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row[1:], encrypted),
            )
            _raise_group_serial(db)
        return True

    def remove_group(self, task: str, name: str, app_version: str, rule: str) -> bool:
        with self._file.writing() as db:
            delete = f"DELETE FROM group_files WHERE {_OF_GROUP}"  # noqa: S608
            found = db.execute(delete, (task, name, app_version, rule)).rowcount > 0
            if found:
                _raise_group_serial(db)
            return found

    def group_rows(self, known: int) -> tuple[int, list[GroupRow] | None]:
        with self._file.reading() as db:
            db.execute("BEGIN")  # serial and files of one state
            found = db.execute("SELECT serial FROM group_serial").fetchone()
            serial = found["serial"] if found else 0
            if serial == known:
                return serial, None
            columns = ", ".join(GroupRow._fields)
            rows = db.execute(f"SELECT {columns} FROM group_files ORDER BY number DESC").fetchall()  # noqa: S608
        return serial, [GroupRow(*row) for row in rows]

    def group_contents(self, number: int) -> bytes | None:
        with self._file.reading() as db:
            row = db.execute("SELECT encrypted FROM group_files WHERE number = ?", (number,)).fetchone()
        return None if row is None else bytes(row["encrypted"])


def _raise_serial(db: sqlite3.Connection, device_id: str) -> None:
    db.execute(
        "INSERT INTO serials VALUES (?, 1) ON CONFLICT (device_id) DO UPDATE SET serial = serial + 1", (device_id,)
    )


def _raise_group_serial(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO group_serial VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET serial = serial + 1")
