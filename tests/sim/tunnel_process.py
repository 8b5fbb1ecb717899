"""The cloud's end of a tunnel in a process of its own: its memory and CPU time are those of the server alone.

    python -m tests.sim.tunnel_process AUTHORITY_FOLDER DATABASE

Prints its port, then answers each line on stdin with one line of JSON: memory, counts and stored uploads.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_cloud import TunnelCloud, echo

_SLOW_S = 60.0  # time that a request with the topic `slow` takes


def memory_bytes() -> dict[str, int]:
    """Return the resident memory of this process and its peak since `reset_peak`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[field].split()[0]) << 10 for key, field in (("now", "VmRSS"), ("peak", "VmHWM"))}


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def _answer(device_id: str, topic: str, payload: bytes) -> bytes:
    if topic == "slow":
        await asyncio.sleep(_SLOW_S)
        return b""
    return await echo(device_id, topic, payload)


async def _serve(authority: TunnelAuthority, database: Path) -> None:
    async with TunnelCloud(ssl_context=authority.server_context(), path=database, on_request=_answer) as cloud:
        sys.stdout.write(f"{cloud.server.port}\n")
        sys.stdout.flush()
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answer: dict[str, Any] = memory_bytes()
            if line.strip() == "reset":
                reset_peak()
            answer["counts"] = {"refusals": cloud.server.counts.refusals}
            answer["stored"] = await cloud.ingest.count()
            sys.stdout.write(f"{json.dumps(answer)}\n")
            sys.stdout.flush()


class TunnelProcess:
    """The process, as its test sees it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.port = port
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, authority: Path, database: Path) -> AsyncIterator["TunnelProcess"]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.sim.tunnel_process",
            str(authority),
            str(database),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        try:
            assert process.stdout is not None
            yield cls(process, int(await process.stdout.readline()))
        finally:
            process.kill()
            await process.communicate()

    async def ask(self, question: str = "") -> dict[str, Any]:
        """Return the process's memory, counts and stored uploads; `reset` resets its peak of memory after that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question}\n".encode())
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


if __name__ == "__main__":
    asyncio.run(_serve(TunnelAuthority(Path(sys.argv[1])), Path(sys.argv[2])))
