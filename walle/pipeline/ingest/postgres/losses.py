"""Recorded losses in the PostgreSQL store: the statements of a caller's transaction or query."""

from typing import TYPE_CHECKING

from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.store.receipt import MAX_LOSSES, LossTotal, RecordedLoss
from walle.protocol import MAX_SEQ

if TYPE_CHECKING:
    from walle.pipeline.ingest.postgres.groups import Connection


async def record(connection: "Connection", recorded: RecordedLoss) -> bool:
    """Record a loss that is not known yet; return whether it is now there by itself.

    Those of a device after the first MAX_LOSSES, which only a forged or failing device has, are added up by cause. Two
    processes that record losses of one device at once may exceed that by a few.
    """
    device_id, loss, now_ms = recorded
    values = (device_id, loss.epoch, loss.first_seq, loss.last_seq, loss.cause.value)
    known = (
        "SELECT 1 FROM walle.losses WHERE device_id = $1 AND epoch = $2 AND first_seq = $3"
        " AND last_seq IS NOT DISTINCT FROM $4 AND cause = $5"
    )
    if await connection.fetchval(known, *values) is not None:
        return False
    count: int = await connection.fetchval("SELECT count(*) FROM walle.losses WHERE device_id = $1", device_id)
    if count < MAX_LOSSES:
        insert = (
            "INSERT INTO walle.losses (device_id, epoch, first_seq, last_seq, cause, recorded_ms)"
            " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING"
        )
        return str(await connection.execute(insert, *values, now_ms)) == "INSERT 0 1"
    await connection.execute(
        "INSERT INTO walle.merged_losses AS m (device_id, cause, reports, uploads, open_reports)"
        " VALUES ($1, $2, 1, $3, $5) ON CONFLICT (device_id, cause) DO UPDATE"
        " SET reports = m.reports + 1, uploads = least(m.uploads::numeric + excluded.uploads, $4)::bigint,"
        " open_reports = m.open_reports + excluded.open_reports",
        device_id,
        loss.cause.value,
        min(loss.count, MAX_SEQ),
        MAX_SEQ,
        int(loss.is_open),
    )
    return False


async def read(connection: "Connection", device_id: str | None) -> list[RecordedLoss]:
    """Return the losses that are recorded by themselves, of one device or of all, oldest first."""
    query = (
        "SELECT device_id, epoch, first_seq, last_seq, cause, recorded_ms FROM walle.losses"
        " WHERE $1::text IS NULL OR device_id = $1 ORDER BY loss"
    )
    rows = await connection.fetch(query, device_id)
    return [RecordedLoss(row[0], Loss(row[1], row[2], row[3], LossCause(row[4])), row[5]) for row in rows]


async def totals(connection: "Connection", device_id: str | None) -> dict[LossCause, LossTotal]:
    """Return the total of each cause, of one device or of all."""
    query = (
        "SELECT cause, sum(reports)::bigint, sum(uploads)::numeric, sum(open_reports)::bigint FROM ("
        "SELECT cause, count(*) AS reports, sum(coalesce(last_seq - first_seq + 1, 1)) AS uploads,"
        " count(*) FILTER (WHERE last_seq IS NULL) AS open_reports FROM walle.losses"
        " WHERE $1::text IS NULL OR device_id = $1 GROUP BY cause"
        " UNION ALL SELECT cause, sum(reports), sum(uploads), sum(open_reports) FROM walle.merged_losses"
        " WHERE $1::text IS NULL OR device_id = $1 GROUP BY cause) AS both_kinds GROUP BY cause"
    )
    rows = await connection.fetch(query, device_id)
    found = {row[0]: LossTotal(row[1], int(row[2]), row[3]) for row in rows}
    return {cause: found.get(cause.value, LossTotal(0, 0)) for cause in LossCause}
