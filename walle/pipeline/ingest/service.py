"""The tunnel in one process: server, store of uploads, and the supervised pump between them."""

import asyncio
import dataclasses
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, get_origin

from walle.base.clock import Clock, SystemClock
from walle.errors import ConfigError, PipelineError
from walle.pipeline.ingest.store.topic_check import ForeignTasks, TaskTopics
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.supervisor import PumpSupervisor
from walle.pipeline.tunnel.dictionaries import DictionaryLookup
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.pipeline.tunnel.server.server import RequestHandler, TunnelServer
from walle.pipeline.tunnel.sockets import is_address
from walle.protocol import Hello

_FAREWELL_S = 3.0  # time for uploads that have arrived, when the service closes
_REFUSED_FAREWELL_S = 0.5  # shorter where the store refuses uploads: their devices send them again
_DRAIN_GRACE_S = 1.0  # time for the devices that are late to move
_LONGEST_DRAIN_S = 3600.0
_COUNTS = (
    "connections",
    "uploads",
    "duplicates",
    "requests",
    "failed_requests",
    "expired_requests",
    "cancelled_requests",
    "resumed",
    "pauses",
    "slowed",
    "bytes_in",
    "bytes_out",
)


class TunnelStateError(PipelineError):
    """A state of a tunnel process that this process does not know: they run different versions of walle."""


@dataclasses.dataclass(frozen=True)
class DrainTarget:
    """The address to which devices are sent when a tunnel stops, and the time over which they move.

    An empty host is the address that they have. With 0 seconds devices are disconnected, and told to come back.
    """

    host: str = ""
    port: int = 0
    over_s: float = 1.0

    @classmethod
    def parse(cls, text: str, over_s: float) -> Self:
        """Parse HOST:PORT, or an empty text for the address that devices have; `over_s` is 0 to 3600.

        Raises:
            ConfigError: one of them is not that.
        """
        if not 0.0 <= over_s <= _LONGEST_DRAIN_S:  # false for NaN too
            raise ConfigError(f"devices cannot move over {over_s} s when a tunnel stops; choose 0 to 3600")
        if not text:
            return cls(over_s=over_s)
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or len(port) > 5 or not is_address(host, int(port)):
            raise ConfigError(f"{text!r} is not the address of a tunnel; write HOST:PORT, such as cloud-2.example:7443")
        return cls(host, int(port), over_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelState:
    """The state of a tunnel in one process. `lag_s` is the age of the oldest upload that is not stored.

    `error` is the reason why uploads are not stored, empty while they are. `counts`, `refusals`, `stored`,
    `commits`, `pump_failures` and `waited_s` are since the start, the rest is now.
    """

    pid: int
    is_running: bool  # the pump
    error: str
    queued: int
    lag_s: float
    open_connections: int
    held: dict[str, int]  # bytes by account
    held_bytes: int
    stored: int
    commits: int  # batches of them
    pump_failures: int
    counts: dict[str, int]
    refusals: dict[str, int]
    # With defaults: a process of an earlier version may have sent it.
    waited_s: float = 0.0  # total wait of all uploads in the queue, since the start
    waiting_devices: int = 0  # devices whose uploads are in the queue
    for_queue: int = 0  # connections that are not read until the queue has room
    for_memory: int = 0  # connections that are not read until there is memory for their bytes

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the state that another process has sent. Raises TunnelStateError if it is of another version."""
        types: dict[str, Any] = {field.name: get_origin(field.type) or field.type for field in dataclasses.fields(cls)}
        if fields.keys() != types.keys():
            raise TunnelStateError(
                f"its state has other fields: {', '.join(sorted(fields.keys() ^ types.keys()))[:500]}"
            )
        wrong = [name for name, value in fields.items() if not isinstance(value, types[name])]
        for name in ("held", "counts", "refusals"):
            if name not in wrong and not all(type(count) is int for count in fields[name].values()):
                wrong.append(name)
        if wrong:
            raise TunnelStateError(f"its state has values of other types: {', '.join(wrong)}")
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class DeviceConnection:
    """The connection of a device. `since_s` is when it was opened, in seconds since the epoch; None: it has none.

    `silent` tunnel processes did not answer in time, so that one of them may have it.
    """

    since_s: float | None
    silent: int = 0


class TunnelService:
    """A tunnel server whose uploads go to a store, within `async with`. The store is the caller's, and open.

    Uploads of tasks that `foreign_tasks` says are not their devices' are not stored (`TaskTopics`).
    At the end devices are sent to `drain_to`. `name` is the server's in a ring. `sock`: as for `TunnelServer`.
    """

    def __init__(
        self,
        store: UploadStore,
        *,
        ssl_context: ssl.SSLContext,
        on_request: RequestHandler,
        dictionaries: DictionaryLookup | None = None,
        host: str,
        port: int,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
        on_stored: Callable[[list[Received]], Awaitable[None]] | None = None,
        foreign_tasks: ForeignTasks | None = None,
        drain_to: DrainTarget | None = None,
        name: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._drain_to = drain_to or DrainTarget()
        self._clock = clock or SystemClock()
        self.server = TunnelServer(
            ssl_context=ssl_context,
            resume=self._resume,
            on_request=on_request,
            dictionaries=dictionaries,
            host=host,
            port=port,
            reuse_port=reuse_port,
            sock=sock,
            name=name,
        )
        topics = None if foreign_tasks is None else TaskTopics(foreign_tasks, self._clock)
        self.pump = PumpSupervisor(self.server, store, consumer=on_stored, topics=topics, clock=self._clock)
        self._pumping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Listen. Raises OSError if the address is in use."""
        await self.server.start()
        self._pumping = asyncio.create_task(self.pump.run(), name="pump supervisor")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, send the devices away, and store what has arrived, if the store takes it."""
        assert self._pumping is not None
        try:
            await self.drain()
            await self.server.close()
            await asyncio.wait([self._pumping], timeout=_REFUSED_FAREWELL_S if self.pump.error else _FAREWELL_S)
        finally:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)

    async def drain(self) -> None:
        """Send the devices away, each once what it has in flight is acknowledged and answered; then stop listening."""
        target = self._drain_to
        if target.over_s > 0:
            await self.server.drain(host=target.host, port=target.port, over_s=target.over_s, grace_s=_DRAIN_GRACE_S)

    @property
    def port(self) -> int:
        return self.server.port

    async def revoke(self, version: int, lowest: Mapping[str, int]) -> None:
        """Refuse keys of devices: see `TunnelServer.revoke`."""
        self.server.revoke(version, lowest)

    async def connection(self, device_id: str) -> DeviceConnection:
        """Return the device's connection."""
        return DeviceConnection(self.server.open_since_s(device_id))

    def state(self) -> TunnelState:
        server, status = self.server, self.pump.status
        return TunnelState(
            pid=os.getpid(),
            is_running=status.is_running,
            error=self.pump.error,
            queued=server.queued,
            lag_s=server.lag_s,
            open_connections=server.counts.open,
            held={account: getattr(server.budget, account) for account in ("buffered", "requests", "uploads")},
            held_bytes=server.budget.held_bytes,
            stored=status.stored,
            commits=status.commits,
            pump_failures=status.total_failures,
            counts={
                **{name: getattr(server.counts, name) for name in _COUNTS},
                "foreign_uploads": status.refused,
            },
            refusals=dict(server.counts.refusals),
            waited_s=server.queue.waited_s,
            waiting_devices=server.queue.devices,
            for_queue=server.held_back,
            for_memory=server.credit.waiting,
        )

    async def _resume(self, hello: Hello) -> ResumePoint:
        return await self.pump.resume(hello)
