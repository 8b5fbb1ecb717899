"""Complex numbers of walle.np against NumPy's: arithmetic, functions, reductions, products, indexing, conversions."""

import asyncio
import operator
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from tests.engine_ext.complex_samples import COMPLEX, same, sample
from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ModelError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session
from walle.engine_ext.vm.host import VmHost
from walle.errors import EngineError
from walle.vm import VM

REAL = ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
_INF, _NAN = float("inf"), float("nan")
SPECIAL = [0, -0.0, 1, -1, 1j, -1j, 3 - 4j, 1e-30 + 1e-30j, 1e15 - 1e15j, _INF + 0j, _NAN + 0j, complex(0, -_INF)]


def test_the_magnitude_of_a_spectrum_is_one_number_each() -> None:
    line = numpy.sin(numpy.arange(64) * 0.4).astype("float32")
    spectrum = np.fft.rfft(line)
    assert spectrum.dtype == "complex64"
    same(np.abs(spectrum), numpy.abs(numpy.fft.rfft(line)), 4)


@pytest.mark.parametrize("other", COMPLEX + REAL)
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "eq", "ne"])
def test_complex_operators_between_dtypes_agree_with_numpy(name: str, dtype: str, other: str) -> None:
    apply: Callable[[Any, Any], Any] = getattr(operator, name)
    a, b = sample(dtype, (3, 1, 7), 1), sample(other, (4, 1), 2)
    with numpy.errstate(all="ignore"):
        same(apply(np.asarray(a), np.asarray(b)), apply(a, b), 20)
        same(apply(np.asarray(b), np.asarray(a)), apply(b, a), 20)
        same(apply(np.asarray(a)[..., ::-2], np.asarray(b)), apply(a[..., ::-2], b), 20)


@pytest.mark.parametrize("number", [2, 0.5, -1, True, 1j, 2 - 3j, 3])
@pytest.mark.parametrize("dtype", [*COMPLEX, "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "eq", "ne"])
def test_operators_with_pythons_numbers(name: str, dtype: str, number: complex) -> None:
    apply: Callable[[Any, Any], Any] = getattr(operator, name)
    there = sample(dtype, (40,)) + numpy.asarray(1, dtype)
    if dtype.startswith("int") and type(number) is not complex:
        return  # test_np.py has them
    with numpy.errstate(all="ignore"):
        same(apply(np.asarray(there), number), apply(there, number), 20)
        same(apply(number, np.asarray(there)), apply(number, there), 20)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_operators_in_place_agree_with_numpy(name: str, dtype: str) -> None:
    apply: Callable[[Any, Any], Any] = getattr(operator, "i" + name)
    there = sample(dtype, (5, 9))
    here = np.array(there)
    view = here[1:, ::2]
    for value in (2, 1j, sample("float32", (5,), 3), sample(dtype, (4, 1), 4)):
        assert apply(view, np.asarray(value) if isinstance(value, numpy.ndarray) else value) is view
        apply(there[1:, ::2], value)
        same(here, there, 10)


def test_a_real_array_does_not_take_complex_results_in_place() -> None:
    x = np.ones(3)
    with pytest.raises(DTypeError, match="cannot hold the result, of dtype complex64"):
        x += 1j
    with pytest.raises(DTypeError, match="cannot hold a result of dtype complex64"):
        np.multiply(x, 1j, out=x)
    with pytest.raises(TypeError):
        x[0] = 1j
    assert x.tolist() == [1, 1, 1]


UNARY = [
    "negative", "square", "sqrt", "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sin", "cos",
    "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "reciprocal", "sign", "rint", "conj", "abs", "angle", "isnan", "isinf", "isfinite", "positive", "isreal",
    "iscomplex", "real", "imag",
]  # fmt: skip


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name: str, dtype: str) -> None:
    there = sample(dtype, (6, 70)) * 2
    with numpy.errstate(all="ignore"):
        expected = getattr(numpy, name)(there)
        same(getattr(np, name)(there), expected, 20)
        same(getattr(np, name)(np.asarray(there)[::2, ::-3]), expected[::2, ::-3], 20)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", [name for name in UNARY if name not in ("expm1", "log1p", "exp2", "rint")])
def test_functions_of_special_numbers(name: str, dtype: str) -> None:
    there = numpy.array(SPECIAL * 40, dtype)
    with numpy.errstate(all="ignore"):
        same(getattr(np, name)(there), getattr(numpy, name)(there), 20)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", ["multiply", "add", "divide", "power"])
def test_arithmetic_of_special_numbers(name: str, dtype: str) -> None:
    there = numpy.array(SPECIAL, dtype)
    if name == "power":
        there = there[numpy.isfinite(there)][:7]
    a, b = there[:, None], there[None, :]
    with numpy.errstate(all="ignore"):
        same(getattr(np, name)(a, b), getattr(numpy, name)(a, b), 20)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_magnitudes_neither_overflow_nor_vanish(dtype: str) -> None:
    limits = numpy.finfo(dtype)
    for size in (limits.max / 2, limits.tiny * 8, 1.0, 0.0):
        there = numpy.full(1000, size * (1 - 0.5j), dtype)
        there[7] = 0
        same(np.abs(there), numpy.abs(there))
        assert float(np.abs(there)[0] / there.dtype.type(size).real) == pytest.approx(1.25**0.5) if size else True


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "all", "any", "count_nonzero", "nansum"])
def test_complex_reductions_agree_with_numpy(name: str, axis: Any, dtype: str) -> None:
    there = sample(dtype, (4, 3, 37))
    same(getattr(np, name)(there, axis), getattr(numpy, name)(there, axis), 40)
    same(getattr(np, name)(np.asarray(there)[:, ::-1, ::2], axis), getattr(numpy, name)(there[:, ::-1, ::2], axis), 40)


