"""Names that NumPy code reaches for first: dtypes with attributes, flat, base, flags, pickle, r_, mgrid, errstate."""

import copy
import json
import math
import pickle
from typing import Any

import numpy
import pytest

import walle.np as np
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

ANY_INT: Any = int


def same(here: Any, there: Any) -> None:
    there = numpy.asarray(there)
    assert here.shape == there.shape
    numpy.testing.assert_allclose(numpy.asarray(here), there, rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["f4", "<f8", "=f2", "|u1", "i8", "?", "b1", "e", "d", "B", "uintc", "longlong", "short"]
)
def test_names_of_dtypes_agree_with_numpy(name: str) -> None:
    there = numpy.dtype(name)
    here = np.dtype(name)
    assert here == there.name
    assert np.arange(3).astype(name).dtype == there.name
    assert (here.kind, here.itemsize, here.alignment, here.str, here.name) == (
        there.kind, there.itemsize, there.alignment, there.str, there.name,
    )  # fmt: skip
    assert here == name
    assert hash(here) == hash(there.name)


def test_dtypes_are_strings_that_convert() -> None:
    x: Any = np.arange(3)
    assert x.dtype is np.int64
    assert {getattr(np, name) for name in ("int_", "intp", "long", "longlong")} == {np.int64}
    assert {getattr(np, name) for name in ("uint", "uintp", "ulong", "ulonglong")} == {np.uint64}
    others = (np.byte, np.short, np.intc, np.ubyte, np.ushort, np.uintc)
    assert others == ("int8", "int16", "int32", "uint8", "uint16", "uint32")
    assert (np.True_.item(), np.False_.item()) == (True, False)
    assert isinstance(np.add, np.ufunc)
    assert x.dtype == "int64"
    assert x.dtype == ANY_INT
    assert x.dtype != "float32"
    assert x.dtype != ANY_INT()
    assert isinstance(x.dtype, str)
    assert {"int64": 1}[x.dtype] == 1
    assert json.dumps(x.dtype) == '"int64"'
    assert (f"{x.dtype}", repr(x.dtype)) == ("int64", "dtype('int64')")
    assert np.float32(3).dtype == "float32"
    assert np.uint8([1, 2]).tolist() == [1, 2]
    assert np.bool_(0).item() is False
    assert np.float64().item() == 0
    assert pickle.loads(pickle.dumps(np.float16)) is np.float16
    assert copy.deepcopy(np.float16) is np.float16
    with pytest.raises(DTypeError, match="unknown dtype '>f4'"):
        np.zeros(3, ">f4")
    with pytest.raises(DTypeError, match="unknown dtype"):
        np.dtype(3)
    with pytest.raises(OverflowError):
        np.uint8(256)


def test_base_is_the_array_that_owns_the_memory() -> None:
    x = np.arange(24)
    assert x.base is None
    for view in (
        x[2:],
        x.reshape(2, 12),
        x.reshape(2, 12).T,
        x.reshape(2, 3, 4)[0],
        x[:, None],
        x.ravel(),
        x.view("uint64"),
    ):
        assert view.base is x
    for own in (x.copy(), x[[1, 2]], x[x > 3], x[3], x.reshape(4, 6).T.ravel(), x + 1):
        assert own.base is None


def test_flags_describe_the_memory_of_an_array() -> None:
    x = np.arange(6).reshape(2, 3)
    assert (x.flags.c_contiguous, x.flags["F"], x.T.flags.f_contiguous) == (True, False, True)
    assert (x.flags.owndata, x.copy().flags.owndata, x.flags.writeable, x.flags.aligned) == (False, True, True, True)
    other = x[0]
    x.flags.writeable = False
    with pytest.raises(DTypeError, match="read-only"):
        x[0] = 1
    with pytest.raises(DTypeError, match="read-only"):
        x.flat[0] = 1
    other[0] = 7
    assert x[0, 0] == 7
    with pytest.raises(ValueError, match="cannot be made writeable"):
        x.setflags(write=True)
    with pytest.raises(KeyError, match="cannot be set"):
        x.flags["OWNDATA"] = True
    assert "WRITEABLE : False" in repr(x.flags)


