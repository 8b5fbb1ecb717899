"""Texts of arrays are NumPy's: columns, digits, exponents, summaries, rows on several lines, options."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from walle.engine_ext.errors import UnsupportedError


@pytest.fixture(autouse=True)
def _default_options() -> Iterator[None]:
    before = np.get_printoptions()
    yield
    np.set_printoptions(**before)


NUMBERS = st.one_of(
    st.floats(width=16),
    st.floats(-1000, 1000).map(lambda x: round(x, 3)),
    st.sampled_from([0.0, -0.0, 1e10, 1e-5, 0.1, 1 / 3, 999999.0, 1e6, 1e8, 1e16, numpy.nan, numpy.inf, -numpy.inf]),
)


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_texts_of_arrays_agree_with_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3))
    dtype = data.draw(st.sampled_from(["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]))
    count = int(numpy.prod(shape))
    numbers: Any = data.draw(st.lists(NUMBERS, min_size=count, max_size=count))
    with numpy.errstate(all="ignore"):
        there = numpy.nan_to_num(numpy.array(numbers), nan=3) if not dtype.startswith("float") else numpy.array(numbers)
        there = numpy.clip(there, 0, 200).astype(dtype) if not dtype.startswith("float") else there.astype(dtype)
    there = there.reshape(shape)
    here = np.asarray(there)
    assert str(here) == str(there)
    if dtype != "float64":
        assert repr(here) == repr(there)
    else:
        assert repr(here).replace(" ", "").replace("\n", "").replace(",dtype=float64", "") == repr(there).replace(
            " ", ""
        ).replace("\n", "")
    options: Any = {
        "precision": data.draw(st.integers(0, 10)), "suppress": data.draw(st.booleans()),
        "threshold": data.draw(st.integers(0, 20)), "edgeitems": data.draw(st.integers(1, 2)),
        "linewidth": data.draw(st.integers(20, 90)),
    }  # fmt: skip
    with np.printoptions(**options), numpy.printoptions(**options):
        assert str(here) == str(there)


@pytest.mark.parametrize(
    "there",
    [
        numpy.zeros((0,), "float32"), numpy.zeros((0, 2), "float32"), numpy.zeros((0,), "int64"), numpy.arange(2000),
        numpy.arange(40), numpy.zeros((40, 40), "float32"), numpy.arange(3000).reshape(3, 10, 100),
        numpy.array(True), numpy.array(3), numpy.array(2.5, "float32"), numpy.arange(30, dtype="float32") / 7,
        numpy.full((2, 2, 2), True),
    ],
    ids=lambda x: f"{x.dtype}-{x.shape}",
)  # fmt: skip
def test_texts_of_any_shape_agree_with_numpy(there: Any) -> None:
    assert str(np.asarray(there)) == str(there)
    assert repr(np.asarray(there)) == repr(there)


def test_print_options_change_the_texts() -> None:
    x = np.array([1 / 3, 2e-7])
    np.set_printoptions(precision=3, suppress=True)
    assert str(x) == "[0.333 0.   ]"
    assert np.get_printoptions()["precision"] == 3
    with np.printoptions(formatter={"float": lambda one: f"<{one:.1f}>"}):
        assert str(x) == "[<0.3> <0.0>]"
    assert str(x) == "[0.333 0.   ]"
    assert np.array2string(x, separator="; ", precision=1) == "[0.3; 0. ]"
    assert np.array_str(x, precision=1) == "[0.3 0. ]"
    assert np.array_repr(np.arange(2)) == "array([0, 1])"
    assert np.format_float_positional(1e10) == "10000000000."
    assert np.format_float_scientific(np.float32(0.1)) == "1.e-01"
    with pytest.raises(UnsupportedError, match="known are precision"):
        np.printoptions(legacy="1.13")
    with pytest.raises(ValueError, match="negative"):
        np.array2string(x, precision=-1)
    assert f"{x[0]:.2f}" == "0.33"
