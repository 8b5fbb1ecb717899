"""Complex arrays for tests of `walle.np`, and the comparison with NumPy's result."""

from typing import Any

import numpy

COMPLEX = ["complex64", "complex128"]
RTOL = {"complex64": 5e-6, "float32": 5e-6, "complex128": 1e-13, "float64": 1e-13}


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> numpy.ndarray:
    rng = numpy.random.default_rng(seed)
    if dtype.startswith("complex"):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    return (
        (4 * rng.normal(size=shape)).astype(dtype) if dtype.startswith("f") else rng.integers(0, 9, shape).astype(dtype)
    )


def same(here: Any, there: Any, scale: float = 1) -> None:
    """Check dtype, shape and values; the parts of infinite and undefined numbers one by one."""
    there = numpy.asarray(there)
    assert here.dtype == there.dtype.name
    assert here.shape == there.shape
    found = numpy.asarray(here)
    rtol = RTOL.get(here.dtype, 0) * scale
    if here.dtype not in COMPLEX:
        numpy.testing.assert_allclose(found, there, rtol=rtol, atol=rtol)
        return
    finite = numpy.isfinite(there)
    assert (numpy.abs(found - there)[finite] <= rtol * (1 + numpy.abs(there[finite]))).all()
    for part, expected in ((found.real, there.real), (found.imag, there.imag)):
        numpy.testing.assert_array_equal(numpy.isnan(part)[~finite], numpy.isnan(expected)[~finite])
        numpy.testing.assert_array_equal(numpy.isinf(part)[~finite], numpy.isinf(expected)[~finite])
