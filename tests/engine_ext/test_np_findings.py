"""Regressions of walle.np that NumPy's own tests (tests/numpy_suite) found: wrong without an error, or endless."""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import walle.np as np
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

int8: Any = np.int8  # what NumPy's users write where a Python int is declared


@pytest.mark.parametrize("number", [-128, 127, -1, 0])
def test_base_repr_of_the_least_integer_ends(number: int) -> None:
    assert np.base_repr(int8(number), 2) == numpy.base_repr(number, 2)


def test_the_matrix_product_is_in_place() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    same = x
    x @= x
    assert same.tolist() == [[7, 10], [15, 22]]
    for wrong in (np.ones(2), np.ones((2, 1)), np.ones((3, 2, 2))):
        with pytest.raises(ValueError, match="does not fit"):
            x @= wrong
    row = same_row = np.array([1.0, 2.0])
    row @= np.array([[1.0, 2.0], [3.0, 4.0]])
    assert same_row.tolist() == [7, 10]


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge])
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_signed_integers_are_compared_with_uint64_by_value(compare: Callable[[Any, Any], Any], dtype: str) -> None:
    signed = [-1, 0, 1, 127] + [2**63 - 1, 2**53 + 1] * (dtype == "int64")
    unsigned = [0, 1, 127, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
    left, right = zip(*itertools.product(signed, unsigned), strict=True)
    a, b = numpy.array(left, dtype), numpy.array(right, "uint64")
    here, there = np.asarray(a), np.asarray(b)
    assert compare(here, there).tolist() == compare(a, b).tolist()
    assert compare(there, here).tolist() == compare(b, a).tolist()


def test_an_integer_to_a_negative_power_is_refused() -> None:
    for base, exponent in ((np.array([2, 3]), -1), (np.array([2, 3]), np.array([1, -1])), (2, np.array([-2]))):
        with pytest.raises(ValueError, match="negative integer powers"):
            base**exponent
    assert (np.array([2, 3]) ** np.array([2, 0])).tolist() == [4, 1]
    assert (np.array([2.0, 4.0]) ** -1).tolist() == [0.5, 0.25]
    assert (np.array([2, 4]) ** -1.0).tolist() == [0.5, 0.25]


@pytest.mark.parametrize("offset", [0, 1, -1])
def test_linalg_takes_diagonals_of_the_last_two_axes(offset: int) -> None:
    x = numpy.arange(60.0).reshape(5, 3, 4)
    here = np.linalg.diagonal(x, offset=offset)
    assert here.tolist() == numpy.linalg.diagonal(x, offset=offset).tolist()
    assert np.linalg.trace(x, offset=offset).tolist() == numpy.linalg.trace(x, offset=offset).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_decompositions_of_numbers_that_are_not_finite_are_refused(bad: float, dtype: str) -> None:
    a = np.ones((3, 3), dtype)
    a[0, 0] = bad
    linalg = np.linalg
    calls: list[Callable[[], Any]] = [
        lambda: linalg.svd(a), lambda: linalg.svdvals(np.stack([np.eye(3, dtype=dtype), a])), lambda: linalg.pinv(a),
        lambda: linalg.lstsq(a, np.ones(3, dtype)), lambda: linalg.eigh(a), lambda: linalg.eigvalsh(a, "U"),
        lambda: linalg.matrix_rank(a),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(linalg.LinAlgError, match="inf or NaN"):
            call()


@pytest.mark.parametrize("p", [None, 1, -1, 2, -2, "fro", "nuc", float("inf")])
def test_condition_numbers_of_a_stack(p: Any) -> None:
    good = numpy.array([[2.0, 1.0], [1.0, 3.0]])
    stack = numpy.array([good, [[1, numpy.nan], [1, 1]], numpy.zeros((2, 2))])
    numpy.testing.assert_allclose(np.linalg.cond(stack, p).tolist(), numpy.linalg.cond(stack, p), rtol=1e-12)
    endless = np.linalg.cond(numpy.array([good, [[1, numpy.inf], [1, 1]]]), p)
    assert endless.tolist() == [pytest.approx(numpy.linalg.cond(good, p)), float("inf")]
    with pytest.raises(np.linalg.LinAlgError, match="without elements"):
        np.linalg.cond(np.zeros((0, 0)), p)


def test_linear_algebra_without_elements() -> None:
    x, rest, rank, s = np.linalg.lstsq(np.zeros((0, 3)), np.zeros((0, 2)))
    assert (x.shape, rest.shape, rank, s.shape) == ((3, 2), (0,), 0, (0,))
    assert np.linalg.matrix_rank(np.zeros((2, 0, 3))).tolist() == [0, 0]
    with pytest.raises(UnsupportedError, match="raw"):
        np.linalg.qr(np.eye(2), "raw")
    with pytest.raises(ShapeError, match="UPLO"):
        np.linalg.eigh(np.eye(2), UPLO="x")


def test_results_of_ufunc_at_are_converted_as_numpys() -> None:
    here, there = np.arange(10), numpy.arange(10)
    np.power.at(here, [1, 2, 3, 2], 3.5)
    numpy.power.at(there, [1, 2, 3, 2], 3.5)
    assert here.tolist() == there.tolist()


def test_out_is_filled_by_a_smaller_result() -> None:
    out = np.zeros((2, 3))
    np.add([1.0, 2.0, 3.0], 1, out=out)
    assert out.tolist() == [[2, 3, 4]] * 2
    np.add(1.0, 1, out=out, where=[True, False, True])
    assert out.tolist() == [[2, 3, 2]] * 2
    with pytest.raises(ShapeError, match="out"):
        np.ones((2, 3)).sum(0, out=out)
    with pytest.raises(ShapeError, match="out"):
        np.add(np.ones((2, 3)), 1, out=np.zeros(3))


def test_casting_of_a_ufunc() -> None:
    assert np.multiply([1.5, 2.5], 2, out=np.zeros(2, "int64"), casting="unsafe").tolist() == [3, 5]
    with pytest.raises(DTypeError, match="cannot hold"):
        np.multiply([1.5, 2.5], 2, out=np.zeros(2, "int64"), casting="same_kind")
    with pytest.raises(DTypeError, match="forbidden by casting"):
        np.sqrt(np.ones(2), dtype="int64")
    with pytest.raises(DTypeError, match="cannot hold"):
        np.add(np.ones(2, "int8"), np.ones(2, "int8"), out=np.zeros(2, "int16"), casting="no")
    with pytest.raises(ValueError, match="unknown casting"):
        np.add(np.ones(2), 1, out=np.zeros(2), casting="any")


@pytest.mark.parametrize("key", [True, False, numpy.True_, (slice(None), True), (True, [0, 1]), (None, False)])
def test_a_bool_as_index_adds_an_axis(key: Any) -> None:
    there = numpy.arange(6.0).reshape(2, 3)
    here = np.array(there)
    assert here[key].tolist() == there[key].tolist()
    assert here[key].shape == there[key].shape
    here[key] = 7
    there[key] = 7
    assert here.tolist() == there.tolist()
    point = np.zeros(())
    point[point < 1] = 3
    assert point.item() == 3


def test_sizes_and_axes_may_be_arrays_without_dimensions() -> None:
    three: Any = np.int64(3)
    one: Any = np.uint8(1)
    assert np.random.rand(three).shape == np.random.uniform(size=three).shape == np.random.randint(5, size=three).shape
    assert np.resize(np.arange(2), three).tolist() == [0, 1, 0]
    assert np.roll(np.arange(3), one).tolist() == [2, 0, 1]
    assert list(np.ndindex(three)) == [(0,), (1,), (2,)]
    with pytest.raises(TypeError):
        list(np.ndindex(1.5))
    with pytest.raises(ShapeError, match="negative"):
        np.ndindex(-1, 2)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "all", "any"])
