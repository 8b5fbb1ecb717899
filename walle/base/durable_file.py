"""Durable files and folders: whole or unchanged at every instant, and on disk when the call returns.

A file is written to a temporary file beside it, synced, and renamed over its name; the folder is synced last. A folder
is moved by one rename, and both parents are synced. A power cut at any moment leaves the old state or the new one.
"""

import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished"  # ends the names of temporary files
_CHUNK_BYTES = 1 << 20
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1  # constants of renameat2 (Linux)
_UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # answers of file systems without a call


class NotSyncedError(OSError):
    """A change was made and every process sees it, but it may not survive a power cut."""


class NoExclusiveNamesError(OSError):
    """The file system cannot decide which of two writers gets the name of a new file."""


def write_file(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Put `data` (text as UTF-8) at `path`, with these permission bits whatever the umask is.

    Raises:
        NotSyncedError: `path` has the new content, but its folder could not be synced.
        OSError: the folder does not exist or cannot be written, or the disk is full; `path` is unchanged.
    """
    _write_by(Path.replace, path, _writer_of(data), mode)


def fill_file(path: Path, fill: Callable[[int], object], *, mode: int = 0o600) -> None:
    """Put at `path` what `fill` writes to the open file, a descriptor, that it is called with.

    Nothing is put there where `fill` raises. Raises as `write_file`, and what `fill` raises.
    """
    _write_by(Path.replace, path, fill, mode)


def write_new_file(path: Path, data: bytes | str, *, mode: int = 0o600, strict: bool = False) -> bool:
    """Put `data` at `path` unless a file is there; return whether it was put. Of several writers at once one does.

    The file has no name before it is whole, and machines that share the folder may be such writers: a hard link
    decides, or a rename that replaces no file (Linux). On a file system with neither, two writers at once may both put
    theirs, the later one in place of the earlier; with `strict` nothing is put there.

    Raises:
        NoExclusiveNamesError: with `strict`, on such a file system.
        NotSyncedError, OSError: as `write_file`.
    """

    def put(temporary: Path, target: Path) -> None:
        if not _put_new(temporary, target):
            if strict:
                what = "the file system has neither hard links nor renames that replace no file"
                raise NoExclusiveNamesError(errno.EOPNOTSUPP, what, str(target))
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            temporary.replace(target)

    try:
        _write_by(put, path, _writer_of(data), mode)
    except FileExistsError:
        return False
    return True


def _put_new(temporary: Path, path: Path) -> bool:
    """Move a file to a name that no file has; return False where the file system cannot decide between two writers.

    Raises:
        FileExistsError: a file has the name.
    """
    try:
        path.hardlink_to(temporary)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return _rename_new(temporary, path)
    temporary.unlink()
    return True


def _rename_new(temporary: Path, path: Path) -> bool:
    """Rename as `_put_new`, by a call that replaces no file."""
    import ctypes

    if (call := _renameat2()) is None:
        return False
    if call(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE) == 0:
        return True
    if (number := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(path))  # FileExistsError for EEXIST


@cache
def _renameat2() -> Any:
    """Return the C library's `renameat2`, None where it has none."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call


def _writer_of(data: bytes | str) -> Callable[[int], object]:
    content = data.encode() if isinstance(data, str) else data
    return lambda handle: write_all(handle, content)


def _write_by(put: Callable[[Path, Path], object], path: Path, fill: Callable[[int], object], mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}{UNFINISHED}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(handle, mode)
            fill(handle)
            os.fsync(handle)
        finally:
            os.close(handle)
        put(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_parents(path)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed writers. No `write_file` may be running in `folder`."""
    for leftover in folder.glob(f".*{UNFINISHED}"):
        leftover.unlink(missing_ok=True)


def make_folders(path: Path, *, mode: int = 0o777) -> None:
    """Make `path` with these permission bits, and its parents; each survives a power cut before the next is made."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True, mode=mode)
    sync_folder(path.parent)


def move_folder(source: Path, target: Path) -> None:
    """Rename a folder whose content is synced. An empty folder at `target` is replaced.

    Raises:
        NotSyncedError: the folder is at `target`, but a parent could not be synced.
        OSError: `target` is not empty, or its parent does not exist; `source` is unchanged.
    """
    source.rename(target)
    _sync_parents(target, source)


def sync_tree(folder: Path) -> None:
    """Sync every file and folder in `folder`, and `folder` itself."""
    for root, _, files in os.walk(folder):
        for name in files:
            sync_file(Path(root, name))
        sync_folder(Path(root))


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut.

    A folder that this process may write to and not read (-wx) cannot be opened for its fsync: all disks are synced.

    Raises:
        OSError: the folder does not exist or cannot be synced.
    """
    try:
        _sync(folder, os.O_DIRECTORY)
    except PermissionError:
        os.sync()


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    _sync(path, 0)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of `data` to an open file, in pieces."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view[:_CHUNK_BYTES]) :]


def _sync_parents(*paths: Path) -> None:
    for folder in dict.fromkeys(path.parent for path in paths):
        try:
            sync_folder(folder)
        except OSError as error:
            raise NotSyncedError(error.errno, f"{error.strerror} (syncing the folder)", str(folder)) from error


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
