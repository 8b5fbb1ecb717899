"""The tunnel's cloud end of Fig. 12, in a process of its own: server, ingest and pump, as a gateway has them.

    python -m benchmarks.fig12.cloud FOLDER HOST

Prints its port and runs until stdin ends.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from benchmarks.tunnel_authority import TunnelAuthority
from walle.cli import event_loop
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.ingest.supervisor import PumpSupervisor
from walle.pipeline.tunnel.server.server import TunnelServer


async def _echo(_device_id: str, _topic: str, payload: bytes) -> bytes:
    return payload


async def serve(folder: Path, host: str) -> None:
    async with contextlib.AsyncExitStack() as undo:
        ingest = await undo.enter_async_context(Ingest(folder / "uploads.db"))
        server = TunnelServer(
            ssl_context=TunnelAuthority(folder / "authority", hosts=[host]).server_context(),
            resume=ingest.resume,
            on_request=_echo,
            host=host,
        )
        pumping = asyncio.create_task(PumpSupervisor(server, ingest).run())
        undo.push_async_callback(asyncio.gather, pumping)
        await undo.enter_async_context(server)
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    event_loop.run(serve(Path(sys.argv[1]), sys.argv[2]))
