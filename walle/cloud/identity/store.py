"""Identities of devices in one SQLite file: enrolment tokens, the key of each device, and what was revoked.

Each change is one transaction that holds the write lock from its first read, so that two enrolments with one token are
one after the other, whichever processes make them. Tokens are stored as hashes.
"""

import dataclasses
import logging
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from walle.clock import Clock, SystemClock
from walle.deploy.cloud.access import hash_of
from walle.deploy.cloud.api import AccessError
from walle.deploy.cloud.disk_space import is_full
from walle.deploy.cloud.sqlite_file import SqliteFile, SqliteFileError
from walle.errors import ConfigError
from walle.protocol import MAX_ID_CHARS, whole_characters

MAX_USES = 100_000
MAX_LIFE_S = 366 * 86_400.0
MAX_PAGE = 1_000
RENEWAL_GRACE_S = 180 * 86_400.0  # after the end of its certificate, in which a device may still renew it
LOST_CERTIFICATE_S = 31 * 86_400.0  # above the life of a certificate
_MAX_REASON_CHARS = 500
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


class IdentityStoreError(SqliteFileError):
    """The file of identities cannot be read or written. Over HTTP: 503, on a full disk 507."""

    holds = "identities of devices"


class IdentityRefusedError(AccessError):
    """A device that is not given what it asked for. 401: without a valid token or proof; 403: it may not have it."""


class KeyRevokedError(IdentityRefusedError):
    """The device's key was revoked: the device needs another, and a token for its id."""

    def __init__(self, device_id: str) -> None:
        super().__init__(
            403,
            f"the key of device {device_id[:100]!r} was revoked; to admit it again with a new key:"
            " walle device enrol, for this id",
        )


class BoundKey(NamedTuple):
    """Generation of a device's key; `is_new`: a token was used up to bind it, else it was the device's already."""

    generation: int
    is_new: bool


class DeviceKey(NamedTuple):
    """The key (DER) of a device, empty where the cloud was restored without it, and the end of its certificate."""

    generation: int
    public_key: bytes
    expires_s: float
    is_revoked: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentityRecord:
    """A device's identity as its cloud knows it. Times are in seconds since the epoch.

    Its certificate ends at `expires_s`.
    """

    device_id: str
    generation: int
    enrolled_s: float
    expires_s: float
    seen_s: float  # when it last asked for a certificate or a session
    revoked_s: float | None
    reason: str

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def state(self) -> dict[str, Any]:
        """Return what the list of known devices shows."""
        return {"key": "enrolled" if self.revoked_s is None else "revoked", "certificate_until_s": self.expires_s}


