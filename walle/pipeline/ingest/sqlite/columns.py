"""Read of stored uploads in columns from the SQLite store."""

import contextlib
import sqlite3
from typing import Any

from walle.pipeline.ingest.store.packed_payload import unpack_payload
from walle.pipeline.ingest.store.upload_columns import UploadColumns

# CROSS JOIN keeps the order of the loops: `uploads` first, which yields the positions in order.
_SELECT = (
    "SELECT position, device_id, topic, stored_payload, sent_ms, received_ms, version, packed"
    " FROM uploads CROSS JOIN streams USING (stream)"
    " WHERE packed < 2 AND position > ? AND position <= ? ORDER BY position LIMIT ?"
)


def read(database: sqlite3.Connection, after: int, upto: int, limit: int, max_bytes: int) -> UploadColumns:
    """Return uploads as `UploadStore.columns` does, without an object for each of them.

    Raises:
        DamagedPayloadError: one of the payloads is damaged.
    """
    rows, size_bytes = list[tuple[Any, ...]](), 0
    # An error keeps a cursor alive, and with it the state of the file that it reads.
    with contextlib.closing(database.execute(_SELECT, (after, upto, limit))) as found:
        for row in found:
            one = row if not row[7] else (*row[:3], unpack_payload(row[0], row[3]), *row[4:])
            rows.append(one)
            size_bytes += len(one[3])
            if size_bytes >= max_bytes:
                break
    return UploadColumns(*list(zip(*rows, strict=True))[:7])
