"""The whole cloud of the livestream app in a process of its own, whose CPU time and memory are the cloud's alone.

    python -m benchmarks.highlights.cloud_process FOLDER HTTP_PORT TUNNEL_PORT

It prints its address as JSON, and serves until its standard input ends.
"""

import asyncio
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Self

import httpx

from apps.livestream.player import SCENARIO
from benchmarks.highlights import processes
from walle.cli import event_loop
from walle.cloud import Cloud, CloudConfig, CloudHome, GatewayAddress

_STOP_S = 15.0


@dataclasses.dataclass(frozen=True, slots=True)
class CloudUse:
    """CPU seconds of the cloud and its VM hosts since they started, and bytes that devices sent through the tunnel.

    The bytes are those of frames of the tunnel, compressed, before TLS.
    """

    cpu_s: float
    received_bytes: int
    at_s: float  # time.monotonic()

    def since(self, before: Self) -> "CloudUse":
        """Return what was used from `before` to here; `at_s` is the time that passed."""
        received = self.received_bytes - before.received_bytes
        return CloudUse(self.cpu_s - before.cpu_s, received, self.at_s - before.at_s)


class CloudProcess:
    """The running process, for use within `async with`; `Studio(..., cloud=CloudProcess)` has one.

    It can be killed and started again, at the same ports, on the same folder.
    """

    def __init__(self, config: CloudConfig) -> None:
        self.home = CloudHome(config.folder)
        self.address: GatewayAddress
        self._folder = config.folder
        self._ports = config.http_port, config.tunnel_port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the process and wait until it serves.

        Raises:
            RuntimeError: it ended instead; its error is on standard error.
        """
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", __name__, str(self._folder), *map(str, self._ports)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the cloud ended before it served; its error is above")
        self.address = GatewayAddress(**json.loads(line))
        self._ports = httpx.URL(self.address.url).port or 80, self.address.tunnel_port

    async def stop(self) -> None:
        """End the process in order, or by force after a while."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End the process at once, with nothing closed; its VM hosts end with it."""
        self._process.kill()

    async def wait_killed(self) -> None:
        await self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def use(self) -> CloudUse:
        """Return what the process has used so far."""
        async with httpx.AsyncClient() as http:
            headers = {"Authorization": f"Bearer {self.home.admin_token}"}
            answer = await http.get(f"{self.address.url}/metrics", headers=headers)
        answer.raise_for_status()
        return CloudUse(processes.cpu_s(self.pid), received_bytes(answer.text), time.monotonic())


def received_bytes(metrics: str) -> int:
    """Return the bytes that devices sent through the tunnel, from the text of /metrics."""
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name == "walle_tunnel_received_bytes_total":
            return int(float(value))
    raise ValueError("the cloud's /metrics has no walle_tunnel_received_bytes_total")


async def serve(folder: Path, http_port: int, tunnel_port: int) -> None:
    """Serve until standard input ends."""
    config = CloudConfig(folder=folder, scenarios=(SCENARIO,), http_port=http_port, tunnel_port=tunnel_port)
    async with Cloud(config) as cloud:
        sys.stdout.write(json.dumps(dataclasses.asdict(cloud.address)) + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    event_loop.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
