"""walle.np against NumPy: values, dtypes, shapes, broadcasting, reductions, operators on Python numbers."""

import contextlib
import importlib
import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from tests.engine_ext.np_samples import DTYPES, same, sample
from walle.engine_ext.errors import DTypeError, UnsupportedError

UNARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "expm1": np.expm1, "sqrt": np.sqrt, "log": np.log, "log1p": np.log1p, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "arctan": np.arctan, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil, "round": np.round,
    "trunc": np.trunc, "abs": np.abs, "negative": np.negative, "sign": np.sign, "square": np.square,
    "reciprocal": np.reciprocal, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions_agree_with_numpy(name: str, dtype: str) -> None:
    there = sample(dtype, (5, 13))
    there.flat[:6] = [0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 100.0]
    with numpy.errstate(all="ignore"):
        same(UNARY[name](there), getattr(numpy, name)(there))
        same(UNARY[name](np.asarray(there)[:, ::-2]), getattr(numpy, name)(there[:, ::-2]))


@pytest.mark.parametrize("name", ["abs", "negative", "sign", "square"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_elementwise_functions_of_integers(name: str, dtype: str) -> None:
    there = sample(dtype, (30,))
    same(UNARY[name](there), getattr(numpy, name)(there))


@pytest.mark.parametrize(
    ("dtype", "result"), [("int64", "float64"), ("int32", "float64"), ("uint8", "float32"), ("bool", "float32")]
)
def test_floating_functions_of_integers(dtype: str, result: str) -> None:
    assert np.exp(sample(dtype, (3,))).dtype == result
    assert np.mean(sample(dtype, (3,))).dtype == result
    assert np.divide(sample(dtype, (3,)), sample(dtype, (3,))).dtype == result


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "mod", "floordiv", "truediv")
}


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_between_dtypes_agree_with_numpy(name: str, a: str, b: str) -> None:
    left, right = sample(a, (3, 1, 5), 1), sample(b, (4, 1), 2)
    own = OPERATORS[name](np.asarray(left), np.asarray(right))
    with numpy.errstate(all="ignore"):
        try:
            expected = numpy.asarray(OPERATORS[name](left, right))
        except TypeError:  # NumPy refuses the difference of bools; here it is one of ints
            assert own.dtype == "int64"
            return
    if {a, b} <= {"bool", "uint8"} and own.dtype != expected.dtype.name:
        expected = expected.astype(own.dtype)  # NumPy goes to float16 and int8
    assert own.dtype == expected.dtype.name
    assert own.shape == expected.shape
    numpy.testing.assert_allclose(numpy.asarray(own), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("number", [2, 2.5, True, 0])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "lt"])
def test_operators_with_pythons_numbers(name: str, number: float, dtype: str) -> None:
    there = sample(dtype, (2, 3)) + numpy.asarray(1, dtype)
    if dtype == "uint8" and (number == 2.5 or name == "truediv"):
        return  # NumPy: float64; here float32, as documented
    with numpy.errstate(all="ignore"):
        same(OPERATORS[name](np.asarray(there), number), OPERATORS[name](there, number))
        same(OPERATORS[name](number, np.asarray(there)), OPERATORS[name](number, there))


def test_an_int_too_large_for_the_array_is_refused() -> None:
    with pytest.raises(OverflowError):
        np.zeros(3, "uint8") + 256


def test_powers_and_logic_agree_with_numpy() -> None:
    there = sample("int64", (20,))
    same(np.asarray(there) ** 3, there**3)
    same(2.0 ** np.array([0.5, 2]), numpy.array([2**0.5, 4], "float32"))
    same(np.maximum(there, 0), numpy.maximum(there, 0))
    same(np.minimum([1.0, float("nan")], 0), numpy.minimum(numpy.array([1, numpy.nan], "float32"), 0))
    flags, others = sample("bool", (20,), 1), sample("bool", (20,), 2)
    same(np.asarray(flags) & others, flags & others)
    same(np.asarray(flags) | others, flags | others)
    same(np.asarray(flags) ^ others, flags ^ others)
    same(~np.asarray(flags), ~flags)
    same(np.logical_and(there, flags), numpy.logical_and(there, flags))
    same(np.logical_or(there, flags), numpy.logical_or(there, flags))
    same(np.logical_not(there), numpy.logical_not(there))
    same(np.asarray(there) & 6, there & 6)
    same(np.asarray(there) | there[::-1], there | there[::-1])
    same(np.asarray(there) ^ 5, there ^ 5)
    same(~np.asarray(there), ~there)
    same(np.asarray(there) << 2, there << 2)
    same(np.asarray(there) >> 1, there >> 1)
    with pytest.raises(DTypeError, match="BitwiseAnd does not support float32"):
        np.zeros(2) & 1


