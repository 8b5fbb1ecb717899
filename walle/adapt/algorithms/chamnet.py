"""ChamNet (Dai et al. 2019): evolution of widths, with a predictor of accuracy and formulas of costs (§4.2).

Some networks are cut from the given model and trained for a few steps; a Gaussian process learns their quality from
their widths. Each goal then has an evolution, which trains only the best few.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from walle import np
from walle.adapt.algorithms.gaussian_process import GaussianProcess
from walle.adapt.algorithms.ranking import Quality, Ranking
from walle.adapt.executor import Settings
from walle.adapt.masked.trainer import MaskedTrainer
from walle.errors import ConfigError

_AT_ONCE = 2  # sampled networks of an iteration
_LEAST_SAMPLES = 4
_LEAST_SHARE = 0.08  # least part of a group's channels in a sampled network
_SPREAD = 0.4  # deviation of the logarithm of a group's share from that of the others
_HALVINGS = 12
_PENALTY = 4.0  # quality that a budget costs which is exceeded by its double


class ChamNet(Ranking):
    """Options: `samples`, networks that the predictor learns from, and `sample_steps`, the training of each;
    `population` and `generations` of a goal's evolution, and its `finalists`, which are trained as long and compared;
    `crossover_rate`, the part of children that have two parents, and `mutation`, the part of groups that changes.
    """

    options: ClassVar[Mapping[str, float]] = {
        "samples": 32, "sample_steps": 8, "population": 48, "generations": 20, "finalists": 4,
        "crossover_rate": 1.0, "mutation": 0.3,
    }  # fmt: skip
    tuning: ClassVar[float] = 2.5  # a cut at once takes longer to train than channels that close one by one

    def init(self, settings: Settings) -> None:
        super().init(settings)
        if self.option["samples"] < _LEAST_SAMPLES:
            raise ConfigError(
                f"ChamNet's option samples is {self.option['samples']}; it takes {_LEAST_SAMPLES} or more"
            )
        for name in ("crossover_rate", "mutation"):
            if self.option[name] > 1:
                raise ConfigError(f"ChamNet's option {name} is {self.option[name]}; it is a part, up to 1")
        self._points: list[list[float]] = []  # logarithms of widths
        self._values: list[float] = []
        self._predict: GaussianProcess | None = None
        self._sampler: tuple[MaskedTrainer, Quality, Mapping[str, Any]] | None = None

    def preparation(self) -> int:
        return math.ceil((int(self.option["samples"]) - len(self._points)) / _AT_ONCE)

    def iterate(self) -> int:
        if len(self._points) < int(self.option["samples"]):
            return self._sample()
        if self._predict is None:
            self._predict = GaussianProcess(np.asarray(self._points, "float64"), np.asarray(self._values, "float64"))
        self.widths, steps = self._tried(self._evolved(self._predict))
        return steps

    def _sample(self) -> int:
        """Train some networks that are cut from the given model, note their quality, and return the steps."""
        if self._sampler is None:
            trainer = self._whole_trainer()
            self._sampler = trainer, Quality(trainer), trainer.state()
        trainer, quality, given = self._sampler
        steps = 0
        for _ in range(min(_AT_ONCE, int(self.option["samples"]) - len(self._points))):
            draw = random.Random(f"{self.settings.seed} sample {len(self._points)}")
            level = _LEAST_SHARE ** draw.random()
            shares = [min(1.0, level * math.exp(draw.gauss(0.0, _SPREAD))) for _ in self.widths]
            widths = [
                max(1, round(group.count * share)) for group, share in zip(self._whole.groups, shares, strict=True)
            ]
            trainer.restore(given)
            kept = self._prefixes(widths)
            trainer.network.mask = trainer.mask_of(kept)
            trainer.train(int(self.option["sample_steps"]))
            steps += trainer.steps
            self._points.append(self._point(widths))
            self._values.append(quality.of(kept))
        if len(self._points) == int(self.option["samples"]):
            self._sampler = None
        return steps

    def _point(self, widths: Sequence[int]) -> list[float]:
        return [math.log2(width / group.count) for width, group in zip(widths, self._whole.groups, strict=True)]

    def _tried(self, candidates: list[tuple[int, ...]]) -> tuple[list[int], int]:
        """Return the candidate of the best quality after a few steps with the weights at hand, and all steps.

        A small cut takes fewer of them than the samples, whose weights are the given model's.
        """
        given, steps = self.trainer.state(), 0
        each = math.ceil(int(self.option["sample_steps"]) * self._goal.reduction(self.costs()))
        found = []
        for widths in candidates:
            kept = self._prefixes(widths)
            self.trainer.network.mask = self.trainer.mask_of(kept)
            self.trainer.train(each)
            found.append((self.quality.of(kept), widths))
            self.trainer.restore(given)
            steps += each
        return list(max(found)[1]), steps

    def _evolved(self, predict: GaussianProcess) -> list[tuple[int, ...]]:
        """Return the widths of the best predicted quality that meet the goal, and those in the proportions at hand."""
        draw = random.Random(f"{self.settings.seed} evolution {self.trainer.steps}")
        size = int(self.option["population"])
        first = self._scaled()
        population = {first, *(self._mutated(first, draw) for _ in range(size - 1))}
        for _ in range(int(self.option["generations"])):
            ranked = self._by_fitness(population, predict)
            parents = ranked[: max(2, size // 4)]
            population = {first, *parents}
            for _ in range(size - len(parents)):
                one = draw.choice(parents)
                crossed = self.option["crossover_rate"] >= 1 or draw.random() < self.option["crossover_rate"]
                other = draw.choice(parents) if crossed else one
                population.add(self._mutated([draw.choice(pair) for pair in zip(one, other, strict=True)], draw))
        ranked = self._by_fitness(population, predict)
        met = [one for one in ranked if one != first and self._goal.is_met_by(self.formula.of(one))]
        return [first, *met[: int(self.option["finalists"])]]

    def _scaled(self) -> tuple[int, ...]:
        """Return the widest widths in the proportions at hand that meet the goal."""
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            scaled = [max(1, int(width * middle)) for width in self.widths]
            low, high = (middle, high) if self._goal.is_met_by(self.formula.of(scaled)) else (low, middle)
        return tuple(max(1, int(width * low)) for width in self.widths)

    def _mutated(self, widths: Sequence[int], draw: random.Random) -> tuple[int, ...]:
        return tuple(
            min(most, max(1, round(width * math.exp(draw.gauss(0.0, _SPREAD)))))
            if draw.random() < self.option["mutation"]
            else width
            for width, most in zip(widths, self.widths, strict=True)
        )

    def _by_fitness(self, population: set[tuple[int, ...]], predict: GaussianProcess) -> list[tuple[int, ...]]:
        """Return the best first: predicted quality, less what exceeds a budget by that constraint's weight."""
        members = sorted(population)
        quality = predict(np.asarray([self._point(one) for one in members], "float64")).tolist()
        fitness = {}
        for one, value in zip(members, quality, strict=True):
            costs = self.formula.of(one)
            over = {name: max(0.0, costs[name] / budget - 1) for name, budget in self._goal.budgets.items()}
            fitness[one] = value - _PENALTY * sum(self._weights[name] * excess for name, excess in over.items())
        return sorted(members, key=lambda one: -fitness[one])

    def state(self) -> dict[str, Any]:
        points = np.asarray(self._points, "float64").reshape(len(self._points), len(self.widths))
        return {**super().state(), "points": points, "values": np.asarray(self._values, "float64")}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        if len(state["values"]):  # those of the given model; the seed gives the same ones
            self._points, self._values = state["points"].tolist(), state["values"].tolist()
            self._predict = None
