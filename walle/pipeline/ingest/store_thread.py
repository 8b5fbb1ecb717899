"""Thread of a store: it runs the store's calls one after the other, and their results return to the event loop.

A hop costs two wake-ups and little else, which `loop.run_in_executor` doubles: a lone upload is stored in a fraction of
a millisecond, and every batch waits for its hop.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger(__name__)

type _Call = (
    tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]] | tuple[Callable[[], object], None, None]
)


class StoreThread:
    """A thread that runs calls in order. It starts with the first one, and `close` ends it after the last."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run[T](self, work: Callable[[], T]) -> T:
        """Return the result of `work` in the thread. A cancelled call may still run."""
        if self._thread is None:
            # A daemon, because a program that ends without `close` must end. What is not committed is not acknowledged.
            self._thread = threading.Thread(target=_run, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((work, loop, future))
        return await future

    def post(self, work: Callable[[], object]) -> None:
        """Run `work` after the calls that wait, and log its error; do nothing if no call has started the thread."""
        if self._thread is not None:
            self._calls.put((work, None, None))

    def close(self) -> None:
        """End the thread after the calls that are under way, without waiting. A later call starts a new one."""
        if self._thread is not None:
            self._thread = None
            self._calls.put(None)
            self._calls = queue.SimpleQueue()

    def __del__(self) -> None:
        self.close()


def _run(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        work, loop, future = call
        result, error = None, None
        if loop is None or future is None:
            try:
                work()
            except Exception:  # noqa: BLE001 - the thread must not end, or later calls would wait without an end
                _LOG.exception("thread %s: a posted call failed", threading.current_thread().name)
        else:
            if not future.cancelled():
                try:
                    result = work()
                except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                    error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_finish, future, result, error)
        del call, work, future, result, error  # nothing of a call is kept until the next one


def _finish(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # it was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
