"""Counts of the features that a store keeps, and the removal of the oldest beyond their bounds."""

import collections
import dataclasses
import sqlite3

from walle.pipeline.features.store_schema import DamageError


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on the features that are kept; the transaction that exceeds one removes the oldest."""

    rows_per_topic: int = 10_000
    rows: int = 100_000
    size_bytes: int = 64 << 20


@dataclasses.dataclass(slots=True)
class KeptFeatures:
    """Counts of the feature table."""

    rows: collections.Counter[str]  # by topic
    total_rows: int
    size_bytes: int

    def add(self, rows: collections.Counter[str], count: int, size_bytes: int) -> None:
        """Add rows, or remove them with negative counts."""
        self.rows.update(rows)
        for topic in rows:
            if not self.rows[topic]:
                del self.rows[topic]
        self.total_rows += count
        self.size_bytes += size_bytes

    def retain(
        self, db: sqlite3.Connection, added: collections.Counter[str], added_bytes: int, bounds: Bounds
    ) -> tuple[collections.Counter[str], int]:
        """Remove the oldest rows beyond the bounds, inside the transaction; return their negative counts and bytes."""
        removed = collections.Counter[str]()
        size_bytes = self.size_bytes + added_bytes
        for topic, count in added.items():
            excess = self.rows[topic] + count - bounds.rows_per_topic
            if excess > 0:
                for row_topic, row_bytes in db.execute(
                    "DELETE FROM features WHERE id IN (SELECT id FROM features WHERE topic = ? ORDER BY id LIMIT ?)"
                    " RETURNING topic, size_bytes",
                    (topic, excess),
                ):
                    removed[row_topic] -= 1
                    size_bytes -= row_bytes
        total_rows = self.total_rows + added.total() + removed.total()
        if size_bytes > bounds.size_bytes or total_rows > bounds.rows:
            last_removed = None
            oldest = db.execute("SELECT id, topic, size_bytes FROM features ORDER BY id")
            while (size_bytes > bounds.size_bytes or total_rows > bounds.rows) and (row := oldest.fetchone()):
                last_removed, row_topic, row_bytes = row
                removed[row_topic] -= 1
                total_rows -= 1
                size_bytes -= row_bytes
            oldest.close()
            db.execute("DELETE FROM features WHERE id <= ?", (last_removed,))
        return removed, size_bytes - self.size_bytes - added_bytes


def read_kept(db: sqlite3.Connection) -> KeptFeatures:
    """Return the counts of the table. Raises DamageError if its index differs from it."""
    # The index is compared with the table, since quick_check does not: a query trusts the index.
    query = "SELECT topic, count(*), sum(id), {} FROM features {} GROUP BY {} ORDER BY 1, 2, 3"
    in_table = db.execute(query.format("sum(size_bytes)", "NOT INDEXED", "topic")).fetchall()
    in_index = db.execute(query.format("0", "INDEXED BY features_by_topic", "topic")).fetchall()
    if [row[:3] for row in in_table] != [row[:3] for row in in_index]:
        raise DamageError("an index differs from its table")
    rows = collections.Counter({topic: count for topic, count, _, _ in in_table})
    return KeptFeatures(rows, rows.total(), sum(size_bytes or 0 for *_, size_bytes in in_table))
