"""Copies of the tables of a cloud's SQLite files to its PostgreSQL database, within one transaction of that.

A copy is made in parts, which bound its memory and the time of a statement, and compares the counts.
"""

import contextlib
import dataclasses
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from walle.access.identity.postgres_store import LEAST_GENERATION, REVOCATIONS
from walle.deploy.fleet.postgres_registry import FAILURE_NUMBERS
from walle.errors import ConfigError
from walle.store.postgres_database import Connection
from walle.store.postgres_text import storable_text

type Row = tuple[Any, ...]

_PART_ROWS = 5_000
_PART_BYTES = 16 << 20
_BUSY_S = 30.0


def storable_row(row: Row) -> Row:
    """Return a row with texts that PostgreSQL stores."""
    return tuple(storable_text(one) if isinstance(one, str) else one for one in row)


def _batch(row: Row) -> Row:
    number, device_id, batch_id = row
    return number, json.dumps(device_id), json.dumps(batch_id)


def _group_file(row: Row) -> Row:
    number, task, name, app_version, rule, *rest = row
    return number, task, name, app_version, json.dumps(rule), *storable_row(tuple(rest))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a file, and the one in the database; both have the same columns.

    `sequence` is the column that a sequence of the database numbers. The first `keys` columns are texts that devices
    choose, of which two may be one in the database.
    """

    local: str
    columns: str
    remote: str = ""
    sequence: str = ""
    keys: int = 0
    convert: Callable[[Row], Row] | None = None


_DEVICE = "device_id, profile, app_version, attributes, first_seen_s, last_seen_s, reported_s"
_TASK = "device_id, task, active, version, state, release, reported_s, ok, failed"
_FAILURE = "number, device_id, task, version, release, kind, at_s, failure"
_IDENTITY = "device_id, generation, public_key, enrolled_s, expires_s, seen_s, revoked_s, reason"
_FILE = "device_id, generation, task, name, sha256, size_bytes, put_s, put_by, sealed"
_GROUP_FILE = "number, task, name, app_version, rule, columns, size_bytes, put_s, put_by, encrypted"
TABLES: Mapping[str, tuple[Table, ...]] = {
    "releases.db": (
        Table("releases", "id, number, release"),
        Table("transitions", "number, release_id, at_s, event, details, state", sequence="number"),
        Table("effects", "number, release_id, effect", sequence="number"),
        Table("table_rows", "task, task_row"),
        Table("counters", "name, value"),
    ),
    "monitor.db": (
        Table("evidence", "release_id, evidence"),
        Table("batches", "number, device_id, batch_id", sequence="number", convert=_batch),
    ),
    "devices.db": (
        Table("devices", _DEVICE, keys=1, convert=storable_row),
        Table("tasks", _TASK, "device_tasks", keys=2, convert=storable_row),
        Table("failures", _FAILURE, "device_failures", convert=storable_row),
    ),
    "identities.db": (
        Table("identities", _IDENTITY, convert=storable_row),
        Table("tokens", "hash, device_id, uses_left, expires_s, purpose", "enrolment_tokens"),
        Table("revocations", "version, device_id, lowest, until_s"),
    ),
    "exclusive.db": (
        Table("serials", "device_id, serial", "exclusive_serials"),
        Table("files", _FILE, "exclusive_files", convert=storable_row),
        Table("group_serial", "one, serial"),
        Table("group_files", _GROUP_FILE, sequence="number", convert=_group_file),
    ),
}


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


def open_file(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that is there. Raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode=rw"  # a reader of a write-ahead log writes its index
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)


def rows_of(path: Path, *, prefix: str = "") -> list[Rows]:
    """Return the rows of a cloud's file; of tables whose names begin with `prefix`.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    found = []
    with contextlib.closing(open_file(path)) as db:
        known = tables_in(db)
        used = {}
        if "sqlite_sequence" in known:
            used = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        for table in TABLES[path.name]:
            if (name := prefix + table.local) in known:
                read = _reader(path, name, table)
                sequence = table.sequence
                found.append(
                    Rows(table.remote or table.local, table.columns.split(", "), read, sequence, used.get(name, 0))
                )
        counters: dict[str, int] = {}
        if path.name == "devices.db":
            counters[FAILURE_NUMBERS] = used.get(f"{prefix}failures", 0)
        if path.name == "identities.db":
            counters[REVOCATIONS] = used.get(f"{prefix}revocations", 0)
            counters[LEAST_GENERATION] = db.execute("PRAGMA user_version").fetchone()[0]
        if "leases" in known:
            leases = [(name, "", fence) for name, fence in db.execute("SELECT name, fence FROM leases").fetchall()]
            found.append(Rows("leases", ["name", "holder", "fence"], lambda: leases))
    if counted := [(name, value) for name, value in counters.items() if value]:
        found.append(Rows(f"counters of {path.name}", ["name", "value"], lambda: counted))
    return found


def tables_in(db: sqlite3.Connection) -> set[str]:
    """Return the names of a file's tables."""
    return {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _reader(path: Path, name: str, table: Table) -> Callable[[], Iterable[Row]]:
    def read() -> Iterator[Row]:
        with contextlib.closing(open_file(path)) as db:
            rows: Iterable[Row] = db.execute(f"SELECT {table.columns} FROM {name}")  # noqa: S608 - our names
            if table.convert is not None:
                rows = map(table.convert, rows)
            if table.keys:
                rows = {row[: table.keys]: row for row in rows}.values()
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
    with contextlib.suppress(sqlite3.Error), contextlib.closing(open_file(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")  # one file
    names = itertools.chain([path.name], (f"{path.name}.{number}" for number in itertools.count(2)))
    target = next(path.with_name(name + ending) for name in names if not path.with_name(name + ending).exists())
    with contextlib.suppress(FileNotFoundError):
        path.replace(target)
    for log in ("-wal", "-shm"):  # logs of a process that has the file open
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + log).replace(target.with_name(target.name + log))
    return target
