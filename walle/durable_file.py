"""Durable file writes: a file is whole or unchanged at every instant, and on disk when the call returns."""

import os
import tempfile
from pathlib import Path


def write_file(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Put `data` (text as UTF-8) at `path`, with these permission bits.

    The bytes are written to a temporary file in the same folder and synced, the file is renamed over `path`, and the
    folder is synced. A power cut at any moment leaves either the old content or the new one.

    Raises:
        OSError: the folder does not exist or cannot be written, or the disk is full; `path` is unchanged.
    """
    content = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut.

    Raises:
        OSError: the folder cannot be opened or synced.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
