"""The audit log in PostgreSQL: the lines of `walle.access.audit`, one row each, appended under a lock.

Two writers cannot fork the chain: each reads the last record with the lock that it keeps until its commit, and a
number is a key. `verify` is that of a folder, on a copy of the rows.
"""

import json
import tempfile
import threading
from pathlib import Path
from typing import Any, Unpack

from walle.access.audit import (
    FIRST,
    HEAD_EVERY,
    AuditError,
    AuditFields,
    AuditHead,
    AuditRecord,
    OwingLog,
    SignHead,
    Verification,
    make_record,
    verify,
)
from walle.base.clock import Clock
from walle.store.errors import StateError
from walle.store.postgres_database import Connection
from walle.store.sync_database import SyncDatabase

MAX_RECORDS = 400_000  # about as many as the segments of a folder have
_REMOVED = 10_000  # records removed at once
_LOCK = 0x57415544  # key of an advisory lock
_PART = 10_000  # records of a copy that are read at once


class PostgresAuditLog(OwingLog):
    """The log in a database, which `place` names in errors. May be used from any thread.

    The oldest of more than `max_records` are removed, `removed` at once, which a record says.
    """

    def __init__(
        self,
        database: SyncDatabase,
        clock: Clock,
        sign: SignHead,
        *,
        place: str,
        max_records: int = MAX_RECORDS,
        removed: int = _REMOVED,
    ) -> None:
        super().__init__()
        self.place = place
        self._appending = threading.Lock()  # held while owed records are appended
        self._database = database
        self._clock = clock
        self._sign = sign
        self._max_records = max_records
        self._removed = removed

    def append(self, action: str, **fields: Unpack[AuditFields]) -> AuditRecord:
        with self._appending:
            return self._append_all(action, fields)

    def _failure(self, error: StateError) -> AuditError:
        found = AuditError(self.place, error.why, is_full=error.is_full)
        found.may_pass = error.may_pass
        found.retry_after_s = getattr(error, "retry_after_s", None)
        return found

    def _append_all(self, action: str, fields: AuditFields) -> AuditRecord:
        """Append the records that are owed, and this one; return this one."""
        owed = len(self._owed)
        wanted = [*self._late(), (action, fields)]

        async def write(connection: Connection) -> str:
            last = b""
            for one in wanted:
                last = await self._append(connection, *one)
            return last.decode()

        try:
            line = self._database.write(write)
        except StateError as error:
            raise self._failure(error) from error
        self._settle(owed)
        return AuditRecord.from_line(line.encode())

    async def _append(self, connection: Connection, action: str, fields: AuditFields) -> bytes:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await self._count(connection) >= self._max_records:
            await self._remove_oldest(connection)
        return await self._append_record(connection, action, fields)

    async def _append_record(self, connection: Connection, action: str, fields: AuditFields) -> bytes:
        number, before = await self._last(connection)
        record = make_record(number + 1, before, self._clock.time(), action, fields)
        line = record.to_line()
        await connection.execute("INSERT INTO walle.audit VALUES ($1, $2)", record.number, line)
        if record.number % HEAD_EVERY == 0:
            await self._write_head(connection, record.number, record.hash)
        return line

    async def _last(self, connection: Connection) -> tuple[int, str]:
        line = await connection.fetchval("SELECT line FROM walle.audit ORDER BY number DESC LIMIT 1")
        if line is None:
            return 0, FIRST
        try:
            record = AuditRecord.from_line(line)
        except ValueError as error:
            what = f"its last line is not a record ({error}); see: walle audit verify"
            raise AuditError(self.place, what) from error
        return record.number, record.hash

    async def _count(self, connection: Connection) -> int:
        query = "SELECT coalesce(max(number) - min(number) + 1, 0) FROM walle.audit"
        found: int = await connection.fetchval(query)
        return found

    async def _remove_oldest(self, connection: Connection) -> None:
        first, last = await connection.fetchrow(
            "SELECT min(number), max(number) FROM (SELECT number FROM walle.audit ORDER BY number LIMIT $1) AS oldest",
            self._removed,
        )
        line = await connection.fetchval("SELECT line FROM walle.audit WHERE number = $1", last)
        details = {"first": first, "last": last, "hash": json.loads(line)["hash"]}
        fields: AuditFields = {"who": "audit", "subject": f"records {first} to {last}", "details": details}
        await self._append_record(connection, "audit.remove", fields)
        await connection.execute("DELETE FROM walle.audit WHERE number <= $1", last)

    async def _write_head(self, connection: Connection, number: int, record_hash: str) -> AuditHead:
        head = AuditHead.signed(self._sign, number, record_hash, self._clock.time())
        query = "INSERT INTO walle.audit_heads (head) VALUES ($1) ON CONFLICT (single) DO UPDATE SET head = $1"
        await connection.execute(query, head.to_json().encode())
        return head

    def head(self) -> AuditHead:
        async def write(connection: Connection) -> str:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            return (await self._write_head(connection, *await self._last(connection))).to_json()

        try:
            return AuditHead(**json.loads(self._database.write(write)))
        except StateError as error:
            raise self._failure(error) from error

    def last_head(self) -> AuditHead | None:
        found = self._read("SELECT head FROM walle.audit_heads")
        return AuditHead(**json.loads(found[0][0])) if found else None

    def records(self, *, after: int = 0, limit: int = 1000) -> list[AuditRecord]:
        query = "SELECT number, line FROM walle.audit WHERE number > $1 ORDER BY number LIMIT $2"
        found = []
        for number, line in self._read(query, after, limit):
            try:
                found.append(AuditRecord.from_line(line))
            except ValueError as error:
                what = f"row {number} is not a record ({error}); see: walle audit verify"
                raise AuditError(self.place, what) from error
        return found

    def verified(self, *, heads: tuple[AuditHead, ...] = (), public_key: bytes | None = None) -> Verification:
        with tempfile.TemporaryDirectory(prefix="walle-audit-") as folder:
            self.copy_to(Path(folder))
            return verify(Path(folder), heads=heads, public_key=public_key)

    def copy_to(self, folder: Path) -> int:
        """Write the log into an empty folder, as `AuditLog` keeps it; return the number of its last record, or 0."""
        after = 0
        if head := self._read("SELECT head FROM walle.audit_heads"):
            (folder / "head.json").write_bytes(head[0][0])
        while rows := self._read(
            "SELECT number, line FROM walle.audit WHERE number > $1 ORDER BY number LIMIT $2", after, _PART
        ):
            (folder / f"{rows[0][0]:012d}.jsonl").write_bytes(b"".join(line for _, line in rows))
            after = rows[-1][0]
        return after

    def _read(self, query: str, *values: object) -> list[Any]:
        try:
            return self._database.read(query, *values)
        except StateError as error:
            raise self._failure(error) from error
