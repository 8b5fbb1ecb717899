"""Errors of a store of the cloud's state, whether it is a SQLite file or a part of a PostgreSQL database."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from walle.errors import DeployError
from walle.store.disk_space import is_full


class StateError(DeployError):
    """The cloud's state, in a file or a database that `path` names, cannot be read or written. `is_full`: no room.

    `may_pass`: it is in a database that cannot be used now, which is logged already.
    """

    disk: ClassVar[str] = "the cloud's disk"
    may_pass = False

    def __init__(self, path: str, why: str, is_full: bool = False) -> None:
        super().__init__(path, why, is_full)
        self.path = path
        self.why = why
        self.is_full = is_full

    def __str__(self) -> str:
        advice = f"; free some space on {self.disk}" if self.is_full else ""
        return f"the cloud's state in {self.path}: {self.why}{advice}"


@contextlib.contextmanager
def state_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the system within the block into StateError, which names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StateError(str(path), str(error), is_full(error)) from error


class StoreError(DeployError):
    """A store that cannot be read or written. `place` is a file, or the URL of a database without its password.

    Over HTTP: 503, on a full disk 507. `may_pass`: its database cannot be used now; a client is told to try again after
    `retry_after_s`.
    """

    holds: ClassVar[str]  # names the contents of the store
    may_pass = False
    retry_after_s: int | None = None

    def __init__(self, place: str, why: str, status: int = 503) -> None:
        super().__init__(place, why, status)
        self.place = place
        self.why = why
        self.status = status

    def __str__(self) -> str:
        return f"{self.holds}, {self.place}: {self.why}"

    @classmethod
    def of(cls, error: StateError) -> Self:
        """Return the error for what a file or a database refused."""
        if error.is_full:
            found = cls(error.path, f"{error.why}; free some space on {error.disk}", 507)
        else:
            found = cls(error.path, error.why)
        found.may_pass = error.may_pass
        found.retry_after_s = getattr(error, "retry_after_s", None)
        return found

    @classmethod
    @contextlib.contextmanager
    def raised(cls) -> Iterator[None]:
        """Turn StateError within the block into this error."""
        try:
            yield
        except StateError as error:
            raise cls.of(error) from error
