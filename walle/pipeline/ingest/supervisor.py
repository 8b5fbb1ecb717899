"""Supervision of the pump: it is restarted after a failure, the store opened again, and its state is known.

A pump ends where the store cannot be used, and devices then get no acknowledgement. The supervisor reopens it with
exponential backoff until that works, which it does after an operator has mended or restored the file. Nothing is lost
meanwhile: what was not stored is back in the server's queue, and the devices keep what was not acknowledged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from walle.base.clock import Clock, SystemClock
from walle.pipeline.ingest.pump import PumpStatus, UploadSource, pump
from walle.pipeline.ingest.store.topic_check import TopicCheck
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.protocol import Hello

_LOG = logging.getLogger(__name__)

_LOOKUP_S = 60.0


class PumpSupervisor:
    """A pump that `run` keeps alive. `.status` says whether uploads are stored, and if not, why.

    Args:
        backoff_s, backoff_max_s: the delay before a restart; it doubles with each failure since the last stored batch.
    """

    def __init__(
        self,
        server: UploadSource,
        store: UploadStore,
        *,
        consumer: Callable[[list[Received]], Awaitable[None]] | None = None,
        topics: TopicCheck | None = None,
        retry_s: float = 1.0,
        backoff_s: float = 0.5,
        backoff_max_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self.status = PumpStatus()
        self._server = server
        self._store = store
        self._consumer = consumer
        self._topics = topics
        self._retry_s = retry_s
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._clock = clock or SystemClock()
        self._broken = asyncio.Event()  # a lookup found the file unusable
        self._lookup_error, self._lookup_s = "", 0.0  # error of the latest lookup that failed, and its time
        self._has_batch = False  # the pump failed at one, which is in the server's queue again

    @property
    def error(self) -> str:
        """The reason why uploads are not stored, or devices are refused before they send any; empty while all works.

        A failed lookup of a device counts until one succeeds, and for a minute at most: devices that were refused try
        again sooner.
        """
        if self.status.error:
            return self.status.error
        return self._lookup_error if self._clock.monotonic() - self._lookup_s < _LOOKUP_S else ""

    async def run(self) -> None:
        """Store what arrives; return when the server is closed and its queue is empty."""
        self.status.is_running = True
        try:
            while not await self._pump():
                await self._reopen()
        finally:
            self.status.is_running = False

    async def resume(self, hello: Hello) -> ResumePoint:
        """Return what `UploadStore.resume` does. A file that cannot be used is opened again, though no upload arrives.

        Raises:
            ProtocolError: the Hello holds values that no device sends.
            IngestError: the file cannot be used now.
        """
        try:
            point = await self._store.resume(hello)
        except IngestError as error:
            self._lookup_error, self._lookup_s = str(error), self._clock.monotonic()
            if not error.may_pass:
                self.status.failed(error)
                self._broken.set()
            raise
        self._lookup_error = ""
        return point

    async def _pump(self) -> bool:
        """Return True when the server is closed, False after a failure."""
        self._broken.clear()
        work = pump(
            self._server,
            self._store,
            consumer=self._consumer,
            topics=self._topics,
            retry_s=self._retry_s,
            clock=self._clock,
            status=self.status,
        )
        pumping = asyncio.create_task(work)
        broken = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait((pumping, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pumping.cancel()
            broken.cancel()
            await asyncio.gather(pumping, broken, return_exceptions=True)
        self._has_batch = not pumping.cancelled()
        if pumping.cancelled():
            return False
        error = pumping.exception()
        if error is None:
            return True
        self.status.failed(error)
        return False

    async def _reopen(self) -> None:
        """Return once the file is open again."""
        while True:
            delay_s = min(self._backoff_max_s, self._backoff_s * 2.0 ** min(self.status.failures - 1, 30))
            _LOG.critical("uploads are not stored: %s; opening the file again in %.1f s", self.status.error, delay_s)
            await self._clock.sleep(delay_s)
            try:
                await self._store.reopen()
            except Exception as error:  # noqa: BLE001 - else the pump would end, and nothing would be stored any more
                self.status.failed(error)
            else:
                if not self._has_batch:  # else the next stored one ends the failure
                    self.status.error = self._lookup_error = ""
                return
