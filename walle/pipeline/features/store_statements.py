"""Statements that insert rows of a feature store, many with each (docs/adr/0021-feature-store-and-state.md)."""

from collections.abc import Iterator

_MOST_ROWS = 64  # 8 values a row: a statement stays below the 999 parameters of an older SQLite


def _inserts(table: str, columns: str, shared_columns: int) -> dict[tuple[bool, int], str]:
    """Return the statements that insert 1, 2, 4, ..., _MOST_ROWS rows: those with all columns each, and others.

    In the others, all rows share the values of the first columns. Each binding takes SQLite's mutex, and that of a text
    also allocates.
    """
    names = columns.split(", ")
    own, shared = f"({', '.join('?' * len(names))})", f"({', '.join('?' * (len(names) - shared_columns))})"
    marks = ", ".join("?" * shared_columns)
    statements = {}
    for count in (1 << power for power in range(_MOST_ROWS.bit_length())):
        into = f"INSERT INTO {table} ({columns})"
        statements[False, count] = f"{into} VALUES {', '.join([own] * count)}"
        statements[True, count] = f"{into} SELECT {marks}, * FROM (VALUES {', '.join([shared] * count)})"  # noqa: S608 - made of constants
    return statements


FEATURES = _inserts("features", "topic, ts_ms, position, payload, checksum", 1)
UPLOADS = _inserts("outbox", "topic, version, version_checksum, seq, payload, created_ms, checksum, chain", 3)


def chunks(rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, number of rows) of each statement."""
    first = 0
    while first < rows:
        count = min(_MOST_ROWS, 1 << (rows - first).bit_length() - 1)
        yield first, count
        first += count
