"""Store of exclusive files: sealed to the key of their device, so that the store does not tell contents.
Those of groups (`walle.deploy.exclusive_files.groups`) are in it too, encrypted.

Each change is one transaction, and raises the serial of its device. A file belongs to one key (generation) of a device:
another key of the same id sees none of it. Several processes may have the store open. `SqliteExclusiveStore` keeps it
in a file of one machine, `PostgresExclusiveStore` in a database; both pass the same tests.
"""

import abc
import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from walle.base.clock import Clock, SystemClock
from walle.errors import DeployError
from walle.protocol import MAX_EXCLUSIVE_FILES, SealedFile
from walle.store.errors import StoreError

_LOG = logging.getLogger(__name__)

MAX_PAGE = 1000


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
        what = f"device {self.device_id[:100]!r} has {MAX_EXCLUSIVE_FILES} exclusive files, as many as it may"
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


class ExclusiveStore(abc.ABC):
    """The store, after `open`. Calls block; every call raises ExclusiveStoreError where the store fails."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    @abc.abstractmethod
    def open(self) -> Self:
        """Make what is absent."""

    # --- files of single devices ---

    def put(self, device_id: str, generation: int, task: str, name: str, sealed: bytes, *, by: str) -> None:
        """Give a device a file, in place of any it had by this name; `generation` is that of the key it is sealed to.

        Files of its former keys are removed: no device can open them any more.

        Raises:
            FormerKeyError: a later key of the device has files.
            TooManyFilesError: the device has MAX_EXCLUSIVE_FILES others.
        """
        record = ExclusiveRecord(
            device_id=device_id,
            generation=generation,
            task=task,
            name=name,
            size_bytes=len(sealed),
            put_s=self._clock.time(),
            put_by=by,
        )
        self._put(record, hashlib.sha256(sealed).hexdigest(), sealed)

    @abc.abstractmethod
    def _put(self, record: ExclusiveRecord, sha256: str, sealed: bytes) -> None: ...

    @abc.abstractmethod
    def has(self, device_id: str, task: str, name: str) -> bool:
        """Return whether a device, with any key, has a file."""

    @abc.abstractmethod
    def remove(self, device_id: str, task: str, name: str) -> bool:
        """Take a file from a device; return whether it had one."""

    @abc.abstractmethod
    def files(self, device_id: str, generation: int) -> DeviceFiles:
        """Return what a key of a device has: serial and files of one state."""

    @abc.abstractmethod
    def sealed(self, device_id: str, generation: int, sha256: str) -> bytes | None:
        """Return the sealed bytes of a file of this key of the device, None where it has none of this hash."""

    def records(
        self, scenario: str, *, task: str = "", device_id: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[ExclusiveRecord]:
        """Return files of a scenario's tasks by device, of devices after the id `after`; `task` without the scenario.

        A device's files are together: there may be up to MAX_EXCLUSIVE_FILES more than `limit`.
        """
        found: list[ExclusiveRecord] = []
        full = f"{scenario}/{task}" if task else ""
        for record in self._records(scenario, full, device_id, after, limit + MAX_EXCLUSIVE_FILES):
            if len(found) >= limit and record.device_id != found[-1].device_id:
                break
            found.append(record)
        return found

    @abc.abstractmethod
    def _records(
        self, scenario: str, task: str, device_id: str, after: str, count: int
    ) -> Iterable[ExclusiveRecord]: ...

    # --- files of groups ---

    @abc.abstractmethod
    def put_group(self, row: GroupRow, encrypted: bytes, *, most: int) -> bool:
        """Store a file for a rule, in place of the one by its name for this rule; the row's number is not read.

        Return False, and change nothing, where there are `most` others.
        """

    @abc.abstractmethod
    def remove_group(self, task: str, name: str, app_version: str, rule: str) -> bool:
        """Remove the file of a rule; return whether there was one."""

    @abc.abstractmethod
    def group_rows(self, known: int) -> tuple[int, list[GroupRow] | None]:
        """Return the number that grows with each change of any group's files, and the rows, the newest first.

        None in place of the rows where that number is `known`.
        """

    @abc.abstractmethod
    def group_contents(self, number: int) -> bytes | None:
        """Return the encrypted contents of a file of a group, None where it was removed."""
