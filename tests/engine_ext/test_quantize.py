"""Quantisation against NumPy: scales per tensor, slice and block; ties, saturation and zero points."""

from typing import Any

import numpy as np
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ShapeError

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def quantised(x: Any, scale: Any, point: Any, **attributes: int) -> Any:
    return np.array(_core.evaluate("QuantizeLinear", [x, scale, point], attributes)[0])


def dequantised(x: Any, scale: Any, point: Any, **attributes: int) -> Any:
    return np.array(_core.evaluate("DequantizeLinear", [x, scale, point], attributes)[0])


@pytest.mark.parametrize("dtype", RANGES)
def test_rounds_half_to_even_and_saturates(dtype: str) -> None:
    least, greatest = RANGES[dtype]
    x = np.array([-1e9, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e9, np.inf, -np.inf], dtype=np.float32)
    point = np.array(3, dtype=dtype)
    expected = np.clip(np.rint(x) + 3, least, greatest).astype(dtype)
    np.testing.assert_array_equal(quantised(x, np.float32(1), point), expected)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_scale_for_each_slice(axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    size, shape = x.shape[axis], [1, 1, 1]
    shape[axis] = size
    scale, point = np.linspace(0.01, 0.1, size, dtype=np.float32), rng.integers(100, 150, size).astype(np.uint8)
    found = quantised(x, scale, point, axis=axis)
    wide, offset = scale.reshape(shape), point.reshape(shape)
    expected = np.array(np.clip(np.rint(x / wide) + offset, 0, 255), dtype=np.uint8)
    np.testing.assert_array_equal(found, expected)
    back = dequantised(found, scale, point, axis=axis)
    np.testing.assert_allclose(
        back, (found.astype(np.float32) - point.reshape(shape)) * scale.reshape(shape), rtol=1e-6
    )


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_a_scale_for_each_block_the_last_one_shorter(block: int) -> None:
    rng = np.random.default_rng(block)
    x = rng.normal(size=(2, 7, 3)).astype(np.float32)
    blocks = -(-7 // block)
    scale = rng.uniform(0.01, 0.1, (2, blocks, 3)).astype(np.float32)
    point = rng.integers(-5, 5, scale.shape).astype(np.int8)
    wide, offset = (np.repeat(one, block, axis=1)[:, :7] for one in (scale, point))
    found = quantised(x, scale, point, axis=1, block_size=block)
    np.testing.assert_array_equal(found, np.clip(np.rint(x / wide) + offset, -128, 127).astype(np.int8))
    back = dequantised(found, scale, point, axis=1, block_size=block)
    np.testing.assert_allclose(back, (found.astype(np.float32) - offset) * wide, rtol=1e-6)


def test_differences_of_32_bits_are_exact() -> None:
    x, point = np.array([2**24 + 1], dtype=np.int32), np.array(2**24, dtype=np.int32)
    np.testing.assert_array_equal(dequantised(x, np.float32(1), point), [1.0])


@pytest.mark.parametrize("values", [[0.0, 0.0], [-1.5, 3.0, 2.0], [1.0, 2.0], [-3.0, -1.0]])
def test_dynamic_range_holds_every_value_and_zero(values: list[float]) -> None:
    x = np.array(values, dtype=np.float32)
    found, scale, point = (np.array(one) for one in _core.evaluate("DynamicQuantizeLinear", [x], {}, 3))
    assert [str(one.dtype) for one in (found, scale, point)] == ["uint8", "float32", "uint8"]
    back = (found.astype(np.float32) - point) * scale
    np.testing.assert_allclose(back, x, atol=float(scale) if x.any() else 0)
    assert (0 - float(point)) * scale <= float(np.minimum(x.min(), 0)) + float(scale) / 2


def test_what_does_not_fit_is_refused() -> None:
    x = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(ShapeError, match="one for each slice"):
        quantised(x, np.ones(2, dtype=np.float32), None)
    with pytest.raises(ShapeError, match="blocks of 2"):
        quantised(x, np.ones((2, 3), dtype=np.float32), None, block_size=2)
    with pytest.raises(DTypeError, match="scale"):
        quantised(x, np.array(1), None)
