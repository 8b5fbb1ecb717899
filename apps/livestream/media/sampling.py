"""Sampling of frames by presentation time: the nearest frame to each 1/n second."""

from fractions import Fraction

SECOND = 1_000_000_000  # nanoseconds


class FrameSampler[T]:
    """Choice of at most one frame for each multiple of 1/n second: the nearest, of two equally near the earlier one.

    It depends on the presentation times alone, so that a file and a stream of it give the same frames at any frame
    rate, a variable one included. A source slower than n gives each of its frames once. A frame is chosen as soon as
    no later one can be nearer.
    """

    def __init__(self, frames_per_second: Fraction | None) -> None:
        self._rate = frames_per_second
        self._pending: tuple[int, int, T] | None = None  # tick, time, frame: the nearest to its tick so far
        self._decided = -1 << 62  # ticks up to this one have their frame
        self.rejected = 0

    @property
    def pending(self) -> int:
        """The number of frames that wait for a decision, 0 or 1."""
        return int(self._pending is not None)

    def add(self, time_ns: int, frame: T) -> list[tuple[int, T]]:
        """Return the frames that are now chosen, with their times; times must increase."""
        if self._rate is None:
            return [(time_ns, frame)]
        chosen = []
        tick = self._tick(time_ns)
        if self._pending is not None and (self._pending[0] != tick):
            chosen += self.flush()
        if tick <= self._decided:
            self.rejected += 1
            return chosen
        if self._pending is not None:
            if abs(self._offset(tick, time_ns)) < abs(self._offset(tick, self._pending[1])):
                self._pending = (tick, time_ns, frame)
            self.rejected += 1
        else:
            self._pending = (tick, time_ns, frame)
        if self._offset(tick, time_ns) >= 0:  # later frames are farther from the tick
            chosen += self.flush()
        return chosen

    def flush(self) -> list[tuple[int, T]]:
        """Return the frame that waits for a decision, if there is one."""
        if self._pending is None:
            return []
        tick, time_ns, frame = self._pending
        self._decided = tick
        self._pending = None
        return [(time_ns, frame)]

    def _tick(self, time_ns: int) -> int:
        assert self._rate is not None
        unit = 2 * SECOND * self._rate.denominator
        return (2 * time_ns * self._rate.numerator + unit // 2) // unit

    def _offset(self, tick: int, time_ns: int) -> int:
        """Return the time after the tick, in units of 1/(SECOND * rate)."""
        assert self._rate is not None
        return time_ns * self._rate.numerator - tick * SECOND * self._rate.denominator
