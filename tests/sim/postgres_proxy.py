"""A proxy before a PostgreSQL server, which cuts a connection at a commit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.sim.postgres_server import PostgresServer


class PostgresProxy:
    """A proxy that cuts the connection at chosen commits, before or after they reach the server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.folder = folder
        self.cut: str = ""  # "before" or "after": at the next commit
        self.cuts = 0
        self._target = server.folder / ".s.PGSQL.5432"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with await asyncio.start_unix_server(self._serve, self.folder / ".s.PGSQL.5432"):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        back = asyncio.create_task(self._copy(up_reader, writer))
        try:
            while data := await reader.read(65536):
                if self.cut and b"COMMIT;" in data:
                    cut, self.cut = self.cut, ""
                    self.cuts += 1
                    if cut == "after":
                        back.cancel()
                        await asyncio.gather(back, return_exceptions=True)
                        up_writer.write(data)
                        await up_reader.read(65536)  # the server has committed
                    break
                up_writer.write(data)
        finally:
            back.cancel()
            writer.transport.abort()
            up_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()
