"""Initialisers fill in place with what their names say."""

import math

import numpy
import pytest

import walle.nn as nn
import walle.np as np
from walle.engine_ext.errors import ShapeError
from walle.nn import init


@pytest.fixture(autouse=True)
def _seed() -> None:
    nn.manual_seed(1)


def values_of(parameter: nn.Parameter) -> numpy.ndarray:
    return numpy.asarray(parameter.data, "float64")


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(np.zeros(shape))


def test_initialisers_fill_parameters_and_arrays_in_place() -> None:
    parameter, array = weight(3, 4), np.zeros((3, 4))
    data = parameter.data
    assert init.constant_(parameter, 2.5) is parameter
    assert parameter.data is data
    assert (data == 2.5).all()
    assert (init.ones_(array) == 1).all()
    assert (init.zeros_(array) == 0).all()
    assert np.array_equal(init.eye_(array), np.eye(3, 4))


@pytest.mark.parametrize(
    ("fill", "deviation", "bound"),
    [
        (lambda w: init.uniform_(w, -1.0, 1.0), 1 / math.sqrt(3), 1.0),
        (lambda w: init.normal_(w, 0.0, 0.5), 0.5, None),
        (lambda w: init.trunc_normal_(w, 0.0, 1.0, -1.0, 1.0), 0.5396, 1.0),
        (lambda w: init.xavier_uniform_(w, 2.0), 2 * math.sqrt(2 / 300), 2 * math.sqrt(6 / 300)),
        (lambda w: init.xavier_normal_(w), math.sqrt(2 / 300), None),
        (lambda w: init.kaiming_uniform_(w, nonlinearity="relu"), math.sqrt(2 / 100), math.sqrt(6 / 100)),
        (lambda w: init.kaiming_normal_(w, 0.2, "fan_out"), math.sqrt(2 / 1.04 / 200), None),
    ],
)
def test_distribution_has_its_deviation_and_bound(fill: object, deviation: float, bound: float | None) -> None:
    parameter = weight(200, 100)
    fill(parameter)  # type: ignore[operator]
    values = values_of(parameter)
    assert values.std() == pytest.approx(deviation, rel=0.03)
    assert abs(values.mean()) < 0.03 * deviation + 0.01 * deviation
    if bound is not None:
        assert numpy.abs(values).max() <= bound * (1 + 1e-6)
        assert numpy.abs(values).max() > 0.98 * bound


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 3)])
def test_orthogonal_rows_or_columns(shape: tuple[int, ...]) -> None:
    parameter = init.orthogonal_(weight(*shape), 2.0)
    flat = values_of(parameter).reshape(shape[0], -1)
    small = flat if flat.shape[0] <= flat.shape[1] else flat.T
    numpy.testing.assert_allclose(small @ small.T, 4 * numpy.eye(len(small)), atol=1e-5)


def test_dirac_keeps_channels_in_each_group() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
    init.dirac_(layer.weight, 2)
    x = np.random.default_rng(0).random((1, 4, 5, 5))
    assert np.array_equal(layer(x), x)


def test_gains_are_those_of_the_activations() -> None:
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("leaky_relu", 0.5) == math.sqrt(2 / 1.25)
    assert init.calculate_gain("conv2d") == 1


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (lambda: init.xavier_uniform_(weight(3)), "no fan-in"),
        (lambda: init.kaiming_uniform_(weight(3, 3), mode="fan"), "mode 'fan'"),
        (lambda: init.kaiming_uniform_(weight(3, 3), nonlinearity="sine"), "'sine'"),
        (lambda: init.eye_(weight(3)), "matrix"),
        (lambda: init.dirac_(weight(3, 3)), "3 to 5 axes"),
        (lambda: init.orthogonal_(weight(3)), "two axes"),
        (lambda: init.trunc_normal_(weight(3), 0.0, 1.0, 8.0, 9.0), r"\[8.0, 9.0\]"),
    ],
)
def test_wrong_shape_or_name_is_refused(fill: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        fill()  # type: ignore[operator]


def test_own_generator_leaves_the_common_one_alone() -> None:
    generator = np.random.Generator(3)
    first = init.normal_(weight(4), generator=generator).data
    nn.manual_seed(1)
    common = init.normal_(weight(4)).data.copy()
    assert not np.array_equal(first, common)
    again = init.normal_(weight(4), generator=np.random.Generator(3)).data
    assert np.array_equal(first, again)
