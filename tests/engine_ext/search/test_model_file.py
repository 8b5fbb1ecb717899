"""Files of performance models: equal predictions, int8 weights, damaged and foreign files."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine_ext.search.machines import INTEL, layers_of_networks
from walle.engine_ext.search.mlp import Schedule
from walle.errors import ConfigError
from walle.search import PerformanceModel

LAYERS = layers_of_networks(120, np.random.default_rng(0))
NAMES, TIMES = INTEL.times(LAYERS, np.random.default_rng(1))


@pytest.fixture(scope="module")
def model() -> PerformanceModel:
    schedule = Schedule(epochs=10, learning_rate=3e-3)
    return PerformanceModel.fit(LAYERS, TIMES, seed=0, hidden=(48, 64), schedule=schedule, primitives=NAMES)


def predicted(model: PerformanceModel) -> NDArray[np.float64]:
    return np.asarray(model.predict(LAYERS)).astype(np.float64)


def test_a_loaded_model_predicts_and_transfers_as_the_saved_one(model: PerformanceModel, tmp_path: Path) -> None:
    model.save(tmp_path / "intel.model")
    loaded = PerformanceModel.load(tmp_path / "intel.model")
    assert loaded.primitives == tuple(NAMES)
    assert (predicted(loaded) == predicted(model)).all()
    loaded.save(str(tmp_path / "again.model"))
    assert (tmp_path / "again.model").read_bytes() == (tmp_path / "intel.model").read_bytes()
    one, other = (start.transfer(LAYERS[:5], 2 * TIMES[:5]) for start in (model, loaded))
    assert (predicted(one) == predicted(other)).all()


def test_int8_weights_are_small_and_near(model: PerformanceModel, tmp_path: Path) -> None:
    full, small = tmp_path / "full", tmp_path / "small"
    model.save(full)
    model.save(small, weights="int8")
    assert small.stat().st_size < 0.5 * full.stat().st_size
    ratios = predicted(PerformanceModel.load(small)) / predicted(model)
    assert np.median(np.abs(ratios - 1)) < 0.01
    with pytest.raises(ConfigError, match="int4"):
        model.save(small, weights="int4")


def test_an_undefined_primitive_stays_undefined(tmp_path: Path) -> None:
    times = np.stack((TIMES[:, 0], np.full(len(TIMES), np.nan)), axis=1)
    PerformanceModel.fit(LAYERS, times, seed=0, hidden=(), schedule=Schedule(epochs=1)).save(tmp_path / "m")
    found = predicted(PerformanceModel.load(tmp_path / "m"))
    assert np.isfinite(found).all(axis=0).tolist() == [True, False]


def rewritten(path: Path, change: Any) -> None:
    """Write the archive again, its metadata and arrays changed by a function."""
    with zipfile.ZipFile(path) as archive:
        metadata, data = json.loads(archive.read("model.json")), archive.read("arrays.bin")
    metadata, data = change(metadata, data)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.json", json.dumps(metadata))
        archive.writestr("arrays.bin", data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, d: ({**m, "format": "other"}, d), "format"),
        (lambda m, d: ([], d), "format"),
        (lambda m, d: (m, d[:-4]), "cut off"),
        (lambda m, d: (m, d + b"1234"), "4 bytes too many"),
        (lambda m, d: ({**m, "arrays": None}, d), "damaged"),
        (lambda m, d: ({**m, "arrays": [{}]}, d), "no 'name'"),
        (lambda m, d: ({**m, "sizes": [1, 2]}, d), "sizes"),
        (lambda m, d: ({**m, "sizes": [*m["sizes"][:1], 7, *m["sizes"][1:]]}, d), "arrays"),
        (lambda m, d: ({**m, "primitives": ["a"]}, d), "primitives"),
        (lambda m, d: ({**m, "inputs": ["log k"]}, d), "another version"),
        (lambda m, d: ({**m, "features": ["x"]}, d), "another version"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    model: PerformanceModel, tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "changed.model"
    model.save(path)
    rewritten(path, change)
    with pytest.raises(ConfigError, match=message) as found:
        PerformanceModel.load(path)
    assert "changed.model" in str(found.value)


def test_every_damage_is_refused_or_harmless(model: PerformanceModel, tmp_path: Path) -> None:
    path = tmp_path / "damaged.model"
    model.save(path, weights="int8")
    whole, expected = path.read_bytes(), predicted(PerformanceModel.load(path))
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole[: rng.integers(len(whole))] if rng.random() < 0.3 else whole)
        for place in rng.integers(0, max(1, len(damaged)), 3):
            if damaged:
                damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            loaded = PerformanceModel.load(path)
        except ConfigError:
            continue
        assert (predicted(loaded) == expected).all()


def test_a_foreign_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"WALLE\r\n\x1a" + bytes(100))
    with pytest.raises(ConfigError, match="foreign is not a performance model"):
        PerformanceModel.load(tmp_path / "foreign")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(ConfigError, match=r"model\.json"):
        PerformanceModel.load(tmp_path / "other.zip")
    with pytest.raises(FileNotFoundError):
        PerformanceModel.load(tmp_path / "missing")
