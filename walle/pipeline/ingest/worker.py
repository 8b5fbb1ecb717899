"""One of several tunnel processes on one port: `python -m walle.pipeline.ingest.worker`, started by `TunnelProcesses`.

It gets its settings over stdin, passes requests of devices to the main process, and reports its state twice a second.
It stops when it is told to, at SIGTERM, and when the main process has ended; what has arrived is stored first.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import signal
import ssl
import sys
import time
from collections.abc import Mapping, Sequence

from walle.base import plain
from walle.errors import WalleError
from walle.pipeline.ingest.channel import Channel
from walle.pipeline.ingest.service import DrainTarget, TunnelService
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.topic_check import DeviceTask
from walle.pipeline.ingest.stored_notes import StoredNotes
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.server.deadline import request_due_s
from walle.pipeline.tunnel.server.handlers import RequestBusyError, RequestExpiredError, RequestRefusedError
from walle.trust.tls import server_tls

_REPORT_S = 0.5


class RequestFailedError(WalleError):
    """A request of a device that the main process could not answer; the message is for the device."""


_ERRORS: Mapping[str, type[Exception]] = {  # by the kind that `processes.failure_kind` sends; others: RuntimeError
    "busy": RequestBusyError,
    "expired": RequestExpiredError,
    "refused": RequestRefusedError,
    "failed": RequestFailedError,
}


class Worker:
    """The process, between its first message and its last one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ids = itertools.count()
        self._answers: dict[int, asyncio.Future[bytes | None]] = {}
        self._stopping = asyncio.Event()
        self._notes = StoredNotes(0.0)

    async def run(self) -> None:
        start = await self._channel.receive()
        if start is None:
            return
        _, host, port, uploads, server_pem, ca_pem, (version, lowest), (quota_bytes, quota_topics), ratio, *drain_to = (
            start
        )
        self._notes = StoredNotes(float(ratio))
        quota = DeviceQuota(size_bytes=quota_bytes, topics=quota_topics)
        try:
            context = server_tls(server_pem, ca_pem)
            async with contextlib.AsyncExitStack() as undo:
                store = await undo.enter_async_context(open_uploads(uploads, create=True, device_quota=quota))
                service = TunnelService(
                    store,
                    ssl_context=context,
                    on_request=self._request,
                    dictionaries=self._dictionary,
                    host=host,
                    port=port,
                    reuse_port=True,
                    on_stored=self._notes.add,
                    foreign_tasks=self._foreign_tasks,
                    drain_to=DrainTarget(*drain_to),
                )
                await service.revoke(version, lowest)
                await undo.enter_async_context(service)
                reporting = asyncio.create_task(self._report(service))
                undo.callback(reporting.cancel)
                await self._channel.send("ready")
                listening = asyncio.create_task(self._listen(service, context, server_pem))
                undo.callback(listening.cancel)
                await self._stopping.wait()
                await self._drain(service, listening)
                if listening.done():
                    listening.result()
        except (WalleError, OSError) as error:
            await self._channel.send("failed", str(error))

    @staticmethod
    async def _drain(service: TunnelService, listening: asyncio.Task[None]) -> None:
        """Send the devices away while the main process answers their requests: over time, at once when it has ended."""
        draining = asyncio.create_task(service.drain())
        try:
            await asyncio.wait([draining, listening], return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        if draining.cancelled():
            await service.server.close()
        else:
            draining.result()

    def stop(self) -> None:
        """End `run`, once it has begun: the devices are sent away first."""
        self._stopping.set()

    async def _listen(self, service: TunnelService, context: ssl.SSLContext, server_pem: str) -> None:
        """Process the main process's messages until it has ended."""
        try:
            await self._process_messages(service, context, server_pem)
        finally:
            self._stopping.set()

    async def _process_messages(self, service: TunnelService, context: ssl.SSLContext, server_pem: str) -> None:
        while message := await self._channel.receive():
            match message:
                case ["answer", int(number), payload, error, kind]:
                    answer = self._answers.pop(number, None)
                    if answer is None or answer.done():
                        continue
                    if error is None:
                        answer.set_result(payload)
                    else:
                        answer.set_exception(_ERRORS.get(kind, RuntimeError)(error))
                case ["renewed"]:
                    context.load_cert_chain(server_pem)
                case ["revoked", int(version), dict(lowest)]:
                    await service.revoke(version, lowest)
                case ["connection", int(number), str(device_id)]:
                    await self._channel.send("connection", number, service.server.open_since_s(device_id))
                case ["stop"]:
                    self._stopping.set()

    async def _request(self, device_id: str, topic: str, payload: bytes) -> bytes:
        due_s = request_due_s()
        left_s = None if due_s is None else due_s - time.monotonic()
        answer = await self._ask(device_id, topic, payload, left_s)
        assert answer is not None
        return answer

    async def _dictionary(self, digest: str) -> bytes | None:
        return await self._ask(digest)

    async def _foreign_tasks(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        answer = await self._ask("foreign", plain.encode(list(pairs)))
        return frozenset((str(device_id), str(task)) for device_id, task in plain.decode(answer or b""))

    async def _ask(self, *question: str | bytes | float | None) -> bytes | None:
        """Return the main process's answer."""
        number = next(self._ids)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self._channel.send("request", number, *question)
            return await answer
        except asyncio.CancelledError:
            await self._channel.send("cancel", number)
            raise
        finally:
            self._answers.pop(number, None)

    async def _report(self, service: TunnelService) -> None:
        while True:
            delays_ms, traced = self._notes.take()
            await self._channel.send("state", dataclasses.asdict(service.state()), delays_ms)
            if traced:
                await self._channel.send("traced", traced)
            await asyncio.sleep(_REPORT_S)


async def _main() -> None:
    worker = Worker(await Channel.of_stdio())
    # Service managers send it to the main process and to this one: devices are sent away all the same.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the main process ends this one in order
    if "uvloop" in sys.argv[1:]:  # the main process uses uvloop: so does this one
        import uvloop

        uvloop.run(_main())
    else:
        asyncio.run(_main())
