"""Uploads that SQLite refuses for their contents, set aside: the statements of a caller's transaction or query."""

import sqlite3

from walle.pipeline.ingest.quarantine import MAX_OF_DEVICE, MAX_REFUSED, devices_of_page
from walle.pipeline.ingest.receipt import RefusedUpload

_COLUMNS = "device_id, epoch, seq, reason, contents, refused_ms"


def has_room(database: sqlite3.Connection, device_id: str) -> bool:
    query = "SELECT count(*) FROM refused WHERE device_id = ?"
    return count(database) < MAX_REFUSED and database.execute(query, (device_id,)).fetchone()[0] < MAX_OF_DEVICE


def add(database: sqlite3.Connection, refused: RefusedUpload) -> None:
    database.execute(f"INSERT INTO refused ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", refused)  # noqa: S608 - constants


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
