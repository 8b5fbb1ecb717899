"""Questions to Ray's head, which may be away: each waits in a separate thread, and for a limited time.

A call of Ray that asks the head blocks while the head cannot be reached, for up to a minute and more. In the threads of
`asyncio.to_thread`, of which a process has few, such calls would keep everything else from its files.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import ray

from walle.errors import DeployError

ASK_S = 5.0
MAX_OPEN = 16  # calls of this process that wait at once


class HeadAwayError(DeployError):
    """Ray's head does not answer now, so that nothing is known. HTTP answers 503."""

    status = 503
    retry_after_s = 2

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"Ray's head does not answer: {self.why}; try again once it is back"


async def ask_head[**P, T](question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a call of Ray returns, or raise what it raises.

    Raises:
        HeadAwayError: the head does not answer within ASK_S, or MAX_OPEN calls wait for it already. The call itself
            runs until Ray ends it.
    """
    return await _within_limit(_answer(functools.partial(question, *args, **kwargs)))


class SharedQuestion[T]:
    """A call of Ray of which one is open at a time: whoever asks meanwhile gets its answer.

    Without it, all who asked while the head was away would be answered at once when it is back, one after the other.
    """

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._open: asyncio.Future[T] | None = None

    async def ask(self) -> T:
        """Return what the call returns. Raises as `ask_head`."""
        if self._open is None or self._open.done():
            self._open = _answer(self._question)
        return await _within_limit(self._open)


async def _within_limit[T](answer: asyncio.Future[T]) -> T:
    try:
        async with asyncio.timeout(ASK_S):
            return await asyncio.shield(answer)
    except TimeoutError:
        raise HeadAwayError(f"no answer within {ASK_S:.0f} s") from None


def _answer[T](question: Callable[[], T]) -> asyncio.Future[T]:
    """Return the answer that a thread gives. Raises HeadAwayError where too many wait."""
    if not _open.acquire(blocking=False):
        raise HeadAwayError(f"{MAX_OPEN} questions wait for it already")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    answer.add_done_callback(_look_at)

    def give(result: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def ask() -> None:
        result: Any = None
        failure: Exception | None = None
        try:
            result = question()
        except ray.exceptions.RayError as error:
            failure = HeadAwayError(str(error))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            failure = error
        finally:
            _open.release()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=ask, name="question to Ray's head", daemon=True).start()
    return answer


def _look_at(answer: asyncio.Future[Any]) -> None:
    """Look at the error of an answer for which nobody waits any more, so that asyncio does not report it."""
    if not answer.cancelled():
        answer.exception()


_open = threading.BoundedSemaphore(MAX_OPEN)
