"""Networks that are made narrower everywhere alike: what adaptation is compared with, its training the same."""

from __future__ import annotations

from walle import nn
from walle.adapt.algorithms.ranking import Ranking
from walle.adapt.goals.goal import Goal

_HALVINGS = 20


class Even(Ranking):
    """The same part of each group's channels stays, the most important ones; goals go on from each other."""

    def iterate(self) -> int:
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            met = self._goal.is_met_by(self.formula.of(self._scaled(middle)))
            low, high = (middle, high) if met else (low, middle)
        self.widths = self._scaled(low)
        return 0

    def fitted(self, goal: Goal, steps: int) -> tuple[nn.Module, int]:
        self._most = list(self.widths)  # no channel more, where the budget has room
        return super().fitted(goal, steps)

    def _scaled(self, share: float) -> list[int]:
        return [
            min(most, max(1, round(group.count * share)))
            for group, most in zip(self._whole.groups, self.structure.widths, strict=True)
        ]
