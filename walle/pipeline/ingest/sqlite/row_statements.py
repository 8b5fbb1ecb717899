"""SQLite statements that take many rows at once.

Python releases the interpreter lock around each step of a statement, and has to get it back while the server's thread
holds it most of the time. So a statement for many rows costs far less than one for each row.
"""

import itertools
import sqlite3
from collections.abc import Sequence

_MOST_VALUES = 900  # limit of one statement


class RowStatements:
    """Forms of one statement for 1, 2, 4, ... rows, so that few statements take any number of rows.

    `text` has `{rows}` where the rows stand, each of `columns` values.
    """

    def __init__(self, text: str, columns: int) -> None:
        self._columns = columns
        row = f"({', '.join('?' * columns)})"
        counts = itertools.takewhile(
            lambda count: count * columns <= _MOST_VALUES, (1 << power for power in itertools.count())
        )
        self._forms = [text.format(rows=", ".join([row] * count)) for count in counts]

    def execute(self, database: sqlite3.Connection, values: Sequence[object]) -> None:
        """Execute the statement for all rows, in their order: `values` are those of the first row, then the others'."""
        at, left = 0, len(values) // self._columns
        while left:
            power = min(left.bit_length(), len(self._forms)) - 1
            end = at + (self._columns << power)
            database.execute(self._forms[power], values[at:end])
            at, left = end, left - (1 << power)
