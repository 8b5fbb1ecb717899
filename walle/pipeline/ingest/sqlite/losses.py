"""Recorded losses in the SQLite store: the statements of a caller's transaction or query."""

import sqlite3

from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.ingest.store.receipt import MAX_LOSSES, LossTotal, RecordedLoss
from walle.protocol import MAX_SEQ

_COLUMNS = "device_id, epoch, first_seq, last_seq, cause, recorded_ms"


def record(database: sqlite3.Connection, recorded: RecordedLoss) -> bool:
    """Record a loss that is not known yet; return whether it is now there by itself.

    Those of a device after the first MAX_LOSSES, which only a forged or failing device has, are added up by cause.
    """
    device_id, loss, now_ms = recorded
    values = (device_id, loss.epoch, loss.first_seq, loss.last_seq, loss.cause.value, now_ms)
    known = (
        "SELECT 1 FROM losses WHERE device_id = ? AND epoch = ? AND first_seq = ? AND ifnull(last_seq, -1) = ?"
        " AND cause = ?"
    )
    last_seq = -1 if loss.last_seq is None else loss.last_seq
    if database.execute(known, (*values[:3], last_seq, loss.cause.value)).fetchone() is not None:
        return False
    count = database.execute("SELECT count(*) FROM losses WHERE device_id = ?", (device_id,)).fetchone()[0]
    if count < MAX_LOSSES:
        database.execute(f"INSERT INTO losses ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608
        return True
    database.execute(
        "INSERT INTO merged_losses (device_id, cause, reports, uploads, open_reports) VALUES (?1, ?2, 1, ?3, ?5)"
        " ON CONFLICT (device_id, cause) DO UPDATE SET reports = reports + 1, uploads = min(uploads + ?3, ?4),"
        " open_reports = open_reports + ?5",
        (device_id, loss.cause.value, min(loss.count, MAX_SEQ), MAX_SEQ, int(loss.is_open)),
    )
    return False


def read(database: sqlite3.Connection, device_id: str | None) -> list[RecordedLoss]:
    """Return the losses that are recorded by themselves, of one device or of all, oldest first."""
    values = [] if device_id is None else [device_id]
    query = f"SELECT {_COLUMNS} FROM losses{' WHERE device_id = ?' * len(values)} ORDER BY loss"  # noqa: S608
    return [
        RecordedLoss(row[0], Loss(row[1], row[2], row[3], LossCause(row[4])), row[5])
        for row in database.execute(query, values)
    ]


def totals(database: sqlite3.Connection, device_id: str | None) -> dict[LossCause, LossTotal]:
    """Return the total of each cause, of one device or of all. Sums above 2**53 are rounded."""
    values = [] if device_id is None else [device_id]
    where = " WHERE device_id = ?" * len(values)
    query = (  # total(), because sum() fails above 64 bits, which forged reports reach
        "SELECT cause, sum(reports), total(uploads), sum(open_reports) FROM ("  # noqa: S608 - made of constants
        "SELECT cause, count(*) AS reports, total(ifnull(last_seq - first_seq + 1, 1)) AS uploads,"
        f" sum(last_seq IS NULL) AS open_reports FROM losses{where} GROUP BY cause"
        " UNION ALL SELECT cause, sum(reports), total(uploads), sum(open_reports)"
        f" FROM merged_losses{where} GROUP BY cause"
        ") GROUP BY cause"
    )
    found = {row[0]: LossTotal(row[1], int(row[2]), row[3]) for row in database.execute(query, values * 2)}
    return {cause: found.get(cause.value, LossTotal(0, 0)) for cause in LossCause}
