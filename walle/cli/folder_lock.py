"""Lock of a cloud's folder: one process at a time has it."""

import contextlib
import fcntl
import os
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
