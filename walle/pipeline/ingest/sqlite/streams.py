"""Streams of the SQLite store, one of each (device, epoch): their rows, and how epochs of a device are linked.

A stream's highest number and chain value are those of the index: see `walle.pipeline.ingest.sqlite.index`.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from walle.pipeline.features.checksums import first_link
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.sqlite.row_statements import RowStatements
from walle.pipeline.ingest.store.packed_payload import (
    MOST_TIMES_PACKED,
    PACKED_FROM_BYTES,
    DamagedPayloadError,
    unpack_payload,
)
from walle.pipeline.ingest.store.partitions import partition
from walle.pipeline.ingest.store.receipt import (
    MAX_ABANDONED,
    OTHER_SIZE,
    Contents,
    Place,
    RecordedLoss,
    StoredStream,
    StreamKey,
    StreamLink,
    contents_of,
    known_uploads,
    related_streams,
)
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
    _MOVE_ON.execute(database, [value for one in streams for value in (one.number, one.highest, one.chain)])


def has_links(database: sqlite3.Connection, number: int) -> bool:
    return database.execute("SELECT 1 FROM origins WHERE stream = ? LIMIT 1", (number,)).fetchone() is not None


def abandoned(database: sqlite3.Connection, hello: Hello, origins: Sequence[Origin]) -> list[Loss]:
    """Return the losses of uploads that the device does not have any more, as its Hello shows, if not recorded yet.

    These are uploads of the Hello's older epochs beyond those that the device knows of, and epochs that continue one of
    the Hello's and are not among them: the device went back to before they began. What such an epoch took over from an
    older one, and the device may still have, is compared when it comes: `sort_batch`.
    """
    known = known_uploads(hello, origins)
    query = (
        f"WITH known (epoch, upto) AS (VALUES {', '.join(['(?, ?)'] * len(known))})"  # noqa: S608 - constants
        " SELECT epoch, first_seq FROM ("
        "SELECT later.epoch AS epoch, max(max(min(link.upto, known.upto - link.seq_offset), 0)) + 1 AS first_seq"
        " FROM known JOIN streams AS older ON older.device_id = ? AND older.epoch = known.epoch"
        " JOIN origins AS link ON link.origin = older.stream JOIN streams AS later ON later.stream = link.stream"
        " WHERE later.epoch NOT IN (SELECT epoch FROM known) GROUP BY later.epoch"
        " UNION ALL SELECT streams.epoch, known.upto + 1 FROM known JOIN streams USING (epoch)"
        " WHERE streams.device_id = ? AND streams.highest > known.upto) AS gone"
        " WHERE NOT EXISTS (SELECT 1 FROM losses WHERE losses.device_id = ? AND losses.epoch = gone.epoch"
        " AND losses.first_seq <= gone.first_seq AND last_seq IS NULL) LIMIT ?"
    )
    values = [value for pair in known for value in pair]
    rows = database.execute(query, (*values, *[hello.device_id] * 3, MAX_ABANDONED))
    return [Loss(epoch, first_seq, None, LossCause.DEVICE_RESTORED) for epoch, first_seq in rows]


def made_again(database: sqlite3.Connection, found: Mapping[int, tuple[int, int]]) -> list[RecordedLoss]:
    """Return the losses of `SortedBatch.made_again`, if not recorded yet."""
    query = (
        "SELECT device_id, epoch FROM streams WHERE stream = ?1 AND NOT EXISTS (SELECT 1 FROM losses"
        " WHERE losses.device_id = streams.device_id AND losses.epoch = streams.epoch AND first_seq <= ?2"
        " AND last_seq IS NULL)"
    )
    return [
        RecordedLoss(device_id, Loss(epoch, first_seq, None, LossCause.DEVICE_RESTORED), received_ms)
        for number, (first_seq, received_ms) in found.items()
        for device_id, epoch in database.execute(query, (number, first_seq)).fetchall()
    ]


def stored_at(database: sqlite3.Connection, places: Iterable[tuple[Place, int]]) -> dict[Place, Contents]:
    """Return the contents of the uploads at these places that can be read; see `moved_places` for the sizes."""
    query = (
        "SELECT position, packed, topic, sent_ms, CASE WHEN length(stored_payload) = ?3"
        " OR (packed AND ?3 BETWEEN ?4 AND ?5 * length(stored_payload)) THEN stored_payload END FROM uploads"
        " WHERE position = (SELECT position FROM places WHERE stream = ?1 AND seq = ?2)"
    )
    found: dict[Place, Contents] = {}
    for place, size_bytes in places:
        values = (*place, size_bytes, PACKED_FROM_BYTES, MOST_TIMES_PACKED + 1)
        if (row := database.execute(query, values).fetchone()) is None:
            continue
        position, is_packed, topic, sent_ms, payload = row
        if payload is None:
            found.setdefault(place, (topic, OTHER_SIZE, sent_ms))
            continue
        # The device has the contents of a damaged upload, and stores it again.
        with contextlib.suppress(DamagedPayloadError):
            found[place] = contents_of(topic, unpack_payload(position, payload) if is_packed else payload, sent_ms)
    return found
