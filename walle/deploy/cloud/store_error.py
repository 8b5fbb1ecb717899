"""Errors of a store of the cloud's state, whether it is a SQLite file or a part of a PostgreSQL database."""

import sqlite3
from pathlib import Path
from typing import ClassVar, Self

from walle.deploy.cloud.disk_space import is_full
from walle.deploy.cloud.journal import JournalError
from walle.errors import DeployError


class StoreError(DeployError):
    """A store that cannot be read or written. `place` is a file, or the URL of a database without its password.

    Over HTTP: 503, on a full disk 507. `may_pass`: its database cannot be used now; a client is told to try again after
    `retry_after_s`.
    """

    holds: ClassVar[str]  # what is in the store
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
    def of_file(cls, path: Path, error: sqlite3.Error | OSError) -> Self:
        """Return the error for what SQLite or the system refused."""
        if is_full(error):
            return cls(str(path), f"{error}; free some space on the cloud's disk", 507)
        return cls(str(path), str(error))

    @classmethod
    def of_database(cls, error: JournalError) -> Self:
        """Return the error for what a database refused."""
        if error.is_full:
            found = cls(error.path, f"{error.why}; free some space on the database's disk", 507)
        else:
            found = cls(error.path, error.why)
        found.may_pass = error.may_pass
        found.retry_after_s = getattr(error, "retry_after_s", None)
        return found
