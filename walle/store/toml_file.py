"""A TOML file of one section that several processes read again when it changes, and change in turn."""

import contextlib
import fcntl
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from walle.errors import ConfigError

type FileState = tuple[int, int, int]
"""Another one whenever the file was replaced."""


def read_section(path: Path, what: str, section: str, form: str) -> dict[str, Any] | None:
    """Return the section of the file at `path`, None where there is no file. `what` and `form` are for errors.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has another section.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{what} {path} is not TOML: {error}") from error
    unknown = [key for key in document if key != section]
    if unknown:
        raise ConfigError(f"{path}: unknown section [{unknown[0]}]; it may have {form}")
    found = document.get(section, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {section} must be {form}")
    return found


def file_state(path: Path) -> FileState | None:
    """Return the state of the file at `path`, None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock whose file is at `path`: other processes wait; the lock goes with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
