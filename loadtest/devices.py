"""Devices of the load test in a process of their own: real clients with durable outboxes on one asyncio loop.

    python -m loadtest.devices SOCKET_FD JOIN_FILE FOLDER

locust's users command it: `loadtest.device_process`.
"""

import asyncio
import random
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import httpx

from loadtest.cloud_process import SCENARIO, TASK, VERSION
from loadtest.commands import Commands, serve
from walle.base import plain
from walle.base.clock import SystemClock
from walle.cli import event_loop
from walle.cli.join import Join
from walle.device.cloud_requests import device_http
from walle.device.credentials import DeviceCredentials
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.tunnel.client.client import TunnelClient, TunnelError, client_context
from walle.task.run.runner import PHASE_TOPIC

TOPIC = "load"
_DRAIN_S = 60.0


class WrongAnswerError(TunnelError):
    """The cloud answered a request with another value than asked for."""


class LoadDevice:
    """One device. `made` counts its uploads, which carry their numbers from 0."""

    def __init__(self, device_id: str, join: Join, ca_path: Path, folder: Path, http: httpx.AsyncClient) -> None:
        self.device_id = device_id
        self.made = 0
        self.answered = 0
        self._join = join
        self._context = client_context(ca_path)
        self._store = FeatureStore(folder / f"{device_id}.db")
        self._outbox = Outbox(self._store)
        self._rng = random.Random(device_id)
        self._credentials = DeviceCredentials(
            device_id,
            folder / f"{device_id}-keys",
            http,
            SystemClock(),
            self._rng,
            token=join.enrolment_token,
            on_certificate=self._context.show,
        )
        self.calls = asyncio.Lock()  # one call at a time; the last one may be under way when locust ends
        self._client: TunnelClient
        self._running: asyncio.Task[None]
        self._has_joined = False

    async def join(self) -> None:
        await self._store.start()
        await self._credentials.start()
        await self._credentials.session()
        self._connect()
        await self.request()

    def _connect(self) -> None:
        self._client = TunnelClient(
            self._outbox,
            device_id=self.device_id,
            host=self._join.tunnel_host,
            port=self._join.tunnel_port,
            ssl_context=self._context,
            rng=self._rng,
            backoff_s=0.05,
            backoff_max_s=1.0,
        )
        self._running = asyncio.create_task(self._client.run())
        self._has_joined = True

    async def upload(self, size_bytes: int, count: int = 1) -> None:
        """Put `count` features durably, and return once the cloud has acknowledged all."""
        for _ in range(count):
            await self._store.put(TOPIC, [self.made, self._rng.randbytes(size_bytes)])
            self.made += 1
        await self._store.flush()
        async with asyncio.timeout(_DRAIN_S):
            await self._client.drained()

    async def request(self) -> None:
        """Let the released task compute on the cloud, and check its answer.

        Raises:
            WrongAnswerError: it is another one.
        """
        number = self._rng.randrange(1 << 40)
        body = {"task": f"{SCENARIO}/{TASK}", "version": VERSION, "phase": "execute", "payload": number, "device": {}}
        answer = plain.decode(await self._client.request(PHASE_TOPIC, plain.encode(body)))
        if answer != {"device": self.device_id, "doubled": 2 * number}:
            raise WrongAnswerError(f"{self.device_id} asked for twice {number} and was answered {answer}")
        self.answered += 1

    async def reconnect(self) -> None:
        """Close the tunnel and open it again."""
        await self._client.close()
        await self._running
        self._connect()
        await self.request()

    @property
    def commands(self) -> Mapping[str, Callable[..., Awaitable[None]]]:
        return {"join": self.join, "upload": self.upload, "request": self.request, "reconnect": self.reconnect}

    async def finish(self) -> dict[str, int]:
        """Return the counts once everything that was put is acknowledged and the device is closed."""
        async with asyncio.timeout(_DRAIN_S), self.calls:
            if self._has_joined:
                await self._store.flush()
                await self._client.drained()
                await self._client.close()
                await self._running
            await self._store.close()
        return {"made": self.made, "answered": self.answered}


def main(descriptor: int, join_file: Path, folder: Path) -> None:
    join = Join.load(join_file)
    ca_path = folder / "ca.pem"
    ca_path.write_text(join.ca_pem)
    http = device_http(join.url, join.ca_pem)
    commands = Commands(lambda device_id: LoadDevice(device_id, join, ca_path, folder, http))
    event_loop.run(serve(socket.socket(fileno=descriptor), commands))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
