"""Round trip of a connection: the least delay of its answers in the last minute or two (§5.2)."""

_BASE_S = 60.0  # the least delay of that time is the link's own; routes change


class RoundTrip:
    """The least of the delays that `note` was given. `least_s` is None before the first.

    A delay includes the time that the cloud takes and what waits in buffers, so that the least one is nearest to the
    round trip of the link. It is kept for 60 to 120 seconds.
    """

    def __init__(self) -> None:
        self.least_s: float | None = None
        self._since_s = 0.0
        self._next: tuple[float, float] | None = None  # (time, delay)

    def note(self, delay_s: float, now_s: float) -> float:
        """Take a delay into account, and return the least one."""
        if self.least_s is None or delay_s <= self.least_s:
            self.least_s, self._since_s = delay_s, now_s
            self._next = (now_s, delay_s)
        elif self._next is None or delay_s <= self._next[1]:
            self._next = (now_s, delay_s)  # set before the least is too old, since this delay is one
        if now_s - self._since_s > _BASE_S:
            (self._since_s, self.least_s), self._next = self._next, None
        return self.least_s
