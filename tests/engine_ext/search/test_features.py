"""Features of convolution layers: values by hand, names, and bounds of those that say how full tiles are."""

import math

import numpy as np
import pytest

from tests.engine_ext.search.machines import layers_of_networks
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.search.features import FLOPS, NAMES, features_of
from walle.engine_ext.search.samples import SampleError, checked_layers


def physical(*layer: int) -> dict[str, float]:
    row = features_of(checked_layers([list(layer)]), "physical")[0].tolist()
    return dict(zip(NAMES["physical"], row, strict=True))


def test_physical_features_of_a_layer() -> None:
    found = physical(64, 3, 224, 2, 7)
    assert found["log k"] == pytest.approx(math.log(64))
    assert found["log out"] == pytest.approx(math.log(112))
    assert found["log flops"] == pytest.approx(math.log(64 * 3 * 49 * 112 * 112))
    elements = 3 * 224 * 224 + 64 * 3 * 49 + 64 * 112 * 112
    assert found["log bytes"] == pytest.approx(math.log(elements))
    assert found["log im2col elements"] == pytest.approx(math.log(3 * 49 * 112 * 112))
    assert (found["f is 3"], found["s is 2"], found["s is 1"]) == (0, 1, 0)


def test_parts_of_tiles_that_are_filled() -> None:
    found = physical(20, 3, 27, 1, 3)
    assert found["log part of 16s filled by k"] == pytest.approx(math.log(20 / 32))
    assert found["log part of 4s filled by k"] == 0
    assert found["log part of 8s filled by c"] == pytest.approx(math.log(3 / 8))
    assert found["log part of 6s filled by out"] == pytest.approx(math.log(27 / 30))


def test_features_are_finite_and_as_many_as_their_names() -> None:
    layers = checked_layers(layers_of_networks(200, np.random.default_rng(0)))
    for kind, names in NAMES.items():
        found = np.asarray(features_of(layers, kind))
        assert found.shape == (200, len(names))
        assert np.isfinite(found).all()
    assert NAMES["physical"][FLOPS] == "log flops"
    assert (np.asarray(features_of(layers, "raw")) == np.asarray(layers)).all()


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ([[64, 3, 224, 2]], ShapeError, r"\(1, 4\)"),
        ([64, 3, 224, 2, 7], ShapeError, r"\(5,\)"),
        ([[1, 1, 7, 1, 1], [64, 3, 224, 0, 7]], SampleError, "row 1 of layers: stride s is 0"),
        ([[64, 3, 224, 2, 2.5]], SampleError, "row 0 of layers: kernel size f is 2.5"),
        ([[64, math.nan, 224, 2, 7]], SampleError, "row 0 of layers: channels c is nan"),
        ([[math.inf, 3, 224, 2, 7]], SampleError, "kernels k is inf"),
        ([[1 << 25, 3, 224, 2, 7]], SampleError, "16,777,216"),
        ([[-1, 3, 224, 2, 7]], SampleError, "kernels k is -1"),
    ],
)
def test_wrong_layers_are_refused(layers: list[list[float]], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked_layers(layers)