def test_a_number_has_an_axis_0(name: str) -> None:
    assert getattr(np, name)(3, axis=0).item() == getattr(numpy, name)(3, axis=0)
    assert getattr(np, name)(3, axis=-1).item() == getattr(numpy, name)(3, axis=-1)
    with pytest.raises(ShapeError, match="axis 1"):
        getattr(np, name)(3, axis=1)


def test_integers_above_int64_become_uint64() -> None:
    for value in (2**63, [2**64 - 1], [True, 2**63], [1, 2**63]):
        here, there = np.array(value), numpy.array(value)
        assert (here.dtype, here.tolist()) == (there.dtype.name, there.tolist())
    with pytest.raises(OverflowError):
        np.array(2**64)
    assert (np.array([1], "uint64") + 2**63).tolist() == [2**63 + 1]


def test_an_array_is_shared_where_no_copy_is_needed() -> None:
    d = np.array([1, 2, 3])
    e = np.array(d, copy=None)
    d[1] = 3
    assert e.tolist() == [1, 3, 3]
    assert np.array(d).tolist() == [1, 3, 3]


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-(2**63), 2**63 - 1, "int64"), (0, 2**64 - 1, "uint64"), (2**63, 2**63 + 9, "uint64"), (-5, 2**62 + 5, "int64")],
)
def test_random_integers_of_wide_ranges(low: int, high: int, dtype: str) -> None:
    drawn = np.random.default_rng(1).integers(low, high, 2000, dtype)
    assert drawn.dtype == dtype
    assert all(low <= one < high for one in drawn.tolist())
    middle = sum(one > (low + high) // 2 for one in drawn.tolist())
    assert 850 < middle < 1150
    assert np.random.default_rng(1).integers(low, high, 2000, dtype).tolist() == drawn.tolist()


def test_random_integers_that_the_dtype_does_not_hold_are_refused() -> None:
    for low, high, dtype in ((0, 300, "uint8"), (-1, 5, "uint64"), (0, 2**63 + 1, "int64"), (5, 5, "int64")):
        with pytest.raises(ShapeError, match="the range must hold"):
            np.random.randint(low, high, 3, dtype)
    assert set(np.random.randint(0, 256, 5000, "uint8").tolist()) == set(range(256))


def test_seeds_may_be_sequences() -> None:
    first = [np.random.default_rng(seed).random(4).tolist() for seed in ([1, 2], (2, 1), [1], range(3), 1)]
    assert first == [np.random.default_rng(seed).random(4).tolist() for seed in ([1, 2], (2, 1), [1], range(3), 1)]
    assert len({tuple(one) for one in first}) == 4
    assert first[2] == first[4]
    with pytest.raises(ShapeError, match="negative"):
        np.random.default_rng([1, -1])


@pytest.mark.parametrize("modes", ["wrap", "clip", ("clip", "wrap", "raise"), ["wrap", "clip", "wrap"]])
def test_modes_of_ravel_multi_index(modes: Any) -> None:
    coordinates = ([5, 1, -1], [0, 4, 2], [1, 0, 2])
    if modes[0] == "clip":
        coordinates = ([5, 1, -1], [-1, 4, 2], [1, 0, 2])
    expected = numpy.ravel_multi_index(coordinates, (4, 3, 3), mode=modes)
    assert np.ravel_multi_index(coordinates, (4, 3, 3), mode=modes).tolist() == expected.tolist()
    with pytest.raises(ShapeError, match="unknown mode"):
        np.ravel_multi_index(coordinates, (4, 3, 3), mode="other")
    for mode in ("wrap", "clip"):
        with pytest.raises(ShapeError, match="without elements"):
            np.ravel_multi_index(([0],), (0,), mode=mode)


def test_wrong_indices_are_refused_with_a_reason() -> None:
    with pytest.raises(DTypeError, match="integers"):
        np.unravel_index([0.5], (10, 10))
    with pytest.raises(ShapeError, match="without dimensions"):
        np.unravel_index([0], ())
    with pytest.raises(ShapeError, match="mask of 1 elements"):
        np.putmask(np.array([1, 2, 3]), [True], 5)
    with pytest.raises(DTypeError, match="weights"):
        np.histogram([1, 2], bins=2, weights=[1 + 2j, 1])
    for call in (np.linspace, np.geomspace):
        with pytest.raises(UnsupportedError, match="between arrays or complex numbers"):
            call([1, 2], 5, 3)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="between arrays or complex numbers"):
            call(1j, 5, 3)  # type: ignore[arg-type]
    ends: list[Any] = [np.float32(0), np.array(1)]
    assert np.linspace(ends[0], ends[1], 3).tolist() == [0, 0.5, 1]


