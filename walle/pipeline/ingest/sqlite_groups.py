"""Consumer groups and retention in the SQLite store: the statements of one short transaction or query each."""

import sqlite3
from collections.abc import Collection, Mapping

from walle.pipeline.ingest.partitions import PARTITIONS, Lease, share_partitions
from walle.pipeline.ingest.upload_store import GroupLag, Start, TopicSize
from walle.pipeline.tunnel.server import Received

_HEAD = "SELECT ifnull(max(position), 0) FROM uploads"


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
    database.execute("DELETE FROM members WHERE consumers = ? AND until_ms <= ?", (group, now_ms))
    found = database.execute("SELECT member FROM members WHERE consumers = ?", (group,)).fetchall()
    query = "SELECT part, position, member, until_ms FROM positions WHERE consumers = ?"
    leases = [Lease(*row) for row in database.execute(query, (group,))]
    kept = share_partitions(leases, [name for (name,) in found], member, busy, now_ms)
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
    of_topics = "" if topics is None else f" AND +topic IN ({_marks(topics)})"  # + keeps the order of the positions
    of_parts = f" AND part IN ({_marks(partitions)})" if len(partitions) < PARTITIONS else ""
    query = (
        "SELECT position, device_id, epoch, seq, topic, payload, sent_ms, received_ms"  # noqa: S608 - made of constants
        " FROM uploads CROSS JOIN streams USING (stream)"
        f" WHERE position > ? AND position <= ?{of_topics}{of_parts} ORDER BY position LIMIT ?"
    )
    values = [after, upto, *(topics or ()), *(partitions if of_parts else ()), limit]
    return [(row[0], Received(*row[1:])) for row in database.execute(query, values)]


def commit(database: sqlite3.Connection, group: str, member: str, positions: Mapping[int, int]) -> set[int]:
    query = "SELECT part FROM positions WHERE consumers = ? AND member = ?"
    own = {part for (part,) in database.execute(query, (group, member))} & positions.keys()
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
    database: sqlite3.Connection, topic: str, before_ms: int | None, over_bytes: int, limit: int, *, keep: bool
) -> TopicSize:
    least = "SELECT min(position) FROM positions" if keep else "SELECT NULL"
    # Never the last upload: SQLite would use its position again.
    query = (
        "SELECT position, length(payload), received_ms FROM uploads"  # noqa: S608 - made of constants
        f" WHERE topic = ? AND position < ({_HEAD}) AND position <= ifnull(({least}), position)"
        " ORDER BY position LIMIT ?"
    )
    deleted, size_bytes = list[tuple[int]](), 0
    for position, payload_bytes, received_ms in database.execute(query, (topic, limit)):
        if size_bytes >= over_bytes and (before_ms is None or received_ms >= before_ms):
            break
        deleted.append((position,))
        size_bytes += payload_bytes
    database.executemany("DELETE FROM uploads WHERE position = ?", deleted)
    values = (len(deleted), size_bytes, topic)
    database.execute("UPDATE topics SET uploads = uploads - ?, bytes = bytes - ? WHERE topic = ?", values)
    database.execute("DELETE FROM topics WHERE uploads = 0")
    return TopicSize(len(deleted), size_bytes)


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
