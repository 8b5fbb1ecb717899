"""Consumer groups and retention in the PostgreSQL store: the statements of one short transaction or query each."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from walle.pipeline.ingest.partitions import PARTITIONS, Lease, share_partitions
from walle.pipeline.ingest.upload_store import GroupLag, Start, TopicSize
from walle.pipeline.tunnel.server import Received

if TYPE_CHECKING:
    import asyncpg

type Connection = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


async def head(connection: Connection) -> int:
    position: int = await connection.fetchval("SELECT position FROM walle.head")
    return position


async def uploads(connection: Connection, where: str, limit: int, *values: object) -> list[tuple[int, Received]]:
    """Return uploads with their positions. `where` is a condition on `values`, which are $2 and those that follow."""
    query = (
        "SELECT position, device_id, epoch, seq, topic, payload, sent_ms, received_ms"  # noqa: S608 - callers' constants
        f" FROM walle.uploads JOIN walle.streams USING (stream) WHERE {where} ORDER BY position LIMIT $1"
    )
    return [(row[0], Received(*row[1:])) for row in map(tuple, await connection.fetch(query, limit, *values))]


async def join(connection: Connection, group: str, start: Start) -> None:
    position = 0 if start == "earliest" else await head(connection)
    await connection.execute(
        "INSERT INTO walle.positions (consumers, part, position) SELECT $1, part, $2"
        " FROM generate_series(0, $3::int - 1) AS part ON CONFLICT DO NOTHING",
        group,
        position,
        PARTITIONS,
    )


async def balance(
    connection: Connection, group: str, member: str, busy: Collection[int], now_ms: int, lease_ms: int
) -> dict[int, int]:
    leases = await _lock_leases(connection, group)
    await connection.execute(
        "INSERT INTO walle.members VALUES ($1, $2, $3)"
        " ON CONFLICT (consumers, member) DO UPDATE SET until_ms = excluded.until_ms",
        group,
        member,
        now_ms + lease_ms,
    )
    await connection.execute("DELETE FROM walle.members WHERE consumers = $1 AND until_ms <= $2", group, now_ms)
    found = await connection.fetch("SELECT member FROM walle.members WHERE consumers = $1", group)
    kept = share_partitions(leases, [name for (name,) in found], member, busy, now_ms)
    released = [lease.partition for lease in leases if lease.member == member and lease.partition not in kept]
    await connection.execute(
        "UPDATE walle.positions SET member = NULL WHERE consumers = $1 AND part = ANY($2)", group, released
    )
    await connection.execute(
        "UPDATE walle.positions SET member = $2, until_ms = $3 WHERE consumers = $1 AND part = ANY($4)",
        group,
        member,
        now_ms + lease_ms,
        list(kept),
    )
    return {lease.partition: lease.position for lease in leases if lease.partition in kept}


async def leave(connection: Connection, group: str, member: str) -> None:
    await _lock_leases(connection, group)
    await connection.execute(
        "UPDATE walle.positions SET member = NULL WHERE consumers = $1 AND member = $2", group, member
    )
    await connection.execute("DELETE FROM walle.members WHERE consumers = $1 AND member = $2", group, member)


async def _lock_leases(connection: Connection, group: str) -> list[Lease]:
    """Return a group's partitions, and keep other members from changing them."""
    rows = await connection.fetch(
        "SELECT part, position, member, until_ms FROM walle.positions WHERE consumers = $1 ORDER BY part FOR UPDATE",
        group,
    )
    return [Lease(*row) for row in map(tuple, rows)]


async def read(
    connection: Connection,
    partitions: Collection[int],
    topics: Collection[str] | None,
    after: int,
    upto: int,
    limit: int,
) -> list[tuple[int, Received]]:
    where = "position > $2 AND position <= $3 AND part = ANY($4::int[]) AND ($5::text[] IS NULL OR topic = ANY($5))"
    named = None if topics is None else list(topics)
    return await uploads(connection, where, limit, after, upto, list(partitions), named)


async def commit(connection: Connection, group: str, member: str, positions: Mapping[int, int]) -> set[int]:
    own = {lease.partition for lease in await _lock_leases(connection, group) if lease.member == member}
    own &= positions.keys()
    await connection.execute(
        "UPDATE walle.positions AS p SET position = greatest(p.position, n.position)"
        " FROM unnest($2::int[], $3::bigint[]) AS n (part, position) WHERE p.consumers = $1 AND p.part = n.part",
        group,
        list(own),
        [positions[part] for part in own],
    )
    return own


async def lags(connection: Connection) -> dict[str, GroupLag]:
    highest = await head(connection)
    query = "SELECT received_ms FROM walle.uploads WHERE position > $1 ORDER BY position LIMIT 1"
    rows = await connection.fetch("SELECT consumers, min(position) FROM walle.positions GROUP BY consumers")
    return {
        group: GroupLag(max(0, highest - position), await connection.fetchval(query, position))
        for group, position in map(tuple, rows)
    }


async def forget(connection: Connection, group: str) -> None:
    await connection.execute("DELETE FROM walle.positions WHERE consumers = $1", group)
    await connection.execute("DELETE FROM walle.members WHERE consumers = $1", group)


async def trim(
    connection: Connection, topic: str, before_ms: int | None, over_bytes: int, limit: int, *, keep: bool
) -> TopicSize:
    least = None
    if keep:
        least = await connection.fetchval("SELECT min(position) FROM walle.positions")
    rows = await connection.fetch(
        "SELECT position, length(payload), received_ms FROM walle.uploads WHERE topic = $1"
        " AND position < (SELECT position FROM walle.head) AND position <= coalesce($2, position)"
        " ORDER BY position LIMIT $3",
        topic,
        least,
        limit,
    )
    old, size_bytes = list[int](), 0
    for position, payload_bytes, received_ms in map(tuple, rows):
        if size_bytes >= over_bytes and (before_ms is None or received_ms >= before_ms):
            break
        old.append(position)
        size_bytes += payload_bytes
    # Another process may be deleting the same ones: each counts those that it has deleted itself.
    deleted = await connection.fetch(
        "DELETE FROM walle.uploads WHERE position = ANY($1::bigint[]) RETURNING length(payload)", old
    )
    if not deleted:
        return TopicSize(0, 0)
    size_bytes = sum(payload_bytes for (payload_bytes,) in deleted)
    await connection.execute(
        "UPDATE walle.topics SET uploads = uploads - $2, bytes = bytes - $3 WHERE topic = $1",
        topic,
        len(deleted),
        size_bytes,
    )
    await connection.execute("DELETE FROM walle.topics WHERE topic = $1 AND uploads = 0", topic)
    return TopicSize(len(deleted), size_bytes)