def test_sums_of_many_numbers_and_of_none() -> None:
    there = sample("complex64", (100_001,))
    same(np.sum(there), numpy.sum(there.astype("complex128")).astype("complex64"))
    same(np.sum(there[:0]), numpy.sum(there[:0]))
    same(np.prod(there[:0]), numpy.prod(there[:0]))
    rows = there[:99_999].reshape(-1, 3)
    same(np.sum(rows, 0), numpy.sum(rows.astype("complex128"), 0).astype("complex64"), 400)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "diff", "gradient", "trapezoid", "nan_to_num", "round"])
def test_running_totals_and_differences(name: str, dtype: str) -> None:
    there = sample(dtype, (3, 20))
    found, expected = getattr(np, name)(there), getattr(numpy, name)(there)
    for here, one in zip(found if isinstance(found, tuple) else [found], expected if isinstance(expected, tuple) else [expected], strict=True):  # fmt: skip # noqa: E501
        same(here, one, 40)


@pytest.mark.parametrize(("a", "b"), [((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 3)), ((5, 7), (7, 33)), ((2, 5, 7), (7, 3)), ((2, 1, 70, 65), (3, 65, 9)), ((130, 70), (70, 90)), ((0, 3), (3, 2)), ((4, 0), (0, 2))])  # fmt: skip # noqa: E501
@pytest.mark.parametrize("dtype", [*COMPLEX, "float64"])
def test_complex_matrix_products_agree_with_numpy(dtype: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = sample("complex128" if dtype == "float64" else dtype, a, 1), sample(dtype, b, 2)
    same(np.asarray(left) @ np.asarray(right), left @ right, 100)
    if left.ndim == right.ndim == 2:  # strided operands
        wide = numpy.repeat(left, 2, axis=1)
        same(np.asarray(wide)[:, ::2] @ np.asarray(right), left @ right, 100)
        same(np.asarray(right).T @ np.asarray(left).T, right.T @ left.T, 100)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_other_complex_products_agree_with_numpy(dtype: str) -> None:
    a, b = sample(dtype, (3, 4), 1), sample(dtype, (3, 4), 2)
    for name in ("vdot", "inner", "outer", "kron", "vecdot", "tensordot"):
        same(getattr(np, name)(a, b), getattr(numpy, name)(a, b), 20)
    same(np.dot(a, b.T), numpy.dot(a, b.T), 20)
    same(np.einsum("ij,kj->ik", a, b), numpy.einsum("ij,kj->ik", a, b), 20)
    same(np.vecmat(a, b.T), numpy.vecmat(a[:, None, :], b.T)[:, 0], 20)
    same(np.matvec(b, a), numpy.matvec(b, a), 20)
    same(np.cross(a[:, :3], b[:, :3]), numpy.cross(a[:, :3], b[:, :3]), 20)
    for mode in ("full", "same", "valid"):
        same(np.convolve(a[0], b[0, :3], mode), numpy.convolve(a[0], b[0, :3], mode), 20)
        same(np.correlate(a[0], b[0, :3], mode), numpy.correlate(a[0], b[0, :3], mode), 20)
        same(np.correlate(a[0, :3], b[0], mode), numpy.correlate(a[0, :3], b[0], mode), 20)
    same(np.cov(a), numpy.cov(a), 20) if dtype == "complex128" else None
    same(np.corrcoef(a), numpy.corrcoef(a), 20) if dtype == "complex128" else None


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_linear_algebra_agrees_with_numpy(dtype: str) -> None:
    a, b = sample(dtype, (2, 5, 5), 1), sample(dtype, (2, 5, 3), 2)
    same(np.linalg.solve(a, b), numpy.linalg.solve(a, b), 200)
    same(np.linalg.solve(a[0], b[0, :, 0]), numpy.linalg.solve(a[0], b[0, :, 0]), 200)
    same(np.linalg.inv(a), numpy.linalg.inv(a), 200)
    same(np.linalg.det(a), numpy.linalg.det(a), 200)
    for here, there in zip(np.linalg.slogdet(a), numpy.linalg.slogdet(a), strict=True):
        same(here, there, 200)
    assert np.linalg.det(np.asarray(a[0]) * 0).item() == 0
    same(np.linalg.matrix_power(a, -2), numpy.linalg.matrix_power(a, -2), 2000)
    for order in (None, "fro", 1, -1, float("inf")):
        same(np.linalg.norm(a[0], order), numpy.linalg.norm(a[0], order), 20)
    same(np.linalg.norm(a, axis=1), numpy.linalg.norm(a, axis=1), 20)
    for call in ("eigh", "svd", "qr", "cholesky", "pinv", "svdvals", "matrix_rank"):
        with pytest.raises(DTypeError, match=f"does not support {dtype}"):
            getattr(np.linalg, call)(a)
    with pytest.raises(DTypeError, match="singular values"):
        np.linalg.norm(a[0], 2)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        np.linalg.inv(np.asarray(a[0]) * 0)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_parts_are_views_that_can_be_written(dtype: str) -> None:
    there = sample(dtype, (4, 6))
    here = np.array(there)
    real = here[1::2].real
    real[...] = 5
    there[1::2].real[...] = 5
    here.imag[:, 2] = -1
    there.imag[:, 2] = -1
    here.T.imag += 1
    there.T.imag += 1
    same(here, there)
    here.real = 0
    there.real = 0
    same(here, there)
    assert here.real.dtype == there.real.dtype.name
    assert np.array([1.0, 2]).imag.tolist() == [0, 0]
    with pytest.raises(DTypeError, match="read-only"):
        np.ones(3).imag[0] = 1
    with pytest.raises(TypeError, match="no imaginary part"):
        np.ones(3).imag = 1
    same(np.real(here[0]), numpy.real(there[0]))
    same(np.real_if_close(np.asarray(there) * 0 + 1), numpy.real_if_close(there * 0 + 1))
    assert np.iscomplexobj(here)
    assert np.isrealobj(1.0)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_indexing_and_movement_of_complex_arrays_agree_with_numpy(dtype: str) -> None:
    there = sample(dtype, (4, 5, 6))
    here = np.array(there)
    mask = there.real > 0
    for key in (1, (slice(None), 2), (..., slice(None, None, -2)), [2, 0, 2], (slice(1, 3), [1, 4]), (None, 3)):
        same(here[key], there[key])
    same(here[np.asarray(mask)], there[mask])
    same(here[np.asarray(mask[:, 0, 0])], there[mask[:, 0, 0]])
    here[np.asarray(mask)] = 1j
    there[mask] = 1j
    here[[0, 2], 1] = there[3, 1] * 2
    there[[0, 2], 1] = there[3, 1] * 2
    here[1, ::2] = np.asarray([1, 2, 3]).reshape(3, 1)
    there[1, ::2] = numpy.asarray([1, 2, 3]).reshape(3, 1)
    same(here, there)
    same(np.where(mask, here, 0), numpy.where(mask, there, 0))
    same(np.where(mask, 1j, np.asarray(there.real)), numpy.where(mask, there.dtype.type(1j), there.real))
    same(np.concatenate([here, there.real]), numpy.concatenate([there, there.real]))
    same(np.stack([here, here], 1), numpy.stack([there, there], 1))
    same(here.transpose(2, 0, 1).copy(), there.transpose(2, 0, 1))
    for name in ("flip", "rot90", "ravel", "squeeze", "triu", "atleast_3d"):
        same(getattr(np, name)(here), getattr(numpy, name)(there))
    same(np.roll(here, 2, 1), numpy.roll(there, 2, 1))
    same(np.tile(here, 2), numpy.tile(there, 2))
    same(np.repeat(here, 3, 0), numpy.repeat(there, 3, 0))
    same(np.pad(here, 1), numpy.pad(there, 1))
    same(np.take(here, [1, 0], 2), numpy.take(there, [1, 0], 2))
    same(np.diag(here[0, :, :5]), numpy.diag(there[0, :, :5]))
    same(np.trace(here[0]), numpy.trace(there[0]), 4)
    for found, expected in zip(np.nonzero(here), numpy.nonzero(there), strict=True):
        numpy.testing.assert_array_equal(found, expected)
    same(np.broadcast_to(here[0], (3, 5, 6)), numpy.broadcast_to(there[0], (3, 5, 6)))
    assert here[0, 0, 0] in here


def test_created_complex_arrays_agree_with_numpy() -> None:
    assert np.array([1, 2j]).dtype == "complex64"  # floats become float32 likewise
    assert np.array([1, 2j]).tolist() == [1, 2j]
    assert np.asarray(2 - 1j).item() == 2 - 1j
    assert np.zeros(2, complex).dtype == "complex64"
    assert np.full(3, 1j).dtype == "complex64"
    same(np.full((2, 3), 1 - 1j, "complex128"), numpy.full((2, 3), 1 - 1j))
    same(np.ones(3, np.complex128), numpy.ones(3, "complex128"))
    assert (np.complex64, np.complex128) == (np.csingle, np.cdouble) == ("complex64", "complex128")
    same(np.eye(3, dtype="complex64"), numpy.eye(3, dtype="complex64"))
    assert np.full_like(np.array([1j]), 2).tolist() == [2]
    assert np.array([[1, 2], [3j, np.pi]], "complex128")[1, 1].item() == np.pi
    assert np.array([np.ones(2), np.array([1j, 2])]).tolist() == [[1, 1], [1j, 2]]
    with pytest.raises(TypeError):
        np.array([1j], "float32")
    with pytest.raises(TypeError):
        np.array([1j], "int32")


def test_a_complex_array_of_one_element_converts_to_a_number() -> None:
    x = np.array([3 - 4j], "complex128")
    assert complex(x) == 3 - 4j
    assert complex(np.ones(1)) == 1
    assert abs(x).item() == 5
    assert hash(x[0]) == hash(3 - 4j)
    assert x[0] == 3 - 4j
    assert bool(x)
    assert f"{x[0]:.1f}" == "3.0-4.0j"
    for call in (float, int, operator.index):
        with pytest.raises(TypeError):
            call(x[0])


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("other", REAL + COMPLEX)
def test_astype_of_complex_arrays_agrees_with_numpy(dtype: str, other: str) -> None:
    there = sample(dtype, (3, 40)) * 5
    if other.startswith("u"):
        there = numpy.abs(there).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(np.asarray(there).astype(other), there.astype(other))
        same(np.asarray(there)[:, ::-2].astype(other), there[:, ::-2].astype(other))
    back = sample(other, (5000,))
    same(np.asarray(back).astype(dtype), back.astype(dtype))
    assert np.promote_types(dtype, other) == numpy.promote_types(dtype, other).name
    assert np.can_cast(dtype, other) == numpy.can_cast(dtype, other)
    assert np.can_cast(other, dtype) == numpy.can_cast(other, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "int4"])
