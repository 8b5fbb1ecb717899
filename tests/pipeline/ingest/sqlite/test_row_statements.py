"""Statements for many rows against one statement for each row."""

import sqlite3

import pytest

from walle.pipeline.ingest.sqlite.row_statements import RowStatements


class CountingConnection(sqlite3.Connection):
    """A connection that counts the statements it executes."""

    executed = 0

    def execute(self, *arguments: object) -> sqlite3.Cursor:
        self.executed += 1
        return super().execute(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 127, 128, 129, 1000])
def test_all_rows_are_inserted_in_their_order_by_few_statements(count: int) -> None:
    database = sqlite3.connect(":memory:", factory=CountingConnection)
    database.execute("CREATE TABLE t (position INTEGER PRIMARY KEY, a, b, c, d, e, f)")
    statements = RowStatements("INSERT INTO t (a, b, c, d, e, f) VALUES {rows}", 6)
    rows = [(number, "x", b"y", None, -number, 1.5) for number in range(count)]
    database.executed = 0
    statements.execute(database, [value for row in rows for value in row])
    assert database.executed <= count // 128 + 7
    assert database.execute("SELECT a, b, c, d, e, f FROM t ORDER BY position").fetchall() == rows
    database.close()


def test_rows_are_updated_by_their_key() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value)")
    database.executemany("INSERT INTO t VALUES (?, 0)", [(number,) for number in range(1000)])
    statements = RowStatements(
        "UPDATE t SET value = given.column2 FROM (VALUES {rows}) AS given WHERE id = given.column1", 2
    )
    statements.execute(database, [value for number in range(0, 1000, 2) for value in (number, -number)])
    expected = [(number, 0 if number % 2 else -number) for number in range(1000)]
    assert database.execute("SELECT id, value FROM t ORDER BY id").fetchall() == expected
    plan = "EXPLAIN QUERY PLAN UPDATE t SET value = given.column2 FROM (VALUES (1, 2), (3, 4)) AS given"
    steps = [row[3] for row in database.execute(f"{plan} WHERE id = given.column1")]
    assert any("SEARCH t USING INTEGER PRIMARY KEY" in step for step in steps)  # no scan of the table
    database.close()
