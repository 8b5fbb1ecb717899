"""Background work of a node: it is started again after a fault that it did not expect, and ends with its block."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from walle.base.clock import Clock

_LOG = logging.getLogger(__name__)

_RETRY_S = 5.0

type Works = Mapping[str, Callable[[], Awaitable[None]]]
"""Background works by their names."""


@contextlib.asynccontextmanager
async def in_background(name: str, work: Callable[[], Awaitable[None]], clock: Clock) -> AsyncIterator[None]:
    """Run `work` within the block. A fault is logged, and `work` is called again after 5 s."""

    async def run() -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - else the work ends unseen
                _LOG.exception("%s failed, and is started again in %s s", name, _RETRY_S)
                await clock.sleep(_RETRY_S)
            else:
                return

    running = asyncio.create_task(run(), name=name)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
