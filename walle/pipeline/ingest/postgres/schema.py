"""Schema of the PostgreSQL store of uploads, and the errors that are about what it is given."""

import asyncpg

FORMAT = 3

# `head` has one row, which a transaction that stores uploads locks before it takes positions and until it has
# committed: positions have no gaps and become visible in their order.
SCHEMA = """
CREATE SCHEMA IF NOT EXISTS walle;
CREATE TABLE IF NOT EXISTS walle.head (
    single BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (single), position BIGINT NOT NULL, format INT NOT NULL
);
CREATE TABLE IF NOT EXISTS walle.streams (
    stream BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL,
    highest BIGINT NOT NULL, chain BIGINT NOT NULL, moved BIGINT NOT NULL DEFAULT 0, part INT NOT NULL,
    UNIQUE (device_id, epoch)
);
CREATE TABLE IF NOT EXISTS walle.owners (device_id TEXT PRIMARY KEY, owner TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS walle.origins (
    stream BIGINT NOT NULL, origin BIGINT NOT NULL, seq_offset BIGINT NOT NULL, upto BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS origins_by_stream ON walle.origins (stream);
CREATE INDEX IF NOT EXISTS origins_by_origin ON walle.origins (origin);
CREATE TABLE IF NOT EXISTS walle.uploads (
    position BIGINT PRIMARY KEY, stream BIGINT NOT NULL, seq BIGINT NOT NULL, topic TEXT NOT NULL,
    payload BYTEA NOT NULL, sent_ms BIGINT NOT NULL, received_ms BIGINT NOT NULL,
    UNIQUE (stream, seq)
);
CREATE INDEX IF NOT EXISTS uploads_by_topic ON walle.uploads (topic, position);
CREATE TABLE IF NOT EXISTS walle.topics (topic TEXT PRIMARY KEY, uploads BIGINT NOT NULL, bytes BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS walle.losses (
    loss BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL,
    first_seq BIGINT NOT NULL, last_seq BIGINT, cause TEXT NOT NULL, recorded_ms BIGINT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS losses_once
    ON walle.losses (device_id, epoch, first_seq, coalesce(last_seq, -1), cause);
CREATE TABLE IF NOT EXISTS walle.positions (
    consumers TEXT NOT NULL, part INT NOT NULL, position BIGINT NOT NULL, member TEXT,
    until_ms BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (consumers, part)
);
CREATE TABLE IF NOT EXISTS walle.members (
    consumers TEXT NOT NULL, member TEXT NOT NULL, until_ms BIGINT NOT NULL, PRIMARY KEY (consumers, member)
);
"""
# Tables that format 1 does not have.
_ADDED_2 = """
CREATE TABLE IF NOT EXISTS walle.merged_losses (
    device_id TEXT NOT NULL, cause TEXT NOT NULL, reports BIGINT NOT NULL, uploads BIGINT NOT NULL,
    PRIMARY KEY (device_id, cause)
);
CREATE TABLE IF NOT EXISTS walle.refused (
    refusal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL,
    seq BIGINT NOT NULL, reason TEXT NOT NULL, contents BYTEA, refused_ms BIGINT NOT NULL
);
"""
# `version` is of the task that made the upload; "" is unknown, as of all before format 3. Losses that were added up
# before count as closed.
_ADDED_3 = """
ALTER TABLE walle.uploads ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE walle.merged_losses ADD COLUMN open_reports BIGINT NOT NULL DEFAULT 0;
"""
_SCHEMA_LOCK = 0x57414C4C  # key of an advisory lock: several processes may start at once

_CONTENTS_CLASSES = {
    "22",  # data exception
    "23",  # integrity constraint
    "54",  # a limit of the program, such as the size of a key
    "P0",  # raised by a trigger
}
_POSITIONS = "uploads_pkey"


async def make_schema(connection: asyncpg.Connection) -> int:
    """Make what does not exist; return the format."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
        if await connection.fetchval("SELECT to_regclass('walle.head')") is None:
            await connection.execute(SCHEMA)
            await connection.execute("INSERT INTO walle.head (position, format) VALUES (0, 1)")
        found: int = await connection.fetchval("SELECT format FROM walle.head")
        if found == 1:
            await connection.execute(_ADDED_2)
        if found in (1, 2):
            await connection.execute(_ADDED_3)
            await connection.execute("UPDATE walle.head SET format = $1", FORMAT)
            found = FORMAT
        return found


def is_of_contents(error: Exception) -> bool:
    """Return whether the database refuses what it was given. A position that is taken is a fault of the store."""
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == _POSITIONS:
        return False
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in _CONTENTS_CLASSES
    return isinstance(error, asyncpg.DataError | UnicodeError | OverflowError)
