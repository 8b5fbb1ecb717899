"""Token bucket of CPU time: the share of a core that the models of one stream may take, by the stream's own time."""

_BURST_S = 4.0  # stream time whose budget may be saved, and spent in advance
_WEIGHT = 0.1  # weight of the latest cost in the moving mean


class CpuBudget:
    """The budget of one stream: `share` CPU seconds for each second of stream, saved for up to four seconds.

    Times are those of the stream, so that a file that is played faster than its pace has the same budget for the same
    seconds. A frame is paid for in two steps: `reserve` takes the mean cost of earlier frames, `settle` puts its true
    cost in place of that. What is not of a frame, such as sound, is taken with `spend`.

    What is spent in advance is carried over down to four seconds' budget below zero, and no further.
    """

    def __init__(self, share: float) -> None:
        self.capacity_s = share * _BURST_S
        self.saved_s = self.capacity_s
        self.frame_cost_s = 0.0  # moving mean; nothing is known before the first frame
        self._share = share
        self._filled_ms: int | None = None

    def advance(self, pts_ms: int) -> None:
        """Add the budget of the time since the last call, as the stream reaches `pts_ms`."""
        if self._filled_ms is not None:
            passed_s = max(0, pts_ms - self._filled_ms) / 1000
            self.saved_s = min(self.saved_s + self._share * passed_s, self.capacity_s)
        self._filled_ms = pts_ms if self._filled_ms is None else max(pts_ms, self._filled_ms)

    def can_advance_frame(self) -> bool:
        """Return whether a frame can be paid for in advance, and all of it will be carried over."""
        return self.saved_s - self.frame_cost_s >= -self.capacity_s

    def reserve(self) -> float:
        """Take the mean cost of a frame; return it, for `settle`."""
        self.spend(self.frame_cost_s)
        return self.frame_cost_s

    def settle(self, reserved_s: float, cost_s: float, *, is_whole: bool) -> None:
        """Put the cost of a frame in place of what was reserved for it; learn from it if it `is_whole`, each task's."""
        self.spend(cost_s - reserved_s)
        if is_whole:
            known = self.frame_cost_s > 0
            self.frame_cost_s += (cost_s - self.frame_cost_s) * (_WEIGHT if known else 1.0)

    def spend(self, cost_s: float) -> None:
        """Take CPU seconds, or give them back."""
        self.saved_s = min(max(self.saved_s - cost_s, -self.capacity_s), self.capacity_s)
