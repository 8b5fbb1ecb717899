"""Time that all figures of a report share."""

import time
from collections.abc import Callable, Sequence

from walle.cli.figure_catalogue import Figure

_START_S = 3.0  # of each figure, beside `quick_s`: Python and imports, on a busy machine


class Budget:
    """Seconds that the figures of one report share, from now on. What one leaves over is the others'."""

    def __init__(self, all_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.all_s = all_s
        self._clock_s = clock_s
        self._ends_s = clock_s() + all_s

    def share_s(self, figure: Figure, later: Sequence[Figure]) -> float:
        """Return the seconds that a figure may take, so that those `later` keep their shares; 0 if none are left.

        Shares are in proportion to `quick_s`: on a machine that is half as fast, each takes twice its seconds.
        """
        left_s = max(0.0, self._ends_s - self._clock_s())
        own = figure.quick_s + _START_S
        return left_s * own / (own + sum(one.quick_s + _START_S for one in later))
