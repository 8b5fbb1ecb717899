"""Store of devices' identities: enrolment tokens, the key of each device, and what was revoked.

They are in a file of one machine, or in a database, where several machines may use them at once. Tokens are stored as
hashes. Each change is one transaction, so that two enrolments with one token are one after the other, whichever
processes make them. Transactions lock what they decide on: the id of the device (a lock by its name, as a new one has
no row), then the row of the token, then the counter of revocations. So a token is never used too often, and versions of
revocations become visible in their order, however many nodes write.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

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
from walle.access.identity.refusals import KeyRevokedError, UnknownIdentityError, check_device_id, is_device_id
from walle.base.clock import Clock, SystemClock
from walle.errors import ConfigError
from walle.store.errors import StoreError
from walle.store.sql import Action, BlockingDatabase, Connection, lock
from walle.store.sqlite_file import SqliteFile
from walle.store.stored_texts import storable_text
from walle.store.tables import IDENTITIES, IDENTITY, LEAST_GENERATION, REVOCATIONS, REVOKED, TOKENS

MAX_USES = 100_000
MAX_LIFE_S = 366 * 86_400.0
MAX_PAGE = 1_000
_RESERVE_BYTES = 256 << 10  # a revocation takes about 20 KiB
_ID_LOCK = 0x57414944  # first part of a lock's key; the id is the second
_TOKENS_LOCK = 0x5741544B  # whoever removes several tokens holds it: no two wait for each other
_STORED = ", ".join(STORED_FIELDS)
# A version of Walle before counters may revoke on the same file: it leaves the counter behind the table.
_DRAW = (
    "INSERT INTO counters AS c VALUES ($1, 1) ON CONFLICT (name) DO UPDATE"
    " SET value = greatest(c.value, (SELECT coalesce(max(version), 0) FROM revocations)) + 1 RETURNING value"
)
_RAISE = (
    "INSERT INTO counters AS c VALUES ($1, $2)"
    " ON CONFLICT (name) DO UPDATE SET value = greatest(c.value + 1, excluded.value)"
)
# Files of versions before had this number elsewhere.
_COUNTER_OF_FILES = f"""
INSERT INTO counters AS c SELECT '{LEAST_GENERATION}', user_version FROM pragma_user_version WHERE user_version > 0
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE excluded.value > c.value;
"""  # noqa: S608 - our own names


class IdentityStoreError(StoreError):
    """The identities cannot be read or written. Over HTTP: 503, on a full disk 507."""

    holds = "identities of devices"


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


class IdentityStore:
    """The store in a database, from `open` to `close`. Calls block; several processes may have it open.

    Every call raises IdentityStoreError where the store cannot be read or written.
    """

    def __init__(self, database: BlockingDatabase, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()

    @classmethod
    def in_file(cls, path: Path, *, clock: Clock | None = None) -> Self:
        """Return the store in the file at `path`."""
        return cls(SqliteFile(path, IDENTITY, upgrade=_COUNTER_OF_FILES), clock)

    def open(self) -> Self:
        """Make what is absent, and remove what nothing needs any more."""
        now_s = self._clock.time()

        async def work(connection: Connection) -> None:
            await lock(connection, _TOKENS_LOCK)
            await connection.execute("DELETE FROM enrolment_tokens WHERE expires_s < $1", now_s)
            await connection.execute("DELETE FROM revocations WHERE until_s < $1", now_s)

        with IdentityStoreError.raised():
            self._database.open()
        self._write(work)
        return self

    def close(self) -> None:
        """End what `keep_room` began, or is about to; other calls continue."""
        self._database.leave_room()

    def keep_room(self) -> None:
        """Keep space for revocations until `close`, where the store can: a full disk must not keep a thief's key."""
        with IdentityStoreError.raised():
            self._database.keep_room(_RESERVE_BYTES)

    # --- tokens ---

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
        self._add_token(hash_of(token), device_id, uses, now_s + life_s, purpose, now_s)
        return token

    def _add_token(self, sha256: str, device_id: str, uses: int, expires_s: float, purpose: str, now_s: float) -> None:
        async def work(connection: Connection) -> None:
            await lock(connection, _TOKENS_LOCK)
            query = "DELETE FROM enrolment_tokens WHERE expires_s < $1 OR (purpose != '' AND purpose = $2)"
            await connection.execute(query, now_s, purpose)
            await connection.execute(TOKENS.insert(), sha256, device_id, uses, expires_s, purpose)

        self._write(work)

    # --- certificates ---

    def certify(self, device_id: str, public_key: bytes, token: str, *, expires_s: float) -> BoundKey:
        """Bind a key (DER), whose owner has proven it, to a device.

        The key that the device has may be certified again without a token: to renew its certificate, or because an
        answer was lost. Any other needs a token, and revokes the one before.

        Raises:
            IdentityRefusedError, KeyRevokedError: it may not have this id.
            ConfigError: no device can have this id.
        """
        check_device_id(device_id)
        sha256 = hash_of(token) if token else ""
        now_s = self._clock.time()

        async def work(connection: Connection) -> list[Any]:
            known = await _locked(connection, device_id)
            query = "SELECT device_id, uses_left, expires_s FROM enrolment_tokens WHERE hash = $1 FOR UPDATE"
            found = await connection.fetchrow(query, sha256) if token else None
            change = certify_key(
                known,
                None if found is None else StoredToken(*found),
                await _least_generation(connection),
                device_id=device_id,
                public_key=public_key,
                token=token,
                expires_s=expires_s,
                now_s=now_s,
            )
            await _apply(connection, change, sha256)
            is_new = known is None or known.generation != change.identity.generation
            return [change.identity.generation, is_new]

        return BoundKey(*self._write(work))

    def bound_key(self, device_id: str) -> DeviceKey | None:
        """Return the key that is bound to a device, also a revoked one; None if no such device is enrolled."""
        known = self._find([device_id]).get(device_id)
        if known is None:
            return None
        return DeviceKey(known.generation, known.public_key, known.expires_s, known.revoked_s is not None)

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
        now_s = self._clock.time()

        async def work(connection: Connection) -> None:
            await connection.execute("UPDATE identities SET seen_s = $2 WHERE device_id = $1", device_id, now_s)

        self._write(work, durable=False)

    # --- revocation ---

    def revoke(self, device_id: str, reason: str) -> IdentityRecord:
        """Revoke the key of a device permanently; a second time changes nothing.

        Raises:
            UnknownIdentityError: no such device is enrolled.
            ConfigError: no device can have this id.
        """
        check_device_id(device_id)
        now_s = self._clock.time()

        async def work(connection: Connection) -> dict[str, Any]:
            known = await _locked(connection, device_id)
            least = await _least_generation(connection)
            change = revoke_key(known, least, device_id=device_id, reason=storable_text(reason), now_s=now_s)
            if change is None:
                assert known is not None  # the identity is revoked already
                return known.record.to_plain()
            await _apply(connection, change)
            return change.identity.record.to_plain()

        return IdentityRecord(**self._write(work))

    def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        """Return the newest version, and the lowest generations by device that came after version `after`.

        Versions become visible in their order: who has seen one has seen all below it.
        """
        rows = self._rows(
            "SELECT version, device_id, lowest FROM revocations WHERE version > $1 ORDER BY version", after
        )
        return (rows[-1][0] if rows else after), {device_id: lowest for _, device_id, lowest in rows}

    def follow_restore(self) -> None:
        """Begin again after a restore from a backup: what was decided after it is not known here.

        Keys get generations above all that the lost cloud can have given, so that a device's next key, or its
        revocation, ends those. Enrolment tokens end: they may have been used since.
        """
        now_s = self._clock.time()

        async def work(connection: Connection) -> None:
            await lock(connection, _TOKENS_LOCK)
            await connection.execute("DELETE FROM enrolment_tokens")
            await connection.execute(_RAISE, LEAST_GENERATION, int(now_s // 60))
            await connection.execute(_RAISE, REVOCATIONS, int(now_s))  # gateways have seen lower versions only

        self._write(work)

    # --- reads ---

    def records(self, *, after: str = "", limit: int = MAX_PAGE, search: str = "") -> list[IdentityRecord]:
        """Return devices in the order of their ids, after the id `after`, of ids with the part `search`."""
        if not search.isprintable():  # no id has such a text
            return []
        rows = self._rows(
            f"SELECT {', '.join(RECORD_FIELDS)} FROM identities"  # noqa: S608 - our own names
            " WHERE device_id > $1 AND strpos(device_id, $2) > 0 ORDER BY device_id LIMIT $3",
            storable_text(after),
            search,
            max(1, min(limit, MAX_PAGE)),
        )
        return [IdentityRecord(**dict(row)) for row in rows]

    def states(self, device_ids: Sequence[str]) -> dict[str, IdentityRecord]:
        """Return those of these devices that are enrolled, revoked ones too."""
        return {device_id: found.record for device_id, found in self._find(device_ids).items()}

    def _find(self, device_ids: Sequence[str]) -> dict[str, StoredIdentity]:
        possible = [device_id for device_id in device_ids if is_device_id(device_id)]
        if not possible:
            return {}
        query = f"SELECT {_STORED} FROM identities WHERE device_id = ANY($1)"  # noqa: S608 - our own names
        return {row["device_id"]: StoredIdentity(**dict(row)) for row in self._rows(query, possible)}

    def _rows(self, query: str, *values: object) -> list[Any]:
        with IdentityStoreError.raised():
            return self._database.read(query, *values)

    def _write[T](self, work: Action[T], *, durable: bool = True) -> T:
        with IdentityStoreError.raised():
            return self._database.write(work, durable=durable)


async def _locked(connection: Connection, device_id: str) -> StoredIdentity | None:
    """Return the identity of a device, which nobody else changes before the end of the transaction."""
    await lock(connection, _ID_LOCK, device_id)
    query = f"SELECT {_STORED} FROM identities WHERE device_id = $1"  # noqa: S608 - our own names
    row = await connection.fetchrow(query, device_id)
    return None if row is None else StoredIdentity(**dict(row))


async def _least_generation(connection: Connection) -> int:
    """Return the least generation of a new key: above 0 where the database was restored from a backup."""
    return await connection.fetchval("SELECT value FROM counters WHERE name = $1", LEAST_GENERATION) or 0


async def _apply(connection: Connection, change: IdentityChange, sha256: str = "") -> None:
    identity = change.identity
    await connection.execute(IDENTITIES.upsert, *(getattr(identity, name) for name in IDENTITIES.names))
    if change.uses_token:
        await connection.execute("UPDATE enrolment_tokens SET uses_left = uses_left - 1 WHERE hash = $1", sha256)
    if change.ends_tokens:
        await lock(connection, _TOKENS_LOCK)
        await connection.execute("DELETE FROM enrolment_tokens WHERE device_id = $1", identity.device_id)
    if change.revocation is not None:
        # The row of the counter stays locked until the commit: a version is drawn once all below it can be seen.
        version = await connection.fetchval(_DRAW, REVOCATIONS)
        await connection.execute(REVOKED.insert(), version, identity.device_id, *change.revocation)
