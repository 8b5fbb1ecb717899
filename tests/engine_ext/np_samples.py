"""Arrays of each dtype for tests of `walle.np`, and the comparison with NumPy's result."""

from typing import Any

import numpy

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "bool"]
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}


def same(here: Any, there: Any) -> None:
    there = numpy.asarray(there)
    assert here.shape == there.shape
    assert here.dtype == there.dtype.name
    rtol = TOLERANCE.get(here.dtype, 0)
    numpy.testing.assert_allclose(numpy.asarray(here), there, rtol=rtol, atol=rtol)


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> numpy.ndarray:
    rng = numpy.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("float"):
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0 if dtype == "uint8" else -9, 9, shape).astype(dtype)
