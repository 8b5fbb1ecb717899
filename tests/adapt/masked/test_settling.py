"""Training of a goal's model: as long as the cut before it has harmed."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.adapt.networks import network
from walle import np
from walle.adapt.dataset import Dataset
from walle.adapt.executor import Settings, traced_structure
from walle.adapt.goals.config import Training
from walle.adapt.masked.trainer import MaskedTrainer

_RATE = 1e-2


@pytest.fixture
def training() -> Training:
    return Training(steps=100, learning_rate=_RATE)


@pytest.fixture
def trainer(training: Training) -> MaskedTrainer:
    model, inputs = network("residual")
    data = Dataset(tuple(inputs), np.asarray([0, 1, 2, 3, 0]))
    settings = Settings(model, data, data, training=training)
    return MaskedTrainer(settings, model, traced_structure(settings, model))


@pytest.fixture
def losses(trainer: MaskedTrainer, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Losses that steps report, in turn, the last one again and again."""
    given: list[float] = []
    reported: Iterator[float] = iter(())

    def take_step(_rate: float | None = None) -> float:
        nonlocal reported
        if given:
            reported = iter([*given, *[given[-1]] * 1000])
            given.clear()
        return next(reported)

    monkeypatch.setattr(trainer, "_take_step", take_step)
    return given


@pytest.mark.parametrize(("loss", "steps"), [(0.1, 20), (0.35, 20), (0.6, 40), (5.0, 80)])
def test_a_goal_takes_steps_for_the_loss_that_its_cut_has_added(
    trainer: MaskedTrainer, losses: list[float], loss: float, steps: int
) -> None:
    losses += [0.1]
    assert trainer.settle(30) == 30
    assert trainer.settled_loss == pytest.approx(0.1)
    losses += [loss] * 5 + [0.2]
    assert trainer.settle(80) == steps
    assert trainer.settled_loss == pytest.approx(0.2)


@pytest.mark.parametrize("training", [Training(steps=100, loss="mse_loss")])
def test_with_a_loss_of_another_scale_a_goal_takes_all_steps(trainer: MaskedTrainer, losses: list[float]) -> None:
    losses += [1e-4]
    assert [trainer.settle(30), trainer.settle(60)] == [30, 60]


def test_the_loss_to_compare_with_has_none_of_the_first_steps(trainer: MaskedTrainer, losses: list[float]) -> None:
    losses += [9.0] * 5 + [0.2]
    trainer.settle(8)
    assert trainer.settled_loss == pytest.approx(0.2)


def test_running_statistics_are_those_of_the_channels_that_are_kept(trainer: MaskedTrainer) -> None:
    norms = [one for one in trainer.network.modules() if hasattr(one, "running_mean")]
    for norm in norms:
        norm.running_mean = norm.running_mean + 100.0
    trainer.settle(0)
    assert norms
    assert all(float(np.abs(norm.running_mean).max()) < 50.0 for norm in norms)


def test_the_limit_holds_where_it_is_below_the_least_number_of_steps(
    trainer: MaskedTrainer, losses: list[float]
) -> None:
    losses += [0.1]
    trainer.settle(6)
    assert trainer.settle(6) == 6
    assert trainer.settle(0) == 0
    assert trainer.settled_loss == pytest.approx(0.1)


def test_the_learning_rate_goes_down_within_the_steps_taken_and_is_the_same_after(trainer: MaskedTrainer) -> None:
    rates: list[float] = []
    real: Any = trainer._take_step

    def take_step(rate: float) -> float:
        rates.append(rate)
        return float(real(rate))

    trainer._take_step = take_step  # type: ignore[method-assign, assignment]
    trainer.settle(40)
    trainer.settle(40)
    assert rates[0] == _RATE
    assert rates[39] == pytest.approx(0.1225 * _RATE)
    assert len(rates) == 60
    assert rates[-1] == pytest.approx(0.145 * _RATE)
    assert trainer.step.optimizer.lr == _RATE


def test_a_state_keeps_the_loss_that_later_goals_are_compared_with(trainer: MaskedTrainer) -> None:
    assert math.isnan(float(trainer.state()["settled loss"]))
    trainer.settle(6)
    state, loss = trainer.state(), trainer.settled_loss
    trainer.settled_loss = 0.0
    trainer.restore(state)
    assert trainer.settled_loss == loss
