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


async def to_the_end[T](work: Awaitable[T]) -> T:
    """Run `work` to its end and return its result; cancellations of the caller, however many, are raised after that."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        if not task.cancelled():
            task.exception()  # retrieved and discarded: the cancellation is raised instead
        raise interrupted
    return task.result()
