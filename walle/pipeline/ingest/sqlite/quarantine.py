"""Uploads that SQLite refuses for their contents, or that are damaged in it, set aside.

The statements of a caller's transaction or query.
"""

import sqlite3

from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.sqlite import index as sqlite_index
from walle.pipeline.ingest.store.packed_payload import DamagedPayloadError, unpack_payload
from walle.pipeline.ingest.store.quarantine import MAX_OF_DEVICE, MAX_REFUSED, devices_of_page, refused_upload
from walle.pipeline.ingest.store.receipt import RecordedLoss, RefusedUpload
from walle.pipeline.tunnel.received import Received

_COLUMNS = "device_id, epoch, seq, reason, contents, refused_ms"


def has_room(database: sqlite3.Connection, device_id: str) -> bool:
    query = "SELECT count(*) FROM refused WHERE device_id = ?"
    return count(database) < MAX_REFUSED and database.execute(query, (device_id,)).fetchone()[0] < MAX_OF_DEVICE


def add(database: sqlite3.Connection, refused: RefusedUpload) -> None:
    database.execute(f"INSERT INTO refused ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", refused)  # noqa: S608 - constants


def set_damaged_aside(database: sqlite3.Connection, position: int, now_ms: int) -> RecordedLoss | None:
    """Set the damaged upload at `position` aside, so that nothing reads it; return its loss, None if it is readable.

    Its row stays, without the body, because it may be the last: SQLite would use its position again.

    Raises:
        DamagedPayloadError: the quarantine has no room for it.
    """
    query = (
        "SELECT device_id, epoch, seq, topic, stored_payload, sent_ms, received_ms, x'', version, stream"
        " FROM uploads JOIN streams USING (stream) WHERE position = ? AND packed = 1"
    )
    if (row := database.execute(query, (position,)).fetchone()) is None:
        return None  # the upload was set aside meanwhile, or has expired
    *fields, stream = row
    damaged = Received(*fields)
    try:
        unpack_payload(position, damaged.payload)
    except DamagedPayloadError as error:
        if not has_room(database, damaged.device_id):
            what = "and the quarantine has no room for it: see what is there, and remove it (docs/uploads.md)"
            raise DamagedPayloadError(position, what) from error
        reason = str(error)
    else:
        return None
    add(database, refused_upload(damaged, reason, now_ms))
    sqlite_index.catch_up(database)
    database.execute("DELETE FROM places WHERE stream = ? AND seq = ?", (stream, damaged.seq))
    database.execute("DELETE FROM topic_positions WHERE topic = ? AND position = ?", (damaged.topic, position))
    values = (len(damaged.payload), damaged.topic)
    database.execute("UPDATE topics SET uploads = uploads - 1, bytes = bytes - ? WHERE topic = ?", values)
    database.execute("DELETE FROM topics WHERE topic = ? AND uploads = 0", (damaged.topic,))
    database.execute("UPDATE uploads SET packed = 2, stored_payload = x'' WHERE position = ?", (position,))
    loss = Loss(damaged.epoch, damaged.seq, damaged.seq, LossCause.REFUSED)
    return RecordedLoss(damaged.device_id, loss, now_ms)


def count(database: sqlite3.Connection) -> int:
    found: int = database.execute("SELECT count(*) FROM refused").fetchone()[0]
    return found


def read(database: sqlite3.Connection) -> list[RefusedUpload]:
    sizes = "SELECT device_id, coalesce(sum(length(contents)), 0) FROM refused GROUP BY device_id ORDER BY min(refusal)"
    devices = devices_of_page(database.execute(sizes).fetchall())
    places = ", ".join("?" * len(devices))  # MAX_REFUSED at most
    query = f"SELECT {_COLUMNS} FROM refused WHERE device_id IN ({places}) ORDER BY refusal"  # noqa: S608 - constants
    return [RefusedUpload(*row) for row in database.execute(query, devices)]


def forget(database: sqlite3.Connection, device_id: str | None) -> None:
    if device_id is None:
        database.execute("DELETE FROM refused")
    else:
        database.execute("DELETE FROM refused WHERE device_id = ?", (device_id,))
