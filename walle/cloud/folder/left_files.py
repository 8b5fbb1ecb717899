"""Files of a cloud whose state is in a database, left by a version of Walle that kept these parts in the folder.

`move_left_file` moves one to the database, whole or not at all, and continues where it was interrupted:

1. The tables of the file get other names, so that a process of that version, which may still run, fails with an error
   and writes nothing that would be lost.
2. One transaction copies the rows, compares the counts, and notes that the file was moved.
3. The file gets another name.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from walle.base.durable_file import sync_folder
from walle.cloud.folder.state_copy import copy_rows, rows_of, set_aside, tables_in
from walle.cloud.folder.state_place import MOVED
from walle.errors import ConfigError
from walle.store.file_connection import connect_present
from walle.store.postgres_database import Connection
from walle.store.sync_database import SyncDatabase
from walle.store.tables import FILES

_FILLED = {"identities.db": "identities", "exclusive.db": "exclusive_serials"}  # the first table of each that gets rows
LEFT_FILES = tuple(_FILLED)
_WITHDRAWN = "moved_"  # such names have the tables while they are moved
_LOCK = 0x57414C46  # key of an advisory lock
_WAIT_S = 600  # longest wait for another process that moves files
_COPY_S = 3600.0  # time for the one transaction, and for its wait for another process
_LOG = logging.getLogger(__name__)


def move_left_file(path: Path, database: SyncDatabase) -> Mapping[str, int]:
    """Move the file at `path`, if there is one, to the database; return how many rows each table got.

    Several processes may do so at once. A file that was moved before, and came back with a backup, is set aside.

    Raises:
        ConfigError: the file cannot be read, or the database has other rows; nothing was moved. A file that is refused
            for such rows is unchanged.
        DatabaseError: the database cannot be used; nothing was moved.
    """
    try:
        if not _withdraw(path, database):
            return {}
    except sqlite3.Error as error:
        if not path.exists():  # another process has moved it
            return {}
        raise ConfigError(f"{path} cannot be moved to the database: {error}") from error

    async def copy(connection: Connection) -> dict[str, int] | None:
        await connection.execute(f"SET LOCAL lock_timeout = '{_WAIT_S}s'; SET LOCAL statement_timeout = '{_WAIT_S}s'")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=_WAIT_S)
        if not await note_moved(connection, path.name):
            return None
        if await connection.fetchval(_has_rows(path)):
            raise _of_another_cloud(path)
        return {rows.table: await copy_rows(connection, rows) for rows in rows_of(path, prefix=_WITHDRAWN)}

    try:
        counts = database.write(copy, limit_s=_COPY_S)
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be read: {error}; nothing was moved") from error
    if counts is None and not path.exists():  # another process has just moved it
        return {}
    target = set_aside(path, MOVED)
    sync_folder(path.parent)
    if counts is None:
        _LOG.warning("%s was moved to the database before; it is %s now, and is not read", path, target.name)
        return {}
    _LOG.info("%s was moved to the database, and is %s now: %s", path, target.name, counts)
    return counts


async def note_moved(connection: Connection, name: str) -> bool:
    """Note that a file was moved; return False where that was noted before."""
    query = "INSERT INTO walle.moved_files (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING TRUE"
    return bool(await connection.fetchval(query, name))


def _has_rows(path: Path) -> str:
    return f"SELECT EXISTS (SELECT FROM walle.{_FILLED[path.name]})"  # noqa: S608 - our own names


def _of_another_cloud(path: Path) -> ConfigError:
    what = "is of another cloud, or older than what the database has of this one"
    return ConfigError(f"{path} {what}, which never had this file; move the file out of the folder")


def _check_own(path: Path, database: SyncDatabase) -> None:
    """Raise ConfigError where the database has rows that are not of the file. Raises DatabaseError too."""
    query = f"{_has_rows(path)} AND NOT EXISTS (SELECT FROM walle.moved_files WHERE name = $1)"
    if database.read(query, path.name)[0][0]:
        raise _of_another_cloud(path)


def _withdraw(path: Path, database: SyncDatabase) -> bool:
    """Give the tables of a file the names that they have while it is moved; return whether it has any.

    An empty file is removed: a process of the version before made it after the move. One that the database refuses, or
    cannot take now, is unchanged. Raises as `_check_own`.
    """
    if not path.exists():
        return False
    with contextlib.closing(connect_present(path)) as db:
        if tables_in(db):
            _check_own(path, database)
        db.execute("BEGIN IMMEDIATE")
        known = tables_in(db)
        ours = {table.local for table in FILES[path.name]} & known
        for name in ours:
            if _WITHDRAWN + name in known:  # made again by a process of that version, which found none
                continue
            db.execute(f"ALTER TABLE {name} RENAME TO {_WITHDRAWN}{name}")
        db.execute("COMMIT")
    if not ours and not any(name.startswith(_WITHDRAWN) for name in known):
        path.unlink(missing_ok=True)
        return False
    return True
