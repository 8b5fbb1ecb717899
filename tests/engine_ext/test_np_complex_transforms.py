"""Fourier transforms against NumPy's, and the laws that they keep."""

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import walle.np as np
from tests.engine_ext.complex_samples import same, sample
from walle.engine_ext.errors import DTypeError, ShapeError


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 40) | st.sampled_from([64, 67, 97, 128, 134, 210, 331, 1000, 1024, 4096]), st.integers(0, 99),
    st.sampled_from([None, "backward", "ortho", "forward"]), st.sampled_from(["float32", "float64", "int16", "int64"]),
    st.integers(-2, 1), st.integers(1, 9), st.integers(-3, 3),
)  # fmt: skip
def test_transforms_agree_with_numpy(
    n: int, seed: int, norm: Any, dtype: str, axis: int, rows: int, longer: int
) -> None:
    shape = (rows, n) if axis % 2 else (n, rows)
    real = sample(dtype, shape, seed)
    wide = "complex64" if dtype in ("float32", "int16") else "complex128"
    both = sample(wide, shape, seed)
    length = max(1, n + longer)
    if dtype == "int16":
        real = real.astype("float32")  # NumPy computes them in float64
    for name, x in (("fft", both), ("ifft", both), ("fft", real), ("ifft", real), ("rfft", real), ("irfft", both), ("hfft", both), ("ihfft", real)):  # fmt: skip # noqa: E501
        for size in (length, None):
            if size is None and n == 1 and name in ("irfft", "hfft"):
                continue
            expected = getattr(numpy.fft, name)(x, size, axis, norm)
            same(getattr(np.fft, name)(x, size, axis, norm), expected, 4 * max(1, float(numpy.abs(expected).max())))


@settings(max_examples=60, deadline=None)
@given(st_numpy.arrays("complex128", st_numpy.array_shapes(min_dims=1, max_dims=3, max_side=20),
                       elements=st.complex_numbers(max_magnitude=1e3, allow_nan=False)))  # fmt: skip
def test_transforms_obey_their_laws(x: numpy.ndarray) -> None:
    here = np.asarray(x)
    spectrum = np.fft.fft(here)
    limit = 1e-12 * (1 + float(np.linalg.norm(here)))
    assert float(np.abs(np.fft.ifft(spectrum) - here).max()) <= limit  # the inverse
    energy = float((abs(spectrum) ** 2).sum()) / x.shape[-1]
    assert energy == pytest.approx(float((abs(here) ** 2).sum()), rel=1e-10, abs=1e-300)  # Parseval
    turned = np.fft.fft(here.conj())
    assert float(np.abs(turned[..., 1:] - spectrum.conj()[..., :0:-1]).max(initial=0)) <= limit * x.shape[-1]


def test_transforms_over_several_axes() -> None:
    both = sample("complex128", (4, 6, 5))
    for name in ("fftn", "ifftn", "fft2", "ifft2"):
        same(getattr(np.fft, name)(both), getattr(numpy.fft, name)(both), 100)
        expected = getattr(numpy.fft, name)(both, (3, 8), (0, 2))
        same(getattr(np.fft, name)(both, (3, 8), (0, 2)), expected, 100)
    same(np.fft.rfftn(both.real), numpy.fft.rfftn(both.real), 100)
    same(np.fft.rfft2(both.real), numpy.fft.rfft2(both.real), 100)
    same(np.fft.irfftn(both, (6, 5), (1, 2)), numpy.fft.irfftn(both, (6, 5), (1, 2)), 100)
    same(np.fft.irfft2(both), numpy.fft.irfft2(both), 100)
    same(np.fft.fftshift(both), numpy.fft.fftshift(both))
    with pytest.raises(ShapeError, match="known are backward, ortho and forward"):
        np.fft.rfft(both.real, norm="other")
    with pytest.raises(DTypeError, match="takes real numbers"):
        np.fft.rfft(both)
    with pytest.raises(ShapeError, match="length must be positive"):
        np.fft.fft(both, 0)
    with pytest.raises(ShapeError, match="without dimensions"):
        np.fft.fft(1.0)
    with pytest.raises(ShapeError):
        np.fft.fft(both, axis=3)
