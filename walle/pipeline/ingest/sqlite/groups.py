"""Consumer groups and retention in the SQLite store: the statements of one short transaction or query each."""

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from walle.pipeline.ingest.store.expiry import AgeSearch, StoredSize, first_step, split_expired
from walle.pipeline.ingest.store.packed_payload import unpack_payload
from walle.pipeline.ingest.store.partitions import PARTITIONS, Lease, is_live, share_partitions
from walle.pipeline.ingest.store.receipt import MAX_READ_BYTES
from walle.pipeline.ingest.store.upload_store import GroupLag, Start, Trimmed
from walle.pipeline.tunnel.received import Received

_HEAD = "SELECT ifnull(max(position), 0) FROM uploads"
# CROSS JOIN keeps the order of the loops: `uploads` first, which yields the positions in order.
_SELECT = (
    "SELECT position, packed, device_id, epoch, seq, topic, stored_payload, sent_ms, received_ms, x'', version"
    " FROM uploads CROSS JOIN streams USING (stream)"
)


def head(database: sqlite3.Connection) -> int:
    position: int = database.execute(_HEAD).fetchone()[0]
    return position


def join(database: sqlite3.Connection, group: str, start: Start) -> None:
    position = 0 if start == "earliest" else head(database)
    database.executemany(
        "INSERT OR IGNORE INTO positions (consumers, part, position) VALUES (?, ?, ?)",
        [(group, part, position) for part in range(PARTITIONS)],
    )


def balance(
    database: sqlite3.Connection, group: str, member: str, busy: Collection[int], now_ms: int, lease_ms: int
) -> dict[int, int]:
    database.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", (group, member, now_ms + lease_ms))
    found = database.execute("SELECT member, until_ms FROM members WHERE consumers = ?", (group,)).fetchall()
    dead = [name for name, until_ms in found if not is_live(until_ms, now_ms)]
    database.executemany("DELETE FROM members WHERE consumers = ? AND member = ?", [(group, name) for name in dead])
    live = [name for name, _ in found if name not in dead]
    query = "SELECT part, position, member, until_ms FROM positions WHERE consumers = ?"
    leases = [Lease(*row) for row in database.execute(query, (group,))]
    kept = share_partitions(leases, live, member, busy, now_ms)
    database.executemany(
        "UPDATE positions SET member = NULL WHERE consumers = ? AND part = ?",
        [(group, lease.partition) for lease in leases if lease.member == member and lease.partition not in kept],
    )
    database.executemany(
        "UPDATE positions SET member = ?, until_ms = ? WHERE consumers = ? AND part = ?",
        [(member, now_ms + lease_ms, group, part) for part in sorted(kept)],
    )
    return {lease.partition: lease.position for lease in leases if lease.partition in kept}


def leave(database: sqlite3.Connection, group: str, member: str) -> None:
    database.execute("UPDATE positions SET member = NULL WHERE consumers = ? AND member = ?", (group, member))
    database.execute("DELETE FROM members WHERE consumers = ? AND member = ?", (group, member))


def read(
    database: sqlite3.Connection,
    partitions: Collection[int],
    topics: Collection[str] | None,
    after: int,
    upto: int,
    limit: int,
) -> list[tuple[int, Received]]:
    of_topics = "" if topics is None else f" AND topic IN ({_marks(topics)})"
    of_parts = f" AND part IN ({_marks(partitions)})" if len(partitions) < PARTITIONS else ""
    query = (
        f"{_SELECT} WHERE packed < 2 AND position > ? AND position <= ?{of_topics}{of_parts} ORDER BY position LIMIT ?"
    )
    values = [after, upto, *(topics or ()), *(partitions if of_parts else ()), limit]
    with contextlib.closing(database.execute(query, values)) as rows:
        return bounded(rows)


def after(database: sqlite3.Connection, position: int, limit: int) -> list[tuple[int, Received]]:
    """Return the uploads after a position."""
    query = f"{_SELECT} WHERE packed < 2 AND position > ? ORDER BY position LIMIT ?"
    with contextlib.closing(database.execute(query, (position, limit))) as rows:
        return bounded(rows)


def matching(
    database: sqlite3.Connection, device_id: str | None, topic: str | None, after: int, limit: int
) -> list[tuple[int, Received]]:
    """Return the uploads of a device, of a topic, or of both, after a position. The index is up to date."""
    if device_id is None:
        query = "SELECT position FROM topic_positions WHERE topic = ?1 AND position > ?3 ORDER BY position LIMIT ?4"
    else:
        has_topic = (
            " AND EXISTS (SELECT 1 FROM topic_positions AS t WHERE t.topic = ?1 AND t.position = places.position)"
        )
        query = (
            "SELECT position FROM places WHERE stream IN (SELECT stream FROM streams WHERE device_id = ?2)"  # noqa: S608 - constants
            f" AND position > ?3{has_topic * (topic is not None)} ORDER BY position LIMIT ?4"
        )
    with contextlib.closing(database.execute(query, (topic, device_id, after, limit))) as positions:
        # One upload after the other: in a join, SQLite might sort rows with their payloads.
        found = (
            database.execute(f"{_SELECT} WHERE packed < 2 AND position = ?", position).fetchone()
            for position in positions
        )
        return bounded(row for row in found if row is not None)