def test_conversion_from_and_to_small_types(dtype: str) -> None:
    small = np.array([1.0, 2, -3]).astype(dtype)
    assert small.astype("complex64").tolist() == [1, 2, -3]
    assert small.astype("complex128").tolist() == [1, 2, -3]
    assert np.array([1, 2, -3], "complex128").astype("complex64").real.astype(dtype).tolist() == [1, 2, -3]
    with pytest.warns(np.exceptions.ComplexWarning):
        assert np.array([1, 2, -3], "complex128").astype(dtype).astype("float32").tolist() == [1, 2, -3]


def test_discarding_imaginary_parts_is_warned_of() -> None:
    x = np.array([1 + 2j, 3])
    with pytest.warns(np.exceptions.ComplexWarning, match="discards the imaginary part"):
        assert x.astype("float32").tolist() == [1, 3]
    with pytest.warns(np.exceptions.ComplexWarning):
        assert np.asarray(x, "int64").tolist() == [1, 3]
    real = np.zeros(2)
    with pytest.warns(np.exceptions.ComplexWarning):
        real[...] = x
    assert real.tolist() == [1, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x.astype("bool").tolist() == [True, True]
        assert x.astype("complex128").tolist() == [1 + 2j, 3]
        with pytest.raises(np.exceptions.ComplexWarning):
            x.astype("float64")


@pytest.mark.parametrize("name", ["max", "min", "argmax", "sort", "argsort", "median", "unique", "floor", "ceil", "trunc", "cbrt", "signbit", "deg2rad", "fabs", "i0", "spacing", "isposinf", "frexp", "modf", "unwrap", "argpartition:1", "searchsorted:1", "clip:0:1", "maximum:1", "less:1", "greater_equal:1j", "mod:2", "floor_divide:2", "arctan2:1", "hypot:1", "gcd:1", "left_shift:1", "bitwise_and:1", "fmax:1", "copysign:1", "logaddexp:1", "heaviside:1", "quantile:0.5", "percentile:3", "ptp", "histogram", "nanmax"])  # fmt: skip # noqa: E501
def test_operations_that_complex_numbers_do_not_have_are_refused(name: str) -> None:
    function, *arguments = name.split(":")
    numbers = [complex(one) if "j" in one else float(one) if "." in one else int(one) for one in arguments]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((DTypeError, TypeError), match=r"complex|does not support|must be real"):
            getattr(np, function)(np.array([1 + 2j, 3j, 1]), *numbers)


def test_an_order_is_refused_with_what_to_do() -> None:
    with pytest.raises(DTypeError, match="have no order: compare their magnitudes or real parts"):
        _ = np.array([1j]) < 1


def test_operators_of_real_numbers_do_not_run_on_complex_ones() -> None:
    """Every operator of the registry computes complex numbers or refuses them; none takes them for something else."""
    rng = numpy.random.default_rng(1)
    for op, category, _ in _core.operators():
        if category in ("control-flow", "sequence"):
            continue
        for shape in ((4,), (2, 2), (1, 2, 4), (1, 2, 4, 4), (1, 4, 4, 3)):
            for inputs in range(1, 4):
                x = [np.asarray(rng.normal(size=shape) + 0j) for _ in range(inputs)]
                try:
                    found = _core.operator(op, x)
                except EngineError:
                    continue
                assert "complex" in found.dtype or op in REAL_RESULTS


REAL_RESULTS = {"Magnitude", "IsNaN", "IsFinite", "IsInfinite", "Equal", "NotEqual", "NonZero"}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*(st.complex_numbers(max_magnitude=1e6, allow_nan=False),) * 3), min_size=1, max_size=50))
def test_complex_arithmetic_obeys_its_laws(triples: list[tuple[complex, complex, complex]]) -> None:
    a, b, c = (np.array(list(column), "complex128") for column in zip(*triples, strict=True))
    size = 1e-12 * (1 + abs(a) + abs(b) + abs(c)) ** 3

    def near(left: np.ndarray, right: np.ndarray) -> bool:
        return bool((abs(left - right) <= size).all())

    assert near(a * (b + c), a * b + a * c)
    assert near((a * b).conj(), a.conj() * b.conj())
    assert (a.conj().conj() == a).all()
    assert near(a * a.conj(), abs(a) ** 2)
    assert near(a.real + 1j * a.imag, a)
    assert near(abs(a) * np.exp(1j * np.angle(a)), a)
    assert (a - a == 0).all()
    divisor = np.where(abs(b) < 1e-3, 1, b)
    assert near((a / divisor) * divisor, a)


