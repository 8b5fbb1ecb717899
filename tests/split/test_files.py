"""Two files of a cut model: one after the other they give the uncut model's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.split.models import saved, shaped, two_ends
from walle import np
from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.partition import ArrayInfo
from walle.engine_ext.session import Session, load
from walle.split.cuts import CutModel, find_cuts
from walle.split.files import errors_of, run_parts, write_parts
from walle.split.quantised import dequantise, is_quantisable, quantise, quantised_bytes

MODELS = Path(__file__).parents[3] / "shared" / "data" / "models"
_EXACT = 1e-5


def samples_of(model: CutModel, count: int = 2) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [
        {
            name: random.normal(size=one.shape).astype(one.dtype) if one.dtype == "float32" else one
            for name, one in zip(model.graph.input_names, model.inputs, strict=True)
        }
        for _ in range(count)
    ]


def check(path: Path, model: CutModel, folder: Path, step: int = 1) -> None:
    """Check the parts of cuts, each `step`th."""
    samples = samples_of(model)
    inner = model.cuts[1:-1]
    assert inner
    for cut in inner[::step]:
        parts = write_parts(model, cut, folder)
        for error in errors_of(path, parts, samples):
            assert error.relative <= _EXACT, (cut, error)


@pytest.mark.parametrize("name", ["residual", "depthwise", "attention", "words", "recurrent"])
def test_parts_equal_the_uncut_model_at_every_cut(name: str, tmp_path: Path) -> None:
    path, inputs = saved(name, tmp_path)
    model = find_cuts(path, times="rates")
    whole = load(path)
    for cut in model.cuts[1:-1]:
        parts = write_parts(model, cut, tmp_path / "parts")
        device, cloud = Session(parts.device), Session(parts.cloud)
        found, expected = run_parts(device, cloud, inputs), whole.run(inputs)
        assert found.keys() == expected.keys()
        for output, array in expected.items():
            assert np.allclose(found[output], array, rtol=_EXACT, atol=_EXACT)
        assert sum(one.nbytes for name, one in device.run(inputs).items() if name.startswith("cut ")) == cut.up_bytes


@pytest.mark.parametrize(
    "name", ["ad01_autoencoder", "mnist_cnn", "cls_mobilenet_v1_0.25_128", "denoise_dtln_1", "face_rfb320"]
)
def test_parts_of_public_models_equal_the_uncut_ones(name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    model = find_cuts(path, times="rates")
    check(path, model, tmp_path, max(1, len(model.cuts) // 3))


@pytest.mark.night
@pytest.mark.parametrize(
    "name", ["det_nanodet_m_320", "face_yunet_n_320", "denoise_gtcrn_simple", "det_fastestdet_352"]
)
def test_parts_of_detectors_equal_the_uncut_ones(name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    model = find_cuts(path, times="rates")
    check(path, model, tmp_path, max(1, len(model.cuts) // 12))


def test_a_shape_that_the_other_part_knows_is_a_constant(tmp_path: Path) -> None:
    path = shaped(tmp_path / "shaped.walle")
    check(path, find_cuts(path, times="rates"), tmp_path)


def test_an_output_before_the_cut_comes_from_the_device(tmp_path: Path) -> None:
    path = two_ends(tmp_path / "two.walle")
    model = find_cuts(path, {"x": (1, 6)}, times="rates")
    cut = next(one for one in model.cuts if one.down_bytes == 24)
    parts = write_parts(model, cut, tmp_path)
    device, cloud = Session(parts.device), Session(parts.cloud)
    assert [one.name for one in device.outputs] == ["cut 0", "half"]
    assert [one.name for one in cloud.outputs] == ["whole"]
    x = {"x": np.ones((1, 6), "float32")}
    assert run_parts(device, cloud, x).keys() == {"half", "whole"}
    check(path, model, tmp_path)


def test_the_batch_of_both_parts_is_free_where_the_models_is(tmp_path: Path) -> None:
    path, inputs = saved("residual", tmp_path)
    model = find_cuts(path, times="rates")
    for is_quantised in (False, True):
        parts = write_parts(model, model.cuts[3], tmp_path / "parts", is_quantised=is_quantised)
        many = {name: np.concatenate([one, 2.0 * one, -one]) for name, one in inputs.items()}
        found = run_parts(Session(parts.device), Session(parts.cloud), many)
        [(output, expected)] = load(path).run(many).items()
        assert found[output].shape == (3, 4)
        assert np.allclose(found[output], expected, atol=0.1 if is_quantised else _EXACT)


def test_a_model_in_one_place_has_no_parts(tmp_path: Path) -> None:
    path, _ = saved("residual", tmp_path)
    model = find_cuts(path, times="rates")
    for cut in (model.all_here, model.all_there):
        with pytest.raises(ModelError, match="no two parts"):
            write_parts(model, cut, tmp_path / "parts")


@pytest.mark.parametrize("name", ["residual", "depthwise"])
def test_quantised_arrays_pass_in_a_quarter_of_the_bytes(name: str, tmp_path: Path) -> None:
    path, inputs = saved(name, tmp_path)
    model = find_cuts(path, times="rates")
    quantisable = [
        one for one in model.cuts[1:-1] if all(is_quantisable(model.arrays[number]) for number in one.values)
    ]
    cut = max(quantisable, key=lambda one: one.up_bytes)
    parts = write_parts(model, cut, tmp_path / "parts", is_quantised=True)
    sent = {name: one for name, one in Session(parts.device).run(inputs).items() if name.startswith("cut ")}
    assert sum(one.nbytes for one in sent.values()) == cut.quantised_bytes < 0.3 * cut.up_bytes
    [error] = errors_of(path, parts, [inputs])
    assert 0 < error.relative < 0.03


@given(st.integers(0, 2**31), st.booleans(), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_a_quantised_value_differs_by_half_a_scale(seed: int, is_image: bool, width: float, middle: float) -> None:
    shape = (1, 3, 9, 8) if is_image else (1, 90)
    array = (np.random.default_rng(seed).normal(size=shape) * width + middle).astype("float32")
    info = ArrayInfo("float32", shape, array.nbytes, frozenset({0}))
    levels, scale, low = quantise(array, info)
    assert scale.size == (3 if is_image else 1)
    assert levels.nbytes + scale.nbytes + low.nbytes == quantised_bytes(info)
    rounding = 4e-7 * (abs(middle) + 10 * width)
    assert (np.abs(dequantise(levels, scale, low) - array) <= 0.5 * scale + rounding).all()


def test_an_array_of_one_value_passes_unchanged_in_int8() -> None:
    array = np.full((1, 100), 7.25, "float32")
    info = ArrayInfo("float32", array.shape, array.nbytes, frozenset({0}))
    assert (dequantise(*quantise(array, info)) == array).all()
