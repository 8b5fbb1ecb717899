"""Budget: epsilon is dp-accounting's, grows with rounds, and stops a task at its last round."""

from __future__ import annotations

import itertools
import math

import pytest

from walle.errors import ConfigError
from walle.federated.privacy.budget import BudgetSpentError, FixedSampling, PoissonSampling, PrivacyBudget

dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting of the extra federated is not installed")


@pytest.mark.parametrize("rounds", [1, 40, 1000])
def test_epsilon_of_rounds_is_that_of_the_composed_event(rounds: int) -> None:
    budget = PrivacyBudget(1.1, PoissonSampling(0.02), 1e-5, 8.0)
    event = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.1))
    expected = dp_accounting.rdp.RdpAccountant().compose(event, rounds).get_epsilon(1e-5)
    assert budget.epsilon(rounds) == pytest.approx(expected, rel=1e-12)


def test_all_clients_in_one_round_have_the_epsilon_of_the_gaussian_mechanism() -> None:
    """The sum changes by one norm where a client leaves, by two where its data are replaced."""
    delta, multiplier = 1e-6, 4.0

    def least(noise: float) -> float:  # Mironov 2017, proposition 3 with corollary 3: an upper bound
        return 1 / (2 * noise**2) + math.sqrt(2 * math.log(1 / delta)) / noise

    there_or_not = PrivacyBudget(multiplier, PoissonSampling(1.0), delta, 50.0).epsilon(1)
    replaced = PrivacyBudget(multiplier, FixedSampling(70, 70), delta, 50.0).epsilon(1)
    assert 0.75 * least(multiplier) < there_or_not <= least(multiplier)
    assert 0.75 * least(multiplier / 2) < replaced <= least(multiplier / 2)


def test_a_budget_counts_down_to_its_last_round_and_then_refuses() -> None:
    budget = PrivacyBudget(1.0, PoissonSampling(0.1), 1e-5, 4.0)
    last = budget.last_round
    assert last > 3
    states = [budget.spend_round() for _ in range(last)]
    assert [one.rounds for one in states] == list(range(1, last + 1))
    assert all(later.epsilon > earlier.epsilon for earlier, later in itertools.pairwise(states))
    assert states[-1].epsilon <= 4.0 < budget.epsilon(last + 1)
    assert states[-1].remaining == pytest.approx(4.0 - states[-1].epsilon)
    assert not budget.allows_round()
    with pytest.raises(BudgetSpentError, match=f"round {last + 1} would bring epsilon") as caught:
        budget.spend_round()
    assert caught.value.epsilon == budget.epsilon(last + 1)
    assert budget.rounds == last


def test_a_budget_continues_after_the_rounds_done_before() -> None:
    first = PrivacyBudget(1.0, PoissonSampling(0.05), 1e-5, 3.0)
    for _ in range(5):
        first.spend_round()
    second = PrivacyBudget(1.0, PoissonSampling(0.05), 1e-5, 3.0, rounds=5)
    assert second.spend_round() == first.spend_round()


def test_a_budget_too_small_for_one_round_allows_none() -> None:
    budget = PrivacyBudget(0.3, PoissonSampling(1.0), 1e-5, 0.5)
    assert budget.last_round == 0
    assert budget.remaining == 0.5
    with pytest.raises(BudgetSpentError):
        budget.spend_round()


def test_a_line_reports_epsilon_delta_and_the_last_round() -> None:
    budget = PrivacyBudget(1.0, FixedSampling(20, 1000), 1e-5, 10.0)
    line = budget.spend_round().line()
    assert line.startswith("round 1: epsilon ")
    assert f"at delta 1e-05, {budget.remaining:.3f} remaining, last round {budget.last_round}" in line


@pytest.mark.parametrize(
    ("multiplier", "sampling", "delta", "limit", "rounds", "message"),
    [
        (0.0, PoissonSampling(0.1), 1e-5, 1.0, 0, "noise multiplier"),
        (1.0, PoissonSampling(0.0), 1e-5, 1.0, 0, "sampling rate"),
        (1.0, FixedSampling(11, 10), 1e-5, 1.0, 0, "cohort of 11 of 10"),
        (1.0, PoissonSampling(0.1), 0.0, 1.0, 0, "delta"),
        (1.0, PoissonSampling(0.1), 1e-5, math.inf, 0, "budget"),
        (1.0, PoissonSampling(0.1), 1e-5, 1.0, -1, "rounds before"),
    ],
)
def test_arguments_out_of_bounds_are_refused(
    multiplier: float, sampling: PoissonSampling | FixedSampling, delta: float, limit: float, rounds: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        PrivacyBudget(multiplier, sampling, delta, limit, rounds=rounds)
