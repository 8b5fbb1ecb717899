"""Resize by scales that are not whole numbers has ONNX Runtime's sizes and places."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.sim.onnx_models import NODE, model, runtime
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session
from walle.onnx_backend import Backend

CASES = Path(__file__).parents[3] / "shared/cases/engine"
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="../shared/cases is not beside this checkout")


def theirs(x: Any, scales: Any, attributes: dict[str, Any]) -> Any:
    node = NODE("Resize", ["x", "", "s"], ["y"], **attributes)
    return runtime(model([node], {"x": x}, ["y"], weights={"s": scales}, opset=19), {"x": x})[0]


def ours(x: Any, scales: Any, attributes: dict[str, Any]) -> Any:
    g = GraphBuilder("g")
    g.output("y", g.op("Resize", [g.input("x", x.shape), None, g.constant("s", scales)], **attributes))
    return np.asarray(Session(g.to_bytes()).run({"x": x})["y"])


def some_scale(rng: np.random.Generator) -> np.float32:
    """Return a scale of the kinds that people write: any, 1/n, n/10 and a quotient of sizes."""
    whole = rng.integers(1, 40, 3)
    return np.float32(rng.choice((rng.uniform(0.1, 4), 1 / whole[0], whole[0] / 10, whole[1] / whole[2])))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_are_those_of_onnx_runtime(mode: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(250):
        x = np.zeros((1, 1, 2, int(rng.integers(1, 100))), np.float32)
        scales = np.array([1, 1, 1, some_scale(rng)], np.float32)
        attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
        assert ours(x, scales, attributes).shape == theirs(x, scales, attributes).shape, (x.shape, scales)


@pytest.mark.parametrize("rounding", ["floor", "ceil"])
def test_nearest_places_are_those_of_onnx_runtime(rounding: str) -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
    for size in range(2, 60):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
        for divisor in range(2, 12):
            scales = np.array([1, 1, 1, 1 / divisor], np.float32)
            if size // divisor in (0, size):
                continue
            np.testing.assert_array_equal(
                ours(x, scales, attributes), theirs(x, scales, attributes), str((size, divisor))
            )


def test_a_single_result_by_pytorch_half_pixel_is_at_the_first_place() -> None:
    """ONNX's text: x_original is 0 where the resized length is 1."""
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 1, 6)
    attributes = {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}
    found = ours(x, np.array([1, 1, 1, 0.2], np.float32), attributes)
    np.testing.assert_allclose(found, x[..., :1], rtol=1e-6)
    np.testing.assert_allclose(found, theirs(x, np.array([1, 1, 1, 0.2], np.float32), attributes), rtol=1e-5)


@needs_cases
def test_ten_by_seven_tenths_are_seven() -> None:
    proto = onnx.load(CASES / "resize_10_by_0.7.onnx")
    shape = [one.dim_value for one in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (found,) = Backend.run_model(proto, [x])
    (expected,) = runtime(proto, {proto.graph.input[0].name: x})
    assert 7 in found.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)
