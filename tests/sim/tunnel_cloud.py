"""The cloud's end of a tunnel: the real server, ingest and pump, which can be stopped and started again."""

import asyncio
import dataclasses
import random
import ssl
from pathlib import Path
from typing import Any, Self

from walle.pipeline.ingest.pump import pump
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.server.server import ServerLimits, TunnelServer


async def echo(device_id: str, topic: str, payload: bytes) -> bytes:
    return f"{device_id} {topic} ".encode() + payload


@dataclasses.dataclass(kw_only=True)
class TunnelCloud:
    ssl_context: ssl.SSLContext
    path: Path
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)
    on_request: Any = echo
    dictionaries: Any = None
    drain_rng: random.Random = dataclasses.field(default_factory=lambda: random.Random(5))
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # options of the pump
    fast_transports: bool | None = None

    server: TunnelServer = dataclasses.field(init=False)
    ingest: Ingest = dataclasses.field(init=False)
    pumping: asyncio.Task[None] = dataclasses.field(init=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.ingest = Ingest(self.path)
        await self.ingest.start()
        self.server = TunnelServer(
            ssl_context=self.ssl_context,
            resume=self.ingest.resume,
            on_request=self.on_request,
            limits=self.limits,
            dictionaries=self.dictionaries,
            rng=self.drain_rng,
            fast_transports=self.fast_transports,
        )
        await self.server.start()
        self.pumping = asyncio.create_task(pump(self.server, self.ingest, **self.options))

    async def stop(self) -> None:
        """Stop in order: received uploads are stored."""
        await self.server.close()
        await self.pumping
        await self.ingest.close()

    async def crash(self) -> None:
        """Stop at once: received uploads that are not stored are lost."""
        self.pumping.cancel()
        await asyncio.gather(self.pumping, return_exceptions=True)
        self.server.queue.take(self.server.queued)
        self.server.queue.release()
        for connection in list(self.server._connections):
            connection._transport.abort()
        await self.server.close()
        await self.ingest.close()
