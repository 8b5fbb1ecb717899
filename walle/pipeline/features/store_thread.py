"""Thread of a store: it runs the store's calls one after the other, and their results return to the event loop.

A hop costs two wake-ups and little else, which `loop.run_in_executor` doubles.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger(__name__)

type _Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class _Calls:
    """The calls that wait. `unfinished` counts those and the one that runs; only the event loop's thread changes it."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.unfinished = 0


class StoreThread:
    """A thread that runs calls in order. It starts with the first one, and `close` ends it after the last.

    All calls are of one event loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = _Calls()
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """True while no call waits or runs, so that the event loop may use what the calls use."""
        return self._calls.unfinished == 0

    async def run[T](self, work: Callable[[], T]) -> T:
        """Return the result of `work` in the thread. A cancelled call may still run."""
        return await self.submit(work)

    def post(self, work: Callable[[], object]) -> None:
        """Run `work` after the calls that wait, and log its error; do nothing if no call has started the thread."""
        if self._thread is not None:
            self.submit(work).add_done_callback(self._log_error)

    def close(self) -> None:
        """End the thread after the calls that are under way, without waiting. A later call starts a new one."""
        if self._thread is not None:
            self._thread = None
            self._calls.waiting.put(None)
            self._calls = _Calls()

    def __del__(self) -> None:
        self.close()

    def submit[T](self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future of the result of `work` in the thread. `work` of a cancelled future may still run."""
        if self._thread is None:
            # A daemon, because a program that ends without `close` must end. What is not committed is not acknowledged.
            self._thread = threading.Thread(target=_run, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.unfinished += 1
        self._calls.waiting.put((work, loop, future))
        return future

    def _log_error(self, posted: asyncio.Future[object]) -> None:
        if not posted.cancelled() and (error := posted.exception()) is not None:
            _LOG.error("thread %s: a posted call failed", self._name, exc_info=error)


def _run(calls: _Calls) -> None:
    while (call := calls.waiting.get()) is not None:
        work, loop, future = call
        result, error = None, None
        if not future.cancelled():
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                error = raised
        try:
            loop.call_soon_threadsafe(_finish, calls, future, result, error)
        except RuntimeError:  # the loop is closed, and nobody waits
            calls.unfinished -= 1
        del call, work, future, result, error  # nothing of a call is kept until the next one


def _finish(calls: _Calls, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    calls.unfinished -= 1
    if future.done():
        return  # the caller cancelled the call
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
