"""Interface of the stores of the cloud's state to their database: a SQLite file or PostgreSQL, with one SQL for both.

A store reads with one query, and changes something with an action: a coroutine function that gets a connection, and
runs as one transaction, which in PostgreSQL may be tried again. The SQL is PostgreSQL's, with the names of
`walle.store.tables`; `walle.store.file_connection` says what a file replaces in it. Four classes have the interface:

| | calls block | calls are awaited |
| --- | --- | --- |
| file | `SqliteFile` | `SqliteDatabase` |
| server | `SyncDatabase` | `PostgresDatabase` |
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from walle.store.file_connection import FileConnection
from walle.store.lease import Grant


class Connection(Protocol):
    """The connection of a transaction. Rows are sequences, with columns by name too."""

    async def execute(self, query: str, /, *values: Any) -> Any: ...
    async def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Any: ...
    async def fetch(self, query: str, /, *values: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, /, *values: Any) -> Any: ...
    async def fetchval(self, query: str, /, *values: Any) -> Any: ...


type Action[T] = Callable[[Connection], Coroutine[Any, Any, T]]
"""Its result is one that JSON holds."""


class BlockingDatabase(Protocol):
    """A database whose calls block, and may be made in any thread.

    Raises, from every call:
        StateError: the database cannot be read or written.
    """

    def open(self) -> None:
        """Make the tables that are absent."""

    def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""

    def write[T](self, action: Action[T], *, durable: bool = True) -> T:
        """Run an action in a transaction, and return its result. One that is not `durable` may be undone later."""

    def packed(self, text: str) -> str:
        """Return the value of a column of kind `any` for a text."""

    def unpacked(self, value: str) -> str:
        """Return the text of a value of a column of kind `any`."""

    def storable(self, text: str) -> str:
        """Return a text as the database stores it in other columns."""

    def keep_room(self, reserve_bytes: int) -> None:
        """Keep space for that many bytes until `leave_room`, where the disk is this machine's."""

    def leave_room(self) -> None:
        """End what `keep_room` began, or is about to; other calls go on."""


class Database(Protocol):
    """A database of one event loop, within `async with`. Its calls are those of `BlockingDatabase`, awaited.

    A write refuses a `grant` whose lease another holder has (LeaseLostError). One that has begun is finished where the
    caller is cancelled.
    """

    async def read(self, query: str, *values: object) -> list[Any]: ...

    async def write[T](self, action: Action[T], *, grant: Grant | None = None, durable: bool = True) -> T: ...

    def packed(self, text: str) -> str: ...

    def unpacked(self, value: str) -> str: ...

    def storable(self, text: str) -> str: ...


async def lock(connection: Connection, number: int, key: str = "") -> None:
    """Wait for the lock of a number, or of a number and a text, which the transaction keeps until its end.

    In a file each transaction has the lock of the whole file from its beginning.
    """
    if isinstance(connection, FileConnection):
        return
    if key:
        await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", number, key)
    else:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", number)


async def in_thread[**P, T](connection: Connection, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return what a call returns that computes for long, in another thread; an action on a file is in one already."""
    if isinstance(connection, FileConnection):
        return call(*args, **options)
    return await asyncio.to_thread(call, *args, **options)
