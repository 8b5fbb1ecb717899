"""Pump between a tunnel server and a store of uploads: uploads are stored, then acknowledged."""

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from walle.clock import Clock, SystemClock
from walle.pipeline.ingest.receipt import Accepted, StreamKey
from walle.pipeline.ingest.upload_store import IngestError, UploadStore
from walle.pipeline.tunnel.server import Received

_LOG = logging.getLogger(__name__)
_MOVED_RETRY_S = 2.0  # of a device whose other connection is the current one


@dataclasses.dataclass(kw_only=True)
class PumpStatus:
    """The state of a pump. `error` is the reason why uploads are not stored now, empty while they are."""

    is_running: bool = False
    error: str = ""
    failures: int = 0  # since the latest stored batch
    total_failures: int = 0
    stored: int = 0  # new uploads

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
    retry_s: float = 1.0,
    clock: Clock | None = None,
    status: PumpStatus | None = None,
) -> None:
    """Store what arrives, acknowledge it, then pass new uploads to `consumer`; return when the server is closed.

    Everything that arrives during one commit goes into the next, up to `batch_limit`. While the disk is full nothing is
    acknowledged, the server's queue fills, devices wait, and the batch is retried every `retry_s`. A consumer gets an
    upload once, and not again after a crash: `UploadStore.consume` has no gap. An exception of the consumer is
    logged; a slow consumer slows the devices down. On cancellation or failure, what was not stored is put back.
    `status` is kept true.

    Raises:
        IngestError: the file cannot be used, and a retry would fail too.
    """
    clock = clock or SystemClock()
    status = status or PumpStatus()
    while batch := await server.arrived(batch_limit):
        try:
            accepted = await _store(store, batch, retry_s, clock, status)
        except BaseException:
            server.put_back(batch)
            raise
        status.succeeded(len(accepted.fresh))
        server.acknowledge_all(accepted.highest)
        sent = {received[:2]: received.seq for received in batch}
        for (device_id, epoch), highest in accepted.highest.items():
            if highest < sent[device_id, epoch]:  # a batch was lost between the server and the file
                what = f"uploads after {highest} were lost here before they were stored; send them again"
                await server.disconnect(device_id, epoch, "lost", what, 0.0)
        for device_id, epoch in accepted.foreign:
            what = "this device has connected to another process of the cloud"
            await server.disconnect(device_id, epoch, "moved", what, _MOVED_RETRY_S)
        if consumer is not None and accepted.fresh:
            try:
                await consumer(accepted.fresh)
            except Exception:  # noqa: BLE001 - a failing consumer does not stop the storing
                _LOG.exception("the consumer of uploads failed at %d of them", len(accepted.fresh))


async def _store(
    store: UploadStore, batch: list[Received], retry_s: float, clock: Clock, status: PumpStatus
) -> Accepted:
    tries = 0
    while True:
        try:
            accepted = await store.accept(batch)
        except IngestError as error:
            if not error.may_pass:
                raise
            if tries == 0:
                _LOG.error("%s; nothing is acknowledged, trying again every %s s", error, retry_s)
            tries += 1
            status.failed(error)
            await clock.sleep(retry_s)
        else:
            if tries:
                _LOG.warning("received uploads are stored again after %d tries", tries)
            return accepted
