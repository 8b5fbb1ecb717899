"""Move of a cloud's state from the files of its folder to a PostgreSQL database, whole or not at all.

One transaction copies releases, evidence, devices, identities, exclusive files and the audit log, and compares the
counts. Then database.toml names the database, which is the moment of the move, and the files keep their contents under
other names. Features are not moved.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from walle.access.audit import segments_of, verify
from walle.base.durable_file import sync_folder
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.left_files import LEFT_FILES, note_moved
from walle.cloud.folder.state_copy import Rows, copy_rows, rows_of, set_aside
from walle.cloud.folder.state_place import MOVED, check_url, read_database, write_database
from walle.errors import ConfigError
from walle.store.postgres_database import Connection, without_password
from walle.store.sync_database import SyncDatabase
from walle.store.tables import FILES

_COPY_S = 3600.0  # time for the one transaction


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
    files = [folder / name for name in FILES if (folder / name).exists()]
    tables = [rows for file in files for rows in rows_of(file)] + list(_read_audit(audit))
    with contextlib.closing(SyncDatabase(url)) as database:

        async def copy(connection: Connection) -> dict[str, int]:
            if await connection.fetchval(
                "SELECT EXISTS (SELECT FROM walle.releases) OR EXISTS (SELECT FROM walle.audit)"
                " OR EXISTS (SELECT FROM walle.devices) OR EXISTS (SELECT FROM walle.counters)"
                " OR EXISTS (SELECT FROM walle.identities) OR EXISTS (SELECT FROM walle.exclusive_serials)"
            ):
                what = "has the state of a cloud already; name an empty database"
                raise ConfigError(f"{without_password(url)} {what}, or drop what an interrupted move left there")
            for name in LEFT_FILES:
                await note_moved(connection, name)
            return {table.table: await copy_rows(connection, table) for table in tables}

        counts = database.write(copy, limit_s=_COPY_S)
    home = CloudHome(folder, database=url)
    with contextlib.closing(home):
        if faults := home.audit.verified().faults:
            raise ConfigError(f"the audit log in {without_password(url)} has faults, such as {faults[0]}")
        write_database(folder, url)
        home.audit.append("cloud.move_state", who="operator", subject=without_password(url), details=counts)
    _set_aside(folder)
    return counts


def _read_audit(folder: Path) -> Iterable[Rows]:
    rows = []
    for segment in segments_of(folder):
        lines = segment.read_bytes().splitlines(keepends=True)
        rows += [(json.loads(line)["number"], line) for line in lines]
    yield Rows("audit", ["number", "line"], lambda: rows)
    head = folder / "head.json"
    heads = [(head.read_bytes(),)] if head.exists() else []
    yield Rows("audit_heads", ["head"], lambda: heads)


def _set_aside(folder: Path) -> None:
    """Give the files that were moved other names, so that nothing takes them for the cloud's state."""
    for name in FILES:
        if (folder / name).exists():
            set_aside(folder / name, MOVED)
    if (folder / "audit").exists():
        (folder / "audit").replace(folder / f"audit{MOVED}")
    sync_folder(folder)
