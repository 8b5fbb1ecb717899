"""DFT and STFT against NumPy, over lengths that take every path of the decomposition."""

from typing import Any

import numpy as np
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import ShapeError


def dft(signal: Any, length: int | None = None, axis: int = -2, **attributes: int) -> Any:
    size = None if length is None else np.array(length)
    return np.array(_core.evaluate("DFT", [signal, size, np.array(axis)], attributes)[0])


def complex_of(parts: Any) -> Any:
    return parts[..., 0] + 1j * parts[..., 1]


def parts_of(numbers: Any) -> Any:
    return np.stack([numbers.real, numbers.imag], axis=-1)


# Powers of two, small primes, large ones (a convolution), with a factor, 1.
@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 96, 127, 254, 1000, 1024, 4001, 4096, 64 * 64 * 5])
def test_a_complex_dft_and_its_inverse(n: int) -> None:
    rng = np.random.default_rng(n)
    signal = rng.normal(size=(2, n)) + 1j * rng.normal(size=(2, n))
    found = complex_of(dft(parts_of(signal)))
    np.testing.assert_allclose(found, np.fft.fft(signal), rtol=1e-10, atol=1e-10 * n)
    np.testing.assert_allclose(complex_of(dft(parts_of(found), inverse=1)), signal, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 63, 130])
def test_one_side_of_a_real_signal_and_back(n: int) -> None:
    signal = np.random.default_rng(n).normal(size=(3, n, 2)).transpose(0, 2, 1)[..., None]
    half = dft(signal, onesided=1)
    np.testing.assert_allclose(complex_of(half), np.fft.rfft(signal[..., 0]), atol=1e-10)
    np.testing.assert_allclose(dft(half, length=n, inverse=1, onesided=1), signal, atol=1e-10)


@pytest.mark.parametrize("length", [5, 12, 20])
def test_a_length_cuts_the_signal_or_fills_it_with_zeros(length: int) -> None:
    signal = np.random.default_rng(0).normal(size=(12, 3, 1)).astype(np.float32)
    found = complex_of(dft(signal, length=length, axis=0))
    np.testing.assert_allclose(found, np.fft.fft(signal[..., 0], n=length, axis=0), rtol=1e-5, atol=1e-5)


def test_a_float32_result_is_the_exact_one_rounded_once() -> None:
    signal = np.arange(200, dtype=np.float32).reshape(1, 200, 1)
    exact = np.fft.fft(signal[..., 0].astype(np.float64))
    np.testing.assert_allclose(complex_of(dft(signal).astype(np.float64)), exact, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("axis", [0.5, np.nan, 1e300, -np.inf])
def test_an_axis_is_a_whole_number(axis: float) -> None:
    with pytest.raises(ShapeError, match="the axis"):
        _core.evaluate("DFT", [np.zeros((1, 4, 1)), None, np.array(axis)], {})


def test_frames_overlap_and_are_windowed() -> None:
    signal = np.random.default_rng(1).normal(size=(2, 50, 1))
    window = np.hanning(16)
    (found,) = _core.evaluate("STFT", [signal, np.array(6), window, None], {})
    frames = np.stack([signal[:, i : i + 16, 0] * window for i in range(0, 50 - 15, 6)], axis=1)
    np.testing.assert_allclose(complex_of(np.array(found)), np.fft.rfft(frames), atol=1e-10)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"1 \(real\) or 2 \(complex\)"):
        dft(np.zeros((1, 8, 3)))
    with pytest.raises(ShapeError, match="last axis"):
        dft(np.zeros((1, 8, 1)), axis=-1)
    with pytest.raises(ShapeError, match="outside the spectrum"):
        _core.evaluate(
            "MelWeightMatrix", [np.array(8), np.array(16), np.array(8192), np.array(0.0), np.array(9000.0)], {}
        )
