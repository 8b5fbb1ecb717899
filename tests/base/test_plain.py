"""Plain data and arrays survive the wire; everything else is refused with its name."""

import array
import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import walle.np
from walle.base import plain

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_equal(value: Any) -> None:
    assert plain.decode(plain.encode(value)) == value


@given(hnp.arrays(st.sampled_from(["f4", "f8", "i4", "i8", "u1", "?"]), hnp.array_shapes(max_dims=4)))
def test_arrays_keep_dtype_shape_and_bits(values_in: np.ndarray[Any, np.dtype[Any]]) -> None:
    back = np.asarray(plain.decode(plain.encode({"x": values_in}))["x"])
    assert back.dtype == values_in.dtype
    assert back.shape == values_in.shape
    assert back.tobytes() == values_in.tobytes()


@pytest.mark.parametrize("ndim", range(1, 5))
def test_decoded_elements_are_aligned_so_that_the_engine_takes_them(ndim: int) -> None:
    value = plain.decode(plain.encode({"pad": "x" * ndim, "x": np.ones((2,) * ndim, "f8")}))["x"]
    assert np.asarray(value).ctypes.data % 8 == 0
    assert walle.np.asarray(value).shape == (2,) * ndim


def test_other_buffers_are_arrays_too() -> None:
    assert list(plain.decode(plain.encode(array.array("d", [1.5, math.inf])))) == [1.5, math.inf]


def test_nan_stays_nan_and_tuples_become_lists() -> None:
    assert math.isnan(plain.decode(plain.encode(math.nan)))
    assert plain.decode(plain.encode((1, (2,)))) == [1, [2]]


@pytest.mark.parametrize("value", [object(), {1: 2}, {"x": {3, 4}}, 2**70, np.array(["text"])])
def test_a_value_that_is_not_plain_data_is_refused(value: object) -> None:
    with pytest.raises(plain.PlainDataError):
        plain.decode(plain.encode(value))


@given(st.binary(max_size=80))
def test_arbitrary_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(plain.PlainDataError):
        plain.decode(data)


def test_an_array_with_a_false_size_is_refused() -> None:
    data = bytearray(plain.encode(np.zeros((2, 3), "f4")))
    at = data.index(b"\x02\x00\x00\x00\x03")
    data[at] = 200
    with pytest.raises(plain.PlainDataError, match="does not fit"):
        plain.decode(bytes(data))
