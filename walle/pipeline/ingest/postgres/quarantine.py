"""Uploads that PostgreSQL refuses for their contents, set aside: the statements of a caller's transaction or query."""

from typing import TYPE_CHECKING

from walle.pipeline.ingest.store.quarantine import MAX_OF_DEVICE, MAX_REFUSED, devices_of_page
from walle.pipeline.ingest.store.receipt import RefusedUpload

if TYPE_CHECKING:
    from walle.pipeline.ingest.postgres.groups import Connection


async def has_room(connection: "Connection", device_id: str) -> bool:
    query = "SELECT count(*), count(*) FILTER (WHERE device_id = $1) FROM walle.refused"
    row = await connection.fetchrow(query, device_id)
    assert row is not None
    return bool(row[0] < MAX_REFUSED and row[1] < MAX_OF_DEVICE)


async def add(connection: "Connection", refused: RefusedUpload) -> None:
    await connection.execute(
        "INSERT INTO walle.refused (device_id, epoch, seq, reason, contents, refused_ms)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        *refused,
    )


async def count(connection: "Connection") -> int:
    found: int = await connection.fetchval("SELECT count(*) FROM walle.refused")
    return found


async def read(connection: "Connection") -> list[RefusedUpload]:
    sizes = (
        "SELECT device_id, coalesce(sum(length(contents)), 0)::bigint FROM walle.refused"
        " GROUP BY device_id ORDER BY min(refusal)"
    )
    devices = devices_of_page([(row[0], row[1]) for row in await connection.fetch(sizes)])
    query = (
        "SELECT device_id, epoch, seq, reason, contents, refused_ms FROM walle.refused"
        " WHERE device_id = ANY($1::text[]) ORDER BY refusal"
    )
    return [RefusedUpload(*row) for row in map(tuple, await connection.fetch(query, devices))]


async def forget(connection: "Connection", device_id: str | None) -> None:
    await connection.execute("DELETE FROM walle.refused WHERE $1::text IS NULL OR device_id = $1", device_id)
