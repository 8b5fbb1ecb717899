"""Performance model on simulated machines: accuracy against a line, transfer, small data, determinism, inputs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine_ext.search.machines import AMD, INTEL, SMALL, layers_of_networks
from walle.engine_ext import np as wnp
from walle.engine_ext.search.baselines import LinearModel, TreeModel
from walle.engine_ext.search.mlp import Schedule
from walle.engine_ext.search.sample_choice import choose_samples
from walle.engine_ext.search.samples import SampleError, relative_errors
from walle.errors import ConfigError
from walle.search import PerformanceModel

SHORT = Schedule(epochs=25, learning_rate=4e-3)
HIDDEN = (32, 32)
TRAINED = 700

type Array = NDArray[np.float64]


def error(model: Any, layers: Array, times: Array) -> float:
    """Return the median relative absolute error."""
    return float(np.median(np.asarray(relative_errors(model.predict(layers), times))))


@pytest.fixture(scope="module")
def layers() -> Array:
    return layers_of_networks(TRAINED + 300, np.random.default_rng(0))


@pytest.fixture(scope="module")
def times(layers: Array) -> Array:
    """Return times of eight primitives, one of each kind."""
    return INTEL.times(layers, np.random.default_rng(1))[1][:, :20:3]


@pytest.fixture(scope="module")
def model(layers: Array, times: Array) -> PerformanceModel:
    return PerformanceModel.fit(layers[:TRAINED], times[:TRAINED], seed=1, hidden=HIDDEN, schedule=SHORT)


def test_the_model_is_more_accurate_than_a_line_in_logarithms(
    model: PerformanceModel, layers: Array, times: Array
) -> None:
    linear = LinearModel.fit(layers[:TRAINED], times[:TRAINED])
    found, line = (error(one, layers[TRAINED:], times[TRAINED:]) for one in (model, linear))
    assert found < 0.08 < 0.2 < line


def test_a_prediction_is_the_network_plus_the_linear_part(model: PerformanceModel, layers: Array) -> None:
    predictor = model.predictor
    x = predictor.inputs(wnp.asarray(layers[:50]))
    by_hand = np.asarray(predictor.mlp.outputs(x)) + np.asarray(x) @ np.asarray(predictor.coefficients)
    found = model.predict(layers[:50])
    assert isinstance(found, wnp.ndarray)
    assert (found.shape, found.dtype) == ((50, model.predictor.mlp.sizes[-1]), "float32")
    assert np.log(np.asarray(found)) == pytest.approx(by_hand + np.asarray(predictor.intercepts), abs=1e-3)


@pytest.mark.parametrize(
    "convert", [wnp.asarray, lambda x: x.tolist(), lambda x: x.astype(np.int32), np.asfortranarray]
)
def test_lists_and_arrays_of_any_kind_predict_the_same(
    model: PerformanceModel, layers: Array, convert: Callable[[Array], Any]
) -> None:
    expected = np.asarray(model.predict(layers[:20]))
    assert (np.asarray(model.predict(convert(layers[:20]))) == expected).all()


def test_the_same_seed_gives_the_same_model(layers: Array, times: Array) -> None:
    def fitted(seed: int) -> Array:
        one = PerformanceModel.fit(layers[:60], times[:60], seed=seed, hidden=(8,), schedule=Schedule(epochs=5))
        return np.asarray(one.predict(layers))

    assert (fitted(3) == fitted(3)).all()
    assert (fitted(3) != fitted(4)).any()


def test_a_transferred_model_needs_few_samples(model: PerformanceModel, layers: Array) -> None:
    for machine in (AMD, SMALL):
        times = machine.times(layers, np.random.default_rng(2))[1][:, :20:3]
        few, rest = slice(0, 60), slice(TRAINED, None)
        transferred = model.transfer(layers[few], times[few], schedule=Schedule(epochs=25, learning_rate=1e-3))
        fitted = PerformanceModel.fit(layers[few], times[few], seed=1, hidden=HIDDEN, schedule=SHORT)
        found = error(transferred, layers[rest], times[rest])
        assert found < 0.8 * error(fitted, layers[rest], times[rest])
        assert found < 0.4 * error(model, layers[rest], times[rest])


def test_transfer_from_one_sample_finds_the_ratio_of_the_machines(
    model: PerformanceModel, layers: Array, times: Array
) -> None:
    before = np.asarray(model.predict(layers))
    transferred = model.transfer(layers[:1], 3 * before[:1])
    assert np.asarray(transferred.predict(layers)) == pytest.approx(3 * before, rel=1e-3)
    assert (np.asarray(model.predict(layers)) == before).all()  # the source is unchanged


def test_a_primitive_without_samples_is_nan_and_transfers_by_the_ratio_of_the_others(
    layers: Array, times: Array
) -> None:
    known = times.copy()
    known[:, 2] = math.nan
    first = PerformanceModel.fit(layers[:50], known[:50], seed=1, hidden=(8,), schedule=Schedule(epochs=2))
    assert np.isnan(np.asarray(first.predict(layers))).all(axis=0).tolist() == [column == 2 for column in range(7)]
    few = np.flatnonzero(np.isfinite(times[:, 2]))[:5]
    second = first.transfer(layers[few], times[few])  # now with samples of it
    assert np.isfinite(np.asarray(second.predict(layers))).all()
    other = np.asarray(second.predict(layers[few])) * 2
    other[:, 4] = math.nan
    third = second.transfer(layers[few], other)
    ratios = np.asarray(third.predict(layers)) / np.asarray(second.predict(layers))
    assert ratios == pytest.approx(np.full_like(ratios, 2), rel=1e-2)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 10, 40])
def test_few_samples_of_one_primitive_give_finite_times(layers: Array, times: Array, count: int) -> None:
    fitted = PerformanceModel.fit(layers[:count], times[:count, :1], seed=0, schedule=Schedule(epochs=3))
    found = np.asarray(fitted.predict(layers))
    assert found.shape == (len(layers), 1)
    assert (np.isfinite(found) & (found > 0)).all()


def test_a_primitive_whose_only_sample_is_held_out_is_predicted() -> None:
    layers = layers_of_networks(2000, np.random.default_rng(3))
    times = np.full((len(layers), 41), math.nan)
    times[:, 40] = layers[:, 0]
    times[range(40), range(40)] = 5.0  # a single sample each; a tenth of the rows is held out
    fitted = PerformanceModel.fit(layers, times, seed=0, hidden=(4,), schedule=Schedule(epochs=1))
    assert np.isfinite(np.asarray(fitted.predict(layers[:40]))).all()


def test_constant_columns_and_equal_layers() -> None:
    equal = PerformanceModel.fit([[64, 64, 56, 1, 3]] * 12, [[10.0]] * 12, seed=0, hidden=(4,))
    assert np.asarray(equal.predict([[64, 64, 56, 1, 3], [128, 64, 28, 2, 1]])) == pytest.approx(10, rel=1e-3)


def test_no_layers_give_no_times(model: PerformanceModel) -> None:
    assert model.predict(np.zeros((0, 5))).shape == (0, 7)


def test_raw_features_have_no_linear_part(layers: Array, times: Array) -> None:
    raw = PerformanceModel.fit(layers[:50], times[:50], seed=0, features="raw", hidden=(8,), schedule=SHORT)
    assert raw.predictor.mlp.sizes == (5, 8, 7)
    assert np.abs(np.asarray(raw.predictor.coefficients)).max() < 1e-6


def test_epochs_are_reported(layers: Array, times: Array) -> None:
    seen: list[tuple[int, float]] = []
    schedule = Schedule(epochs=4)
    PerformanceModel.fit(
        layers[:40], times[:40], seed=0, hidden=(8,), schedule=schedule, on_epoch=lambda *one: seen.append(one)
    )
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert all(value > 0 for _, value in seen)


def test_wrong_arguments_are_refused(model: PerformanceModel, layers: Array, times: Array) -> None:
    with pytest.raises(ConfigError, match="features='cubic'"):
        PerformanceModel.fit(layers, times, seed=0, features="cubic")
    with pytest.raises(ConfigError, match="hidden"):
        PerformanceModel.fit(layers, times, seed=0, hidden=(16, 0))
    with pytest.raises(ValueError, match="7 columns; give one for each of the 2"):
        PerformanceModel.fit(layers, times, seed=0, primitives=["a", "b"])
    with pytest.raises(ValueError, match="3 columns; give one for each of the 7"):
        model.transfer(layers, times[:, :3])
    with pytest.raises(ValueError, match="row 1 of layers: stride s is 0"):
        model.predict([[1, 1, 7, 1, 1], [1, 1, 7, 0, 1]])


def test_chosen_samples_are_different_rows_and_spread(model: PerformanceModel, layers: Array) -> None:
    chosen = np.asarray(choose_samples(model, layers, 40, seed=1)).tolist()
    assert len(set(chosen)) == 40
    assert set(chosen) <= set(range(len(layers)))
    assert chosen == np.asarray(choose_samples(model, layers, 40, seed=1)).tolist()
    repeated = np.repeat(layers[:10], 5, axis=0)  # each of ten layers five times: ten choices take each once
    assert len({place // 5 for place in np.asarray(choose_samples(model, repeated, 10, seed=0)).tolist()}) == 10
    for count in (0, len(layers) + 1):
        with pytest.raises(SampleError, match="count"):
            choose_samples(model, layers, count, seed=0)


def test_trees_are_more_accurate_than_a_line(layers: Array, times: Array) -> None:
    kept = times.copy()
    kept[:, 6] = math.nan
    trees = TreeModel.fit(layers[:TRAINED], kept[:TRAINED], seed=0, rounds=20)
    linear = LinearModel.fit(layers[:TRAINED], kept[:TRAINED])
    found, line = (error(one, layers[TRAINED:], kept[TRAINED:]) for one in (trees, linear))
    assert found < 0.8 * line
    assert np.isnan(np.asarray(trees.predict(layers[:3]))[:, 6]).all()
    assert np.isnan(np.asarray(linear.predict(layers[:3]))[:, 6]).all()
    with pytest.raises(ConfigError, match="depth"):
        TreeModel.fit(layers, times, seed=0, depth=0)


def test_a_line_in_logarithms_is_found_exactly(layers: Array) -> None:
    k, c, im, s, f = layers.T
    times = np.stack((k * c * im**2 / s**2 * f**2 * 1e-3, 5 * k * im), axis=1)
    assert np.asarray(LinearModel.fit(layers[:100], times[:100]).predict(layers)) == pytest.approx(times, rel=1e-3)


@pytest.mark.night
@pytest.mark.timeout(600)
def test_the_papers_network_is_accurate_and_transfers() -> None:
    count = 4000
    layers = layers_of_networks(count + 1000, np.random.default_rng(0))
    train, few, rest = slice(0, count), slice(0, count // 10), slice(count, None)
    times = INTEL.times(layers, np.random.default_rng(1))[1]
    model = PerformanceModel.fit(layers[train], times[train], seed=1, schedule=Schedule(epochs=40))
    assert error(model, layers[rest], times[rest]) < 0.03
    assert error(model, layers[rest], times[rest]) < 0.1 * error(
        LinearModel.fit(layers[train], times[train]), layers[rest], times[rest]
    )
    other = AMD.times(layers, np.random.default_rng(2))[1]
    assert error(model.transfer(layers[few], other[few]), layers[rest], other[rest]) < 0.035
