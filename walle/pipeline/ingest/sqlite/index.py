"""Index of the SQLite store's uploads: their places by device and topic, the sums of topics, and the state of streams.

The rows of `uploads` say all of this themselves, so that a commit that is synced needs to write nothing else. The index
follows in transactions that are not synced, each for many uploads. `indexed` has the position up to which it goes; a
transaction that uses the index brings it up to date first.
"""

import sqlite3
from typing import cast

_STEP = 10_000  # uploads whose keys are in memory at once

# Each upload is read once: the pages of a large payload's row are far apart.
_PREPARE = """
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE IF NOT EXISTS unindexed (
    position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, chain INTEGER NOT NULL,
    topic TEXT NOT NULL, bytes INTEGER NOT NULL
);
"""
_SELECT = (
    "INSERT INTO temp.unindexed SELECT position, stream, seq, chain, topic, length(stored_payload) FROM uploads"
    " WHERE position > (SELECT position FROM indexed) ORDER BY position LIMIT ?"
)
# A constraint cannot fail here: an error would be taken for one of the uploads that are stored next.
_MOVE_ON = (  # `chain` is that of the row with the highest number; a stream may be further on: see `_accept`
    "UPDATE streams SET highest = latest.seq, chain = latest.chain"
    " FROM (SELECT stream AS number, max(seq) AS seq, chain FROM temp.unindexed GROUP BY stream) AS latest"
    " WHERE stream = latest.number AND highest < latest.seq"
)
_COUNT = (
    "INSERT INTO topics SELECT topic, count(*), sum(bytes) FROM temp.unindexed WHERE true GROUP BY topic"
    " ON CONFLICT (topic) DO UPDATE SET uploads = uploads + excluded.uploads, bytes = bytes + excluded.bytes"
)
_STATEMENTS = (
    _MOVE_ON,
    # No constraint can fail here: the error would be taken for one of the uploads that are stored next.
    "INSERT OR IGNORE INTO places SELECT stream, seq, position FROM temp.unindexed ORDER BY stream, seq",
    "INSERT OR IGNORE INTO topic_positions SELECT topic, position FROM temp.unindexed ORDER BY topic, position",
    _COUNT,
    "UPDATE indexed SET position = (SELECT max(position) FROM temp.unindexed)",
    "DELETE FROM temp.unindexed",
)


def prepare(database: sqlite3.Connection) -> None:
    """Make a new connection able to index."""
    database.executescript(_PREPARE)


def is_behind(database: sqlite3.Connection) -> bool:
    """Return whether there are uploads that are not indexed."""
    query = "SELECT ifnull((SELECT max(position) FROM uploads) > position, 0) FROM indexed"
    return bool(cast("int", database.execute(query).fetchone()[0]))


def catch_up(database: sqlite3.Connection) -> None:
    """Index all uploads, in the transaction that is open."""
    while (count := database.execute(_SELECT, (_STEP,)).rowcount) > 0:
        for statement in _STATEMENTS:
            database.execute(statement)
        if count < _STEP:
            return
