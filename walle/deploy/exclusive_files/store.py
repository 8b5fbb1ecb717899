"""Store of exclusive files: sealed to the key of their device, so that the store does not tell contents.
Those of groups (`walle.deploy.exclusive_files.groups`) are in it too, encrypted.

Each change is one transaction, and raises the serial of its device. A file belongs to one key (generation) of a device:
another key of the same id sees none of it. The store is a file of one machine, or in a database; several processes may
have it open. A change first locks the row of its device's serial, or of that of all groups, until the commit: changes
of one device come one after the other. Serial and files are read by one statement, which is of one state.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from walle.base.clock import Clock, SystemClock
from walle.errors import DeployError
from walle.protocol import MAX_EXCLUSIVE_FILES, SealedFile
from walle.store.errors import StoreError
from walle.store.sql import Action, BlockingDatabase, Connection
from walle.store.sqlite_file import SqliteFile
from walle.store.stored_texts import is_storable, storable_text
from walle.store.tables import EXCLUSIVE, EXCLUSIVE_FILES, GROUP_FILES

_LOG = logging.getLogger(__name__)

MAX_PAGE = 1000
_RAISE = "INSERT INTO exclusive_serials AS s VALUES ($1, 1) ON CONFLICT (device_id) DO UPDATE SET serial = s.serial + 1"
_RAISE_GROUP = "INSERT INTO group_serial AS s VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET serial = s.serial + 1"
_LOCK_GROUP = "SELECT serial FROM group_serial FOR UPDATE"
_FILES = """
SELECT s.serial, f.task, f.name, f.sha256, f.size_bytes FROM
    (SELECT coalesce((SELECT serial FROM exclusive_serials WHERE device_id = $1), 0) AS serial) AS s
    LEFT JOIN exclusive_files AS f ON f.device_id = $1 AND f.generation = $2 ORDER BY f.task, f.name
"""
_OF_FILE = "device_id = $1 AND task = $2 AND name = $3"
_OF_GROUP = "task = $1 AND name = $2 AND app_version = $3 AND rule = $4"


class ExclusiveStoreError(StoreError):
    """The exclusive files cannot be read or written. Over HTTP: 503, on a full disk 507."""

    holds = "exclusive files"


class FormerKeyError(DeployError):
    """A file that is sealed to a former key of its device: it was enrolled again meanwhile. Over HTTP: 409."""

    status = 409

    def __init__(self, device_id: str) -> None:
        super().__init__(device_id)
        self.device_id = device_id

    def __str__(self) -> str:
        return f"device {self.device_id[:100]!r} has another key now, to which its files are sealed; put it again"


class TooManyFilesError(DeployError):
    """A device that has as many exclusive files as it may. Over HTTP: 409."""

    status = 409

    def __init__(self, device_id: str) -> None:
        super().__init__(device_id)
        self.device_id = device_id

    def __str__(self) -> str:
        what = f"device {self.device_id[:100]!r} has {MAX_EXCLUSIVE_FILES} exclusive files, the limit"
        return f"{what}; remove one: walle device-file remove"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExclusiveRecord:
    """An exclusive file as its cloud knows it; `size_bytes` is that of the sealed file, `put_s` since the epoch.

    `generation` is that of the device's key to which it is sealed.
    """

    device_id: str
    generation: int
    task: str
    name: str
    size_bytes: int
    put_s: float
    put_by: str

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class DeviceFiles(NamedTuple):
    """All files of one key of a device, and the serial of the device."""

    serial: int
    files: tuple[SealedFile, ...]

    def with_groups(self, serial: int, files: Sequence[SealedFile]) -> "DeviceFiles":
        """Return these and the files of the device's groups, of those that it has not by itself.

        The serial is the sum of both, of which neither ever falls.
        """
        own = {(file.task, file.name) for file in self.files}
        more = [file for file in files if (file.task, file.name) not in own]
        if (left := len(own) + len(more) - MAX_EXCLUSIVE_FILES) > 0:
            _LOG.error(
                "a device has more than %d exclusive files: %d of groups are left out", MAX_EXCLUSIVE_FILES, left
            )
        found = sorted((*self.files, *more[: MAX_EXCLUSIVE_FILES - len(own)]), key=lambda file: (file.task, file.name))
        return DeviceFiles(self.serial + serial, tuple(found))


class GroupRow(NamedTuple):
    """A file of a group in the store, without its contents. `columns` is JSON; see `Policy`.

    `number` is another one whenever a file is put, and higher than all before.
    """

    number: int
    task: str
    name: str
    app_version: str
    rule: str
    columns: str
    size_bytes: int  # size of the contents
    put_s: float
    put_by: str


_GROUPS = f"""
SELECT s.serial, {", ".join(f"f.{name}" for name in GroupRow._fields)} FROM
    (SELECT coalesce((SELECT serial FROM group_serial), 0) AS serial) AS s
    LEFT JOIN group_files AS f ON TRUE ORDER BY f.number DESC
