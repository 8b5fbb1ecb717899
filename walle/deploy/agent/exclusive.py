"""Exclusive files of one device (§6, CEN): told by a signed list, fetched with the device's session, kept sealed.

    folder/
      list.json            the last `ExclusiveList` that was accepted, with the era in which it was
      sealed/{sha256}      files of it that tasks of this device list, sealed to the device's key as the cloud sent them

Replacing `list.json` by one rename is what installs, changes and removes files: whatever instant the process is killed
at, it names the files of before or those of after. Files are verified by their hash whenever they are read, and a
damaged one is fetched again. Contents exist in memory only, for the run that asks for them.

A list is accepted if the release role of the fleet signed it for this device, in the present epoch, it has not expired,
a fresh timestamp is here, and its serial is not below the last one (`walle.deploy.agent.trust`).
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from walle.base.backoff import Pace
from walle.base.durable_file import make_folders, remove_unfinished, write_file
from walle.deploy.agent.fetch import FetchError
from walle.deploy.agent.pull import on_disk
from walle.deploy.agent.trust import DeviceTrust
from walle.errors import DeployError
from walle.protocol import (
    MAX_LIST_BYTES,
    SEAL_OVERHEAD_BYTES,
    ExclusiveFile,
    ExclusiveList,
    Manifest,
    ProtocolError,
    SealedFile,
    canonical_json,
    seal_info,
)
from walle.trust.sealing import SealError
from walle.trust.signing import SignatureError

_LOG = logging.getLogger(__name__)
_FORMAT = 1

type Open = Callable[[bytes, bytes], bytes]
"""`open_sealed(sealed, info)` opens a file with the device's present key, and raises SealError."""


class ExclusiveSource(Protocol):
    """The cloud's /cen for the session of this device. `walle.device.exclusive_source` is it over HTTP."""

    async def fetch(self, path: str, *, max_bytes: int) -> bytes:
        """Return what is at a path of the cloud.

        Raises:
            FetchError: no connection, no session, a refusal, or more than `max_bytes`, of which no more were read.
        """


class ListRefusedError(DeployError):
    """A list of exclusive files that this device does not accept. It keeps the files that it has."""


class ExclusiveMissingError(DeployError):
    """A file that a task requires, and that this device does not have now."""


