"""MorphNet (Gordon et al. 2018): a penalty by cost closes the gates of channels that matter least (§4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from walle import nn, np
from walle.adapt.algorithms.narrowing import Narrowing
from walle.adapt.costs.formula import WEIGHT_BYTES, Costs
from walle.adapt.executor import Settings
from walle.adapt.goals.goal import Goal
from walle.adapt.structure.cut import Widths

_EASES = 0.6  # part of the penalty that is left for the next goal
_GROWTH = 1.15  # growth of the penalty from one iteration to the next, while the goal is not met


class MorphNet(Narrowing):
    """Options: `threshold`, the least chance of a channel that stays; `init_reg_strength`, the first weight of the
    penalty; `iteration_steps`, training steps of an iteration.
    """

    options: ClassVar[Mapping[str, float]] = {"threshold": 0.5, "init_reg_strength": 0.5, "iteration_steps": 10}

    def init(self, settings: Settings) -> None:
        super().init(settings)
        self._strength = float(self.option["init_reg_strength"])

    def adjust(self, costs: Costs, goal: Goal, weights: Mapping[str, float]) -> None:
        _ = goal  # the weights say how far each of its budgets is
        shares = {"operations": 0.0, "parameters": 0.0}
        for name, weight in weights.items():
            if name == "latency":
                hardware = self.settings.hardware
                assert hardware is not None  # the file has one where goals have a latency
                computing = costs["operations"] / hardware.compute
                loading = costs["parameters"] * WEIGHT_BYTES / hardware.bandwidth
                shares["operations"] += weight * computing / (computing + loading)
                shares["parameters"] += weight * loading / (computing + loading)
            else:
                shares["operations" if name == "operations" else "parameters"] += weight
        strengths = [self._strength * shares["operations"], self._strength * shares["parameters"]]
        self.trainer.network.strengths = np.asarray(strengths, "float32")
        self._strength *= _GROWTH

    def iterate(self) -> int:
        steps = int(self.option["iteration_steps"])
        self.trainer.explore(steps)
        return steps

    def channels(self) -> Widths:
        threshold = float(self.option["threshold"])
        return [self._above(one, threshold) for one in self._chances()]

    def _chances(self) -> list[list[float]]:
        network = self.trainer.network
        return [one.tolist() for one in network.split(network.chances())]

    @staticmethod
    def _above(chances: list[float], threshold: float) -> list[int]:
        kept = [at for at, chance in enumerate(chances) if chance >= threshold]
        return kept or [max(range(len(chances)), key=chances.__getitem__)]

    def _filled(self, goal: Goal) -> Widths:
        """Return as many channels, the likeliest first, as the goal's budgets allow."""
        chances = self._chances()
        levels = sorted({chance for group in chances for chance in group if chance > 0}, reverse=True)
        low, high = 0, len(levels) - 1
        while low < high:  # the lowest threshold that fits
            middle = (low + high + 1) // 2
            kept = [self._above(group, levels[middle]) for group in chances]
            if goal.is_met_by(self.formula.of([len(one) for one in kept])):
                low = middle
            else:
                high = middle - 1
        return [self._above(group, levels[low]) for group in chances]

    def fitted(self, goal: Goal, steps: int) -> tuple[nn.Module, int]:
        kept = self._filled(goal)
        trainer = self.trainer
        gates = trainer.network.gates.data.copy()
        trainer.network.strengths = np.zeros(2, "float32")
        self._strength = max(self._strength * _EASES, float(self.option["init_reg_strength"]))
        trainer.keep(kept)
        taken = trainer.settle(steps)
        model = self._measured(trainer.model(kept), kept)
        trainer.network.gates.data = np.where(trainer.network.mask > 0, gates, trainer.network.gates.data)
        self._shrink(kept)
        return model, taken

    def state(self) -> dict[str, Any]:
        return {**super().state(), "strength": np.asarray(self._strength, "float64")}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._strength = float(state["strength"])
