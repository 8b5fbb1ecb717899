"""Threads for calls to a store that block, apart from those that all other blocking calls of a process share.

A database that does not answer holds each call for as long as the store waits for it. In the event loop's own few
threads such calls would hold up git, files and whatever else runs there.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
from collections.abc import Callable

_THREADS = 4  # more than a store has connections to its database


class StoreThreads:
    """A few threads, which `name` names, made at the first calls. One thread takes calls in their order."""

    def __init__(self, name: str, threads: int = _THREADS) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run[**P, T](self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return what `call` returns on one of the threads; as `asyncio.to_thread`."""
        work = functools.partial(contextvars.copy_context().run, call, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
