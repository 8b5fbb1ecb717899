"""A connection to a SQLite file for actions that are written for PostgreSQL: one SQL for both.

Actions number their values `$1`, `$2` and so on, and use the names of tables on a server. What differs in a file is
replaced in their queries: names, three functions, `= ANY($1)`, and locks of rows, as a transaction has the whole file.
"""

import functools
import re
import sqlite3
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from walle.store.tables import TABLES

_BUSY_S = 5.0  # wait for a transaction of another process
_LONG_BUSY_S = 30.0
_WORDS = {
    **{table.name: table.local for table in TABLES if table.local != table.name},
    "strpos": "instr",
    "greatest": "max",
}
_DIFFERENT = re.compile(rf"\$(\d+)|\b({'|'.join(_WORDS)})\b| FOR (?:UPDATE|SHARE)\b")
_ATTRIBUTES = re.compile(r"jsonb_each_text\((\S+)::jsonb\) AS (\w+)")
_TEXT = "CASE {0}.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST({0}.value AS TEXT) END"
_ANY = re.compile(r"= ANY\(\?(\d+)\)")


@functools.lru_cache(maxsize=256)
def _file_sql(query: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        if number := found[1]:
            return f"?{number}"
        return _WORDS[found[2]] if found[2] else ""

    if found := _ATTRIBUTES.search(query):
        name = found[2]
        query = query.replace(f"{name}.value", _TEXT.format(name)).replace(found[0], f"json_each({found[1]}) AS {name}")
    return _DIFFERENT.sub(replaced, query)


def file_query(query: str, values: Sequence[object]) -> tuple[str, Sequence[object]]:
    """Return a query and its values as SQLite takes them."""
    query = _file_sql(query)
    if not any(isinstance(value, list) for value in values):
        return query, values
    bound = list(values)

    def listed(found: re.Match[str]) -> str:
        number = int(found[1])
        several = values[number - 1]
        assert isinstance(several, list)
        bound[number - 1] = several[0] if several else None  # nothing is equal to NULL
        more = range(len(bound) + 1, len(bound) + len(several))
        bound.extend(several[1:])
        return f"IN ({', '.join(f'?{one}' for one in (number, *more))})"

    return _ANY.sub(listed, query), bound


def connect(path: Path, *, is_shared: bool = False) -> sqlite3.Connection:
    """Return a connection to a file, which is made where it is missing, for several threads if it `is_shared`.

    Each statement outside a transaction is its own one, and waits for those of other processes.

    Raises:
        sqlite3.Error: the file cannot be opened.
    """
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=not is_shared)
    db.row_factory = sqlite3.Row
    return db


def connect_present(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that is there, to read what a process writes that may have it open.

    Raises:
        sqlite3.Error: the file is missing, or cannot be opened.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"  # a reader of a write-ahead log writes its index
    return sqlite3.connect(uri, uri=True, timeout=_LONG_BUSY_S, isolation_level=None)


class FileConnection:
    """The methods of a connection to PostgreSQL that actions use; none of them waits."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    async def execute(self, query: str, *values: Any) -> None:
        self.db.execute(*file_query(query, values))

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        self.db.executemany(_file_sql(query), rows)

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        return self.db.execute(*file_query(query, values)).fetchall()

    async def fetchrow(self, query: str, *values: Any) -> Any:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

    async def fetchval(self, query: str, *values: Any) -> Any:
        row = await self.fetchrow(query, *values)
        return None if row is None else row[0]


def run_now[T](work: Coroutine[Any, Any, T]) -> T:
    """Return the result of an action on a file, all of whose calls block, so that it never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("an action on a file waited for something else")