def test_the_sum_of_many_values_at_one_index_takes_little_time() -> None:
    """Quadratic, the test would take minutes."""
    rng = numpy.random.default_rng(0)
    index = rng.integers(0, 5, 200_000) * rng.integers(0, 2, 200_000)
    for function, dtype in itertools.product(("add", "maximum", "bitwise_xor", "subtract"), ("int64", "float64")):
        if (function, dtype) == ("bitwise_xor", "float64") or (function == "subtract" and dtype == "int64"):
            continue
        count = 3000 if function == "subtract" else 200_000  # one round for each occurrence
        values = rng.integers(0, 100, count).astype(dtype)
        here, there = np.zeros(6, dtype), numpy.zeros(6, dtype)
        getattr(np, function).at(here, index[:count], values)
        getattr(numpy, function).at(there, index[:count], values)
        assert here.tolist() == there.tolist()


@pytest.mark.parametrize("key", [True, [0], None])
def test_an_index_has_at_most_64_arrays_and_axes(key: Any) -> None:
    x = np.ones((1,) * 4)
    with pytest.raises(IndexError, match="too many indices"):
        x[(key,) * 65]
    with pytest.raises(IndexError, match="too many indices"):
        x[(key,) * 65] = 1


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 0), (1, 70, 300), (3, 33, 5), (4, 1, 600), (5, 17, 9), (90, 130, 270)]
)
def test_matrix_products_of_64_bits(dtype: str, m: int, n: int, k: int) -> None:
    rng = numpy.random.default_rng(m * n)

    def matrix(rows: int, columns: int) -> Any:
        real = rng.normal(size=(rows, columns))
        return real + 1j * rng.normal(size=(rows, columns)) if dtype == "complex128" else real

    for a, b in itertools.product((matrix(m, k), matrix(k, m).T), (matrix(k, n), matrix(n, k).T)):
        here = numpy.asarray(np.matmul(np.asarray(a), np.asarray(b)))
        numpy.testing.assert_allclose(here, a @ b, rtol=0, atol=1e-12 * (k + 1))
        assert here.dtype == dtype


