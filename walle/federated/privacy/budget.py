"""Budget of epsilon: how much the rounds of a task tell about any one client, and after which round it stops.

Computed by `dp-accounting` as Rényi differential privacy of the subsampled Gaussian mechanism (Mironov, Talwar and
Zhang 2019; Wang, Balle and Kasiviswanathan 2019), for a whole client: all of its data at once.

The discrete noise of secure aggregation counts as Gaussian noise of its deviation (Canonne et al. 2020, theorem 4, is
the same bound where each client takes part in every round; for sampled clients it is an approximation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from walle.base.extras import install_hint
from walle.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_ROUNDS = 1 << 24


class BudgetSpentError(PipelineError):
    """A round that the budget does not allow. `epsilon` is what it would come to, `limit` the budget's."""

    def __init__(self, rounds: int, epsilon: float, limit: float) -> None:
        super().__init__(
            f"round {rounds} would bring epsilon to {epsilon:.3f}, above its budget of {limit:g}; the task stops"
        )
        self.rounds = rounds
        self.epsilon = epsilon
        self.limit = limit


@dataclass(frozen=True)
class PoissonSampling:
    """Each client takes part in each round on its own with this probability.

    Epsilon is for a client that is there or not. A round that draws a cohort of fixed size does not do this.
    """

    rate: float


@dataclass(frozen=True)
class FixedSampling:
    """Each round draws this many of the clients without replacement, by a seed that nobody outside knows.

    `cohort` is all devices that a round draws, with those that it draws too many, and `population` the fewest that are
    eligible in any round. The sum must not be weighted by samples, nor devices be carried from round to round.

    Epsilon is for a client whose data are replaced by any others: the sum changes by twice the clip norm.
    """

    cohort: int
    population: int


type Sampling = PoissonSampling | FixedSampling


@dataclass(frozen=True)
class RoundPrivacy:
    """State of the budget after a round."""

    rounds: int
    epsilon: float
    delta: float
    remaining: float  # epsilon that later rounds may add
    last_round: int  # number of the last round that the budget allows

    def line(self) -> str:
        """Return the line of a round's report."""
        return (
            f"round {self.rounds}: epsilon {self.epsilon:.3f} at delta {self.delta:g}, {self.remaining:.3f} remaining, "
            f"last round {self.last_round}"
        )


class PrivacyBudget:
    """Limit of epsilon over all rounds of a task, which all have the same noise and sampling.

    Args:
        noise_multiplier: deviation of the noise in the sum, in clip norms.
        sampling: how clients are drawn.
        delta: probability with which epsilon may be exceeded; below 1 / number of clients.
        limit: greatest epsilon.
        rounds: rounds that were done before.

    Raises:
        ConfigError: an argument is out of bounds, or `dp-accounting` is not installed.
    """

    def __init__(
        self, noise_multiplier: float, sampling: Sampling, delta: float, limit: float, *, rounds: int = 0
    ) -> None:
        if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
            raise ConfigError(f"noise multiplier {noise_multiplier}; give a positive number")
        if not 0 < delta < 1:
            raise ConfigError(f"delta {delta}; give a number between 0 and 1")
        if not (math.isfinite(limit) and limit > 0):
            raise ConfigError(f"budget of epsilon {limit}; give a positive number")
        if rounds < 0:
            raise ConfigError(f"{rounds} rounds before; give 0 or more")
        self.delta = delta
        self.limit = limit
        self.rounds = rounds
        self._orders, self._divergences = _round_divergences(noise_multiplier, sampling)
        self.last_round = self._last_round()

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of n rounds at the budget's delta; 0 for none, infinite where no order bounds it."""
        from dp_accounting.rdp import compute_epsilon

        if rounds == 0:
            return 0.0
        epsilon, _ = compute_epsilon(self._orders, [rounds * one for one in self._divergences], self.delta)
        return float(epsilon)

    @property
    def remaining(self) -> float:
        """Return the epsilon that further rounds may add, at least 0."""
        return max(0.0, self.limit - self.epsilon(self.rounds))

    def allows_round(self) -> bool:
        """Return whether the budget has room for one more round."""
        return self.rounds < self.last_round

    def spend_round(self) -> RoundPrivacy:
        """Count one round whose sum will be known, and return the state after it. Call it before the sum is opened.

        Raises:
            BudgetSpentError: the budget has no room for it; nothing is counted.
        """
        following = self.rounds + 1
        if following > self.last_round:
            raise BudgetSpentError(following, self.epsilon(following), self.limit)
        self.rounds = following
        return RoundPrivacy(following, self.epsilon(following), self.delta, self.remaining, self.last_round)

    def _last_round(self) -> int:
        """Return the greatest number of rounds within the limit; epsilon grows with rounds."""
        allowed, refused = 0, 1
        while refused <= _MOST_ROUNDS and self.epsilon(refused) <= self.limit:
            allowed, refused = refused, 2 * refused
        while refused - allowed > 1:
            middle = (allowed + refused) // 2
            if self.epsilon(middle) <= self.limit:
                allowed = middle
            else:
                refused = middle
        return allowed


def _round_divergences(noise_multiplier: float, sampling: Sampling) -> tuple[Sequence[float], list[float]]:
    """Return the orders, and one round's Rényi divergence of each."""
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ConfigError(f"a budget of epsilon needs dp-accounting: {install_hint('federated')}") from error
    event: Any
    if isinstance(sampling, PoissonSampling):
        if not 0 < sampling.rate <= 1:
            raise ConfigError(f"sampling rate {sampling.rate}; give a number above 0, at most 1")
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = dp_accounting.PoissonSampledDpEvent(sampling.rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    else:
        if not 0 < sampling.cohort <= sampling.population:
            raise ConfigError(f"cohort of {sampling.cohort} of {sampling.population} clients; give 1 up to all of them")
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        # dp-accounting takes the noise in units of the sum's change, which is two clip norms here.
        noise = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
        event = dp_accounting.SampledWithoutReplacementDpEvent(sampling.population, sampling.cohort, noise)
    # Divergences of rounds add up. Asking for one round's once, instead of composing again, saves seconds a search.
    accountant = RdpAccountant(neighboring_relation=relation).compose(event)
    return [float(one) for one in accountant._orders], [float(one) for one in accountant._rdp]
