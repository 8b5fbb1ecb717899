"""Copies of the tables of a cloud's SQLite files to its PostgreSQL database, within one transaction of that.

A copy is made in parts, which bound its memory and the time of a statement, and compares the counts.
"""

import contextlib
import dataclasses
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from walle.errors import ConfigError
from walle.store.file_connection import connect_present
from walle.store.postgres_database import Connection
from walle.store.tables import COUNTERS, FILES, LEAST_GENERATION, Column, Table

type Row = tuple[Any, ...]

_PART_ROWS = 5_000
_PART_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows for a table of the database. `read` gives them, each time from the start.

    `highest` is the highest number that the table's sequence has given.
    """

    table: str
    columns: list[str]
    read: Callable[[], Iterable[Row]]
    sequence: str = ""
    highest: int = 0


def rows_of(path: Path, *, prefix: str = "") -> list[Rows]:
    """Return the rows of a cloud's file; of tables whose names begin with `prefix`.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    found = []
    with contextlib.closing(connect_present(path)) as db:
        known = tables_in(db)
        used = {}
        if "sqlite_sequence" in known:
            used = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        counters: dict[str, int] = {}
        if path.name == "identities.db":  # former versions had no counters there
            counters[LEAST_GENERATION] = db.execute("PRAGMA user_version").fetchone()[0]
        for table in FILES[path.name]:
            if (name := prefix + table.local) not in known:
                continue
            if table is COUNTERS:
                for counter, value in db.execute(f"SELECT name, value FROM {name}"):  # noqa: S608 - our names
                    counters[counter] = max(value, counters.get(counter, 0))
                continue
            if table.counter:
                counters[table.counter] = max(used.get(name, 0), counters.get(table.counter, 0))
            present = {row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (name,))}
            columns = [column for column in table.columns if column.name in present]
            read = _reader(path, name, table, columns)
            names = [column.name for column in columns]
            found.append(Rows(table.name, names, read, table.sequence, used.get(name, 0)))
        if "leases" in known:
            leases = [(name, "", fence) for name, fence in db.execute("SELECT name, fence FROM leases").fetchall()]
            found.append(Rows("leases", ["name", "holder", "fence"], lambda: leases))
    if counted := [(name, value) for name, value in counters.items() if value]:
        label = "counters" if path.name == "releases.db" else f"counters of {path.name}"
        found.append(Rows(label, ["name", "value"], lambda: counted))
    return found


def tables_in(db: sqlite3.Connection) -> set[str]:
    """Return the names of a file's tables."""
    return {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _reader(path: Path, name: str, table: Table, columns: list[Column]) -> Callable[[], Iterable[Row]]:
    query = f"SELECT {', '.join(column.name for column in columns)} FROM {name}"  # noqa: S608 - our names

    def read() -> Iterator[Row]:
        with contextlib.closing(connect_present(path)) as db:
            rows: Iterable[Row] = (table.for_server(row, columns) for row in db.execute(query))
            if table.merges:
                rows = {row[: len(table.key)]: row for row in rows}.values()
            yield from rows

    return read


async def copy_rows(connection: Connection, rows: Rows) -> int:
    """Copy rows to their table, and return how many it has got.

    Raises:
        ConfigError: it has not got each of them.
    """
    name = rows.table.partition(" ")[0]
    query = f"SELECT count(*) FROM walle.{name}"  # noqa: S608 - our names
    before, wanted, highest = await connection.fetchval(query), 0, rows.highest
    for part in _parts(rows.read()):
        wanted += len(part)
        if name == "leases":
            await connection.executemany("INSERT INTO walle.leases VALUES ($1, $2, $3, '-infinity')", part)
        else:
            await connection.copy_records_to_table(name, schema_name="walle", columns=rows.columns, records=part)
        if rows.sequence:
            highest = max(highest, *(row[0] for row in part))
    count = await connection.fetchval(query) - before
    if count != wanted:
        raise ConfigError(f"table {name} got {count} of {wanted} rows; nothing was moved")
    if rows.sequence and highest:
        sequence = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", f"walle.{name}", rows.sequence)
        await connection.execute("SELECT setval($1::text::regclass, $2)", sequence, highest)
    return int(count)


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size_bytes = 0
    for row in rows:
        part.append(row)
        size_bytes += sum(len(one) for one in row if isinstance(one, bytes | str))
        if len(part) >= _PART_ROWS or size_bytes >= _PART_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def set_aside(path: Path, ending: str) -> Path:
    """Give a file whose contents are elsewhere now another name, and return it; no file of before is replaced."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect_present(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")  # one file
    names = itertools.chain([path.name], (f"{path.name}.{number}" for number in itertools.count(2)))
    target = next(path.with_name(name + ending) for name in names if not path.with_name(name + ending).exists())
    with contextlib.suppress(FileNotFoundError):
        path.replace(target)
    for log in ("-wal", "-shm"):  # logs of a process that has the file open
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + log).replace(target.with_name(target.name + log))
    return target
