"""Performance models as sessions read them: equal predictions, refused bytes."""

import math
import struct
from pathlib import Path

import numpy
import pytest

from tests.engine_ext.search.constant_model import LAYERS, constant_model
from tests.engine_ext.search.machines import INTEL, layers_of_networks
from walle.engine_ext import _core
from walle.engine_ext.errors import BackendError
from walle.engine_ext.search.mlp import Schedule
from walle.engine_ext.search.portable_model import portable
from walle.errors import ConfigError
from walle.search import PerformanceModel

BACKEND = _core.backend()
MODEL = constant_model({"direct(0)": 7.0, "winograd(2)": 3.5})
FIRST_LINE = MODEL.index(b"\n") + 1


def test_the_engine_predicts_what_the_trained_model_does(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    layers = layers_of_networks(150, rng)
    names, times = INTEL.times(layers, rng)
    kept = [place for place, name in enumerate(names) if not numpy.isnan(times[:, place]).all()]
    model = PerformanceModel.fit(
        layers,
        times[:, kept],
        seed=0,
        primitives=[names[place] for place in kept],
        hidden=(24, 16),
        schedule=Schedule(epochs=4),
    )
    model.save(tmp_path / "model", weights="int8")
    expected = numpy.asarray(PerformanceModel.load(tmp_path / "model").predict(layers))
    found = numpy.asarray(_core.predicted_times(portable(model, layers), layers))
    numpy.testing.assert_allclose(found, expected, rtol=1e-4)


def test_predictions_of_a_constant_model() -> None:
    found = numpy.asarray(_core.predicted_times(MODEL, [[1, 1, 7, 1, 1], [64, 64, 56, 1, 3]]))
    numpy.testing.assert_allclose(found, [[7, 3.5]] * 2, rtol=1e-5)
    assert _core.predicted_times(MODEL, numpy.zeros((0, 5))).shape == (0, 2)


def test_a_time_beyond_any_is_not_a_number() -> None:
    assert numpy.isnan(numpy.asarray(_core.predicted_times(constant_model({"direct(0)": 1e30}), [[1] * 5]))).all()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (b"", "its format is another one"),
        (MODEL[:FIRST_LINE].replace(b"1", b"2") + MODEL[FIRST_LINE:], "its format is another one"),
        (
            MODEL[:FIRST_LINE] + struct.pack("<I", 31) + MODEL[FIRST_LINE + 4 :],
            "31 features, and this engine 32",
        ),
        (MODEL[:FIRST_LINE] + struct.pack("<I", 0) + MODEL[FIRST_LINE + 4 :], "it has 0 features"),
        (MODEL[: FIRST_LINE + 4] + struct.pack("<I", 1 << 31) + MODEL[FIRST_LINE + 8 :], "2147483648 layers"),
        (MODEL[: FIRST_LINE + 8] + struct.pack("<I", 4096) + MODEL[FIRST_LINE + 12 :], "4096 primitives"),
        (MODEL[:-4] + struct.pack("<f", math.nan), "a number that is not finite"),
        (MODEL + b"\0", "bytes after its end"),
        (MODEL.replace(b"\x0bwinograd(2)", b"\x09direct(0)"), "two of its primitives have one name"),
    ],
)
def test_bytes_that_are_not_a_model_are_refused(model: bytes, reason: str) -> None:
    with pytest.raises(BackendError, match=f"cannot be used: .*{reason}"):
        _core.set_performance_model(BACKEND, model)
    assert _core.performance_model(BACKEND) is None


def test_a_model_that_is_cut_anywhere_is_refused() -> None:
    for size in range(len(MODEL)):
        with pytest.raises(BackendError):
            _core.predicted_times(MODEL[:size], [[1] * 5])


def test_only_named_primitives_with_samples_are_portable() -> None:
    layers, times = [*LAYERS] * 5, [[1.0, math.nan]] * 10
    for names in ((), ("direct(0)", "winograd(2)")):
        with pytest.raises(ConfigError, match="is portable"):
            portable(PerformanceModel.fit(layers, times, seed=0, primitives=names, hidden=()), layers)


@pytest.mark.parametrize("layers", [[[1, 1, 1, 1]], [1] * 5, [[0, 1, 1, 1, 1]], [[math.nan, 1, 1, 1, 1]]])
def test_wrong_layers_are_refused(layers: list[object]) -> None:
    with pytest.raises(ValueError, match="layers have"):
        _core.layer_features(layers)
