"""Pump between a tunnel server and a store of uploads: uploads are stored, then acknowledged."""

import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from walle.base.clock import Clock, SystemClock
from walle.pipeline.ingest.store.receipt import Accepted, StreamKey
from walle.pipeline.ingest.store.topic_check import DeviceTopic, TopicCheck
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore
from walle.pipeline.tunnel.received import Received

_LOG = logging.getLogger(__name__)
_MOVED_RETRY_S = 2.0  # retry of a device whose other connection is the current one
_REFUSED_RETRY_S = 60.0  # retry of a device whose uploads the database refuses: an operator has to look
_QUOTA_RETRY_S = 60.0  # retry of a device over its quota


@dataclasses.dataclass(kw_only=True)
class PumpStatus:
    """The state of a pump. `error` is the reason why uploads are not stored now, empty while they are."""

    is_running: bool = False
    error: str = ""
    failures: int = 0  # failures since the latest stored batch
    total_failures: int = 0
    stored: int = 0  # new uploads
    commits: int = 0  # batches, each in one transaction
    refused: int = 0  # uploads of tasks that are not their devices', which are acknowledged and not stored

    @property
    def is_storing(self) -> bool:
        return self.is_running and not self.error

    def failed(self, error: BaseException) -> None:
        self.error = str(error) or type(error).__name__
        self.failures += 1
        self.total_failures += 1

    def succeeded(self, uploads: int) -> None:
        self.error = ""
        self.failures = 0
        self.stored += uploads
        self.commits += 1


class UploadSource(Protocol):
    """The interface of a tunnel server that `pump` uses."""

    async def arrived(self, limit: int) -> list[Received]: ...
    def put_back(self, batch: list[Received]) -> None: ...
    def acknowledge_all(self, highest: Mapping[StreamKey, int]) -> None: ...
    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None: ...


async def pump(
    server: UploadSource,
    store: UploadStore,
    *,
    consumer: Callable[[list[Received]], Awaitable[None]] | None = None,
    batch_limit: int = 1000,
    topics: TopicCheck | None = None,
    retry_s: float = 1.0,
    clock: Clock | None = None,
    status: PumpStatus | None = None,
) -> None:
    """Store what arrives, acknowledge it, then pass new uploads to `consumer`; return when the server is closed.

    Everything that arrives during one commit goes into the next, up to `batch_limit`. While the disk is full nothing is
    acknowledged, the server's queue fills, devices wait, and the batch is retried every `retry_s`. Uploads that the
    database refuses for their contents are set aside (`UploadStore.set_aside`); a device with too many of them is
    disconnected, and keeps its uploads. A consumer gets an
    upload once, and not again after a crash: `UploadStore.consume` has no gap. An exception of the consumer is
    logged; a slow consumer slows the devices down. On cancellation or failure, what was not stored is put back.
    `status` is kept true. Uploads that `topics` finds to be of other tasks than their device's are acknowledged, and
    recorded as losses.

    Raises:
        IngestError: the file cannot be used, and a retry would fail too.
    """
    clock = clock or SystemClock()
    pumping = _Pump(server, store, consumer, topics, retry_s, clock, status or PumpStatus())
    while batch := await server.arrived(batch_limit):
        try:
            await pumping.take(batch)
        except BaseException:
            server.put_back(batch)  # what is stored of it is a duplicate then
            raise


class _Pump:
    """The way of one batch after the other into the store. A batch that is refused for its contents is halved.

    Uploads that the store refuses each by itself are set aside, so that they delay no others.
    """

    def __init__(
        self,
        server: UploadSource,
        store: UploadStore,
        consumer: Callable[[list[Received]], Awaitable[None]] | None,
        topics: TopicCheck | None,
        retry_s: float,
        clock: Clock,
        status: PumpStatus,
    ) -> None:
        self._server = server
        self._store = store
        self._consumer = consumer
        self._topics = topics
        self._retry_s = retry_s
        self._clock = clock
        self._status = status

    async def take(self, batch: list[Received]) -> None:
        """Store a batch and acknowledge it; raise IngestError if the store cannot be used."""
        foreign = frozenset[DeviceTopic]() if self._topics is None else await self._topics.foreign(batch)
        parts, blocked = [batch], set[StreamKey]()
        while parts:
            part = parts.pop()
            if blocked:
                part = [received for received in part if received[:2] not in blocked]
            if not part:
                continue
            arguments = (part, foreign) if foreign else (part,)
            try:
                accepted = await self._retried(functools.partial(self._store.accept, *arguments))
            except IngestError as error:
                if not error.of_contents:
                    raise
                if len(part) > 1:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                    continue
                if not await self._set_aside(part[0], error):
                    blocked.add(part[0][:2])
            else:
                await self._finish(part, accepted)

    async def _set_aside(self, received: Received, error: IngestError) -> bool:
        """Set an upload aside, if it is new, and acknowledge it.

        If there is no room, disconnect its device and return False.
        """
        accepted = await self._retried(functools.partial(self._store.set_aside, received, error.what))
        if accepted is None:
            _LOG.error("%s; the quarantine has no room, device %r is refused", error, received.device_id)
            what = f"the cloud's database refuses upload {received.seq}, and earlier ones; its log says why"
            await self._server.disconnect(received.device_id, received.epoch, "refused", what, _REFUSED_RETRY_S)
            return False
        if accepted.is_set_aside:  # else it is a duplicate, follows a missing one, or is another process's
            _LOG.error("%s; upload %d of device %r is set aside", error, received.seq, received.device_id)
        await self._finish([received], accepted)
        return True

    async def _finish(self, part: list[Received], accepted: Accepted) -> None:
        """Acknowledge what is durable, and pass new uploads on."""
        server = self._server
        self._status.succeeded(len(accepted.fresh))
        self._status.refused += accepted.refused
        server.acknowledge_all(accepted.highest)
        sent = {received[:2]: received.seq for received in part}
        for (device_id, epoch), highest in accepted.highest.items():
            if highest < sent[device_id, epoch]:  # a batch was lost between the server and the file
                what = f"uploads after {highest} were lost here before they were stored; send them again"
                await server.disconnect(device_id, epoch, "lost", what, 0.0)
        for (device_id, epoch), reason in accepted.over_quota:
            await server.disconnect(device_id, epoch, "quota", reason, _QUOTA_RETRY_S)
        for device_id, epoch in accepted.foreign:
            what = "this device has connected to another process of the cloud"
            await server.disconnect(device_id, epoch, "moved", what, _MOVED_RETRY_S)
        if self._consumer is not None and accepted.fresh:
            try:
                await self._consumer(accepted.fresh)
            except Exception:  # noqa: BLE001 - a failing consumer does not stop the storing
                _LOG.exception("the consumer of uploads failed at %d of them", len(accepted.fresh))

    async def _retried[T](self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the store's answer, once it is not full or busy any more."""
        tries = 0
        while True:
            try:
                answer = await call()
            except IngestError as error:
                if not error.may_pass:
                    raise
                if tries == 0:
                    _LOG.error("%s; nothing is acknowledged, trying again every %s s", error, self._retry_s)
                tries += 1
                self._status.failed(error)
                await self._clock.sleep(self._retry_s)
            else:
                if tries:
                    _LOG.warning("received uploads are stored again after %d tries", tries)
                return answer