def test_integers_wrap_and_divide_by_zero_quietly() -> None:
    least = np.array([-(2**31)], "int32")
    assert (least - 1).tolist() == [2**31 - 1]
    assert (-least).tolist() == abs(least).tolist() == (least // -1).tolist() == [-(2**31)]
    assert (least % -1).tolist() == (least // 0).tolist() == (least % 0).tolist() == [0]
    assert (np.array([255], "uint8") + 1).tolist() == [0]
    assert (np.array([1.0, -1.0, 0.0]) / 0).tolist()[:2] == [float("inf"), float("-inf")]


def test_in_place_operators_keep_the_array() -> None:
    base = np.zeros((2, 3))
    row = base[1]
    row += 2
    row *= [1, 2, 3]
    assert base.tolist() == [[0, 0, 0], [2, 4, 6]]
    whole = np.array([1, 2])
    with pytest.raises(DTypeError, match="in place"):
        whole /= 2
    assert whole.tolist() == [1, 2]


_IN_PLACE = ["bool", "uint8", "int8", "int32", "uint64", "float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", _IN_PLACE)
@pytest.mark.parametrize("other", _IN_PLACE)
def test_in_place_operators_follow_the_rule_of_casting(dtype: str, other: str) -> None:
    """As NumPy's: a result of another kind is refused, and sums and products of bools are bools again."""
    operations: list[Callable[[Any, Any], Any]] = [operator.iadd, operator.imul]
    for operation in operations:
        ours, theirs = np.ones(3, dtype), numpy.ones(3, dtype)
        expected: Any = None
        with contextlib.suppress(TypeError):
            expected = operation(theirs, numpy.ones(3, other))
        if expected is None:
            with pytest.raises(DTypeError, match="in place"):
                operation(ours, np.ones(3, other))
            assert ours.tolist() == [1, 1, 1]
        else:
            assert operation(ours, np.ones(3, other)).tolist() == expected.tolist()
    numpy_can_cast: Any = numpy.can_cast
    can = numpy.can_cast(other, dtype, "same_kind")
    for casting in ("no", "equiv", "safe", "same_kind", "unsafe"):
        assert np.can_cast(other, dtype, casting) == numpy_can_cast(other, dtype, casting)
    if not can:
        with pytest.raises(DTypeError, match="cannot hold"):
            np.positive(np.ones(3, other), out=np.ones(3, dtype))


def test_in_place_operators_on_bools() -> None:
    mask = np.array([True, False])
    mask += [False, True]
    mask *= True
    mask |= mask
    assert mask.tolist() == [True, True]
    for wrong in (1, 2.5, [1, 0], np.int64(1)):
        with pytest.raises(TypeError, match="bool cannot hold the result"):
            mask += wrong
    with pytest.raises(TypeError, match="bool cannot hold the result"):
        mask -= True
    with pytest.raises(ValueError, match="unknown casting"):
        np.can_cast("int8", "int16", "some")


def test_complex_numbers_from_two_parts() -> None:
    assert np.complex64(1, -2).item() == 1 - 2j
    assert np.complex128(np.float64(1), float("inf")).item().imag == float("inf")
    with pytest.raises(TypeError, match="takes one value"):
        np.float32(1, 2)


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int64", "uint64"])
def test_whole_numbers_compare_by_value_with_any_int(name: str, dtype: str) -> None:
    there = numpy.array([0, 1, 127, 3], dtype)
    for shape in ((4,), (2, 2), (4, 1, 1, 1)):
        here = np.asarray(there.reshape(shape))
        for number in (-1, 0, 127, 255, 256, -129, 2**31, -(2**63) - 1, 2**63, 2**64 - 1, 2**64, -(10**30)):
            wanted = getattr(numpy, name)(there.reshape(shape), number)
            assert getattr(np, name)(here, number).tolist() == wanted.tolist()
            assert (
                getattr(np, name)(number, here).tolist() == getattr(numpy, name)(number, there.reshape(shape)).tolist()
            )


def test_an_infinity_affects_only_its_own_products() -> None:
    line, weights = numpy.array([1.0, numpy.inf, 3, 4, 5]), numpy.array([2.0, -numpy.inf, 1])
    with numpy.errstate(invalid="ignore"):
        for mode in ("full", "same", "valid"):
            for name in ("convolve", "correlate"):
                wanted = getattr(numpy, name)(line, weights, mode)
                numpy.testing.assert_array_equal(getattr(np, name)(line, weights, mode), wanted)
        numpy.testing.assert_array_equal(np.polymul(line, weights), numpy.polymul(line, weights))
        share = numpy.array([1.0, 0, 2, 0, 1])
        numpy.testing.assert_array_equal(np.average(line, weights=share), numpy.average(line, weights=share))
    assert np.median(numpy.array([-numpy.inf, 1.0])).item() == -numpy.inf
    assert np.linalg.norm(np.zeros((2, 0)), numpy.inf, axis=1).tolist() == [0, 0]


def test_edge_cases_of_dtypes_and_empty_arrays() -> None:
    falling = numpy.array([2.0, 0.0, -1.0])
    for right in (True, False):
        assert np.digitize(falling, falling, right).tolist() == numpy.digitize(falling, falling, right).tolist()
    small, wide = numpy.array([1, 2], "uint16"), numpy.array([1, 2, 3], "int32")
    assert np.polysub(wide, small).tolist() == numpy.polysub(wide, small).tolist()
    assert numpy.isnan(np.nanquantile(np.zeros((2, 0)), 0.5, 1)).all()
    with pytest.raises(ZeroDivisionError, match="weights"):
        np.average(wide, weights=[1, -1, 0])


@pytest.mark.parametrize("shape", [(7, 3), (7, 2), (5, 33), (2, 900, 4), (3, 1, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int16"])
def test_short_rows_are_broadcast(shape: tuple[int, ...], dtype: str) -> None:
    there = numpy.random.default_rng(0).integers(1, 99, (*shape[:-1], 2 * shape[-1])).astype(dtype)
    for dense in (there[..., : shape[-1]].copy(), there[..., ::2], there[..., ::-1][..., : shape[-1]]):
        for other in (dense[..., :1], dense[(0,) * (dense.ndim - 1)], dense[:1], dense[..., :1].copy(), dense):
            for name in ("subtract", "less", "maximum"):
                for a, b in ((dense, other), (other, dense)):
                    numpy.testing.assert_array_equal(getattr(np, name)(a, b), getattr(numpy, name)(a, b))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=2), st.integers(0, 9), st.integers(0, 9), st.integers(0, 20),
    st.sampled_from(["float32", "float64", "int64"]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_matrix_products_agree_with_numpy(
    batch: list[int], m: int, k: int, n: int, dtype: str, turn_a: bool, turn_b: bool
) -> None:
    a = sample(dtype, (*batch, k, m), 1).swapaxes(-1, -2) if turn_a else sample(dtype, (*batch, m, k), 1)
    b = sample(dtype, (n, k), 2).T if turn_b else sample(dtype, (k, n), 2)
    same(np.asarray(a) @ b, a @ b)
    same(np.asarray(a[..., 0, :] if m else a), (a[..., 0, :] if m else a))
    if m:
        same(np.asarray(a) @ b[:, 0] if n else np.asarray(a) @ b, a @ b[:, 0] if n else a @ b)
        same(np.matmul(a[..., 0, :], b), a[..., 0, :] @ b)


def test_batched_products_broadcast() -> None:
    a, b = sample("float32", (2, 1, 3, 4), 1), sample("float32", (5, 4, 6), 2)
    same(np.matmul(a, b), a @ b)
    same(np.dot([1.0, 2], [3.0, 4]), numpy.float32(11))
    same(np.dot(2.0, [3.0, 4]), numpy.array([6, 8], "float32"))
    same(np.outer([1, 2], [3, 4]), numpy.outer([1, 2], [3, 4]))


def test_created_arrays_agree_with_numpy() -> None:
    same(np.zeros((2, 3)), numpy.zeros((2, 3), "float32"))
    same(np.ones(3, "int32"), numpy.ones(3, "int32"))
    same(np.full((2,), 7), numpy.full((2,), 7))
    same(np.full((2, 2), [1.5, 2.5]), numpy.full((2, 2), [1.5, 2.5], "float32"))
    assert not np.empty((3,)).any()
    same(np.arange(5), numpy.arange(5))
    same(np.arange(2, 11, 3), numpy.arange(2, 11, 3))
    same(np.arange(5, 0, -2), numpy.arange(5, 0, -2))
    same(np.arange(0, 1, 0.25), numpy.arange(0, 1, 0.25, dtype="float32"))
    same(np.arange(3, 1), numpy.arange(3, 1))
    same(np.linspace(0, 1, 7), numpy.linspace(0, 1, 7, dtype="float32"))
    same(np.linspace(2, 3, 4, endpoint=False), numpy.linspace(2, 3, 4, endpoint=False, dtype="float32"))
    same(np.linspace(2, 3, 1), numpy.linspace(2, 3, 1, dtype="float32"))
    same(np.eye(3), numpy.eye(3, dtype="float32"))
    same(np.eye(2, 4, 1, "int64"), numpy.eye(2, 4, 1, "int64"))
    like = np.zeros((2, 2), "int32")
    assert (np.ones_like(like).dtype, np.full_like(like, 3).tolist()) == ("int32", [[3, 3], [3, 3]])


def test_where_and_clip_agree_with_numpy() -> None:
    there = sample("float32", (3, 4))
    same(np.where(there > 0, there, 0), numpy.where(there > 0, there, numpy.float32(0)))
    same(np.where([True, False], 1, 2), numpy.where([True, False], 1, 2))
    same(
        np.where([[True], [False]], [1.0, 2.0], 0),
        numpy.where([[True], [False]], numpy.array([1, 2], "float32"), numpy.float32(0)),
    )
    same(np.clip(there, -0.5, 0.5), numpy.clip(there, -0.5, 0.5))
    same(np.clip(there, None, 0.5), numpy.clip(there, None, 0.5))
    assert np.allclose(there, there + 1e-9)
    assert not np.array_equal(there, there + 1)
    assert 3 in np.arange(5)
    assert 9 not in np.arange(5)


def test_text_shows_values_and_dtype() -> None:
    assert repr(np.array([[1, 2]])) == "array([[1, 2]])"
    assert repr(np.zeros((0, 2))) == "array([], shape=(0, 2), dtype=float32)"
    assert "..., 0., 0., 0.], shape=(5000,)" in repr(np.zeros(5000))


def test_iteration_and_length_agree_with_numpy() -> None:
    rows = list(np.array([[1, 2], [3, 4]]))
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4]]
    a, b = np.array([5, 6])
    assert (a.item(), b.item()) == (5, 6)


def test_importing_is_quick_and_loads_no_numpy() -> None:
    code = "import sys, walle.np; print(*sorted(set(sys.modules)))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"numpy", "dataclasses", "inspect", "asyncio", "ctypes", "zlib", "tempfile"}


LEGACY = {
    "bfloat16",
    "in1d",
    "msort",
    "round_",
    "row_stack",
    "trapz",
}  # MNN has these, or another module of NumPy


def test_every_public_name_is_there() -> None:
    engine_np: Any = importlib.import_module("walle.engine_ext.np")

    assert sorted(engine_np.__all__) == engine_np.__all__
    for module, names in engine_np._MODULES.items():
        home = importlib.import_module(f"walle.engine_ext.np.{module}")
        assert names.split() == sorted(home.__all__)
    for name in engine_np.__all__:
        assert getattr(np, name) is getattr(engine_np, name)
        assert hasattr(numpy, name) or name in LEGACY
    for part in ("exceptions", "fft", "lib", "linalg", "random"):
        for name in getattr(np, part).__all__:
            assert hasattr(getattr(numpy, part), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        engine_np.no_such_name  # noqa: B018 -- looking it up is the test


def test_every_name_of_mnn_is_there() -> None:
    meant = {  # scripts/np_page.py lists the missing names with reasons
        "asarray_chkfinite", "asfarray", "asfortranarray", "asmatrix", "asscalar", "bmat", "broadcast", "fill",
        "flatiter", "fromfile", "loadtxt", "mat", "math", "matrix", "nditer", "nested_iters", "repmat", "require",
        "sort_complex",
    }  # fmt: skip
    mnn = pytest.importorskip("MNN.numpy")
    public = {name for name in dir(mnn) if not name.startswith("_")}
    assert public - set(dir(np)) == meant


def test_limits_and_kinds_of_dtypes_agree_with_numpy() -> None:
    for name in ("float16", "float32", "float64"):
        own, there = np.finfo(name), numpy.finfo(name)
        for what in ("bits", "eps", "max", "min", "tiny", "nmant", "minexp", "smallest_normal", "smallest_subnormal"):
            assert float(getattr(own, what)) == float(getattr(there, what)), what
    for name in ("int8", "uint8", "int32", "int64", "uint64"):
        own_int, there_int = np.iinfo(name), numpy.iinfo(name)
        assert (own_int.bits, own_int.min, own_int.max) == (there_int.bits, there_int.min, there_int.max)
    with pytest.raises(DTypeError, match="not a floating dtype"):
        np.finfo("int32")
    with pytest.raises(DTypeError, match="not an integer dtype"):
        np.iinfo("float32")
    assert np.result_type(np.zeros(1, "uint8"), "int32") == "int32"
    assert np.can_cast("int32", "float64")
    assert not np.can_cast("float64", "float32")
    assert (np.isscalar(3.0), np.isscalar(np.zeros(())), np.iterable([1]), np.iterable(1)) == (True, False, True, False)
    assert (np.bool, np.bool_, np.double, np.half, np.single, np.int_, np.intp) == (
        "bool", "bool", "float64", "float16", "float32", "int64", "int64",
    )  # fmt: skip
    for name in ("e", "pi", "inf", "euler_gamma"):
        assert getattr(np, name) == getattr(numpy, name)
    assert np.nan != np.nan
    assert np.zeros(3)[np.newaxis].shape == (1, 3)
    names = ("bfloat16", "int8", "int16", "uint16", "uint32", "uint64")
    assert [np.zeros(1, getattr(np, name)).dtype for name in names] == list(names)


def test_functions_that_the_table_lacks() -> None:
    there = sample("float32", (3, 7))
    for name in ("argpartition", "partition"):
        own = getattr(np, name)(there, 3)
        values = numpy.take_along_axis(there, numpy.asarray(own), 1) if name == "argpartition" else numpy.asarray(own)
        assert (values[:, :3].max(1) <= values[:, 3]).all()
        assert (values[:, 4:].min(1) >= values[:, 3]).all()
    same(np.msort(there), numpy.sort(there, 0))
    same(np.in1d(there, there[0]), numpy.isin(there, there[0]))
    same(np.row_stack([there, there]), numpy.vstack([there, there]))
    same(np.round_(there, 1), numpy.round(there, 1))
    same(np.trapz(there), numpy.trapezoid(there))
    same(np.fromstring("1 2.5 3"), numpy.array([1, 2.5, 3], "float32"))
    assert np.unique_values([3, 1, 3]).tolist() == [1, 3]
    assert np.empty_like(there).tolist() == numpy.zeros((3, 7)).tolist()
    same(
        np.lib.stride_tricks.sliding_window_view(there, (2, 3)),
        numpy.lib.stride_tricks.sliding_window_view(there, (2, 3)),
    )
    assert list(np.ndindex(2, 2)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert dict(np.ndenumerate([[1, 2]])) == {(0, 0): 1, (0, 1): 2}
    for own, expected in zip(np.mask_indices(3, np.triu, 1), numpy.mask_indices(3, numpy.triu, 1), strict=True):
        same(own, expected)
    assert np.vectorize(lambda a, b: a + 2 * b)([1, 2], 3).tolist() == [7, 8]
    for name in ("einsum", "matmul"):
        assert callable(getattr(np, name))


def test_a_reshape_of_a_view_is_a_view_where_strides_can_show_it() -> None:
    there = numpy.arange(48.0).reshape(4, 3, 4)
    own = np.asarray(there)
    for view, expected, shape in (
        (own[:, :, ::2], there[:, :, ::2], (2, 2, 6)),
        (own[::2], there[::2], (2, 12)),
        (own[:, ::-1], there[:, ::-1], (2, 2, 3, 1, 4)),
        (own.T, there.T, (12, 4)),
        (own[..., 1], there[..., 1], (12,)),
    ):
        seen, wanted = numpy.asarray(view.reshape(shape)), expected.reshape(shape)
        numpy.testing.assert_array_equal(seen, wanted)
        assert numpy.shares_memory(seen, there) == numpy.shares_memory(wanted, there)


def test_flatten_goes_row_by_row_or_column_by_column() -> None:
    x = np.arange(6).reshape(2, 3)
    assert x.flatten("F").tolist() == [0, 3, 1, 4, 2, 5]
    assert x.flatten().tolist() == list(range(6))
    with pytest.raises(UnsupportedError, match="order 'Z' is not supported"):
        x.flatten("Z")


def test_an_ellipsis_keeps_a_view_without_dimensions() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    one = x[..., 1, 2, 3]
    one[...] = -1
    assert x.tolist()[1][2][3] == -1
    copied = x[0, 0, 0]
    copied[...] = 7
    assert x.tolist()[0][0][0] == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_stacks_of_matrices_of_one_row_are_multiplied_row_by_row(dtype: str) -> None:
    left, right = sample(dtype, (3, 5), 1), sample(dtype, (5, 4), 2)
    for there in (left[:, None, :], left[None, :, None, :], left[::-1].copy()[::-1][:, None, :]):
        own = np.asarray(left)[::-1].copy()[::-1] if there.strides[0] < 0 else np.asarray(left)
        own = own[:, None, :] if there.ndim == 3 else own[None, :, None, :]
        for other in (right, right[:, 0].copy()):
            same(np.matmul(own, other), numpy.matmul(there, other))
            same(np.dot(own, other), numpy.dot(there, other))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_absolute_values_of_zeros_have_no_sign_at_any_stride(dtype: str) -> None:
    zeros = np.full((4, 3), -0.0, dtype)
    for view in (zeros, zeros[:, ::2], zeros.T, np.broadcast_to(zeros[:, :1], (4, 700))):
        assert not np.signbit(np.abs(view)).any()


def test_numbers_take_the_dtype_of_the_other_operand() -> None:
    for dtype, number in (("uint8", 2), ("float32", 2), ("float64", 0.1), ("float64", 1e300), ("int16", 3)):
        there = sample(dtype, (7,)) if dtype != "int16" else numpy.arange(7, dtype=dtype)
        names = ["fmax", "fmin"]
        names += ["heaviside", "nextafter"] if dtype.startswith("float") else ["lcm", "gcd"]
        for name in names:
            own, wanted = getattr(np, name)(there, number), getattr(numpy, name)(there, number)
            assert own.dtype == wanted.dtype.name, name
            numpy.testing.assert_array_equal(numpy.asarray(own), wanted)


def test_a_python_float_keeps_its_digits_with_float64() -> None:
    x = numpy.arange(10) / 10
    calls: list[Callable[[Any], Any]] = [
        lambda m: m.isclose(x, 0.1, rtol=0, atol=0), lambda m: m.isclose(0.1, x, 0, 0), lambda m: m.isin(x, 0.3),
        lambda m: m.array_equal(m.asarray(x)[1], 0.1), lambda m: m.array_equiv(x[1:2], 0.1),
        lambda m: m.polyval(x, 0.1), lambda m: m.append(x, 0.1), lambda m: m.gradient(x, 0.1), lambda m: m.dot(x, 0.1),
        lambda m: m.inner(0.1, x), lambda m: m.outer(x, 0.1), lambda m: m.kron(0.1, x), lambda m: m.logaddexp2(x, 0.1),
    ]  # fmt: skip
    for at, call in enumerate(calls):
        numpy.testing.assert_allclose(numpy.asarray(call(np)), call(numpy), rtol=1e-15, atol=1e-16, err_msg=str(at))
    own = np.zeros(3, "float64")
    np.copyto(own, 0.1)
    assert own.tolist() == [0.1] * 3


def test_searchsorted_finds_a_python_float_in_float64() -> None:
    line = numpy.arange(9) / 10
    for value in (0.1, 0.3, 0.7):
        for side in ("left", "right"):
            assert int(np.searchsorted(line, value, side)) == numpy.searchsorted(line, value, side)
        assert int(np.digitize(value, line)) == numpy.digitize(value, line)
