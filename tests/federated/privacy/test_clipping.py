"""Clipping: one norm over all arrays, the limit also after rounding, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.clipping import UpdateValueError, clip_update, l2_norm

values = st.lists(st.floats(-1e6, 1e6, width=32), max_size=12)


def norm_of(arrays: Mapping[str, Any]) -> float:
    return math.sqrt(math.fsum(float(one) ** 2 for array in arrays.values() for one in array.tolist()))


@given(values, values, st.floats(1e-3, 1e6))
def test_the_norm_is_within_the_limit_and_the_direction_stays(
    first: list[float], second: list[float], limit: float
) -> None:
    update = {"a": np.asarray(first, "float32"), "b": np.asarray(second, "float32")}
    clipped = clip_update(update, limit)
    before = norm_of(update)
    assert clipped.norm_before == pytest.approx(before, rel=1e-9)
    assert norm_of(clipped.arrays) <= limit
    assert clipped.factor == pytest.approx(min(1.0, limit / before if before else 1.0), rel=3e-6)
    for name, array in update.items():
        expected = [one * clipped.factor for one in array.tolist()]
        assert clipped.arrays[name].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-38)


@given(values, st.floats(1e-3, 1e6))
def test_an_update_is_clipped_once(first: list[float], limit: float) -> None:
    once = clip_update({"a": np.asarray(first, "float32")}, limit)
    again = clip_update(once.arrays, limit)
    assert again.arrays["a"].tolist() == pytest.approx(once.arrays["a"].tolist(), rel=1e-6)
    assert norm_of(again.arrays) <= limit


def test_an_update_within_the_limit_is_unchanged_in_shape_and_values() -> None:
    update = {"w": np.asarray([[3.0, 0.0], [0.0, 0.0]], "float16"), "b": np.asarray(4.0, "float64")}
    clipped = clip_update(update, 5.1)
    assert (clipped.norm_before, clipped.factor) == (5.0, 1.0)
    assert clipped.arrays["w"].tolist() == [[3.0, 0.0], [0.0, 0.0]]
    assert tuple(clipped.arrays["b"].shape) == ()
    assert {str(one.dtype) for one in clipped.arrays.values()} == {"float32"}


def test_norms_beyond_the_root_of_the_greatest_float_do_not_overflow() -> None:
    assert l2_norm({"a": np.asarray([3e200, 4e200], "float64")}) == pytest.approx(5e200)
    clipped = clip_update({"a": np.asarray([3e200, 4e200], "float64")}, 1.0)
    assert clipped.arrays["a"].tolist() == pytest.approx([0.6, 0.8], rel=3e-6)


def test_no_arrays_have_norm_zero() -> None:
    assert clip_update({}, 1.0).norm_before == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_by_the_array_s_name(value: float) -> None:
    update = {"fine": np.asarray([1.0], "float32"), "layer.bias": np.asarray([0.0, value], "float32")}
    with pytest.raises(UpdateValueError, match=r"'layer\.bias'.* NaN or infinite") as caught:
        clip_update(update, 1.0)
    assert caught.value.array == "layer.bias"


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(UpdateValueError, match="dtype int64"):
        clip_update({"steps": np.asarray([1], "int64")}, 1.0)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_not_positive_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="give a positive number"):
        clip_update({}, limit)
