"""Move of a cloud's state from the files of its folder to a PostgreSQL database, whole or not at all.

One transaction copies releases, evidence, devices and audit log, and compares the counts. Then database.toml names the
database, which is the moment of the move, and the files keep their contents under other names. Features are not moved.
"""

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from walle.cloud.home import CloudHome
from walle.cloud.state_place import FILES, MOVED, check_url, read_database, write_database
from walle.deploy.cloud.audit import segments_of, verify
from walle.deploy.cloud.postgres_database import Connection, without_password
from walle.deploy.cloud.postgres_registry import FAILURE_NUMBERS, storable_text
from walle.deploy.cloud.sync_database import SyncDatabase
from walle.durable_file import sync_folder
from walle.errors import ConfigError

# Tables of each file: the table here, its columns, the table in the database, and the column that a sequence numbers.
_TABLES = {
    "releases.db": (
        ("releases", "id, number, release", "releases", ""),
        ("transitions", "number, release_id, at_s, event, details, state", "transitions", "number"),
        ("effects", "number, release_id, effect", "effects", "number"),
        ("table_rows", "task, task_row", "table_rows", ""),
        ("counters", "name, value", "counters", ""),
    ),
    "monitor.db": (
        ("evidence", "release_id, evidence", "evidence", ""),
        ("batches", "number, device_id, batch_id", "batches", "number"),
    ),
    "devices.db": (
        (
            "devices",
            "device_id, profile, app_version, attributes, first_seen_s, last_seen_s, reported_s",
            "devices",
            "",
        ),
        (
            "tasks",
            "device_id, task, active, version, state, release, reported_s, ok, failed",
            "device_tasks",
            "",
        ),
        ("failures", "number, device_id, task, version, release, kind, at_s, failure", "device_failures", ""),
    ),
}
_COPY_S = 3600.0  # for the one transaction
_KEYS = {"devices": 1, "device_tasks": 2}  # whose ids devices choose: two may be one without NUL


@dataclasses.dataclass(frozen=True)
class _Rows:
    table: str
    columns: list[str]
    rows: list[tuple[Any, ...]]
    sequence: str  # a column


def move_state(folder: Path, url: str) -> Mapping[str, int]:
    """Move the state of the cloud in `folder`, which is not running; return how many rows each table got.

    Raises:
        ConfigError: the state is in a database already, the database has one, or the audit log has faults.
        DatabaseError: the database cannot be used.
    """
    check_url(url)
    if found := read_database(folder):
        raise ConfigError(f"{folder} has its state in {found} already")
    if not (folder / "access.toml").exists():
        raise ConfigError(f"{folder} is not the folder of a cloud")
    audit = folder / "audit"
    if faults := verify(audit).faults:
        raise ConfigError(f"{audit} has faults, such as {faults[0]}; see: walle audit verify {folder}")
    tables = [*_read_files(folder), *_read_audit(audit)]
    with contextlib.closing(SyncDatabase(url)) as database:

        async def copy(connection: Connection) -> dict[str, int]:
            if await connection.fetchval(
                "SELECT EXISTS (SELECT FROM walle.releases) OR EXISTS (SELECT FROM walle.audit)"
                " OR EXISTS (SELECT FROM walle.devices) OR EXISTS (SELECT FROM walle.counters)"
            ):
                what = "has the state of a cloud already; name an empty database"
                raise ConfigError(f"{without_password(url)} {what}, or drop what an interrupted move left there")
            return {table.table: await _copy(connection, table) for table in tables}

        counts = database.write(copy, limit_s=_COPY_S)
    home = CloudHome(folder, database=url)
    with contextlib.closing(home):
        if faults := home.audit.verified().faults:
            raise ConfigError(f"the audit log in {without_password(url)} has faults, such as {faults[0]}")
        write_database(folder, url)
        home.audit.append("cloud.move_state", who="operator", subject=without_password(url), details=counts)
    _set_aside(folder)
    return counts


def _read_files(folder: Path) -> Iterable[_Rows]:
    fences: dict[str, int] = {}
    numbered = 0
    for name, tables in _TABLES.items():
        if not (folder / name).exists():
            continue
        with contextlib.closing(sqlite3.connect(folder / name)) as db:
            known = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            for table, columns, target, sequence in tables:
                if table not in known:
                    continue
                rows: Iterable[tuple[Any, ...]] = db.execute(f"SELECT {columns} FROM {table}")  # noqa: S608 - ours
                if target == "batches":
                    rows = [(number, json.dumps(device), json.dumps(batch)) for number, device, batch in rows]
                elif name == "devices.db":
                    rows = [tuple(storable_text(one) if isinstance(one, str) else one for one in row) for row in rows]
                if target in _KEYS:
                    rows = {row[: _KEYS[target]]: row for row in rows}.values()
                yield _Rows(target, columns.split(", "), list(rows), sequence)
            if "leases" in known:
                fences |= dict(db.execute("SELECT name, fence FROM leases").fetchall())
            if name == "devices.db":
                query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'failures'"
                numbered = db.execute(query).fetchone()[0]
    yield _Rows("leases", ["name", "holder", "fence"], [(name, "", fence) for name, fence in fences.items()], "")
    yield _Rows("counters of devices", ["name", "value"], [(FAILURE_NUMBERS, numbered)] if numbered else [], "")


def _read_audit(folder: Path) -> Iterable[_Rows]:
    rows = []
    for segment in segments_of(folder):
        lines = segment.read_bytes().splitlines(keepends=True)
        rows += [(json.loads(line)["number"], line) for line in lines]
    yield _Rows("audit", ["number", "line"], rows, "")
    head = folder / "head.json"
    yield _Rows("audit_heads", ["head"], [(head.read_bytes(),)] if head.exists() else [], "")


async def _copy(connection: Connection, table: _Rows) -> int:
    """Copy rows, and return how many the table has then."""
    name = table.table.partition(" ")[0]
    before = await connection.fetchval(f"SELECT count(*) FROM walle.{name}")  # noqa: S608 - our names
    if name == "leases":
        await connection.executemany("INSERT INTO walle.leases VALUES ($1, $2, $3, '-infinity')", table.rows)
    else:
        await connection.copy_records_to_table(name, schema_name="walle", columns=table.columns, records=table.rows)
    count = await connection.fetchval(f"SELECT count(*) FROM walle.{name}") - before  # noqa: S608 - our names
    if count != len(table.rows):
        raise ConfigError(f"table {name} got {count} of {len(table.rows)} rows; nothing was moved")
    if table.sequence and table.rows:
        highest = max(row[0] for row in table.rows)
        sequence = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", f"walle.{name}", table.sequence)
        await connection.execute("SELECT setval($1::text::regclass, $2)", sequence, highest)
    return int(count)


def _set_aside(folder: Path) -> None:
    """Give the files that were moved other names, so that nothing takes them for the cloud's state."""
    for name in FILES:
        path = folder / name
        if path.exists():
            with contextlib.closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode = DELETE")  # one file
            path.replace(path.with_name(name + MOVED))
    if (folder / "audit").exists():
        (folder / "audit").replace(folder / f"audit{MOVED}")
    sync_folder(folder)
