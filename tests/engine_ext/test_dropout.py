"""Dropout in training: NumPy's sequence for the node's seed, or an error."""

from typing import Any

import numpy
import pytest

from walle.engine_ext import _core
from walle.errors import EngineError


def run(x: Any, ratio: float, attributes: dict[str, Any]) -> list[Any]:
    inputs = [_core.asarray(x, None), _core.asarray(numpy.float32(ratio), None), _core.asarray(numpy.bool_(True), None)]
    return [numpy.asarray(one) for one in _core.evaluate("Dropout", inputs, attributes, 2)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_elements_are_dropped_by_numpys_sequence(dtype: str) -> None:
    x = numpy.linspace(1, 2, 60).reshape(3, 4, 5).astype(dtype)
    kept = numpy.random.RandomState(7).uniform(size=x.shape) >= 0.25
    y, mask = run(x, 0.25, {"seed": 7})
    numpy.testing.assert_array_equal(mask, kept)
    numpy.testing.assert_allclose(y, x * kept / 0.75, rtol=1e-3)
    assert y.dtype == x.dtype


def test_a_ratio_of_0_keeps_everything() -> None:
    x = numpy.ones((2, 3), "float32")
    y, mask = run(x, 0, {})
    numpy.testing.assert_array_equal(y, x)
    assert mask.all()


@pytest.mark.parametrize(("ratio", "attributes"), [(0.5, {}), (1.0, {"seed": 1}), (0.5, {"seed": -1})])
def test_ambiguous_ratios_and_seeds_are_refused(ratio: float, attributes: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"seed|ratio"):
        run(numpy.ones(3, "float32"), ratio, attributes)
