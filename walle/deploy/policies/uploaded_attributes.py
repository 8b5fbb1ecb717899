"""Uploaded attributes of a cloud: a folder with a table for each key, which every process of the cloud maps (§6).

User-side attributes need not come with profiles: the cloud may know of a device or its user what the app does not. A
table is put whole, in place of the one of its key, by one rename. Each gateway looks once a second, and answers from a
new table from then on: what it keeps for devices of one profile does not depend on the tables.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from walle.base.clock import Clock
from walle.base.durable_file import make_folders, remove_unfinished, sync_folder
from walle.deploy.policies.attribute_build import build_apart
from walle.deploy.policies.attribute_schema import JoinedProfile, is_attribute_name
from walle.deploy.policies.attribute_table import DEVICE_ID, AttributeTable, AttributeTableError, TableFacts
from walle.protocol import Attribute, Profile

MAX_TABLES = 4
FOLLOW_S = 1.0
_SUFFIX = ".table"
_UNFINISHED = ".unfinished"

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class UploadedTables:
    """Tables of one moment, that of devices first: of an attribute that several have, the first one's value goes."""

    tables: tuple[AttributeTable, ...] = ()

    def join(self, profile: Profile) -> Profile:
        """Return a profile with what was uploaded of it."""
        if not self.tables:
            return profile
        uploaded: dict[str, Attribute] = {}
        for _, row in self._rows(profile):
            uploaded.update(row)
        return JoinedProfile(profile.device_id, profile.app_version, profile.attributes, profile.tasks, uploaded)

    def explain(self, profile: Profile) -> JoinedProfile:
        """Return the joined profile with the sources of what was uploaded."""
        uploaded: dict[str, Attribute] = {}
        sources: dict[str, str] = {}
        for key, row in self._rows(profile):
            uploaded.update(row)
            sources.update(dict.fromkeys(row, key))
        return JoinedProfile(**vars(profile), uploaded=uploaded, sources=sources)

    def _rows(self, profile: Profile) -> Iterator[tuple[str, Mapping[str, Attribute]]]:
        """Yield key and row of each table, the one that goes first last."""
        for table in reversed(self.tables):
            key = table.facts.key
            one = profile.device_id if key == DEVICE_ID else profile.attributes.get(key)
            if isinstance(one, str):
                yield key, table.find(one)


@dataclasses.dataclass(frozen=True)
class StagedTable:
    """A table that was made and that nobody reads yet."""

    table: AttributeTable
    _path: Path
    _target: Path

    def commit(self) -> None:
        """Put it in place of that of its key, durably."""
        self._path.replace(self._target)
        sync_folder(self._target.parent)

    def discard(self) -> None:
        """Remove it, unless it was put."""
        self._path.unlink(missing_ok=True)


class UploadedAttributes:
    """The folder. One instance in each process; several may put, remove and read. Calls block, but for `follow`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current = UploadedTables()
        self._seen: tuple[tuple[str, int, int, int], ...] = ()

    @property
    def current(self) -> UploadedTables:
        """The tables that were read last."""
        return self._current

    def prepare(self) -> None:
        """Make the folder, and remove what killed writers left. No other process may be putting."""
        make_folders(self._folder, mode=0o700)
        remove_unfinished(self._folder)

    def read(self) -> bool:
        """Read tables that changed; return whether any did. A damaged one is left out, and logged once."""
        seen = self._listed()
        if seen == self._seen:
            return False
        before = {(one.facts.key, one.version): one for one in self._current.tables}
        tables = []
        for name, *_ in seen:
            try:
                table = AttributeTable(self._folder / name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, AttributeTableError) as error:
                _LOG.error("rules match no device by uploaded attributes of %s: %s", name, error)
                continue
            tables.append(before.get((table.facts.key, table.version), table))
        tables.sort(key=lambda table: (table.facts.key != DEVICE_ID, table.facts.key))
        is_other = tuple(tables) != self._current.tables
        self._current, self._seen = UploadedTables(tuple(tables)), seen
        return is_other

    async def follow(self, clock: Clock, on_change: Callable[[UploadedTables], None]) -> None:
        """Call `on_change` now and after each change, until cancelled."""
        await asyncio.to_thread(self.read)
        on_change(self._current)
        last = self._current
        while True:
            await clock.sleep(FOLLOW_S)
            await asyncio.to_thread(self.read)  # the disk may be slow
            if self._current is not last:
                last = self._current
                on_change(last)

    @contextlib.contextmanager
    def receive(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Give a new file for rows, which is removed at the end of the block."""
        path = self._temporary("rows")
        try:
            with path.open("xb", buffering=0) as file:
                os.fchmod(file.fileno(), 0o600)
                yield path, cast("BinaryIO", file)  # a raw file: what is written is in it
        finally:
            path.unlink(missing_ok=True)

    def stage(self, rows: Path, facts: TableFacts) -> "StagedTable":
        """Make the table of a file of rows; `commit` of what is returned puts it in place of that of its key.

        Raises:
            AttributeTableError: the rows cannot be taken, or there are tables of MAX_TABLES other keys.
            OSError: the disk is full.
        """
        if not is_attribute_name(facts.key):
            raise AttributeTableError(f"{facts.key[:100]!r} is not {DEVICE_ID}, nor the name of an attribute")
        target = self._folder / f"{facts.key}{_SUFFIX}"
        others = {name for name, *_ in self._listed()} - {target.name}
        if len(others) >= MAX_TABLES:
            raise AttributeTableError(f"there are {len(others)} tables already, the limit; remove one")
        path = self._temporary(facts.key)
        try:
            build_apart(rows, path, facts)
            return StagedTable(AttributeTable(path), path, target)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def has(self, key: str) -> bool:
        """Return whether there is a table of a key."""
        return any(name == f"{key}{_SUFFIX}" for name, *_ in self._listed())

    def remove(self, key: str) -> bool:
        """Remove the table of a key; return whether there was one."""
        if not is_attribute_name(key):
            return False
        try:
            (self._folder / f"{key}{_SUFFIX}").unlink()
        except FileNotFoundError:
            return False
        sync_folder(self._folder)
        return True

    def _listed(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return the tables' files with what tells a file from the one before."""
        found = []
        try:
            for name in os.listdir(self._folder):  # noqa: PTH208 - names, once a second
                if name.endswith(_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        stat = (self._folder / name).stat()
                        found.append((name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            return ()
        return tuple(sorted(found))

    def _temporary(self, name: str) -> Path:
        make_folders(self._folder, mode=0o700)
        return self._folder / f".{name}.{os.urandom(6).hex()}{_UNFINISHED}"
