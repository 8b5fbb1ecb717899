"""Request to stop a decoding thread, from any other thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class StopSignal:
    """A flag that is set once. Whoever blocks meanwhile registers how it is woken."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    def set(self) -> None:
        """Set the flag and wake those who block."""
        self._event.set()
        with self._lock:
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Block for that time, or until the flag is set; return whether it is."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` when the flag is set within the block; at once if it is set already."""
        with self._lock:
            self._wakers.append(wake)
        if self.is_set():
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)
