"""FedAdam and FedYogi: the mean update as the gradient of an adaptive optimizer on the server.

Reddi et al., Adaptive Federated Optimization (ICLR 2021), algorithm 2, with the paper's beta_1 = 0.9, beta_2 = 0.99,
tau = 0.001 and a first variance of tau². The paper tunes the learning rate for each task. Flower 1.41 begins with a
variance of 0, and its FedAdam corrects the learning rate as Adam does, which algorithm 2 does not.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from walle import np
from walle.errors import ConfigError
from walle.federated.aggregation.fedavg import FedAvg, check_above_zero
from walle.federated.errors import AggregationError


class AdaptiveAggregator(FedAvg):
    """Momentum and variance of the mean update; a subclass has the rule of the variance.

    Raises:
        ConfigError: a setting is out of its range.
    """

    def __init__(
        self,
        *,
        server_lr: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        first_variance: float | None = None,
        weight_by_samples: bool = True,
    ) -> None:
        super().__init__(server_lr=server_lr, weight_by_samples=weight_by_samples)
        check_above_zero("tau", tau)
        for name, value in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0.0 <= value < 1.0:
                raise ConfigError(f"{name} is {value}; it is from 0 to below 1")
        self._beta_1, self._beta_2, self._tau = beta_1, beta_2, tau
        self._first_variance = tau * tau if first_variance is None else first_variance
        self._momentum: Any = None
        self._variance: Any = None

    def combine(self) -> Any:
        mean = self.mean()
        if self._momentum is None:
            self._momentum = np.zeros(mean.shape, "float64")
            self._variance = np.full(mean.shape, self._first_variance, "float64")
        self._momentum = self._beta_1 * self._momentum + (1.0 - self._beta_1) * mean
        self._variance = self.next_variance(self._variance, mean * mean, 1.0 - self._beta_2)
        return self.server_lr * self._momentum / (np.sqrt(self._variance) + self._tau)

    @abc.abstractmethod
    def next_variance(self, variance: Any, square: Any, rate: float) -> Any:
        """Return the next variance, from the last one and the square of the mean update; `rate` is 1 - beta_2."""

    def state(self) -> Mapping[str, Any]:
        if self._momentum is None:
            return {}
        return {"momentum": self._momentum, "variance": self._variance}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if not state:
            self._momentum = self._variance = None
            return
        if set(state) != {"momentum", "variance"}:
            raise AggregationError(
                f"{type(self).__name__} has the state momentum and variance; given were {sorted(state)}"
            )
        self._momentum, self._variance = (np.array(state[name], "float64") for name in ("momentum", "variance"))


class FedAdam(AdaptiveAggregator):
    """The variance of Adam: an exponential mean of squares."""

    def next_variance(self, variance: Any, square: Any, rate: float) -> Any:
        return (1.0 - rate) * variance + rate * square


class FedYogi(AdaptiveAggregator):
    """The variance of Yogi, which changes by at most a part of the square."""

    def next_variance(self, variance: Any, square: Any, rate: float) -> Any:
        return variance - rate * square * np.sign(variance - square)