class IdentityStore:
    """The file at `path`, from `open` to `close`. Calls block; several processes may have it open.

    Every call raises IdentityStoreError where the file cannot be read or written.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._file = SqliteFile(path, IdentityStoreError)
        self._let_go: Callable[[], object] | None = None  # of what `keep_room` keeps
        self._keeping = threading.Lock()  # a node that is closed while it starts does so in another thread
        self._is_closed = False

    def open(self) -> Self:
        """Make what is absent, and remove what nothing needs any more."""
        self._file.make(_SCHEMA)
        with self._file.writing() as db:
            db.execute("DELETE FROM tokens WHERE expires_s < ?", (self._clock.time(),))
            db.execute("DELETE FROM revocations WHERE until_s < ?", (self._clock.time(),))
        return self

    def close(self) -> None:
        """End what `keep_room` began, or is about to; every other call has a connection of its own."""
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
                    raise IdentityStoreError.of(self.path, error) from error
                _LOG.error(
                    "identities of devices, %s: no reserve, the disk is full. Free some space, and restart", self.path
                )

    # --- tokens -------------------------------------------------------------------------------------------------------

    def make_token(self, device_id: str = "", *, uses: int = 1, life_s: float, purpose: str = "") -> str:
        """Return a new enrolment token: for one device, or for `uses` new ones if `device_id` is empty.

        A `purpose` has one token: another replaces it.

        Raises:
            ConfigError: a value is outside its bounds.
        """
        if device_id:
            check_device_id(device_id)
        if not 1 <= uses <= MAX_USES or (device_id and uses != 1):
            raise ConfigError(f"a token admits 1 to {MAX_USES} devices, 1 where it names the device; not {uses}")
        if not 0 < life_s <= MAX_LIFE_S:
            raise ConfigError(f"a token is valid for at most {MAX_LIFE_S / 86_400:.0f} days; not for {life_s} s")
        token = secrets.token_urlsafe(32)
        now_s = self._clock.time()
        with self._file.writing() as db:
            db.execute("DELETE FROM tokens WHERE expires_s < ? OR (purpose != '' AND purpose = ?)", (now_s, purpose))
            row = (hash_of(token), device_id, uses, now_s + life_s, purpose)
            db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?)", row)
        return token

    # --- certificates -------------------------------------------------------------------------------------------------

    def certify(self, device_id: str, public_key: bytes, token: str, *, expires_s: float) -> BoundKey:
        """Bind a key (DER), whose owner has proven it, to a device.

        The key that the device has may be certified again without a token: to renew its certificate, or because an
        answer was lost. Any other needs a token, and revokes the one before.

        Raises:
            IdentityRefusedError, KeyRevokedError: it may not have this id.
            ConfigError: no device can have this id.
        """
        check_device_id(device_id)
        now_s = self._clock.time()
        with self._file.writing() as db:
            known = db.execute("SELECT * FROM identities WHERE device_id = ?", (device_id,)).fetchone()
            if known is not None and known["public_key"] == public_key:
                if known["revoked_s"] is not None:
                    raise KeyRevokedError(device_id)
                if now_s > known["expires_s"] + RENEWAL_GRACE_S:
                    if not token:
                        raise long_expired(device_id)
                    self._use_token(db, token, device_id, now_s, is_other=False)
                db.execute(
                    "UPDATE identities SET expires_s = ?, seen_s = ? WHERE device_id = ?", (expires_s, now_s, device_id)
                )
                return BoundKey(known["generation"], is_new=False)
            self._use_token(db, token, device_id, now_s, is_other=known is not None)
            least = _least_generation(db)
            generation = max(1 if known is None else known["generation"] + 1, least)
            db.execute(
                "INSERT OR REPLACE INTO identities VALUES (?, ?, ?, ?, ?, ?, NULL, '')",
                (device_id, generation, public_key, now_s, expires_s, now_s),
            )
            if known is not None or least:
                self._refuse_below(db, device_id, generation, now_s if known is None else known["expires_s"], now_s)
            return BoundKey(generation, is_new=True)

    def _use_token(self, db: sqlite3.Connection, token: str, device_id: str, now_s: float, *, is_other: bool) -> None:
        digest = hash_of(token)
        found = db.execute("SELECT * FROM tokens WHERE hash = ?", (digest,)).fetchone() if token else None
        make = "make another: walle device enrol"
        if found is None:
            what = "the enrolment token is not known, or expired long ago" if token else "this key is not enrolled"
            raise IdentityRefusedError(401, f"device {device_id[:100]!r}: {what}; {make}")
        if found["expires_s"] < now_s:
            raise IdentityRefusedError(401, f"the enrolment token has expired; {make}")
        if found["uses_left"] < 1:
            raise IdentityRefusedError(401, f"the enrolment token is used up; {make}")
        if found["device_id"] not in ("", device_id):
            raise IdentityRefusedError(403, f"the enrolment token is for another device than {device_id[:100]!r}")
        if is_other and not found["device_id"]:
            what = f"device {device_id[:100]!r} is enrolled with another key"
            raise IdentityRefusedError(403, f"{what}; a token for this id replaces it: walle device enrol, with the id")
        db.execute("UPDATE tokens SET uses_left = uses_left - 1 WHERE hash = ?", (digest,))

    def bound_key(self, device_id: str) -> DeviceKey | None:
        """Return the key that is bound to a device, also a revoked one; None if no such device is enrolled."""
        with self._file.reading() as db:
            known = db.execute("SELECT * FROM identities WHERE device_id = ?", (device_id,)).fetchone()
        if known is None:
            return None
        return DeviceKey(known["generation"], known["public_key"], known["expires_s"], known["revoked_s"] is not None)

    def current_key(self, device_id: str) -> tuple[int, bytes]:
        """Return the generation and key (DER) of a device, for what only it may read.

        Raises:
            UnknownIdentityError, KeyRevokedError: it has none that is valid.
        """
        key = self.bound_key(device_id)
        if key is None:
            raise UnknownIdentityError(device_id)
        if key.is_revoked:
            raise KeyRevokedError(device_id)
        return key.generation, key.public_key

    def note_session(self, device_id: str) -> None:
        """Note that the device was seen now."""
        with self._file.writing() as db:
            db.execute("UPDATE identities SET seen_s = ? WHERE device_id = ?", (self._clock.time(), device_id))

    # --- revocation ---------------------------------------------------------------------------------------------------

    def revoke(self, device_id: str, reason: str) -> IdentityRecord:
        """Revoke the key of a device permanently; a second time changes nothing.

        Raises:
            UnknownIdentityError: no such device is enrolled.
        """
        now_s = self._clock.time()
        with self._file.writing() as db:
            known = db.execute("SELECT * FROM identities WHERE device_id = ?", (device_id,)).fetchone()
            least = _least_generation(db)
            if known is None:
                if not least:
                    raise UnknownIdentityError(device_id)
                check_device_id(device_id)  # it may have enrolled in the time that a restore lost
                row = (device_id, least, b"", now_s, now_s + LOST_CERTIFICATE_S, now_s)
                db.execute("INSERT INTO identities VALUES (?, ?, ?, ?, ?, ?, NULL, '')", row)
                known = db.execute("SELECT * FROM identities WHERE device_id = ?", (device_id,)).fetchone()
            if known["revoked_s"] is None:
                db.execute(
                    "UPDATE identities SET revoked_s = ?, reason = ? WHERE device_id = ?",
                    (now_s, whole_characters(reason[:_MAX_REASON_CHARS]), device_id),
                )
                db.execute("DELETE FROM tokens WHERE device_id = ?", (device_id,))
                self._refuse_below(db, device_id, max(known["generation"] + 1, least), known["expires_s"], now_s)
            return _record(db.execute("SELECT * FROM identities WHERE device_id = ?", (device_id,)).fetchone())

    def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        """Return the newest version, and the lowest generations by device that came after version `after`."""
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT version, device_id, lowest FROM revocations WHERE version > ? ORDER BY version", (after,)
            ).fetchall()
        return (rows[-1]["version"] if rows else after), {row["device_id"]: row["lowest"] for row in rows}

    @staticmethod
    def _refuse_below(db: sqlite3.Connection, device_id: str, lowest: int, expires_s: float, now_s: float) -> None:
        if _least_generation(db):  # certificates of the time that a restore lost may be later than those here
            expires_s = max(expires_s, now_s + LOST_CERTIFICATE_S)
        # Two days more: sessions that were given at the last moment, and clocks that differ.
        row = (device_id, lowest, max(expires_s, now_s) + 2 * 86_400)
        db.execute("INSERT INTO revocations (device_id, lowest, until_s) VALUES (?, ?, ?)", row)

    def follow_restore(self) -> None:
        """Begin again after a restore from a backup: what was decided after it is not known here.

        Keys get generations above all that the lost cloud can have given, so that a device's next key, or its
        revocation, ends those. Enrolment tokens end: they may have been used since.
        """
        with self._file.writing() as db:
            db.execute("DELETE FROM tokens")
            db.execute(f"PRAGMA user_version = {max(_least_generation(db) + 1, int(self._clock.time() // 60))}")

    # --- reads --------------------------------------------------------------------------------------------------------

    def records(self, *, after: str = "", limit: int = MAX_PAGE, search: str = "") -> list[IdentityRecord]:
        """Return devices in the order of their ids, after the id `after`, of ids with the part `search`."""
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT * FROM identities WHERE device_id > ? AND instr(device_id, ?) > 0 ORDER BY device_id LIMIT ?",
                (after, search, max(1, min(limit, MAX_PAGE))),
            ).fetchall()
        return [_record(row) for row in rows]

    def states(self, device_ids: Sequence[str]) -> dict[str, IdentityRecord]:
        """Return those of these devices that are enrolled, revoked ones too."""
        with self._file.reading() as db:
            query = "SELECT * FROM identities WHERE device_id = ?"
            rows = [db.execute(query, (device_id,)).fetchone() for device_id in device_ids]
        return {row["device_id"]: _record(row) for row in rows if row is not None}


class UnknownIdentityError(AccessError):
    """No device of this id is enrolled."""

    def __init__(self, device_id: str) -> None:
        super().__init__(404, f"no device {device_id[:100]!r} is enrolled; list them with: walle device list")


def long_expired(device_id: str) -> IdentityRefusedError:
    """Return the refusal of a device whose certificate ended more than RENEWAL_GRACE_S ago."""
    what = f"the certificate of device {device_id[:100]!r} expired more than {RENEWAL_GRACE_S / 86_400:.0f} days ago"
    return IdentityRefusedError(403, f"{what}; enrol it again: walle device enrol")


def check_device_id(device_id: str) -> None:
    """Raise ConfigError if no device can have this id."""
    if not device_id or len(device_id) > MAX_ID_CHARS or not device_id.isprintable():
        what = "an id of a device is 1 to"
        raise ConfigError(f"{device_id[:100]!r}: {what} {MAX_ID_CHARS} printable characters")


def _least_generation(db: sqlite3.Connection) -> int:
    """Return the least generation of a new key: above 0 where the file was restored from a backup."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _record(row: sqlite3.Row) -> IdentityRecord:
    names = [field.name for field in dataclasses.fields(IdentityRecord)]
    return IdentityRecord(**{name: row[name] for name in names})
