"""A cloud that receives uploads: the tunnel's server and ingest in a process of its own, whose CPU time is known.

    python -m benchmarks.ipv_pipelines.receiver FOLDER

It prints its port, and for each line on standard input its counts as JSON.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.tunnel_authority import TunnelAuthority
from walle.pipeline import Ingest, TunnelServer
from walle.pipeline.ingest.pump import pump


async def _refuse(_device_id: str, topic: str, _payload: bytes) -> bytes:
    raise LookupError(f"no handler for {topic}")


async def serve(folder: Path) -> None:
    """Serve until standard input ends."""
    async with Ingest(folder / "uploads.db") as ingest:
        server = TunnelServer(
            ssl_context=TunnelAuthority(folder).server_context(),
            resume=ingest.resume,
            on_request=_refuse,
        )
        async with server:
            pumping = asyncio.create_task(pump(server, ingest))
            print(server.port, flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                counts = {"cpu_s": time.process_time(), "bytes_in": server.counts.bytes_in}
                print(json.dumps(counts | {"uploads": await ingest.count()}), flush=True)
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)


class Receiver:
    """The running process, for use within `async with`."""

    def __init__(self, folder: Path) -> None:
        self.authority = TunnelAuthority(folder)
        self._folder = folder
        self.port = 0
        self._folder = folder

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            str(self._folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self.port = int(await self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def counts(self) -> dict[str, Any]:
        """Return `cpu_s` of the process, `bytes_in` of its connections (frames, before TLS) and stored `uploads`."""
        if self._process.stdin is None:
            raise RuntimeError("the receiver is not running")
        self._process.stdin.write(b"counts\n")
        counts: dict[str, Any] = json.loads(await self._read())
        return counts

    async def _read(self) -> bytes:
        if self._process.stdout is None or not (line := await self._process.stdout.readline()):
            raise RuntimeError("the receiver ended; its error is above")
        return line


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
