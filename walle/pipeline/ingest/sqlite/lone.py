"""Commit of the one upload that comes next in a stream that is in memory, in as few steps as SQLite takes.

Between two lone uploads the processor's caches are another program's, and each step takes twice what it takes in a
loop. So this leaves out what only batches need: docs/adr/0024.
"""

import sqlite3

from walle.engine_ext._core import next_upload_link
from walle.pipeline.features.losses import LOSS_TOPIC
from walle.pipeline.features.put import MAX_TOPIC_CHARS
from walle.pipeline.ingest.sqlite.schema import data_version
from walle.pipeline.ingest.store.receipt import StoredStream
from walle.pipeline.tunnel.received import Received

_INSERT = (
    "INSERT INTO uploads (stream, seq, chain, sent_ms, received_ms, topic, stored_payload, packed, version)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def is_next(stream: StoredStream, received: Received) -> bool:
    """Return whether an upload is to be stored as it is: it comes next, is in no other epoch, and reports no loss."""
    topic = received.topic
    return (
        received.seq == stream.highest + 1
        and not stream.moved
        and topic != LOSS_TOPIC
        and len(topic) <= MAX_TOPIC_CHARS
    )


def commit_next(database: sqlite3.Connection, stream: StoredStream, received: Received, seen: int) -> bool:
    """Commit an upload that `is_next`, and move its stream on.

    Return False, with nothing changed, if another connection has changed the file since `data_version` was `seen`.
    A transaction of another process raises SQLITE_BUSY at once.
    """
    _, _, seq, topic, payload, sent_ms, received_ms, packed, version = received
    chain = next_upload_link(stream.chain, topic, payload, sent_ms)
    row = (stream.number, seq, chain, sent_ms, received_ms, topic, packed or payload, 1 if packed else 0, version)
    database.execute("BEGIN IMMEDIATE")
    try:
        if data_version(database) != seen:
            database.execute("ROLLBACK")
            return False
        database.execute(_INSERT, row)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk may have rolled back already
            database.execute("ROLLBACK")
        raise
    stream.highest, stream.chain = seq, chain
    return True
