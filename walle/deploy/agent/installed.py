"""Installed versions on a device's disk: two for each task, and the pointer to the active one.

    folder/
      trust.json                       `DeviceTrust`: newest root and scenarios metadata, last timestamp
      scenario%2Ftask/                 one folder a task
        state.json                     `TaskState`: serial, active and previous version, outcome of the last directive
        versions/{manifest sha256}/    whole and verified; active, previous, no other
          manifest                     the signed envelope, as it was received
          files/...                    what the manifest lists, and nothing else; read-only
        staging/{manifest sha256}/     a version on its way
          blobs/{sha256}               pulled so far, cut short perhaps: a later pull continues from there
          blobs/{sha256}.coded         the same in a content coding, with a file .coded.about beside it
          manifest, files/...          the version being put together, in the form it will have

A version is put together in `staging`, synced, and renamed to `versions`, where it is not yet in use. Replacing
`state.json` by one rename is what activates it, together with the serial: whatever instant the power fails at, the file
names the old version or the new one, and both are whole. Every other leftover is removed by `clean`.

One process at a time may use a folder. Everything here blocks on the disk and raises OSError as the disk does.
"""

import dataclasses
import enum
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from walle.base.durable_file import (
    NotSyncedError,
    make_folders,
    move_folder,
    remove_unfinished,
    sync_file,
    sync_folder,
    write_all,
    write_file,
)
from walle.deploy.agent.coded_file import Base, CodedPart
from walle.errors import DeployError
from walle.protocol import (
    Failure,
    FailureClass,
    FileEntry,
    Manifest,
    Outcome,
    OutcomeKind,
    canonical_json,
    installed_name,
)

_LOG = logging.getLogger(__name__)

_FORMAT = 1
_MAX_NAME_BYTES = 200


class TaskNameError(DeployError):
    """A task name that is not `scenario/task`, or is too long to be a folder's name."""

    def __init__(self, task: str) -> None:
        super().__init__(f"{task[:80]!r} is not a task's name: it must be scenario/task, of at most 200 bytes")
        self.task = task


