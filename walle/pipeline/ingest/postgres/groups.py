"""Consumer groups and retention in the PostgreSQL store: the statements of one short transaction or query each."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from walle.pipeline.ingest.store.expiry import AgeSearch, StoredSize, first_step, split_expired
from walle.pipeline.ingest.store.partitions import PARTITIONS, Lease, is_live, share_partitions
from walle.pipeline.ingest.store.receipt import MAX_READ_BYTES
from walle.pipeline.ingest.store.upload_store import GroupLag, Start, Trimmed
from walle.pipeline.tunnel.received import Received

if TYPE_CHECKING:
    import asyncpg

type Connection = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


async def head(connection: Connection) -> int:
    position: int = await connection.fetchval("SELECT position FROM walle.head")
    return position


async def uploads(connection: Connection, where: str, limit: int, *values: object) -> list[tuple[int, Received]]:
    """Return uploads with their positions until the payloads have MAX_READ_BYTES: a device sends 8 MiB at once.

    `where` is a condition on `values`, which are $2 and those that follow.
    """
    query = (
        "SELECT position, device_id, epoch, seq, topic, payload, sent_ms, received_ms, ''::bytea, version FROM ("  # noqa: S608 - callers' constants
        "SELECT *, sum(octet_length(payload)) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) AS upto_bytes"
        f" FROM walle.uploads JOIN walle.streams USING (stream) WHERE {where} ORDER BY position LIMIT $1"
        f") AS found WHERE upto_bytes - octet_length(payload) < {MAX_READ_BYTES} ORDER BY position"
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
    found = await connection.fetch("SELECT member, until_ms FROM walle.members WHERE consumers = $1", group)
    live = [name for name, until_ms in found if is_live(until_ms, now_ms)]
    delete = "DELETE FROM walle.members WHERE consumers = $1 AND member <> ALL($2::text[])"
    await connection.execute(delete, group, live)
    kept = share_partitions(leases, live, member, busy, now_ms)
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
    leases = await _lock_leases(connection, group)
    highest = await head(connection)  # a position above it is of a database that this one has replaced
    own = {
        lease.partition
        for lease in leases
        if lease.member == member and positions.get(lease.partition, highest + 1) <= highest
    }
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
    connection: Connection,
    topic: str,
    before_ms: int | None,
    now_ms: int,
    over_bytes: int,
    limit: int,
    *,
    keep: bool,
) -> Trimmed:
    least: int | None = await connection.fetchval("SELECT min(position) FROM walle.positions")
    rows = await connection.fetch(
        "SELECT position, octet_length(payload), received_ms FROM walle.uploads WHERE topic = $1"
        " AND position < (SELECT position FROM walle.head) AND position <= coalesce($2, position)"
        " ORDER BY position LIMIT $3",
        topic,
        least if keep else None,
        limit,
    )
    sizes = [StoredSize(*row) for row in map(tuple, rows)]
    old, ahead = split_expired(sizes, before_ms=before_ms, now_ms=now_ms, over_bytes=over_bytes)
    if ahead and before_ms is not None and await _received_after(connection, ahead[-1].position, now_ms) < before_ms:
        old += ahead
    step = first_step(old)
    # Another process may be deleting the same ones: each counts those that it has deleted itself.
    deleted = await connection.fetch(
        "DELETE FROM walle.uploads WHERE position = ANY($1::bigint[]) RETURNING position, octet_length(payload)",
        [position for position, _, _ in step],
    )
    if not deleted:
        return Trimmed(0, 0, 0)
    size_bytes = sum(payload_bytes for _, payload_bytes in map(tuple, deleted))
    await connection.execute(
        "UPDATE walle.topics SET uploads = uploads - $2, bytes = bytes - $3 WHERE topic = $1",
        topic,
        len(deleted),
        size_bytes,
    )
    await connection.execute("DELETE FROM walle.topics WHERE topic = $1 AND uploads = 0", topic)
    return Trimmed(len(deleted), size_bytes, sum(least is not None and row[0] > least for row in deleted))


async def _received_after(connection: Connection, position: int, now_ms: int) -> int:
    """Return when a later upload was received, whose time is not in the future; `now_ms` if there is none."""
    query = "SELECT position, 0, received_ms FROM walle.uploads WHERE position >= $1 ORDER BY position LIMIT 1"
    search = AgeSearch(position, now_ms)
    while (place := search.next_position) is not None:
        row = await connection.fetchrow(query, place)
        search.take(StoredSize(*row) if row else None)
    return now_ms if search.received_ms is None else search.received_ms
