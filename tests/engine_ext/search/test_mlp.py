"""Network and its training: gradients against differences, PyTorch's Adam by hand, early stopping, determinism."""

import math

import numpy
import pytest

from walle.engine_ext import np
from walle.engine_ext.search.mlp import Mlp, Schedule, Targets, mean_error, train
from walle.errors import ConfigError


def drawn(rows: int, seed: int = 0) -> Targets:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3))
    y = np.stack((x[:, 0] * x[:, 1], np.abs(x[:, 2])), axis=1)
    return Targets(x, y, (rng.random((rows, 2)) < 0.7).astype("float32"))


def test_the_gradient_is_that_of_differences() -> None:
    rng = np.random.default_rng(3)
    mlp, targets = Mlp.drawn((3, 5, 4, 2), rng), drawn(20)
    mlp.parameters[...] = rng.standard_normal(mlp.parameters.shape) * 0.5
    gradient = numpy.asarray(mlp.gradient(targets))

    def loss(parameters: np.ndarray) -> float:
        error = (Mlp(mlp.sizes, parameters).outputs(targets.x) - targets.y).astype("float64") * targets.defined
        return float((error * error).sum()) / float(targets.defined.sum())

    for place in range(0, gradient.size, 3):
        above, below = mlp.parameters.astype("float64"), mlp.parameters.astype("float64")
        above[place] += 1e-4
        below[place] -= 1e-4
        assert gradient[place] == pytest.approx((loss(above) - loss(below)) / 2e-4, rel=2e-2, abs=2e-4)


def test_undefined_targets_do_not_matter() -> None:
    mlp, targets = Mlp.drawn((3, 8, 2), np.random.default_rng(1)), drawn(30)
    changed = Targets(targets.x, np.where(targets.defined > 0, targets.y, 77.0), targets.defined)
    assert np.array_equal(mlp.gradient(targets), mlp.gradient(changed))
    assert mean_error(mlp, targets) == mean_error(mlp, changed)


def test_outliers_matter_little() -> None:
    targets, held_out = drawn(400), drawn(100, 1)
    outliers = np.random.default_rng(7).random(targets.y.shape) < 0.05
    spoilt = Targets(targets.x, np.where(outliers, 50.0, targets.y), targets.defined)
    start, errors = Mlp.drawn((3, 32, 2), np.random.default_rng(2)), []
    for limit in (0.3, math.inf):
        schedule = Schedule(epochs=20, learning_rate=5e-3, error_limit=limit)
        found, _ = train(start, spoilt, schedule, np.random.default_rng(0), last_epoch=20)
        errors.append(mean_error(found, held_out))
    assert errors[0] < 0.3 * errors[1]
    assert np.array_equal(start.gradient(targets), start.gradient(targets, 1e9))


def test_a_function_is_learned_and_the_same_seed_gives_the_same_network() -> None:
    targets, held_out = drawn(400), drawn(100, 1)
    start = Mlp.drawn((3, 32, 32, 2), np.random.default_rng(2))
    schedule, errors = Schedule(epochs=40, learning_rate=5e-3), list[tuple[int, float]]()

    def run(seed: int) -> tuple[Mlp, int]:
        rng = np.random.default_rng(seed)
        return train(
            start,
            targets,
            schedule,
            rng,
            held_out=held_out,
            on_epoch=lambda epoch, error: errors.append((epoch, error)),
        )

    first, epoch = run(5)
    assert [number for number, _ in errors] == list(range(1, 41))
    assert mean_error(first, held_out) == min(error for _, error in errors) == errors[epoch - 1][1]
    assert mean_error(first, held_out) < 0.2 * mean_error(start, held_out)
    assert np.array_equal(run(5)[0].parameters, first.parameters)
    assert not np.array_equal(run(6)[0].parameters, first.parameters)


def test_training_stops_when_nothing_improves_and_returns_the_start() -> None:
    targets = drawn(64)
    held_out = Targets(targets.x, np.zeros_like(targets.y), targets.defined)  # 0 is predicted before training
    start, epochs = Mlp.drawn((3, 8, 2), np.random.default_rng(0)), list[int]()
    found, epoch = train(
        start,
        targets,
        Schedule(patience=3),
        np.random.default_rng(0),
        held_out=held_out,
        on_epoch=lambda number, _: epochs.append(number),
    )
    assert (epoch, epochs) == (0, [1, 2, 3])
    assert np.array_equal(found.parameters, start.parameters)


def test_batches_are_smaller_where_samples_are_few_and_epochs_fewer_where_they_are_many() -> None:
    assert [Schedule().batch_for(samples) for samples in (1, 5, 100, 1600, 90_000)] == [1, 5, 16, 100, 1024]
    assert [Schedule().epochs_for(samples) for samples in (1, 20_000, 40_000, 90_000)] == [120, 120, 60, 30]
    assert Schedule(epochs=7).epochs_for(90_000) == 7


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"patience": 0}, {"batch_size": -1}, {"learning_rate": 0.0}])
def test_a_wrong_schedule_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Schedule(**wrong)
    with pytest.raises(ConfigError, match="weight_decay"):
        Schedule(weight_decay=math.nan)
    with pytest.raises(ConfigError, match="error_limit"):
        Schedule(error_limit=math.nan)