"""  # noqa: S608 - our own names


class ExclusiveStore:
    """The store in a database, after `open`. Calls block; each raises ExclusiveStoreError where the store fails."""

    def __init__(self, database: BlockingDatabase, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()

    @classmethod
    def in_file(cls, path: Path, *, clock: Clock | None = None) -> Self:
        """Return the store in the file at `path`; what was removed is not left in it."""
        return cls(SqliteFile(path, EXCLUSIVE, "secure_delete = ON"), clock)

    def open(self) -> Self:
        """Make what is absent."""
        with ExclusiveStoreError.raised():
            self._database.open()
        return self

    # --- files of single devices ---

    def put(self, device_id: str, generation: int, task: str, name: str, sealed: bytes, *, by: str) -> None:
        """Give a device a file, in place of any it had by this name; `generation` is that of the key it is sealed to.

        Files of its former keys are removed: no device can open them any more.

        Raises:
            FormerKeyError: a later key of the device has files.
            TooManyFilesError: the device has MAX_EXCLUSIVE_FILES others.
        """
        row = (device_id, generation, task, name, hashlib.sha256(sealed).hexdigest(), len(sealed), self._clock.time())

        async def work(connection: Connection) -> None:
            await connection.execute(_RAISE, device_id)
            later = "SELECT 1 FROM exclusive_files WHERE device_id = $1 AND generation > $2 LIMIT 1"
            if await connection.fetchval(later, device_id, generation):
                raise FormerKeyError(device_id)
            former = "DELETE FROM exclusive_files WHERE device_id = $1 AND generation < $2"
            await connection.execute(former, device_id, generation)
            await connection.execute(f"DELETE FROM exclusive_files WHERE {_OF_FILE}", device_id, task, name)  # noqa: S608
            count = "SELECT count(*) FROM exclusive_files WHERE device_id = $1"
            if await connection.fetchval(count, device_id) >= MAX_EXCLUSIVE_FILES:
                raise TooManyFilesError(device_id)
            await connection.execute(EXCLUSIVE_FILES.insert(), *row, storable_text(by), sealed)

        self._write(work)

    def has(self, device_id: str, task: str, name: str) -> bool:
        """Return whether a device, with any key, has a file."""
        if not is_storable(device_id, task, name):
            return False
        query = f"SELECT 1 FROM exclusive_files WHERE {_OF_FILE}"  # noqa: S608 - our own names
        return bool(self._rows(query, device_id, task, name))

    def remove(self, device_id: str, task: str, name: str) -> bool:
        """Take a file from a device; return whether it had one."""
        if not is_storable(device_id, task, name):
            return False

        async def work(connection: Connection) -> bool:
            # The serial's row first, as in `put`, so that no two wait for each other.
            query = "SELECT serial FROM exclusive_serials WHERE device_id = $1 FOR UPDATE"
            await connection.execute(query, device_id)
            delete = f"DELETE FROM exclusive_files WHERE {_OF_FILE} RETURNING 1"  # noqa: S608 - our own names
            found = bool(await connection.fetchval(delete, device_id, task, name))
            if found:
                await connection.execute(_RAISE, device_id)
            return found

        return self._write(work)

    def files(self, device_id: str, generation: int) -> DeviceFiles:
        """Return what a key of a device has: serial and files of one state."""
        rows = self._rows(_FILES, device_id, generation)
        found = tuple(
            SealedFile(task=task, name=name, sha256=sha256, size_bytes=size_bytes)
            for _, task, name, sha256, size_bytes in rows
            if task is not None
        )
        return DeviceFiles(rows[0][0], found)

    def sealed(self, device_id: str, generation: int, sha256: str) -> bytes | None:
        """Return the sealed bytes of a file of this key of the device, None where it has none of this hash."""
        query = "SELECT sealed FROM exclusive_files WHERE device_id = $1 AND generation = $2 AND sha256 = $3"
        rows = self._rows(query, device_id, generation, sha256)
        return rows[0][0] if rows else None

    def records(
        self, scenario: str, *, task: str = "", device_id: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[ExclusiveRecord]:
        """Return files of a scenario's tasks by device, of devices after the id `after`; `task` without the scenario.

        A device's files are together: there may be up to MAX_EXCLUSIVE_FILES more than `limit`.
        """
        full = f"{scenario}/{task}" if task else ""
        if not is_storable(scenario, full, device_id):
            return []
        rows = self._rows(
            "SELECT device_id, generation, task, name, size_bytes, put_s, put_by FROM exclusive_files"
            " WHERE task >= $1 AND task < $2 AND ($3 = '' OR task = $3) AND ($4 = '' OR device_id = $4)"
            " AND device_id > $5 ORDER BY device_id, task, name LIMIT $6",
            f"{scenario}/",
            f"{scenario}0",  # 0 follows /
            full,
            device_id,
            storable_text(after),
            limit + MAX_EXCLUSIVE_FILES,
        )
        found: list[ExclusiveRecord] = []
        for row in rows:
            if len(found) >= limit and row["device_id"] != found[-1].device_id:
                break
            found.append(ExclusiveRecord(**dict(row)))
        return found

    # --- files of groups ---

    def put_group(self, row: GroupRow, encrypted: bytes, *, most: int) -> bool:
        """Store a file for a rule, in place of the one by its name for this rule; the row's number is not read.

        Return False, and change nothing, where there are `most` others.
        """
        key = (row.task, row.name, row.app_version, self._database.packed(row.rule))

        async def work(connection: Connection) -> bool:
            await connection.execute("INSERT INTO group_serial VALUES (1, 0) ON CONFLICT DO NOTHING")
            await connection.execute(_LOCK_GROUP)
            query = f"SELECT count(*) FROM group_files WHERE NOT ({_OF_GROUP})"  # noqa: S608 - our own names
            if await connection.fetchval(query, *key) >= most:
                return False
            await connection.execute(f"DELETE FROM group_files WHERE {_OF_GROUP}", *key)  # noqa: S608 - our own names
            values = (*key, row.columns, row.size_bytes, row.put_s, storable_text(row.put_by), encrypted)
            await connection.execute(GROUP_FILES.insert(without=["number"]), *values)
            await connection.execute(_RAISE_GROUP)
            return True

        return self._write(work)

    def remove_group(self, task: str, name: str, app_version: str, rule: str) -> bool:
        """Remove the file of a rule; return whether there was one."""
        if not is_storable(task, name, app_version):
            return False

        async def work(connection: Connection) -> bool:
            await connection.execute(_LOCK_GROUP)
            delete = f"DELETE FROM group_files WHERE {_OF_GROUP} RETURNING 1"  # noqa: S608 - our own names
            packed = self._database.packed(rule)
            found = bool(await connection.fetchval(delete, task, name, app_version, packed))
            if found:
                await connection.execute(_RAISE_GROUP)
            return found

        return self._write(work)

    def group_rows(self, known: int) -> tuple[int, list[GroupRow] | None]:
        """Return the number that grows with each change of any group's files, and the rows, the newest first.

        None in place of the rows where that number is `known`.
        """
        serials = self._rows("SELECT serial FROM group_serial")
        if (serials[0][0] if serials else 0) == known:
            return known, None
        rows = self._rows(_GROUPS)
        found = [GroupRow(*tuple(row)[1:]) for row in rows if row["number"] is not None]
        return rows[0]["serial"], [row._replace(rule=self._database.unpacked(row.rule)) for row in found]

    def group_contents(self, number: int) -> bytes | None:
        """Return the encrypted contents of a file of a group, None where it was removed."""
        rows = self._rows("SELECT encrypted FROM group_files WHERE number = $1", number)
        return rows[0][0] if rows else None

    def _rows(self, query: str, *values: object) -> list[Any]:
        with ExclusiveStoreError.raised():
            return self._database.read(query, *values)

    def _write[T](self, work: Action[T]) -> T:
        with ExclusiveStoreError.raised():
            return self._database.write(work)
