"""Scrubber of stored files: reads each one at a given rate, finds flipped bits and missing files, and repairs them.

A damaged file that cannot be repaired is moved to a quarantine, so that devices get "not found" in place of bytes that
they refuse, and a person can look at it. The next put of the file, or another pass with a source, brings it back.
"""

import asyncio
import contextlib
import dataclasses
import enum
import errno
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from walle.base.clock import Clock
from walle.base.durable_file import make_folders
from walle.cloud.upkeep.repair_sources import RepairSource
from walle.deploy.releases.reachability import Reachable
from walle.deploy.releases.release import Release
from walle.deploy.shared_files.store import FileStore, FileStoreError, FileStoreUnavailableError, StoredFile
from walle.errors import DeployError

_LOG = logging.getLogger(__name__)
_READ_BYTES = 4 << 20  # bytes between two pauses
_MAX_QUARANTINE_BYTES = 1 << 30  # limit of all files in quarantine
_LOOK_S = 60.0  # interval between two looks at what releases reach: a lost disk has faults by the thousand
# Errors that say that the disk lost the bytes. Others, such as too many open files, say nothing about the file.
_LOST = {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA}


class Fault(enum.StrEnum):
    DAMAGED = "damaged"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A fault of a stored file. `origin` is from what it was repaired, "" if it was not; `releases` reach it."""

    store: str
    sha256: str
    fault: Fault
    origin: str
    releases: tuple[Release, ...]

    def __str__(self) -> str:
        names = ", ".join(release.id for release in self.releases[:5]) or "no release"
        end = f"repaired from {self.origin}" if self.origin else "nothing could repair it"
        return f"{self.store}/{self.sha256} of {names} is {self.fault.value}: {end}"


@dataclasses.dataclass(frozen=True)
class Checked:
    """One file of a pass, with the size of all files of the pass. `finding` is None where it is whole."""

    store: str
    file: StoredFile
    all_bytes: int
    finding: Finding | None


class Scrubber:
    """Checks and repairs the files of `stores`. `reachable` returns what releases reach at that moment."""

    def __init__(
        self,
        stores: Mapping[str, FileStore],
        reachable: Callable[[], Reachable],
        sources: Mapping[str, Sequence[RepairSource]],
        quarantine: Path,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._reachable = reachable
        self._sources = sources
        self._quarantine = quarantine
        self._clock = clock
        self._looked: tuple[float, Reachable] | None = None

    async def run(
        self, *, rate: Callable[[int, int], float] = lambda *_: math.inf, repairs: bool = True, after: str = ""
    ) -> AsyncIterator[Checked]:
        """Check all files once, and yield each. Unread manifests come first: they say which files must be there.

        `rate` returns the bytes to read in a second, for the bytes of all files and of this one. A pass that was
        interrupted continues `after` a file (STORE/SHA256); what is missing is looked for again.

        Raises:
            FileStoreUnavailableError: a store does not answer; the state of its files is not known.
        """
        reachable = await self._look()
        if reachable.unread and repairs:
            for error in reachable.unread:
                yield await self._judge("files", _unknown(error.sha256), math.inf, 0, repairs=True)
            reachable = await self._look()
        listed = {name: await asyncio.to_thread(list, store.files()) for name, store in self._stores.items()}
        all_bytes = sum(file.size_bytes for files in listed.values() for file in files)
        for name, files in listed.items():
            present = {file.sha256 for file in files}
            for sha256 in sorted(reachable.of(name).keys() - present):
                yield await self._judge(name, _unknown(sha256), math.inf, all_bytes, repairs=repairs)
        for name, files in sorted(listed.items(), key=lambda item: f"{item[0]}/"):
            for file in files:
                if f"{name}/{file.sha256}" > after:
                    bytes_s = rate(all_bytes, file.size_bytes)
                    yield await self._judge(name, file, bytes_s, all_bytes, repairs=repairs)

    async def check(self, store: str, sha256: str) -> Checked:
        """Check one file at once, and repair it. Raises FileStoreUnavailableError."""
        await self._look()
        return await self._judge(store, _unknown(sha256), math.inf, 0, repairs=True)

    async def _look(self, max_age_s: float = -1.0) -> Reachable:
        """Return what releases reach, as of `max_age_s` seconds ago at most; by default as of now."""
        now_s = self._clock.monotonic()
        if self._looked is None or now_s - self._looked[0] > max_age_s:
            self._looked = now_s, await asyncio.to_thread(self._reachable)
        return self._looked[1]

    async def _judge(self, name: str, file: StoredFile, bytes_s: float, all_bytes: int, *, repairs: bool) -> Checked:
        store = self._stores[name]
        stored_s, fault = await self._fault(store, file.sha256, bytes_s)
        while fault and stored_s != await asyncio.to_thread(_stored_s, store, file.sha256):
            # It was put while the copy before it was read, which may have taken days.
            stored_s, fault = await self._fault(store, file.sha256, math.inf)
        if fault is None:
            return Checked(name, file, all_bytes, None)
        # A pass takes a week: releases came and went since it began.
        releases = (await self._look(_LOOK_S)).of(name).get(file.sha256, ())
        if fault is Fault.MISSING and not releases:  # the file was removed meanwhile
            return Checked(name, file, all_bytes, None)
        origin = ""
        if repairs:
            origin = await asyncio.to_thread(self._repair, name, file.sha256, fault, stored_s, releases)
        finding = Finding(name, file.sha256, fault, origin, releases)
        (_LOG.warning if origin else _LOG.error)("%s", finding)
        return Checked(name, file, all_bytes, finding)

    async def _fault(self, store: FileStore, sha256: str, bytes_s: float) -> tuple[float, Fault | None]:
        """Read a file at this rate; return when it was put, 0 where it is not there, and what is wrong with it."""
        digest, stored_s = hashlib.sha256(), await asyncio.to_thread(_stored_s, store, sha256)
        try:
            with await asyncio.to_thread(store.open, sha256) as file:

                def read() -> int:
                    chunk = file.read(_READ_BYTES)
                    digest.update(chunk)
                    return len(chunk)

                while count := await asyncio.to_thread(read):
                    if bytes_s < math.inf:
                        await self._clock.sleep(count / bytes_s)
        except FileStoreUnavailableError:
            raise
        except FileStoreError:
            return stored_s, Fault.MISSING
        except OSError as error:
            if error.errno not in _LOST:
                raise FileStoreUnavailableError(sha256, f"{store.place} cannot be read: {error}") from error
            _LOG.error("file %s of %s cannot be read: %s", sha256, store.place, error)
            return stored_s, Fault.DAMAGED
        return stored_s, None if digest.hexdigest() == sha256 else Fault.DAMAGED

    def _repair(self, name: str, sha256: str, fault: Fault, stored_s: float, releases: Sequence[Release]) -> str:
        """Put the file again from the first source that has it; return which, "" for none, after a quarantine."""
        store = self._stores[name]
        for source in self._sources.get(name, ()):
            for copy in source.copies(sha256, releases):
                try:
                    with store.writer(repair=True) as writer:
                        for chunk in copy.chunks:
                            writer.write(chunk)
                        writer.commit(sha256)
                except (DeployError, OSError, EOFError) as error:
                    _LOG.info("%s is not repaired from %s: %s", sha256, copy.origin, error)
                    continue
                return copy.origin
        if fault is Fault.DAMAGED:
            self._set_aside(store, sha256, stored_s)
        return ""

    def _set_aside(self, store: FileStore, sha256: str, stored_s: float) -> None:
        """Move a file that was put at `stored_s` to the quarantine; one that was put after that stays."""
        make_folders(self._quarantine)
        held_bytes = sum(path.stat().st_size for path in self._quarantine.iterdir())
        target = self._quarantine / sha256
        try:
            if held_bytes + store.stat(sha256).size_bytes <= _MAX_QUARANTINE_BYTES:
                with target.open("wb") as file:
                    for chunk in store.chunks(sha256):
                        file.write(chunk)
        except (FileStoreError, OSError) as error:  # a full disk, or a sector that cannot be read
            _LOG.warning("damaged file %s is not kept in %s: %s", sha256, self._quarantine, error)
        with contextlib.suppress(FileStoreError):
            store.remove(sha256, stored_until_s=stored_s)


def _stored_s(store: FileStore, sha256: str) -> float:
    """Return when a file was put last, 0 where it is not there."""
    try:
        return store.stat(sha256).stored_s
    except FileStoreUnavailableError:
        raise
    except FileStoreError:
        return 0.0


def _unknown(sha256: str) -> StoredFile:
    return StoredFile(sha256, 0, 0.0, "")
