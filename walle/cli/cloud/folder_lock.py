"""Folder of a cloud: one process at a time has it, and a new one is removed where the cloud did not start."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape

from walle.cli.output import progress_console
from walle.errors import ConfigError


class CloudBusyError(ConfigError):
    """The folder or a port is in use."""


@contextlib.contextmanager
def only_one(folder: Path, *, is_standby: bool = False) -> Iterator[None]:
    """Lock the folder for this process; the kernel releases the lock however the process ends.

    A process that `is_standby` waits for the lock.
    """
    lock = os.open(folder / "cloud.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_standby:
                raise CloudBusyError(
                    f"{folder}: another cloud runs on this folder; stop it, or name another folder"
                ) from None
            progress_console.print(f"[yellow]standby[/]: another cloud runs on {escape(str(folder))}, until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def new_folder(folder: Path, done: str) -> Iterator[None]:
    """Make the folder. One that was empty or missing is so again where the block fails and has not written `done`."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    was_empty = bool(missing) or not any(folder.iterdir())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        yield
    except BaseException:
        if was_empty and not (folder / done).exists():
            for child in folder.iterdir():
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child, ignore_errors=True)
                else:
                    child.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is in it meanwhile
                for path in missing:
                    path.rmdir()
        raise
