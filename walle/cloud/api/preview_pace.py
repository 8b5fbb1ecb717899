"""Pace of previews: one runs at a time, and each caller has an allowance of CPU time.

A preview evaluates somebody's rules for each known device, in the process that answers devices. Its own time is bounded
(`device_registry.ReachBudget`); this bounds how often.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from walle.base.clock import Clock
from walle.errors import DeployError

ALLOWANCE_S = 10.0  # CPU time that a caller may use at once
REFILL = 0.2  # seconds of it that come back in a second
MAX_WAITING = 8  # callers, beside the one whose preview runs
_MAX_CALLERS = 1_000  # callers with an allowance that is not whole; above, those with most of it left are forgotten
_BUSY_RETRY_S = 5
_COMPILE_S = 0.1  # time for the longest rule, about


class PreviewBusyError(DeployError):
    """A preview that is not made now: try again in `retry_after_s`."""

    status = 429

    def __init__(self, why: str, retry_after_s: int) -> None:
        super().__init__(why, retry_after_s)
        self.why = why
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.why}; try again in {self.retry_after_s} s"


class PreviewTurn:
    """One preview under way: `used_s` is the CPU time that it took, which its caller is charged.

    A rule is charged in advance, since compiling it takes time where it is refused too.
    """

    def __init__(self, rule: str) -> None:
        self.used_s = _COMPILE_S if rule else 0.0


class PreviewPace:
    """The previews of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running = asyncio.Lock()
        self._callers: set[str] = set()  # callers with a preview that runs or waits
        self._used: dict[str, tuple[float, float]] = {}  # CPU seconds used, as of a time

    @contextlib.asynccontextmanager
    async def turn(self, caller: str, rule: str) -> AsyncIterator[PreviewTurn]:
        """Wait until no other preview runs, and charge the caller at the end.

        Raises:
            PreviewBusyError: the caller has a preview under way or has used its allowance, or too many callers wait.
        """
        if caller in self._callers:
            raise PreviewBusyError("a preview of this token is under way", _BUSY_RETRY_S)
        if len(self._callers) > MAX_WAITING:
            raise PreviewBusyError(f"{MAX_WAITING} previews wait", _BUSY_RETRY_S)
        if (over_s := self._used_s(caller) - ALLOWANCE_S) >= 0:
            retry_s = max(1, math.ceil((over_s + ALLOWANCE_S / 2) / REFILL))
            raise PreviewBusyError(f"previews of this token have used {ALLOWANCE_S:g} s of CPU time", retry_s)
        turn = PreviewTurn(rule)
        self._callers.add(caller)
        try:
            async with self._running:
                yield turn
        finally:
            self._callers.discard(caller)
            self._charge(caller, turn.used_s)

    def _used_s(self, caller: str) -> float:
        used_s, at_s = self._used.get(caller, (0.0, 0.0))
        return max(0.0, used_s - REFILL * (self._clock.monotonic() - at_s))

    def _charge(self, caller: str, used_s: float) -> None:
        self._used[caller] = self._used_s(caller) + used_s, self._clock.monotonic()
        if len(self._used) > _MAX_CALLERS:
            left = {one: self._used_s(one) for one in self._used}
            for one in sorted(left, key=left.__getitem__)[: _MAX_CALLERS // 2]:
                del self._used[one]