def test_angles_and_operators_of_long_strided_arrays() -> None:
    there = sample("complex64", (5000,))
    same(np.angle(there), numpy.angle(there))
    same(np.asarray(there)[::2] * np.asarray(there)[1::2], there[::2] * there[1::2])
    same(np.asarray(there.real) + np.asarray(there.imag), there.real + there.imag)


# Borders.


@pytest.mark.parametrize("dtype", COMPLEX)
def test_buffers_in_both_directions_share_memory(dtype: str) -> None:
    there = sample(dtype, (3, 4))
    here = np.asarray(there)
    assert here.address == there.ctypes.data
    here[0, 0] = 7j
    assert there[0, 0] == 7j
    back = numpy.asarray(here.T)
    assert back.dtype == there.dtype
    numpy.testing.assert_array_equal(back, there.T)
    assert here.tobytes() == there.tobytes()
    shifted = numpy.frombuffer(bytearray(16 * 4 + 8), "complex128", offset=8)  # aligned as its parts are
    assert np.asarray(shifted).size == 4


MAIN = """
import walle.np as np

def turn(x):
    assert x.dtype == "complex128", x.dtype
    return np.fft.ifft(np.fft.fft(x)) * 1j, abs(x), x.imag

def warned(x):
    return x.astype("float64")
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("hosted", [False, pytest.param(True, marks=pytest.mark.vm_host)])
@pytest.mark.parametrize("size", [3, 100_000])
async def test_arrays_cross_the_border_of_a_vm(tmp_path: Path, hosted: bool, size: int) -> None:
    folder = write_task(tmp_path, MAIN)
    there = sample("complex128", (2, size))
    host = VmHost() if hosted else None
    vm = VM(folder, host=host)
    try:
        turned, magnitude, imag = await vm.call("turn", there, deadline=60)
        same(turned, there * 1j, 10)
        same(magnitude, numpy.abs(there))
        numpy.testing.assert_array_equal(imag, there.imag)
        assert numpy.asarray(await vm.call("warned", there)).tolist() == there.real.tolist()
    finally:
        vm.close()
        await asyncio.wait_for(vm.wait_closed(), 30)
        if host is not None:
            host.close()


def test_models_take_no_complex_numbers() -> None:
    graph = GraphBuilder("m")
    with pytest.raises(DTypeError, match="unknown dtype 'complex64'"):
        graph.input("x", (2,), "complex64")
    graph.output("y", graph.op("Neg", [graph.input("the_input", (2,), "float32")]))
    data = bytearray(graph.to_bytes())
    place = data.index(b"the_input") + len("the_input") + 1  # the byte behind the kind of value
    assert data[place] == 0
    data[place] = 23  # complex64
    data_at = struct.unpack_from("<Q", data, 40)[0]
    data[60:64] = struct.pack("<I", zlib.crc32(data[64:data_at], zlib.crc32(data[:60])))
    with pytest.raises(ModelError, match="'the_input' has unknown dtype 23"):
        Session(bytes(data))
    graph = GraphBuilder("m")
    graph.output("y", graph.op("Cast", [graph.input("x", (2,), "float32")], to="complex64"))
    with pytest.raises(DTypeError, match="a model does not compute complex64; give it the real and imaginary parts"):
        Session(graph.to_bytes()).run({"x": np.ones(2)})
    graph = GraphBuilder("m")
    graph.output("y", graph.op("Relu", [graph.input("x", (2,), "float32")]))
    with pytest.raises(DTypeError, match="complex64"):
        Session(graph.to_bytes()).run({"x": np.array([1, 1j])})


@pytest.mark.parametrize(
    "numbers",
    [
        [1 + 2j], [1.5 - 2.25j, -3 + 100j], [0, -0.0, 1j, -1j], [1e-10 + 1e10j, 3], [1 / 3 + 2j / 3],
        [_INF + 1j, complex(1, -_INF), _NAN + 0j, complex(0, _NAN)], [[1, 2j], [3 + 4j, -5]], [], [0.1j] * 50,
        [1e6 + 1j, 2],
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", COMPLEX)
def test_texts_are_numpys(dtype: str, numbers: list[Any]) -> None:
    there = numpy.array(numbers, dtype)
    here = np.array(numbers, dtype)
    assert str(here) == str(there)
    expected = repr(there) if dtype == "complex64" or there.size == 0 else repr(there)[:-1]
    assert repr(here).startswith(expected)


@pytest.mark.parametrize("number", [1 + 2j, 0.1 - 0.5j, 2j, -0.0 - 1j, 1e20 + 1e-7j, 0j, complex(_INF, _NAN)])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_texts_of_numbers_are_numpys(dtype: str, number: complex) -> None:
    assert str(np.asarray(number, dtype)) == str(numpy.dtype(dtype).type(number))


def test_kinds_of_complex_dtypes_agree_with_numpy() -> None:
    for name in ("F", "D", "c8", "c16", "complex64", "complex128", "csingle"):
        assert np.dtype(name) == numpy.dtype(name).name
    made = np.dtype("complex128")
    assert (made.kind, made.itemsize, made.char, made.str, made.alignment) == ("c", 16, "D", "<c16", 8)
    assert np.dtype(complex) == "complex64"
    assert np.issubdtype(made, np.complexfloating)
    assert np.issubdtype(made, np.inexact)
    assert not np.issubdtype(made, np.floating)
    assert np.isdtype(made, "complex floating")
    assert np.isdtype(made, "numeric")
