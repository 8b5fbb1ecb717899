"""Identities of devices in PostgreSQL, for identity nodes and commands on several machines at once.

Transactions lock what they decide on: the id of the device (an advisory lock, as a new one has no row), then the row of
the token, then the counter of revocations. So a token is never used too often, and versions of revocations become
visible in their order, however many nodes write.
"""

from collections.abc import Sequence
from typing import Any, Self

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
from walle.store.errors import StateError
from walle.store.postgres_database import Action, Connection
from walle.store.postgres_text import storable_text
from walle.store.sync_database import SyncDatabase

LEAST_GENERATION = "least generation of a key"  # counters
REVOCATIONS = "revocations"
_ID_LOCK = 0x57414944  # of advisory locks, with the hash of an id
_TOKENS_LOCK = 0x5741544B  # of one that is held while several tokens are removed: no two wait for each other
_STORED = ", ".join(STORED_FIELDS)
_UPSERT = (
    f"INSERT INTO walle.identities ({_STORED}) VALUES ({', '.join(f'${n}' for n in range(1, len(STORED_FIELDS) + 1))})"  # noqa: S608 - our own names
    f" ON CONFLICT (device_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in STORED_FIELDS[1:])}"
)
_DRAW = (
    "INSERT INTO walle.counters AS c VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET value = c.value + 1"
    " RETURNING value"
)
_RAISE = (
    "INSERT INTO walle.counters AS c VALUES ($1, $2)"
    " ON CONFLICT (name) DO UPDATE SET value = greatest(c.value + 1, excluded.value)"
)


class PostgresIdentityStore(IdentityStore):
    """The store in a database, which outlives it."""

    def __init__(self, database: SyncDatabase, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._database = database

    def open(self) -> Self:
        now_s = self._clock.time()

        async def work(connection: Connection) -> None:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _TOKENS_LOCK)
            await connection.execute("DELETE FROM walle.enrolment_tokens WHERE expires_s < $1", now_s)
            await connection.execute("DELETE FROM walle.revocations WHERE until_s < $1", now_s)

        self._write(work)
        return self

    def close(self) -> None:
        pass

    def keep_room(self) -> None:
        """Do nothing: the disk is the server's."""

    def _add_token(self, sha256: str, device_id: str, uses: int, expires_s: float, purpose: str, now_s: float) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _TOKENS_LOCK)
            query = "DELETE FROM walle.enrolment_tokens WHERE expires_s < $1 OR (purpose != '' AND purpose = $2)"
            await connection.execute(query, now_s, purpose)
            insert = "INSERT INTO walle.enrolment_tokens VALUES ($1, $2, $3, $4, $5)"
            await connection.execute(insert, sha256, device_id, uses, expires_s, purpose)

        self._write(work)

    def _certify(self, device_id: str, public_key: bytes, token: str, expires_s: float) -> BoundKey:
        sha256 = hash_of(token) if token else ""
        now_s = self._clock.time()

        async def work(connection: Connection) -> list[Any]:
            known = await _locked(connection, device_id)
            query = "SELECT device_id, uses_left, expires_s FROM walle.enrolment_tokens WHERE hash = $1 FOR UPDATE"
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
            return list(bound(change, known))

        return BoundKey(*self._write(work))

    def note_session(self, device_id: str) -> None:
        now_s = self._clock.time()

        async def work(connection: Connection) -> None:
            await connection.execute("UPDATE walle.identities SET seen_s = $2 WHERE device_id = $1", device_id, now_s)

        self._write(work, durable=False)

    def _revoke(self, device_id: str, reason: str) -> IdentityRecord:
        now_s = self._clock.time()

        async def work(connection: Connection) -> dict[str, Any]:
            known = await _locked(connection, device_id)
            least = await _least_generation(connection)
            change = revoke_key(known, least, device_id=device_id, reason=storable_text(reason), now_s=now_s)
            if change is None:
                assert known is not None  # it is revoked already
                return known.record.to_plain()
            await _apply(connection, change)
            return change.identity.record.to_plain()

        return IdentityRecord(**self._write(work))

    def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        query = "SELECT version, device_id, lowest FROM walle.revocations WHERE version > $1 ORDER BY version"
        rows = self._rows(query, after)
        return (rows[-1][0] if rows else after), {device_id: lowest for _, device_id, lowest in rows}

    def follow_restore(self) -> None:
        now_s = self._clock.time()

        async def work(connection: Connection) -> None:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _TOKENS_LOCK)
            await connection.execute("DELETE FROM walle.enrolment_tokens")
            await connection.execute(_RAISE, LEAST_GENERATION, int(now_s // 60))
            await connection.execute(_RAISE, REVOCATIONS, int(now_s))  # above those that gateways have seen

        self._write(work)

    def _list(self, after: str, limit: int, search: str) -> list[IdentityRecord]:
        rows = self._rows(
            f"SELECT {', '.join(RECORD_FIELDS)} FROM walle.identities"  # noqa: S608 - our own names
            " WHERE device_id > $1 AND strpos(device_id, $2) > 0 ORDER BY device_id LIMIT $3",
            storable_text(after),
            search,
            limit,
        )
        return [IdentityRecord(**dict(row)) for row in rows]

    def _read(self, device_ids: Sequence[str]) -> dict[str, StoredIdentity]:
        query = f"SELECT {_STORED} FROM walle.identities WHERE device_id = ANY($1)"  # noqa: S608 - our own names
        return {row["device_id"]: StoredIdentity(**dict(row)) for row in self._rows(query, list(device_ids))}

    def _rows(self, query: str, *values: object) -> list[Any]:
        try:
            return self._database.read(query, *values)
        except StateError as error:
            raise IdentityStoreError.of_database(error) from error

    def _write[T](self, work: Action[T], *, durable: bool = True) -> T:
        try:
            return self._database.write(work, durable=durable)
        except StateError as error:
            raise IdentityStoreError.of_database(error) from error


async def _locked(connection: Connection, device_id: str) -> StoredIdentity | None:
    """Return the identity of a device, which nobody else changes before the end of the transaction."""
    await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", _ID_LOCK, device_id)
    query = f"SELECT {_STORED} FROM walle.identities WHERE device_id = $1"  # noqa: S608 - our own names
    row = await connection.fetchrow(query, device_id)
    return None if row is None else StoredIdentity(**dict(row))


async def _least_generation(connection: Connection) -> int:
    """Return the least generation of a new key: above 0 where the database was restored from a backup."""
    return await connection.fetchval("SELECT value FROM walle.counters WHERE name = $1", LEAST_GENERATION) or 0


async def _apply(connection: Connection, change: IdentityChange, sha256: str = "") -> None:
    identity = change.identity
    await connection.execute(_UPSERT, *(getattr(identity, name) for name in STORED_FIELDS))
    if change.uses_token:
        await connection.execute("UPDATE walle.enrolment_tokens SET uses_left = uses_left - 1 WHERE hash = $1", sha256)
    if change.ends_tokens:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _TOKENS_LOCK)
        await connection.execute("DELETE FROM walle.enrolment_tokens WHERE device_id = $1", identity.device_id)
    if change.revocation is not None:
        # The row of the counter stays locked until the commit: a version is drawn once all below it can be seen.
        version = await connection.fetchval(_DRAW, REVOCATIONS)
        insert = "INSERT INTO walle.revocations VALUES ($1, $2, $3, $4)"
        await connection.execute(insert, version, identity.device_id, *change.revocation)
