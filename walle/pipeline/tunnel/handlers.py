"""Handlers of the devices' requests in a tunnel server (§5.2): how many run, in which order, and until when."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from walle.clock import Clock
from walle.errors import PipelineError
from walle.pipeline.tunnel.slots import PrioritySlots


class RequestExpiredError(PipelineError):
    """The deadline of a request passed before its handler ended."""


class Handlers:
    """A pool of at most `limit` running handlers. Requests that wait start by priority, then in order of arrival."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._slots = PrioritySlots(limit)
        self._clock = clock

    async def run(
        self, handler: Callable[[], Awaitable[bytes]], *, priority: int = 0, left_s: float | None = None
    ) -> bytes:
        """Return the handler's answer.

        A request that expires while it waits is not started; a handler that is running is cancelled.

        Raises:
            RequestExpiredError: `left_s` passed; None for no deadline.
        """
        if left_s is not None and left_s <= 0:
            raise RequestExpiredError("the request was too old when it was read")
        async with self._deadline(left_s), self._slots.slot(priority):
            return await handler()

    @contextlib.asynccontextmanager
    async def _deadline(self, left_s: float | None) -> AsyncIterator[None]:
        """Cancel the block after `left_s` by the clock, as asyncio.timeout does by the loop's."""
        task = asyncio.current_task()
        if left_s is None or task is None:
            yield
            return
        cancellations, expired = task.cancelling(), False

        async def expire() -> None:
            nonlocal expired
            await self._clock.sleep(left_s)
            expired = True
            task.cancel()

        expiring = asyncio.create_task(expire())
        try:
            yield
        except asyncio.CancelledError:
            if expired and task.uncancel() <= cancellations:
                raise RequestExpiredError("the deadline passed before the answer was ready") from None
            raise
        finally:
            expiring.cancel()
