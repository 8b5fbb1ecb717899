"""Reductions of `walle.np` against NumPy's: sums, extremes, initial values, `where`, empty arrays."""

from typing import Any

import numpy
import pytest

import walle.np as np
from tests.engine_ext.np_samples import sample
from walle.engine_ext.errors import ShapeError


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "argmax", "argmin", "all", "any", "std", "var"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (0, 1, 2)])
def test_reductions_agree_with_numpy(name: str, dtype: str, axis: Any) -> None:
    if isinstance(axis, tuple) and name.startswith("arg"):
        return
    there = sample(dtype, (3, 4, 5))
    for view, expected in (
        (np.asarray(there), there),
        (np.asarray(there).T, there.T),
        (np.asarray(there)[:, ::-2], there[:, ::-2]),
    ):
        for keepdims in (False, True):
            own = getattr(np, name)(view, axis, keepdims=keepdims)
            wanted = numpy.asarray(getattr(numpy, name)(expected, axis=axis, keepdims=keepdims))
            if dtype == "bool" and name in ("mean", "std", "var"):
                wanted = wanted.astype("float32")
            assert own.dtype == wanted.dtype.name
            assert own.shape == wanted.shape
            numpy.testing.assert_allclose(numpy.asarray(own), wanted, rtol=2e-5, atol=1e-6)


def test_reductions_of_empty_arrays() -> None:
    nothing = np.zeros((0, 3))
    assert nothing.sum(0).tolist() == [0, 0, 0]
    assert nothing.prod().item() == 1
    assert nothing.sum(1).shape == (0,)
    for empty in (nothing, nothing.astype("bool"), nothing.astype("uint8")):
        for name in ("max", "min", "argmax"):
            with pytest.raises(ShapeError, match="without elements"):
                getattr(empty, name)(0)
        assert numpy.isnan(numpy.asarray(empty.mean(0))).all()
    with pytest.raises(ShapeError, match="without elements"):
        np.zeros((0,), "bool").max()
    assert nothing.all().item()
    assert not nothing.any().item()


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("initial", [True, False, 0, 5])
def test_extremes_of_bools_with_an_initial_value_are_bools(name: str, initial: float) -> None:
    there = numpy.array([[True, False, True], [False, False, True]])
    for options in ({"initial": initial}, {"initial": initial, "axis": 0}):
        for flags in ({}, {"where": there}):
            theirs = getattr(numpy, name)(there, **options, **flags)
            for own in (
                getattr(np, name)(there, **options, **flags),
                getattr(np.asarray(there), name)(**options, **flags),
            ):
                assert own.dtype == "bool"
                assert own.tolist() == theirs.tolist()


def test_an_initial_value_has_the_dtype_of_the_result() -> None:
    there = numpy.array([1, 2], "int64")
    assert np.max(there, initial=5.5).item() == numpy.max(there, initial=5.5) == 5
    assert np.sum(there, initial=5.5).item() == numpy.sum(there, initial=5.5) == 8


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int32", "bool"])
def test_sums_and_products_of_whole_numbers_have_numpys_dtype(dtype: str) -> None:
    there = numpy.array([[2**31 - 1, 9, 200], [3, 77, 2**20 + 1]]).astype(dtype)
    for name in ("sum", "prod", "cumsum", "cumprod"):
        for axis in (None, 0, 1):
            own, theirs = getattr(np, name)(there, axis), getattr(numpy, name)(there, axis)
            assert own.dtype == theirs.dtype.name
            assert own.tolist() == theirs.tolist()


def test_nan_wins_in_max_and_argmax() -> None:
    there = numpy.array([1, numpy.nan, 3, numpy.nan] * 10, "float32")
    assert numpy.isnan(np.max(there).item())
    assert np.argmax(there).item() == 1


def test_a_long_sum_stays_exact_to_a_few_units() -> None:
    there = numpy.full(2_000_001, 0.1, "float32")
    exact = float(there.astype("float64").sum())
    assert abs(np.sum(there).item() - exact) / exact < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("channels", [1, 2, 3, 7, 31])
def test_reductions_down_to_a_few_channels(dtype: str, channels: int) -> None:
    for rows in (1, 5, 170, 1025):
        there = sample(dtype, (2, rows, channels))
        for axis in (1, (0, 1)):
            for name in ("sum", "max"):
                own, wanted = getattr(np, name)(there, axis), getattr(numpy, name)(there.astype("float64"), axis=axis)
                numpy.testing.assert_allclose(numpy.asarray(own), wanted, rtol=1e-5, atol=1e-4)


def test_reductions_with_initial_and_where() -> None:
    x = np.asarray([[1.0, 5.0], [3.0, 2.0]])
    assert x.sum(axis=0, initial=10, where=x > 1.5).tolist() == [13.0, 17.0]
    assert x.max(where=x < 4, initial=0).item() == 3.0
    assert np.zeros((0, 2)).max(axis=0, initial=4).tolist() == [4.0, 4.0]
    with pytest.raises(ShapeError, match="initial"):
        x.min(where=x > 2)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "bool"])
def test_small_whole_numbers_are_summed_in_64_bits(dtype: str) -> None:
    given = numpy.random.default_rng(1).integers(-30000, 30000, 40001).astype(dtype)
    assert int(np.asarray(given).sum()) == int(given.sum())
    assert np.asarray(given).sum().dtype == given.sum().dtype.name
