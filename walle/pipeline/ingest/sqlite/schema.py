"""Schema of the SQLite store of uploads, its migrations, and transactions on it."""

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from walle.pipeline.features.checksums import first_link, next_link, row_checksum
from walle.pipeline.ingest.store.partitions import partition

_LOG = logging.getLogger(__name__)

FORMAT = 7  # value of PRAGMA user_version
_OLDER = "uploads_of_format_4"
_MOVED = 10_000  # uploads in one transaction of the move from format 4
_MOVED_BYTES = 32 << 20
_TRIES = 12  # attempts of _BUSY_S each, while another process holds the lock and moves nothing
_BUSY_S = 5.0  # wait of a transaction for those of other processes
_BUSY_POLL_S = 0.001

# `packed` is 0, 1 or (set aside) 2. SQLite reads it without the payload before it; 0 and 1 are in the head of a row. Up
# to format 5 the payload's column was `payload`: a process of an older walle that still reads must not mistake a
# compressed one. `version` is that of the task which made the upload; "" is unknown, as of all before format 7.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    stream INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, highest INTEGER NOT NULL,
    chain INTEGER NOT NULL, moved INTEGER NOT NULL DEFAULT 0, part INTEGER NOT NULL,
    UNIQUE (device_id, epoch)
);
CREATE TABLE IF NOT EXISTS owners (device_id TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS origins (
    stream INTEGER NOT NULL, origin INTEGER NOT NULL, seq_offset INTEGER NOT NULL, upto INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS origins_by_stream ON origins (stream);
CREATE INDEX IF NOT EXISTS origins_by_origin ON origins (origin);
CREATE TABLE IF NOT EXISTS uploads (
    position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, chain INTEGER NOT NULL,
    sent_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL, topic TEXT NOT NULL, stored_payload BLOB NOT NULL,
    packed INTEGER NOT NULL DEFAULT 0, version TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS indexed (position INTEGER NOT NULL);
INSERT INTO indexed SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM indexed);
CREATE TABLE IF NOT EXISTS places (
    stream INTEGER NOT NULL, seq INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (stream, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topic_positions (
    topic TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (topic, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics (
    topic TEXT PRIMARY KEY, uploads INTEGER NOT NULL, bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS losses (
    loss INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, first_seq INTEGER NOT NULL,
    last_seq INTEGER, cause TEXT NOT NULL, recorded_ms INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS losses_once ON losses (device_id, epoch, first_seq, ifnull(last_seq, -1), cause);
CREATE TABLE IF NOT EXISTS merged_losses (
    device_id TEXT NOT NULL, cause TEXT NOT NULL, reports INTEGER NOT NULL, uploads INTEGER NOT NULL,
    open_reports INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (device_id, cause)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (
    refusal INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, seq INTEGER NOT NULL,
    reason TEXT NOT NULL, contents BLOB, refused_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS positions (
    consumers TEXT NOT NULL, part INTEGER NOT NULL, position INTEGER NOT NULL, member TEXT,
    until_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumers, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    consumers TEXT NOT NULL, member TEXT NOT NULL, until_ms INTEGER NOT NULL, PRIMARY KEY (consumers, member)
) WITHOUT ROWID;
"""


def make_schema(database: sqlite3.Connection) -> None:
    """Bring an empty file or one of an older format to this one, in one transaction; `finish_schema` is to follow."""
    with transaction(database):
        found = database.execute("PRAGMA user_version").fetchone()[0]  # another process may have done it
        if found == 1:
            _add_chains(database)
        if found in (1, 2):
            database.create_function("part_of", 1, partition, deterministic=True)
            database.execute("ALTER TABLE streams ADD COLUMN part INTEGER NOT NULL DEFAULT 0")
            database.execute("UPDATE streams SET part = part_of(device_id)")
        if 1 <= found < 5:
            database.execute(f"ALTER TABLE uploads RENAME TO {_OLDER}")
        if found == 5:  # other rows than those of this table are in _OLDER, if another process was stopped meanwhile
            database.execute("ALTER TABLE uploads RENAME COLUMN payload TO stored_payload")
            database.execute("ALTER TABLE uploads ADD COLUMN packed INTEGER NOT NULL DEFAULT 0")
        if found in (5, 6):
            database.execute("ALTER TABLE uploads ADD COLUMN version TEXT NOT NULL DEFAULT ''")
        for statement in _SCHEMA.split(";"):
            database.execute(statement)
        if not any(row[1] == "open_reports" for row in database.execute("PRAGMA table_info(merged_losses)")):
            database.execute("ALTER TABLE merged_losses ADD COLUMN open_reports INTEGER NOT NULL DEFAULT 0")
        if found in (1, 2):
            database.execute(
                f"INSERT INTO topics SELECT topic, count(*), sum(length(payload)) FROM {_OLDER} GROUP BY topic"  # noqa: S608 - a constant
            )
        database.execute(f"PRAGMA user_version = {FORMAT}")


def finish_schema(database: sqlite3.Connection, path: Path) -> None:
    """Move the uploads of a file of format 1 to 4 into the table of this format, in many transactions.

    A process that is stopped meanwhile leaves the rest to the next one.
    """
    if not _has_older(database):
        return
    _LOG.warning("received uploads in %s: the file is converted to format %d, which may take minutes", path, FORMAT)
    is_done, first, tries = False, _first_older(database), 0
    while not is_done:
        try:
            with transaction(database):
                is_done = not _has_older(database) or _move_older(database)
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            # Another process, which opened the file too, leaves the lock for moments only.
            before, first = first, _first_older(database)
            tries = tries + 1 if first == before else 0
            if tries >= _TRIES:
                raise
    _LOG.warning("received uploads in %s: the file has format %d", path, FORMAT)


def _first_older(database: sqlite3.Connection) -> int | None:
    """Return the position of the first upload that is not moved yet, None if there is none."""
    if not _has_older(database):
        return None
    return cast("int | None", database.execute(f"SELECT min(position) FROM {_OLDER}").fetchone()[0])  # noqa: S608 - a constant


def _has_older(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (_OLDER,)).fetchone() is not None


def _move_older(database: sqlite3.Connection) -> bool:
    """Move a part of the uploads, whose space is used again for the next; return True after the last."""
    upto, size_bytes = None, 0
    for upto, payload_bytes in database.execute(  # noqa: B007 - the last one is used
        f"SELECT position, length(payload) FROM {_OLDER} ORDER BY position LIMIT {_MOVED}"  # noqa: S608 - constants
    ):
        size_bytes += payload_bytes
        if size_bytes >= _MOVED_BYTES:
            break
    if upto is None:
        database.execute(f"DROP TABLE {_OLDER}")
        return True
    older = f"FROM {_OLDER} WHERE position <= ?"
    for statement in (
        # Chain values are needed of those that are not indexed.
        f"INSERT INTO uploads SELECT position, stream, seq, 0, sent_ms, received_ms, topic, payload, 0, '' {older}",
        f"INSERT INTO places SELECT stream, seq, position {older} ORDER BY stream, seq",
        f"INSERT INTO topic_positions SELECT topic, position {older} ORDER BY topic, position",
        f"DELETE {older}",
        "UPDATE indexed SET position = ?",
    ):
        database.execute(statement, (upto,))
    return False


def _add_chains(database: sqlite3.Connection) -> None:
    """Compute the chain values, which format 1 lacks, from all uploads."""
    database.execute("ALTER TABLE streams ADD COLUMN chain INTEGER NOT NULL DEFAULT 0")
    database.execute("ALTER TABLE streams ADD COLUMN moved INTEGER NOT NULL DEFAULT 0")
    for stream, epoch in database.execute("SELECT stream, epoch FROM streams").fetchall():
        chain = first_link(epoch)
        query = "SELECT topic, payload, sent_ms FROM uploads WHERE stream = ? ORDER BY seq"
        for topic, payload, sent_ms in database.execute(query, (stream,)):
            chain = next_link(chain, row_checksum(topic, payload, sent_ms))
        database.execute("UPDATE streams SET chain = ? WHERE stream = ?", (chain, stream))


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, *, durable: bool = True, wait: bool = True) -> Iterator[None]:
    """Run the block in a write transaction. One that is not `durable` is not synced: a power cut may undo it.

    Without `wait`, a transaction of another process raises SQLITE_BUSY at once.
    """
    if not durable:
        database.execute("PRAGMA synchronous = NORMAL")
    try:
        if wait:
            execute_when_free(database, "BEGIN IMMEDIATE")
        else:
            database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # a full disk may have rolled back already
                database.execute("ROLLBACK")
            raise
    finally:
        if not durable:
            database.execute("PRAGMA synchronous = FULL")


def execute_when_free(database: sqlite3.Connection, statement: str) -> None:
    """Execute a statement as soon as other processes' transactions allow.

    SQLite's own wait polls at up to 100 ms, and it does not wait at all to make a log while another process begins to.
    """
    give_up_s = time.monotonic() + _BUSY_S
    while True:
        try:
            database.execute(statement)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= give_up_s:
                raise
            time.sleep(_BUSY_POLL_S)
        else:
            return


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def data_version(database: sqlite3.Connection) -> int:
    """Return a number that changes when another connection has changed the file."""
    return cast("int", database.execute("PRAGMA data_version").fetchone()[0])
