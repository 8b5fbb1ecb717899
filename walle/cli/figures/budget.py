"""Time that all figures of a report share."""

import time
from collections.abc import Callable, Sequence

from walle.cli.figures.catalogue import Figure

_START_S = 2.0  # time for each figure beside `quick_s`: Python and imports, on a busy machine


class Budget:
    """Seconds that the figures of one report share, from now on. What one leaves over is the others'."""

    def __init__(self, all_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.all_s = all_s
        self._clock_s = clock_s
        self._ends_s = clock_s() + all_s

    def share_s(self, figure: Figure, later: Sequence[Figure]) -> float:
        """Return the seconds that a figure may take, so that those `later` keep theirs; 0 if none are left.

        That is its `quick_s` and half of what no figure needs: a slow one may take it, and the next ones have a part.
        Where all need more than there is, each has its part of it.
        """
        left_s = max(0.0, self._ends_s - self._clock_s())
        own_s = figure.quick_s + _START_S
        all_s = own_s + sum(one.quick_s + _START_S for one in later)
        return own_s + (left_s - all_s) / 2 if later and left_s > all_s else left_s * own_s / all_s
