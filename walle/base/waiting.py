"""Waits for asynchronous work: for the first of several to end, and for one to end though the caller is cancelled."""

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends; cancel and await the others; raise the error of the one that ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()


async def finished[T](work: Awaitable[T]) -> T:
    """Return the result of work that is not to be cut: where the caller is cancelled, it first runs to its end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieval, without which asyncio logs it
        raise