class CorruptedError(DeployError):
    """Something on the device's disk is not what was written there. It is not run."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is corrupted: {reason}")
        self.path = path
        self.reason = reason


class Standing(enum.StrEnum):
    """State of the directive whose serial is recorded."""

    OPEN = "open"  # still to be carried out: its pull was interrupted, or what it installed was corrupted since
    DONE = "done"
    REFUSED = "refused"  # the version was found bad here; only a newer directive can change that


@dataclasses.dataclass(frozen=True)
class VersionRef:
    """An installed version, the sha256 of its envelope, the release that brought it, and the variant that it is."""

    version: str
    manifest: str
    release: str
    variant: str = ""

    @property
    def installed_as(self) -> str:
        """The version with its variant, as in a profile."""
        return installed_name(self.version, self.variant)

    def is_back_from(self, other: "VersionRef") -> bool:
        """Return whether this version is older than `other`: versions are v1, v2, ..."""
        mine, theirs = (re.fullmatch(r"v(\d{1,18})", ref.version) for ref in (self, other))
        return mine is not None and theirs is not None and int(mine[1]) < int(theirs[1])


# Fields of an outcome that are in reports only: programs from before them can read the state too.
_REPORTED_ALONE = (
    "failures",
    "metrics",
    "dropped",
    "uploads_dropped",
    "entries_evicted",
    "state_bytes",
    "state_max_bytes",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskState:
    """One task's pointer. Pure: each method returns the next state.

    `previous` is kept for a return without a pull; `previous_good` says whether the device may return to it by itself.
    After a rollback or a fall-back it may not: that version was deactivated because it is bad.
    """

    task: str
    serial: int = 0
    epoch: int = 0  # epoch of the serial
    era: str = ""  # era of the epoch: see `DeviceTrust.era`
    standing: Standing = Standing.DONE
    active: VersionRef | None = None
    previous: VersionRef | None = None
    previous_good: bool = False
    outcome: Outcome | None = None  # reported again after a restart

    def within(self, era: str, epoch: int) -> Self:
        """Return the state for directives of this era and epoch; where they are not its own, serials begin again."""
        if (self.era, self.epoch) == (era, epoch):
            return self
        return dataclasses.replace(self, era=era, epoch=epoch, serial=0)

    def begin(self, serial: int) -> Self:
        """Record the accepted directive `serial`; older ones are refused from now on."""
        return dataclasses.replace(self, serial=serial, standing=Standing.OPEN)

    def activate(self, serial: int, target: VersionRef) -> Self:
        """Make `target` the active version; the one active before becomes the previous one."""
        outcome = Outcome(task=self.task, version=target.version, release=target.release, kind=OutcomeKind.INSTALLED)
        state = dataclasses.replace(self, serial=serial, standing=Standing.DONE, active=target, outcome=outcome)
        if self.active is None:
            is_target = self.previous is not None and self.previous.manifest == target.manifest
            return dataclasses.replace(state, previous=None) if is_target else state
        if self.active.manifest == target.manifest:
            return state
        is_back = self.is_previous(target.manifest) or target.is_back_from(self.active)
        return dataclasses.replace(state, previous=self.active, previous_good=not is_back)

    def is_previous(self, manifest: str) -> bool:
        return self.previous is not None and self.previous.manifest == manifest

    def refuse(
        self,
        serial: int,
        target: VersionRef,
        error: str,
        *,
        final: bool,
        failure_class: FailureClass = FailureClass.VERSION,
    ) -> Self:
        """Record that `target` was refused before activation; `final` if the same directive is not to be retried."""
        outcome = Outcome(
            task=self.task,
            version=target.version,
            release=target.release,
            kind=OutcomeKind.REJECTED,
            error=_shorten(error),
            failure_class=failure_class,
        )
        standing = Standing.REFUSED if final else Standing.OPEN
        return dataclasses.replace(self, serial=serial, standing=standing, outcome=outcome)

    def fall_back(
        self, error: str, *, corrupted: bool = False, failure_class: FailureClass = FailureClass.VERSION
    ) -> Self:
        """Replace the failed active version by the previous one if that is good, else by none.

        The directive of a failed version does not install it again; that of a corrupted version may.
        """
        if self.active is None:
            return self
        failed = self.active
        outcome = Outcome(
            task=self.task,
            version=failed.version,
            release=failed.release,
            kind=OutcomeKind.REVERTED,
            error=_shorten(error),
            failure_class=failure_class,
        )
        standing = self.standing
        if standing is Standing.DONE:
            standing = Standing.OPEN if corrupted else Standing.REFUSED
        state = dataclasses.replace(self, standing=standing, active=None, outcome=outcome)
        if self.previous is None or not self.previous_good:
            return dataclasses.replace(state, previous=None, previous_good=False)
        left = None if corrupted else failed
        return dataclasses.replace(state, active=self.previous, previous=left, previous_good=False)

    @classmethod
    def lost(cls, task: str, error: str) -> Self:
        """Return the state of a task whose own cannot be read: nothing is installed, and any directive is accepted."""
        outcome = Outcome(task=task, version="", release="", kind=OutcomeKind.REMOVED, error=_shorten(error))
        return cls(task=task, outcome=outcome)

    def without_previous(self) -> Self:
        return dataclasses.replace(self, previous=None, previous_good=False)

    def remove(self, serial: int, release: str) -> Self:
        """Record that the task is removed; its serial is kept, so that an older directive cannot install it again."""
        outcome = (
            Outcome(task=self.task, version=self.active.version, release=release, kind=OutcomeKind.REMOVED)
            if self.active
            else None
        )
        return type(self)(task=self.task, serial=serial, epoch=self.epoch, era=self.era, outcome=outcome)

    def to_bytes(self) -> bytes:
        body = dataclasses.asdict(self)
        for ref in (body["active"], body["previous"]):
            if ref is not None and not ref["variant"]:
                del ref["variant"]  # older programs can read the state too
        if self.outcome is not None:
            for name in _REPORTED_ALONE:
                del body["outcome"][name]
            body["failure_class"] = body["outcome"].pop("failure_class")  # older programs refuse it in an outcome
        digest = hashlib.sha256(canonical_json(body)).hexdigest()
        return canonical_json({"format": _FORMAT, "state": body, "sha256": digest})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the state in `data`. Raises ValueError, TypeError or KeyError where `to_bytes` did not make it."""
        value: dict[str, Any] = json.loads(data)
        body = value["state"]
        if value["format"] != _FORMAT or hashlib.sha256(canonical_json(body)).hexdigest() != value["sha256"]:
            raise ValueError("its format or checksum is wrong")
        active, previous, outcome = body["active"], body["previous"], body["outcome"]
        return cls(
            task=body["task"],
            serial=body["serial"],
            epoch=body.get("epoch", 0),  # a state of an older walle has neither
            era=body.get("era", ""),
            standing=Standing(body["standing"]),
            active=VersionRef(**active) if active else None,
            previous=VersionRef(**previous) if previous else None,
            previous_good=body["previous_good"],
            outcome=_outcome_of(outcome, body.get("failure_class", "")) if outcome else None,
        )


