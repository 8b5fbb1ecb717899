"""Identities of devices in one SQLite file, for the processes of one machine.

Each change is one transaction that holds the write lock from its first read.
"""

import logging
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from walle.access.access import hash_of
from walle.access.identity.changes import (
    RECORD_FIELDS,
    STORED_FIELDS,
    IdentityChange,
    IdentityRecord,
    StoredIdentity,
    StoredToken,
    certify_key,
    revoke_key,
)
from walle.access.identity.store import BoundKey, IdentityStore, IdentityStoreError, bound
from walle.base.clock import Clock
from walle.store.disk_space import is_full
from walle.store.sqlite_file import SqliteFile

_RESERVE_BYTES = 256 << 10  # a revocation takes about 20 KiB
_LOG = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    hash TEXT PRIMARY KEY, device_id TEXT NOT NULL, uses_left INTEGER NOT NULL, expires_s REAL NOT NULL,
    purpose TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identities (
    device_id TEXT PRIMARY KEY, generation INTEGER NOT NULL, public_key BLOB NOT NULL, enrolled_s REAL NOT NULL,
    expires_s REAL NOT NULL, seen_s REAL NOT NULL, revoked_s REAL, reason TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revocations (
    version INTEGER PRIMARY KEY AUTOINCREMENT, device_id TEXT NOT NULL, lowest INTEGER NOT NULL, until_s REAL NOT NULL
    ) STRICT;
"""


class SqliteIdentityStore(IdentityStore):
    """The store in the file at `path`."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.path = path
        self._file = SqliteFile(path, IdentityStoreError)
        self._let_go: Callable[[], object] | None = None  # of what `keep_room` keeps
        self._keeping = threading.Lock()  # a node that is closed while it starts does so in another thread
        self._is_closed = False

    def open(self) -> Self:
        self._file.make(_SCHEMA)
        with self._file.writing() as db:
            db.execute("DELETE FROM tokens WHERE expires_s < ?", (self._clock.time(),))
            db.execute("DELETE FROM revocations WHERE until_s < ?", (self._clock.time(),))
        return self

    def close(self) -> None:
        """End what `keep_room` began, or is about to; every other call has a separate connection."""
        with self._keeping:
            self._is_closed = True
            if self._let_go is not None:
                self._let_go()

    def keep_room(self) -> None:
        """Keep the file's space and its log until `close`: a full disk must not keep a thief's key valid.

        Pages that are written and deleted stay the file's, and a log is removed with the last connection.
        """
        with self._keeping:
            if self._is_closed:
                return
            with self._file.errors():
                kept = self._file.connect(is_shared=True)
            self._let_go = weakref.finalize(self, kept.close)
            try:
                kept.execute("SELECT count(*) FROM revocations").fetchone()  # which makes the log and its index
                kept.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB NOT NULL) STRICT")
                kept.execute("INSERT INTO reserve VALUES (zeroblob(?))", (_RESERVE_BYTES,))
                kept.execute("DROP TABLE reserve")
                kept.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                if not is_full(error):
                    raise IdentityStoreError.of_file(self.path, error) from error
                _LOG.error(
                    "identities of devices, %s: no reserve, the disk is full. Free some space, and restart", self.path
                )

    def _add_token(self, sha256: str, device_id: str, uses: int, expires_s: float, purpose: str, now_s: float) -> None:
        with self._file.writing() as db:
            db.execute("DELETE FROM tokens WHERE expires_s < ? OR (purpose != '' AND purpose = ?)", (now_s, purpose))
            row = (sha256, device_id, uses, expires_s, purpose)
            db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?)", row)

    def _certify(self, device_id: str, public_key: bytes, token: str, expires_s: float) -> BoundKey:
        with self._file.writing() as db:
            known = _identity(db, device_id)
            change = certify_key(
                known,
                _token(db, token),
                _least_generation(db),
                device_id=device_id,
                public_key=public_key,
                token=token,
                expires_s=expires_s,
                now_s=self._clock.time(),
            )
            _write(db, change, token)
        return bound(change, known)

    def note_session(self, device_id: str) -> None:
        with self._file.writing() as db:
            db.execute("UPDATE identities SET seen_s = ? WHERE device_id = ?", (self._clock.time(), device_id))

    def _revoke(self, device_id: str, reason: str) -> IdentityRecord:
        with self._file.writing() as db:
            known = _identity(db, device_id)
            change = revoke_key(
                known, _least_generation(db), device_id=device_id, reason=reason, now_s=self._clock.time()
            )
            if change is None:
                assert known is not None  # it is revoked already
                return known.record
            _write(db, change)
        return change.identity.record

    def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT version, device_id, lowest FROM revocations WHERE version > ? ORDER BY version", (after,)
            ).fetchall()
        return (rows[-1]["version"] if rows else after), {row["device_id"]: row["lowest"] for row in rows}

    def follow_restore(self) -> None:
        with self._file.writing() as db:
            db.execute("DELETE FROM tokens")
            db.execute(f"PRAGMA user_version = {max(_least_generation(db) + 1, int(self._clock.time() // 60))}")

    def _list(self, after: str, limit: int, search: str) -> list[IdentityRecord]:
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT * FROM identities WHERE device_id > ? AND instr(device_id, ?) > 0 ORDER BY device_id LIMIT ?",
                (after, search, limit),
            ).fetchall()
        return [IdentityRecord(**{name: row[name] for name in RECORD_FIELDS}) for row in rows]

    def _read(self, device_ids: Sequence[str]) -> dict[str, StoredIdentity]:
        with self._file.reading() as db:
            found = [_identity(db, device_id) for device_id in device_ids]
        return {one.device_id: one for one in found if one is not None}


def _identity(db: sqlite3.Connection, device_id: str) -> StoredIdentity | None:
    row = db.execute("SELECT * FROM identities WHERE device_id = ?", (device_id,)).fetchone()
    return None if row is None else StoredIdentity(**{name: row[name] for name in STORED_FIELDS})


def _token(db: sqlite3.Connection, token: str) -> StoredToken | None:
    query = "SELECT device_id, uses_left, expires_s FROM tokens WHERE hash = ?"
    row = db.execute(query, (hash_of(token),)).fetchone() if token else None
    return None if row is None else StoredToken(*row)


def _write(db: sqlite3.Connection, change: IdentityChange, token: str = "") -> None:
    identity = change.identity
    marks = ", ".join("?" * len(STORED_FIELDS))
    values = [getattr(identity, name) for name in STORED_FIELDS]
    db.execute(f"INSERT OR REPLACE INTO identities ({', '.join(STORED_FIELDS)}) VALUES ({marks})", values)  # noqa: S608
    if change.uses_token:
        db.execute("UPDATE tokens SET uses_left = uses_left - 1 WHERE hash = ?", (hash_of(token),))
    if change.ends_tokens:
        db.execute("DELETE FROM tokens WHERE device_id = ?", (identity.device_id,))
    if change.revocation is not None:
        row = (identity.device_id, *change.revocation)
        db.execute("INSERT INTO revocations (device_id, lowest, until_s) VALUES (?, ?, ?)", row)


def _least_generation(db: sqlite3.Connection) -> int:
    """Return the least generation of a new key: above 0 where the file was restored from a backup."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])
