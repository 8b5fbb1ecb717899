"""Handlers of the devices' requests in a tunnel server (§5.2): how many run, in which order, and until when."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from walle.base.clock import Clock
from walle.errors import PipelineError
from walle.pipeline.tunnel.server.deadline import request_deadline
from walle.pipeline.tunnel.slots import PrioritySlots

_LOG = logging.getLogger(__name__)


class RequestExpiredError(PipelineError):
    """The deadline of a request passed before its handler ended."""


class RequestBusyError(PipelineError):
    """The cloud has no room for a request now. A handler raises it, or a subclass."""


class RequestRefusedError(PipelineError):
    """A request that this device may not send, or that cannot be read. One that sends many is read more slowly."""


class Handlers:
    """A pool of at most `limit` running handlers, of which one device gets a quarter.

    Requests that wait start by priority, then in order of arrival. A handler that runs on after its cancellation keeps
    its slot until it ends, and nobody waits for it.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._slots = PrioritySlots(limit)
        self._device_limit = max(1, limit // 4)
        self._device_slots: dict[str, _DeviceSlots] = {}
        self._clock = clock
        self._tasks: set[asyncio.Task[bytes]] = set()

    def start(
        self,
        handler: Callable[[], Awaitable[bytes]],
        *,
        device_id: str,
        priority: int = 0,
        left_s: float | None = None,
    ) -> asyncio.Task[bytes]:
        """Run a handler once there is a slot for it. The caller waits by `result`, or calls `abandon`.

        The handler learns its deadline by `request_due_s`; None for no deadline.
        """
        with request_deadline(None if left_s is None else self._clock.monotonic() + left_s):
            work = asyncio.create_task(self._in_slot(handler, device_id, priority))
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)
        return work

    async def result(self, work: asyncio.Task[bytes], left_s: float | None = None) -> bytes:
        """Return a handler's answer.

        At the deadline and when this call is cancelled the handler is abandoned, and this call ends at once: the answer
        of a handler that ignores its cancellation is dropped.

        Raises:
            RequestExpiredError: `left_s` passed; None for no deadline.
        """
        expiring = None if left_s is None else asyncio.create_task(self._clock.sleep(left_s))
        try:
            await asyncio.wait([work] if expiring is None else [work, expiring], return_when=asyncio.FIRST_COMPLETED)
            if work.cancelled():
                raise RuntimeError("the request handler has cancelled itself")
            if work.done():
                return work.result()
            raise RequestExpiredError("the deadline passed before the answer was ready")
        finally:
            if expiring is not None:
                expiring.cancel()
            self.abandon(work)

    @staticmethod
    def abandon(work: asyncio.Task[bytes]) -> None:
        """Cancel a handler that has not ended. One that has not started will not start."""
        if work.done():
            if not work.cancelled():
                work.exception()  # nobody waits for it any more, where the device has left at that moment
        elif not work.cancelling():
            work.cancel()
            work.add_done_callback(_report)

    async def close(self, wait_s: float) -> None:
        """Cancel the handlers, and wait at most `wait_s` for those that continue."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        _, pending = await asyncio.wait(self._tasks, timeout=wait_s)
        if pending:
            _LOG.error("tunnel: %d request handlers still run after their cancellation", len(pending))

    async def _in_slot(self, handler: Callable[[], Awaitable[bytes]], device_id: str, priority: int) -> bytes:
        async with self._device_slot(device_id, priority), self._slots.slot(priority):
            return await handler()

    @contextlib.asynccontextmanager
    async def _device_slot(self, device_id: str, priority: int) -> AsyncIterator[None]:
        own = self._device_slots.get(device_id)
        if own is None:
            own = self._device_slots[device_id] = _DeviceSlots(self._device_limit)
        own.users += 1
        try:
            async with own.slot(priority):
                yield
        finally:
            own.users -= 1
            if own.users == 0:
                del self._device_slots[device_id]


class _DeviceSlots(PrioritySlots):
    """The slots of one device, and how many requests hold one or wait for one."""

    users = 0


def _report(task: asyncio.Task[bytes]) -> None:
    """Log the error of a handler whose answer nobody waits for."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.warning("tunnel: a request handler failed after its cancellation: %r", error)