def test_flat_reads_and_writes_in_c_order() -> None:
    x: Any = np.arange(12).reshape(3, 4)
    there: Any = numpy.arange(12).reshape(3, 4)
    assert [one.item() for one in x.T.flat] == list(there.T.flat)
    assert len(x.flat) == 12
    same(x.T.flat[2:5], there.T.flat[2:5])
    for key, value in ((3, 50), (slice(1, 8, 2), [7, 8]), ([0, 5], 9), (slice(None), 1)):
        for own, other in ((x, there), (x.T, there.T)):
            own.flat[key] = value
            other.flat[key] = value
            same(x, there)
    x.flat = there.flat = [1, 2, 3]
    same(x, there)
    same(x.flat == 2, there.flat == 2)
    flat = x.flat
    next(flat)
    assert (flat.index, flat.coords, flat.base is x) == (1, (0, 1), True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8", "uint64"])
def test_pickled_arrays_and_dtypes_come_back_equal(dtype: str) -> None:
    for x in (np.asarray([[1, 0, 1], [0, 1, 1]], dtype).T, np.asarray([1, 0], dtype)[0], np.zeros((0, 3), dtype)):
        back = pickle.loads(pickle.dumps(x))
        assert (back.tolist(), back.dtype, back.shape) == (x.tolist(), x.dtype, x.shape)
        back[...] = 1


def test_damaged_pickles_are_refused() -> None:
    x: Any = np.arange(3)
    function, (data, dtype, shape) = x.__reduce__()
    for arguments in (
        (data[1:], dtype, shape),
        (data, dtype, (4,)),
        (data, dtype, (1 << 40, 1 << 40)),
        (data, "x", shape),
    ):
        with pytest.raises((ValueError, TypeError), match=r"bytes|more than|unknown dtype"):
            function(*arguments)
    assert function(b"\x02\x03", "bool", (2,)).sum() == 1


def test_numbers_of_one_element_round_like_numbers() -> None:
    assert round(np.float32(2.5)) == 2
    assert type(round(np.float32(2.5))) is int
    assert round(np.float64(2.555), 1).item() == 2.6
    assert (math.floor(np.float32(2.5)), math.ceil(np.float32(2.5))) == (2, 3)
    with pytest.raises(TypeError, match="without dimensions"):
        round(np.zeros(2))


def test_grids_agree_with_numpy() -> None:
    for own, other in ((np, numpy),):
        same(own.r_[0:3, 5, [1, 2]], other.r_[0:3, 5, [1, 2]])
        same(own.r_["0,2", [1, 2], [3, 4]], other.r_["0,2", [1, 2], [3, 4]])
        same(own.r_["-1", [[1, 2]], [[3, 4]]], other.r_["-1", [[1, 2]], [[3, 4]]])
        same(own.r_[-1:1:5j], other.r_[-1:1:5j])
        same(own.c_[[1, 2], [3, 4]], other.c_[[1, 2], [3, 4]])
        same(own.c_[[[1, 2, 3]], 0, 0], other.c_[[[1, 2, 3]], 0, 0])
        same(own.mgrid[0:2, 1:4], other.mgrid[0:2, 1:4])
        same(own.mgrid[0:1:3j, 1:4], other.mgrid[0:1:3j, 1:4])
        same(own.mgrid[2:8:2], other.mgrid[2:8:2])
        for here, there in zip(own.ogrid[0:2, 1:4], other.ogrid[0:2, 1:4], strict=True):
            same(here, there)
        assert own.s_[1:2, ...] == other.s_[1:2, ...]
        assert own.index_exp[3] == other.index_exp[3]
    with pytest.raises(UnsupportedError, match="axis,ndim"):
        np.r_["r", [1]]
    with pytest.raises(ShapeError, match="needs an end"):
        np.r_[1:]


def test_kinds_of_dtypes_agree_with_numpy() -> None:
    for name in ("float32", "int8", "uint64", "bool"):
        for kind in ("generic", "number", "inexact", "floating", "integer", "signedinteger", "unsignedinteger"):
            assert np.issubdtype(name, getattr(np, kind)) == numpy.issubdtype(name, getattr(numpy, kind))
            assert isinstance(np.zeros((), name), getattr(np, kind)) == numpy.issubdtype(name, getattr(numpy, kind))
    assert np.issubdtype(np.floating, np.number)
    assert not np.issubdtype(np.floating, np.float32)
    assert np.issubdtype("f4", np.float32)
    assert not isinstance(np.zeros(2), np.floating)
    assert np.isdtype(np.int8, "integral")
    assert np.isdtype(np.int8, ("real floating", np.int8))
    assert not np.isdtype(np.bool_, "numeric")


def test_errstate_decides_what_a_floating_point_error_does() -> None:
    with np.errstate(divide="ignore", invalid="warn"):
        assert np.geterr()["invalid"] == "warn"
        assert (np.array([1.0]) / 0).item() == math.inf
    assert np.geterr()["invalid"] == "ignore"
    assert np.errstate(invalid="warn")(np.geterr)()["invalid"] == "warn"
    assert np.seterr(over="warn")["over"] == "ignore"
    assert np.seterr(all="ignore")["over"] == "warn"
    with pytest.raises(UnsupportedError, match="isfinite"), np.errstate(all="raise"):
        pass


@pytest.mark.parametrize(("n", "p"), [(10, 0.3), (1, 0.5), (1000, 0.9), (100000, 0.01), (5, 0.0), (5, 1.0), (0, 0.5)])
def test_binomial_draws_have_the_expected_moments(n: int, p: float) -> None:
    drawn = numpy.asarray(np.random.default_rng(3).binomial(n, p, 20000))
    assert drawn.dtype == "int64"
    assert drawn.min() >= 0
    assert drawn.max() <= n
    spread = math.sqrt(n * p * (1 - p))
    assert abs(drawn.mean() - n * p) <= 5 * spread / math.sqrt(20000)
    assert abs(drawn.std() - spread) <= 0.05 * spread


@pytest.mark.parametrize("mean", [0.0, 0.2, 3.5, 40.0, 300.0, 5000.0])
def test_poisson_draws_have_the_expected_moments(mean: float) -> None:
    drawn = numpy.asarray(np.random.default_rng(4).poisson(mean, 5000))
    assert drawn.dtype == "int64"
    assert abs(drawn.mean() - mean) <= 5 * math.sqrt(mean / 5000)
    assert abs(drawn.var() - mean) <= 0.2 * mean
    if mean == 3.5:  # the probabilities of the first counts
        for k in range(6):
            wanted = math.exp(-mean) * mean**k / math.factorial(k)
            assert abs((drawn == k).mean() - wanted) < 5 * math.sqrt(wanted / 5000)


def test_counts_of_arrays_and_bad_parameters() -> None:
    rng: Any = np.random.default_rng(1)
    assert rng.binomial([1, 2, 3], 1.0).tolist() == [1, 2, 3]
    assert rng.poisson([0.0, 0.0]).tolist() == [0, 0]
    assert np.random.poisson(2.0).shape == ()
    assert np.random.binomial(4, [[0.0, 1.0]], (3, 2)).tolist() == [[0, 4]] * 3
    for n, p in ((-1, 0.5), (1, 1.5), (1, float("nan")), (10**9, 0.5)):
        with pytest.raises(ShapeError, match="binomial"):
            rng.binomial(n, p)
    for mean in (-1, 1e9, float("nan")):
        with pytest.raises(ShapeError, match="poisson"):
            rng.poisson(mean)


# Found by NumPy's own tests (make numpy-suite).


@pytest.mark.parametrize("range_", [(-1, 3, 8), (0, -5, 4), (-2.5, 2.5, 6)])
def test_integers_of_linspace_are_rounded_down(range_: tuple[float, float, int]) -> None:
    assert np.linspace(*range_, dtype="int64").tolist() == numpy.linspace(*range_, dtype=int).tolist()


def test_histogramdd_takes_coordinates_by_dimension() -> None:
    coordinates = [[1, 2, 3], [3, 4, 9]]
    here, edges = np.histogramdd(coordinates, bins=2)
    there, other = numpy.histogramdd(coordinates, bins=2)
    same(here, there)
    same(edges[1], other[1])
    same(np.histogramdd(np.array(coordinates), bins=2)[0], numpy.histogramdd(numpy.array(coordinates), bins=2)[0])


def test_block_of_an_array_is_a_copy() -> None:
    x = np.zeros(2)
    np.block(x)[0] = 1
    assert x.tolist() == [0, 0]


def test_put_of_no_values_changes_nothing() -> None:
    x = np.arange(3)
    np.put(x, [0, 1], [])
    assert x.tolist() == [0, 1, 2]


def test_the_absolute_of_bools_is_bool() -> None:
    x = np.array([True, False])
    assert (~abs(x)).tolist() == (~np.abs(x)).tolist() == [False, True]
