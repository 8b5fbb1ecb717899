"""Slimmable networks (Yu et al. 2019): one training of all widths serves all goals (§4.2).

A goal's widths are found as AutoSlim does (Yu and Huang 2019): the group that loses the least for what it saves is cut
again and again. A path of goals is one way down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from walle import np
from walle.adapt.algorithms.ranking import Ranking
from walle.adapt.executor import Settings
from walle.adapt.masked.sandwich import SandwichTrainer
from walle.errors import ConfigError

_AT_ONCE = 10  # steps of an iteration of the shared training


class Slimmable(Ranking):
    """Options: `shared_steps`, of the training that all goals share; `narrowest`, the part of each group's channels
    that this training goes down to; `slice`, the part of a group that is cut at once.
    """

    options: ClassVar[Mapping[str, float]] = {"shared_steps": 100, "narrowest": 0.2, "slice": 0.25}
    tuning: ClassVar[float] = 2.0  # others also train on the way to a goal

    def init(self, settings: Settings) -> None:
        super().init(settings)
        for name in ("narrowest", "slice"):
            if self.option[name] >= 1:
                raise ConfigError(f"Slimmable's option {name} is {self.option[name]}; it is a part, below 1")
        self._is_shared = False  # the network at hand comes from the shared training
        self._shared: dict[str, Any] = {}  # state after the shared training
        self._sandwich: SandwichTrainer | None = None

    def preparation(self) -> int:
        if self._is_shared or self._shared:
            return int(not self._is_shared)
        left = int(self.option["shared_steps"]) if self._sandwich is None else self._sandwich.left
        return math.ceil(left / _AT_ONCE)

    def iterate(self) -> int:
        if not self._is_shared:
            return self._train_shared()
        self.widths = self._narrower()
        return 0

    def _train_shared(self) -> int:
        """Take steps of the shared training; the last one gives all paths of goals their network."""
        steps = 0
        if not self._shared:
            if self._sandwich is None:
                steps = max(1, int(self.option["shared_steps"]))
                self._sandwich = SandwichTrainer(self._whole_trainer(), self.ranked(), self.option["narrowest"], steps)
            steps = self._sandwich.train(_AT_ONCE)
            if not self._sandwich.left:
                self._shared, self._sandwich = self._sandwich.trainer.state(), None
        if self._shared:
            self.trainer.restore(self._shared)
            self._is_shared = True
        return steps

    def _narrower(self) -> list[int]:
        """Return the widths with one group cut: that whose cut loses the least quality for the costs that it saves."""
        whole, costs = self.formula.whole(), self.formula.of(self.widths)
        unmet = {name: weight for name, weight in self._weights.items() if costs[name] > self._goal.budgets[name]}
        own = self.quality.of(self.channels())
        found = []
        for at, width in enumerate(self.widths):
            if width > 1:
                cut = [
                    *self.widths[:at],
                    max(1, width - max(1, round(width * self.option["slice"]))),
                    *self.widths[at + 1 :],
                ]
                less = self.formula.of(cut)
                saved = sum(weight * (costs[name] - less[name]) / whole[name] for name, weight in unmet.items())
                if saved > 0:
                    found.append(((own - self.quality.of(self._prefixes(cut))) / saved, at, cut))
        return min(found)[2]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "shared": np.asarray(self._is_shared)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._is_shared = bool(state["shared"])
