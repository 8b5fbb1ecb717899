"""Schema of a cloud's state in PostgreSQL: numbered steps, of which a database remembers those that it has had.

The tables are in the schema `walle`; `walle.store.tables` has those that files have too. Beside them are those of
uploads (`walle.pipeline.ingest.postgres.schema`), which have other names and another format. Texts of devices
are kept as JSON where they may have characters that PostgreSQL does not store. Nothing there is a secret in clear:
enrolment tokens are hashes, exclusive files are sealed or encrypted.
"""

import dataclasses
from collections.abc import Sequence

import asyncpg

from walle.store.tables import STEPS, server_step

_SCHEMA_LOCK = 0x57414C4C  # uploads use the same advisory lock: several processes may start at once


@dataclasses.dataclass(frozen=True)
class Migration:
    """One step: `sql` runs in one transaction. A step that was released is never changed; another one follows it."""

    number: int
    name: str
    sql: str


_OTHERS = {  # no file has these tables in this form
    1: """
CREATE TABLE walle.leases (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, fence BIGINT NOT NULL, until TIMESTAMPTZ NOT NULL);
CREATE TABLE walle.writes (
    key UUID PRIMARY KEY, result TEXT, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
CREATE TABLE walle.audit (number BIGINT PRIMARY KEY, line BYTEA NOT NULL);
CREATE TABLE walle.audit_heads (single BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (single), head BYTEA NOT NULL);
""",
    2: "CREATE TABLE walle.moved_files (name TEXT PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());",
}
MIGRATIONS = tuple(
    Migration(number, name, server_step(number) + _OTHERS.get(number, "")) for number, name in STEPS.items()
)


class NewerSchemaError(Exception):
    """The database has steps that this version of walle does not know."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return f"its schema has version {self.found}, this walle knows {self.known}: run the newer walle"


async def migrate(connection: asyncpg.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> list[int]:
    """Run the steps that the database lacks, each in one transaction; return their numbers.

    Raises:
        NewerSchemaError: it has later ones. Nothing was changed.
    """
    done = []
    await connection.execute("SELECT pg_advisory_lock($1)", _SCHEMA_LOCK)
    try:
        await connection.execute(
            "CREATE SCHEMA IF NOT EXISTS walle; CREATE TABLE IF NOT EXISTS walle.migrations"
            " (number INT PRIMARY KEY, name TEXT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())"
        )
        found = await connection.fetchval("SELECT coalesce(max(number), 0) FROM walle.migrations")
        if found > migrations[-1].number:
            raise NewerSchemaError(found, migrations[-1].number)
        for step in migrations:
            if step.number > found:
                async with connection.transaction():
                    await connection.execute(step.sql)
                    await connection.execute(
                        "INSERT INTO walle.migrations (number, name) VALUES ($1, $2)", step.number, step.name
                    )
                done.append(step.number)
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", _SCHEMA_LOCK)
    return done