class ExclusiveUnknownError(DeployError):
    """A file that a task asks for and does not list."""


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Content of `list.json`. `era` is that of `DeviceTrust`: serials are ordered within it."""

    files: ExclusiveList
    era: str

    def says_same(self, other: "_Kept") -> bool:
        """Return whether `other` differs in its end and signature only."""
        files = dataclasses.replace(self.files, expires_s=other.files.expires_s, signature=other.files.signature)
        return (files, self.era) == (other.files, other.era)

    def to_bytes(self) -> bytes:
        return canonical_json({"format": _FORMAT, "era": self.era, "list": self.files.to_bytes().decode()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "_Kept":
        value = json.loads(data)
        if value["format"] != _FORMAT:
            raise ValueError("its format is unknown")
        return cls(ExclusiveList.from_bytes(value["list"].encode()), str(value["era"]))


class ExclusiveFiles:
    """The exclusive files of one device, after `start`. `active()` returns the manifests of its active versions.

    One question to the cloud at a time; reads continue beside it.
    """

    def __init__(
        self,
        folder: Path,
        device_id: str,
        trust: DeviceTrust,
        source: ExclusiveSource,
        open_sealed: Open,
        *,
        active: Callable[[], Iterable[Manifest]],
    ) -> None:
        self._folder = folder
        self._device_id = device_id
        self._trust = trust
        self._source = source
        self._open = open_sealed
        self._active = active
        self._candidates: dict[str, Manifest] = {}  # by task: what `obtain` was called for last
        self._kept: _Kept | None = None
        self._here: set[str] = set()  # hashes of files in `sealed`
        self._is_started = False
        self._asking = asyncio.Lock()
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Read what is on the disk; a list that is damaged, or that the present keys have not signed, is dropped."""
        self._kept, self._here = await on_disk(self._load)
        self._is_started = True

    # --- for the agent ------------------------------------------------------------------------------------------------

    async def obtain(self, manifest: Manifest) -> None:
        """Fetch the files of a version that is about to be activated, as far as the cloud gives them now."""
        if not manifest.exclusive:
            self._candidates.pop(manifest.name, None)
            return
        self._candidates[manifest.name] = manifest
        await self.refresh()

    def missing(self, manifest: Manifest) -> str:
        """Return the required files of a version that are not here, separated by commas; "" if it has all."""
        names = [file.name for file in manifest.exclusive if file.required and self._find(manifest, file) is None]
        return ", ".join(names)

    async def forget(self, task: str) -> None:
        """Delete the files of a task that was removed."""
        self._candidates.pop(task, None)
        if self._is_started and not self._asking.locked():  # else a question is under way, which ends with this
            async with self._asking:
                await on_disk(self._clean)

    # --- for runs -----------------------------------------------------------------------------------------------------

    async def read(self, manifest: Manifest, name: str, known: str = "") -> tuple[str, bytes | None]:
        """Return the hash and contents of a file: "" if there is none, None for contents whose hash is `known`.

        Raises:
            ExclusiveUnknownError: the version does not list the file.
            ExclusiveMissingError: it is required, and not here.
        """
        listed = next((file for file in manifest.exclusive if file.name == name), None)
        if listed is None:
            what = f"task.toml of {manifest.name} {manifest.version} does not list {name[:100]!r} under [[exclusive]]"
            raise ExclusiveUnknownError(what)
        entry = self._find(manifest, listed)
        if entry is not None:
            if entry.sha256 == known:
                return known, None
            data = await on_disk(self._contents, entry)
            if data is not None:
                return entry.sha256, data
            self._wake.set()
        if listed.required:
            raise ExclusiveMissingError(f"exclusive file {name!r} of {manifest.name} is not on this device now")
        return "", None

    # --- the cloud ----------------------------------------------------------------------------------------------------

    async def run(self, pace: Pace) -> None:
        """Ask the cloud now, periodically, and where a file was found damaged, until cancelled.

        A device that has no such files, and whose tasks list none, does not ask.
        """
        while True:
            self._wake.clear()
            is_taken = await self.refresh() if self._here or any(True for _ in self._wanted()) else True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace.worked() if is_taken else pace.failed()):
                    await self._wake.wait()

    async def refresh(self) -> bool:
        """Ask the cloud, and take what it says; return whether it could be taken. What is wrong is logged."""
        async with self._asking:
            try:
                data = await self._source.fetch("/cen/files", max_bytes=MAX_LIST_BYTES)
                files = self._accepted(data)
                await self._install(files)
            except FetchError as error:
                _LOG.info("%s: exclusive files: %s", self._device_id, error)
            except (ListRefusedError, OSError) as error:
                _LOG.warning("%s: exclusive files: %s", self._device_id, error)
            else:
                return True
            return False

    def _accepted(self, data: bytes) -> ExclusiveList:
        """Return the list in an answer. Raises ListRefusedError."""
        try:
            files = ExclusiveList.from_bytes(data)
            self._trust.root.verify_exclusive(files)
        except (ProtocolError, SignatureError) as error:
            raise ListRefusedError(str(error)) from error
        if files.device_id != self._device_id:
            raise ListRefusedError(f"the list is of device {files.device_id[:100]!r}")
        if reason := self._trust.stale():
            raise ListRefusedError(reason)
        assert self._trust.timestamp is not None
        if files.epoch != self._trust.timestamp.epoch:
            epoch = self._trust.timestamp.epoch
            raise ListRefusedError(f"the list is of epoch {files.epoch}, the cloud is in {epoch}")
        if files.expires_s <= self._trust.now_s():
            raise ListRefusedError(f"the list expired at {files.expires_s} s since the epoch: it is a replay")
        kept = self._kept
        if kept is not None and kept.era == self._trust.era:
            seen = kept.files
            if (files.epoch, files.serial) < (seen.epoch, seen.serial):
                raise ListRefusedError(f"serial {seen.serial} was seen; {files.serial} is a replay")
        return files

    async def _install(self, files: ExclusiveList) -> None:
        """Fetch what is not here, then make `files` the list.

        A file that the cloud cannot give whole is left out: the others do not wait for it.
        """
        for listed, entry in self._entries(files):
            if entry.size_bytes > listed.max_bytes + SEAL_OVERHEAD_BYTES:
                what = "%s: exclusive file %s of %s is larger than its max_bytes, and is not fetched"
                _LOG.error(what, self._device_id, entry.name, entry.task)
            elif not await on_disk(self._is_whole, entry):
                await self._fetch(files, entry)
        kept = _Kept(files, self._trust.era)
        if self._kept is None or not kept.says_same(self._kept):
            await on_disk(write_file, self._folder / "list.json", kept.to_bytes(), mode=0o600)
            self._kept = kept
        await on_disk(self._clean)

    async def _fetch(self, files: ExclusiveList, entry: SealedFile) -> None:
        data = await self._source.fetch(f"/cen/files/{entry.sha256}", max_bytes=entry.size_bytes)
        where = f"{self._device_id}: exclusive file {entry.name} of {entry.task}"
        if len(data) != entry.size_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
            _LOG.error("%s: the received file is not the signed one", where)
            return
        try:
            self._open(data, seal_info(self._device_id, files.generation, entry.task, entry.name))
        except SealError as error:
            _LOG.error("%s: %s; put it again: walle device-file put", where, error)
            return
        await on_disk(write_file, self._path(entry), data, mode=0o600)
        self._here.add(entry.sha256)

    # --- internals ----------------------------------------------------------------------------------------------------

    def _wanted(self) -> Iterable[tuple[Manifest, ExclusiveFile]]:
        """Yield the exclusive files that active versions and candidates list."""
        for manifest in (*self._active(), *self._candidates.values()):
            for file in manifest.exclusive:
                yield manifest, file

    def _entries(self, files: ExclusiveList) -> Iterable[tuple[ExclusiveFile, SealedFile]]:
        """Yield the entries of a list that are wanted, each once."""
        found: dict[str, tuple[ExclusiveFile, SealedFile]] = {}
        for manifest, listed in self._wanted():
            if (entry := files.find(manifest.name, listed.name)) is not None:
                before = found.get(entry.sha256)
                if before is None or before[0].max_bytes < listed.max_bytes:
                    found[entry.sha256] = listed, entry
        return found.values()

    def _find(self, manifest: Manifest, listed: ExclusiveFile) -> SealedFile | None:
        """Return the entry of a file that is here."""
        entry = None if self._kept is None else self._kept.files.find(manifest.name, listed.name)
        if entry is None or entry.sha256 not in self._here:
            return None
        return entry if entry.size_bytes <= listed.max_bytes + SEAL_OVERHEAD_BYTES else None

    def _path(self, entry: SealedFile) -> Path:
        return self._folder / "sealed" / entry.sha256

    def _load(self) -> tuple[_Kept | None, set[str]]:
        sealed, path = self._folder / "sealed", self._folder / "list.json"
        make_folders(self._folder, mode=0o700)
        make_folders(sealed, mode=0o700)
        for folder in (self._folder, sealed):
            remove_unfinished(folder)
        here = {file.name for file in sealed.iterdir()}
        try:
            kept = _Kept.from_bytes(path.read_bytes())
            self._trust.root.verify_exclusive(kept.files)
        except FileNotFoundError:
            return None, here
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SignatureError) as error:
            _LOG.error("%s is not used: %s; the files come again from the cloud", path, error)
            return None, here
        return (kept if kept.files.device_id == self._device_id else None), here

    def _is_whole(self, entry: SealedFile) -> bool:
        """Return whether a file is here as it was signed."""
        return self._sealed(entry) is not None

    def _sealed(self, entry: SealedFile) -> bytes | None:
        """Return the sealed bytes of a file; a damaged one is deleted."""
        if entry.sha256 not in self._here:
            return None
        path = self._path(entry)
        try:
            data = path.read_bytes()
        except OSError as error:
            _LOG.warning("%s cannot be read: %s", path, error)
            return None
        if hashlib.sha256(data).hexdigest() == entry.sha256:
            return data
        _LOG.error("%s is damaged and fetched again", path)
        self._here.discard(entry.sha256)
        path.unlink(missing_ok=True)
        return None

    def _contents(self, entry: SealedFile) -> bytes | None:
        data, kept = self._sealed(entry), self._kept
        if data is None or kept is None:
            return None
        try:
            return self._open(data, seal_info(self._device_id, kept.files.generation, entry.task, entry.name))
        except SealError as error:
            _LOG.error("%s: exclusive file %s of %s: %s", self._device_id, entry.name, entry.task, error)
            return None

    def _clean(self) -> None:
        """Delete files that no task wants, or that are not in the list."""
        kept = self._kept
        wanted = set() if kept is None else {entry.sha256 for _, entry in self._entries(kept.files)}
        for path in list((self._folder / "sealed").iterdir()):
            if path.name not in wanted and not path.name.startswith("."):
                self._here.discard(path.name)
                path.unlink(missing_ok=True)