def _outcome_of(plain: dict[str, Any], failure_class: str) -> Outcome:
    kind, found = OutcomeKind(plain["kind"]), FailureClass(failure_class or FailureClass.VERSION)
    return Outcome(**{**plain, "kind": kind}, failure_class=found)


class InstalledTasks:
    """The folder of installed versions; its layout is in the module docstring."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tasks(self) -> list[str]:
        """Return the tasks that have a folder, removed ones among them."""
        make_folders(self.folder)
        names = sorted(path.name for path in self.folder.iterdir() if path.is_dir() and "%2F" in path.name)
        return [urllib.parse.unquote(name) for name in names]

    def read(self, task: str) -> TaskState:
        """Return the state of `task`, an empty one where it never had any.

        Raises:
            CorruptedError: `state.json` is not what was written.
            TaskNameError: `task` cannot be a task's name.
        """
        path = self.task_folder(task) / "state.json"
        try:
            state = TaskState.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return TaskState(task=task)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorruptedError(path, str(error)) from error
        if state.task != task:
            raise CorruptedError(path, f"it is the state of {state.task!r}")
        return state

    def write(self, state: TaskState) -> None:
        """Make `state` the task's state, whole or not at all."""
        folder = self.task_folder(state.task)
        make_folders(folder)
        try:
            write_file(folder / "state.json", state.to_bytes(), mode=0o644)
        except NotSyncedError as error:
            # The rename is done, and the states before and after it are both valid: keep it.
            _LOG.warning("%s may not survive a power cut: %s", folder, error)

    def version_files(self, task: str, ref: VersionRef) -> Path:
        """Return where the files of an installed version are."""
        return self._version_folder(task, ref.manifest) / "files"

    def envelope(self, task: str, ref: VersionRef) -> bytes:
        """Return the signed envelope of an installed version, as it was received.

        Raises:
            CorruptedError: it is missing, or its sha256 differs from the state's.
        """
        path = self._version_folder(task, ref.manifest) / "manifest"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CorruptedError(path, error.strerror or str(error)) from error
        if hashlib.sha256(data).hexdigest() != ref.manifest:
            raise CorruptedError(path, "its sha256 is wrong")
        return data

    def staging(self, task: str, manifest: str) -> "Staging":
        """Return the staging folder of the version with this manifest, without creating it."""
        return Staging(self.task_folder(task) / "staging" / manifest)

    def adopt(self, staging: "Staging", state: TaskState) -> None:
        """Move an assembled version to `versions`, and write `state`, which refers to it, as the task's state."""
        place = self._version_folder(state.task, staging.folder.name)
        make_folders(place.parent)
        _remove(place)  # a corrupted version of the same name; it is not active
        _remove(staging.folder / "blobs")
        sync_folder(staging.folder)
        move_folder(staging.folder, place)
        self.write(state)

    def clean(self, state: TaskState, *, partial_newer_than_s: float | None = None) -> None:
        """Remove versions that `state` does not refer to, and partly pulled ones, all or those older than a time.

        `partial_newer_than_s` is in seconds since the epoch.
        """
        folder = self.task_folder(state.task)
        remove_unfinished(folder)
        kept = {ref.manifest for ref in (state.active, state.previous) if ref is not None}
        for path in _children(folder / "versions"):
            if path.name not in kept:
                _remove(path)
        for path in _children(folder / "staging"):
            if partial_newer_than_s is None or path.stat().st_mtime < partial_newer_than_s:
                _remove(path)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.folder).free

    def task_folder(self, task: str) -> Path:
        """Return the folder of `task`. Raises TaskNameError where that is not a valid task name."""
        try:
            name = urllib.parse.quote(task, safe="")
        except UnicodeEncodeError as error:
            raise TaskNameError(task) from error
        if len(name) > _MAX_NAME_BYTES or not all(task.split("/")) or "/" not in task:
            raise TaskNameError(task)
        return self.folder / name

    def _version_folder(self, task: str, manifest: str) -> Path:
        return self.task_folder(task) / "versions" / manifest