def test_angles_of_float64_agree_with_numpy() -> None:
    special = [0.0, -0.0, 1.0, -1.0, numpy.inf, -numpy.inf, numpy.nan, 5e-324, -5e-324, 1e308, 7 / 16, 11 / 16]
    y, x = (numpy.array(line) for line in zip(*itertools.product(special, special), strict=True))
    rng = numpy.random.default_rng(0)
    y, x = numpy.append(y, rng.normal(size=5000)), numpy.append(x, rng.normal(size=5000))
    for part in (slice(None, 144), slice(144, None)):  # a block with infinities is computed by the scalar loop
        here, there = numpy.asarray(np.arctan2(y[part], x[part])), numpy.arctan2(y[part], x[part])
        numpy.testing.assert_allclose(here, there, rtol=5e-16, atol=0)
        known = ~numpy.isnan(there)
        assert (numpy.signbit(here) == numpy.signbit(there))[known].all()
    for one, other in itertools.product(special, special):
        angle = np.arctan2(numpy.float64(one), numpy.array([other]))
        assert angle.item() == pytest.approx(numpy.arctan2(one, other), nan_ok=True, rel=5e-16, abs=0)
    numpy.testing.assert_allclose(numpy.asarray(np.arctan(x[144:])), numpy.arctan(x[144:]), rtol=5e-16)


def test_a_mask_says_where_insert_puts_values() -> None:
    assert np.insert([1, 2, 3], [True] * 4, 9).tolist() == [9, 1, 9, 2, 9, 3, 9]
    assert np.insert([1, 2, 3], np.array([False, True, False]), 9).tolist() == [1, 9, 2, 3]
