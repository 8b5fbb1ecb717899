"""Bytes of the disk that requests under way may have in files without a name, for each caller and in all.

A client that is slow keeps what was made for it on the disk. Who wants more than a caller or all may have waits until
others are done, and is refused after WAIT_S. One share of any size is always given to a caller that has none.
"""

import asyncio
import contextlib
from collections import Counter
from typing import Self

from walle.errors import DeployError

WAIT_S = 60.0


class SpoolFullError(DeployError):
    """A share that was not given. `own`: the caller's own other requests have the bytes."""

    def __init__(self, caller: str, used_bytes: int, most_bytes: int, *, own: bool) -> None:
        super().__init__(caller, used_bytes, most_bytes, own)
        self.caller = caller
        self.used_bytes = used_bytes
        self.most_bytes = most_bytes
        self.own = own

    def __str__(self) -> str:
        whose = f"other requests of {self.caller}" if self.own else "requests under way"
        return (
            f"{whose} have {self.used_bytes >> 20} MiB of the {self.most_bytes >> 20} MiB of disk that they may have"
            " until their clients have read the answers; end some, or try again"
        )


class SpoolBudget:
    """The bytes, of one event loop: `total_bytes` of all callers, `each_bytes` of one."""

    def __init__(self, total_bytes: int, each_bytes: int, *, wait_s: float = WAIT_S) -> None:
        self.total_bytes = total_bytes
        self.each_bytes = each_bytes
        self._wait_s = wait_s
        self._used = Counter[str]()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def used_bytes(self) -> int:
        """Bytes of all shares."""
        return self._used.total()

    def used_by(self, caller: str) -> int:
        """Return the bytes of a caller's shares."""
        return self._used[caller]

    async def take(self, caller: str, size_bytes: int) -> "SpoolShare":
        """Return a share of `size_bytes`; close it.

        Raises:
            SpoolFullError: there was no room within the time of waiting.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while not self._has_room(caller, size_bytes):
                    change = asyncio.get_running_loop().create_future()
                    self._waiting.append(change)
                    try:
                        await change
                    finally:
                        if change in self._waiting:
                            self._waiting.remove(change)
        if not self._has_room(caller, size_bytes):
            raise self._full(caller, size_bytes)
        self._used[caller] += size_bytes
        return SpoolShare(self, caller, size_bytes)

    def _has_room(self, caller: str, more_bytes: int) -> bool:
        own, used = self._used[caller], self.used_bytes
        return (not own or own + more_bytes <= self.each_bytes) and (not used or used + more_bytes <= self.total_bytes)

    def _full(self, caller: str, more_bytes: int) -> SpoolFullError:
        own = self._used[caller]
        if own and own + more_bytes > self.each_bytes:
            return SpoolFullError(caller, own, self.each_bytes, own=True)
        return SpoolFullError(caller, self.used_bytes, self.total_bytes, own=False)

    def _change(self, caller: str, more_bytes: int) -> None:
        self._used[caller] += more_bytes
        if not self._used[caller]:
            del self._used[caller]
        if more_bytes < 0:
            for change in self._waiting:
                if not change.done():
                    change.set_result(None)
            self._waiting.clear()


class SpoolShare:
    """A caller's share of a budget, until it is closed."""

    def __init__(self, budget: SpoolBudget, caller: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._budget = budget
        self._caller = caller

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(0)

    def grow(self, size_bytes: int) -> None:
        """Have at least `size_bytes`, at once. Raises SpoolFullError."""
        more_bytes = size_bytes - self.size_bytes
        if more_bytes <= 0:
            return
        used, own = self._budget.used_bytes, self._budget.used_by(self._caller)
        if own + more_bytes > self._budget.each_bytes or used + more_bytes > self._budget.total_bytes:
            raise self._budget._full(self._caller, more_bytes)
        self._budget._change(self._caller, more_bytes)
        self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Have at most `size_bytes`; others get the rest."""
        if size_bytes < self.size_bytes:
            self._budget._change(self._caller, size_bytes - self.size_bytes)
            self.size_bytes = size_bytes
