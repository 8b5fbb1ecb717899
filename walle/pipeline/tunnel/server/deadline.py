"""Deadline of the device's request that this code answers, for handlers in a tunnel server (§5.2)."""

import contextlib
import contextvars
from collections.abc import Iterator

_due_s: contextvars.ContextVar[float | None] = contextvars.ContextVar("request_due_s", default=None)


def request_due_s() -> float | None:
    """Return when the device stops waiting, by the monotonic clock; None without a deadline, and outside a handler.

    The value is that of the task that runs the handler, and of the tasks that it starts.
    """
    return _due_s.get()


@contextlib.contextmanager
def request_deadline(due_s: float | None) -> Iterator[None]:
    """Set what `request_due_s` returns within the block."""
    token = _due_s.set(due_s)
    try:
        yield
    finally:
        _due_s.reset(token)