# `Received._make` for a tuple, at half of its time: a call of C, once for each upload that is read.
_upload_of: Callable[[tuple[Any, ...]], Received] = functools.partial(tuple.__new__, Received)


def bounded(rows: Iterable[tuple[Any, ...]]) -> list[tuple[int, Received]]:
    """Return positions and uploads until the payloads have MAX_READ_BYTES: a device sends 8 MiB at once.

    The caller closes the cursor of `rows`: an error keeps it alive, and with it the state of the file that it reads.

    Raises:
        DamagedPayloadError: one of them is damaged.
    """
    found, size_bytes = list[tuple[int, Received]](), 0
    for row in rows:
        received = _upload_of(row[2:])
        if row[1]:
            received = received._replace(payload=unpack_payload(row[0], received.payload))
        found.append((row[0], received))
        size_bytes += len(received[4])
        if size_bytes >= MAX_READ_BYTES:
            break
    return found


def commit(database: sqlite3.Connection, group: str, member: str, positions: Mapping[int, int]) -> set[int]:
    query = "SELECT part FROM positions WHERE consumers = ? AND member = ?"
    highest = head(database)  # a position above it is of a file that this one has replaced
    own = {part for (part,) in database.execute(query, (group, member)) if positions.get(part, highest + 1) <= highest}
    database.executemany(
        "UPDATE positions SET position = max(position, ?) WHERE consumers = ? AND part = ?",
        [(positions[part], group, part) for part in own],
    )
    return own


def lags(database: sqlite3.Connection) -> dict[str, GroupLag]:
    highest = head(database)
    oldest = "SELECT received_ms FROM uploads WHERE position > ? ORDER BY position LIMIT 1"
    found = {}
    for group, position in database.execute("SELECT consumers, min(position) FROM positions GROUP BY 1").fetchall():
        row = database.execute(oldest, (position,)).fetchone()
        found[group] = GroupLag(max(0, highest - position), row[0] if row else None)
    return found


def forget(database: sqlite3.Connection, group: str) -> None:
    database.execute("DELETE FROM positions WHERE consumers = ?", (group,))
    database.execute("DELETE FROM members WHERE consumers = ?", (group,))


def trim(
    database: sqlite3.Connection,
    topic: str,
    before_ms: int | None,
    now_ms: int,
    over_bytes: int,
    limit: int,
    *,
    keep: bool,
) -> Trimmed:
    least = database.execute("SELECT min(position) FROM positions").fetchone()[0]
    # Never the last upload: SQLite would use its position again.
    query = (
        "SELECT position, length(stored_payload), received_ms"  # noqa: S608 - constants
        " FROM topic_positions AS t CROSS JOIN uploads USING (position)"
        f" WHERE t.topic = ? AND position < ({_HEAD}) AND position <= ifnull(?, position) ORDER BY position LIMIT ?"
    )
    rows = map(StoredSize._make, database.execute(query, (topic, least if keep else None, limit)))
    old, ahead = split_expired(rows, before_ms=before_ms, now_ms=now_ms, over_bytes=over_bytes)
    if ahead and before_ms is not None and _received_after(database, ahead[-1].position, now_ms) < before_ms:
        old += ahead
    step = first_step(old)
    deleted = [(position,) for position, _, _ in step]
    size_bytes = sum(payload_bytes for _, payload_bytes, _ in step)
    database.executemany(
        "DELETE FROM places WHERE (stream, seq) = (SELECT stream, seq FROM uploads WHERE position = ?)", deleted
    )
    database.executemany("DELETE FROM uploads WHERE position = ?", deleted)
    database.executemany(
        "DELETE FROM topic_positions WHERE topic = ? AND position = ?", [(topic, *row) for row in deleted]
    )
    values = (len(deleted), size_bytes, topic)
    database.execute("UPDATE topics SET uploads = uploads - ?, bytes = bytes - ? WHERE topic = ?", values)
    database.execute("DELETE FROM topics WHERE topic = ? AND uploads = 0", (topic,))
    return Trimmed(len(deleted), size_bytes, sum(least is not None and position > least for (position,) in deleted))


def _received_after(database: sqlite3.Connection, position: int, now_ms: int) -> int:
    """Return when a later upload was received, whose time is not in the future; `now_ms` if there is none."""
    query = "SELECT position, 0, received_ms FROM uploads WHERE position >= ? ORDER BY position LIMIT 1"
    search = AgeSearch(position, now_ms)
    while (place := search.next_position) is not None:
        row = database.execute(query, (place,)).fetchone()
        search.take(StoredSize(*row) if row else None)
    return now_ms if search.received_ms is None else search.received_ms


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