class Staging:
    """A version being put together, from blobs that come in any order, in pieces, over several tries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.received_bytes = 0  # bytes from the network in this try

    def prepare(self) -> None:
        """Create the folder unless an earlier try left it; remove those of other versions."""
        for path in _children(self.folder.parent):
            if path != self.folder:
                _remove(path)
        make_folders(self.folder / "blobs")

    def held_bytes(self, sha256: str) -> int:
        """Return the count of a blob's bytes received so far."""
        try:
            return self._blob(sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, sha256: str, data: bytes) -> None:
        """Add `data` to the end of a blob."""
        handle = os.open(self._blob(sha256), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            write_all(handle, data)
        finally:
            os.close(handle)

    def coded(self, sha256: str) -> CodedPart:
        """Return what came of a blob in a content coding."""
        return CodedPart(self.folder / "blobs" / f"{sha256}.coded")

    def drop_coded(self) -> None:
        """Delete what came of any blob in a content coding."""
        for path in (self.folder / "blobs").glob("*.coded"):
            CodedPart(path).drop()

    def decode(self, entry: FileEntry, coding: str, base: Base | None) -> None:
        """Make a blob from its coded form, which is removed. Raises CodingError; the blob has to be sealed then too."""
        self.drop(entry.sha256)
        self.coded(entry.sha256).decode(coding, self._blob(entry.sha256), size_bytes=entry.size_bytes, base=base)

    def drop(self, sha256: str) -> None:
        """Delete the received part of a blob."""
        self._blob(sha256).unlink(missing_ok=True)

    def seal(self, entry: FileEntry) -> bool:
        """Sync a blob; return whether its size and sha256 are those of `entry`. If not, the blob is deleted."""
        path = self._blob(entry.sha256)
        if not path.exists():
            self.append(entry.sha256, b"")  # nothing is pulled for an empty file, so it is created here
        sync_file(path)
        if _is_file_of(path, entry):
            path.chmod(0o444)
            return True
        self.drop(entry.sha256)
        return False

    def take(self, source: Path, entry: FileEntry) -> bool:
        """Link a file of an installed version as a blob; return whether its size and sha256 are those of `entry`."""
        self.drop(entry.sha256)
        if not source.is_file():
            return False
        _link(source, self._blob(entry.sha256))
        return self.seal(entry)

    def assemble(self, envelope: bytes, entries: Iterable[FileEntry]) -> Path:
        """Lay out the files from sealed blobs, sync them, and return their folder.

        The blobs are kept until `InstalledTasks.adopt`, which also syncs the parent folder: an attempt that ends
        before that needs no second pull.
        """
        files = self.folder / "files"
        _remove(files)
        make_folders(files)
        for entry in entries:
            place = files / entry.path
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(self._blob(entry.sha256), place)
        write_file(self.folder / "manifest", envelope, mode=0o644)
        for root, _, _ in os.walk(files):
            sync_folder(Path(root))
        return files

    def discard(self) -> None:
        _remove(self.folder)

    def _blob(self, sha256: str) -> Path:
        return self.folder / "blobs" / sha256


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Raise CorruptedError unless `folder` holds the files of `manifest` to the byte, and no others."""
    expected = {entry.path: entry for entry in manifest.files}
    for root, folders, files in os.walk(folder):
        for name in (*files, *(name for name in folders if Path(root, name).is_symlink())):
            path = Path(root, name)
            entry = expected.pop(path.relative_to(folder).as_posix(), None)
            if entry is None:
                raise CorruptedError(path, "the manifest does not list it")
            if path.is_symlink() or not _is_file_of(path, entry):
                raise CorruptedError(path, "its length or sha256 is wrong")
    if expected:
        raise CorruptedError(folder / min(expected), "it is missing")


def _shorten(error: str) -> str:
    return error[: Failure.MAX_ERROR_CHARS]


def _is_file_of(path: Path, entry: FileEntry) -> bool:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != entry.size_bytes:
            return False
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(source: Path, place: Path) -> None:
    """Make `place` the same file as `source`, or a copy where the file system has no hard links."""
    try:
        place.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        shutil.copyfile(source, place)
        sync_file(place)
        place.chmod(0o444)
