"""Streams of the SQLite store, one of each (device, epoch): their rows, and how epochs of a device are linked.

A stream's highest number and chain value are those of the index: see `walle.pipeline.ingest.sqlite_index`.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from typing import cast

from walle.pipeline.checksums import first_link
from walle.pipeline.ingest.packed_payload import (
    MOST_TIMES_PACKED,
    PACKED_FROM_BYTES,
    DamagedPayloadError,
    unpack_payload,
)
from walle.pipeline.ingest.partitions import partition
from walle.pipeline.ingest.receipt import (
    MAX_ABANDONED,
    Contents,
    Place,
    StoredStream,
    StreamKey,
    StreamLink,
    contents_of,
    related_streams,
)
from walle.pipeline.ingest.row_statements import RowStatements
from walle.pipeline.losses import Loss, LossCause
from walle.protocol import Hello, Origin

_MOVE_ON = RowStatements(
    "UPDATE streams SET highest = given.column2, chain = given.column3"
    " FROM (VALUES {rows}) AS given WHERE stream = given.column1",
    3,
)


def find(database: sqlite3.Connection, key: StreamKey) -> StoredStream | None:
    query = "SELECT stream, highest, chain, moved FROM streams WHERE device_id = ? AND epoch = ?"
    row = database.execute(query, key).fetchone()
    if row is None:
        return None
    stream = StoredStream(*row)
    if stream.moved:
        query = (
            "SELECT stream, origin, seq_offset, upto FROM origins"
            " WHERE stream = ?1 OR origin = ?1 OR origin IN (SELECT origin FROM origins WHERE stream = ?1)"
        )
        found = database.execute(query, (stream.number,))
        stream.related = related_streams(stream.number, [StreamLink(*link) for link in found])
    return stream


def add(database: sqlite3.Connection, key: StreamKey) -> StoredStream:
    chain = first_link(key[1])
    insert = "INSERT INTO streams (device_id, epoch, highest, chain, part) VALUES (?, ?, 0, ?, ?)"
    return StoredStream(cast("int", database.execute(insert, (*key, chain, partition(key[0]))).lastrowid), 0, chain, 0)


def move_on(database: sqlite3.Connection, streams: Iterable[StoredStream]) -> None:
    """Write the highest numbers and the chain values of streams."""
    _MOVE_ON.execute(database, [(stream.number, stream.highest, stream.chain) for stream in streams])


def has_links(database: sqlite3.Connection, number: int) -> bool:
    return database.execute("SELECT 1 FROM origins WHERE stream = ? LIMIT 1", (number,)).fetchone() is not None


def abandoned(database: sqlite3.Connection, hello: Hello, origins: Sequence[Origin]) -> list[Loss]:
    """Return the losses of epochs that continue one of this Hello's and are not among them, if not recorded yet.

    The device had them, and went back to before they began. Uploads that they took over are known by contents.
    """
    epochs = [hello.epoch, *(origin.epoch for origin in origins)]
    marks = ", ".join("?" * len(epochs))
    query = (
        "SELECT epoch, upto FROM (SELECT epoch, max(upto) AS upto FROM origins JOIN streams USING (stream)"  # noqa: S608 - constants
        f" WHERE origin IN (SELECT stream FROM streams WHERE device_id = ? AND epoch IN ({marks}))"
        f" AND epoch NOT IN ({marks}) GROUP BY epoch) AS later"
        " WHERE NOT EXISTS (SELECT 1 FROM losses WHERE losses.device_id = ? AND losses.epoch = later.epoch"
        " AND first_seq <= later.upto + 1 AND last_seq IS NULL) LIMIT ?"
    )
    rows = database.execute(query, (hello.device_id, *epochs, *epochs, hello.device_id, MAX_ABANDONED))
    return [Loss(epoch, upto + 1, None, LossCause.DEVICE_RESTORED) for epoch, upto in rows]


def stored_at(database: sqlite3.Connection, places: Iterable[tuple[Place, int]]) -> dict[Place, Contents]:
    """Return the contents of the uploads at these places whose payloads have these sizes and can be read."""
    query = (
        "SELECT position, packed, topic, stored_payload, sent_ms FROM uploads"
        " WHERE position = (SELECT position FROM places WHERE stream = ?1 AND seq = ?2)"
        " AND (length(stored_payload) = ?3 OR (packed AND ?3 BETWEEN ?4 AND ?5 * length(stored_payload)))"
    )
    found: dict[Place, Contents] = {}
    for place, size_bytes in places:
        values = (*place, size_bytes, PACKED_FROM_BYTES, MOST_TIMES_PACKED + 1)
        if (row := database.execute(query, values).fetchone()) is None:
            continue
        position, is_packed, topic, payload, sent_ms = row
        # The device has the contents of a damaged upload, and stores it again.
        with contextlib.suppress(DamagedPayloadError):
            found[place] = contents_of(topic, unpack_payload(position, payload) if is_packed else payload, sent_ms)
    return found
