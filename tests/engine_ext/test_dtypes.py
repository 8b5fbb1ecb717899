"""Element types: conversions against ml_dtypes and NumPy; arithmetic in each type that has it."""

from typing import Any

import ml_dtypes
import numpy
import pytest

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ModelError, UnsupportedError
from walle.engine_ext.model import BITS_ONLY, DTYPES, GraphBuilder
from walle.engine_ext.session import Session

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
SMALL_FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
LARGEST = {"float8_e4m3fn": 448, "float8_e4m3fnuz": 240, "float8_e5m2": 57344, "float8_e5m2fnuz": 57344}
SPECIAL = [0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1e-7, -1e-7, 65504, 65519.9, 65520, 448, 464, 465, 57344, 61440]


def numpy_dtype(name: str) -> numpy.dtype[Any]:
    return numpy.dtype(getattr(ml_dtypes, name, name))


def ours(array: numpy.ndarray[Any, Any]) -> np.ndarray:
    if array.dtype.name not in BITS_ONLY:
        return np.array(array)
    return np.array(array.view(f"u{array.itemsize}")).view(array.dtype.name)


def theirs(array: np.ndarray) -> numpy.ndarray[Any, Any]:
    return numpy.frombuffer(array.tobytes(), numpy_dtype(array.dtype)).reshape(array.shape)


def numbers(dtype: str) -> numpy.ndarray[Any, Any]:
    random = numpy.random.default_rng(3)
    values = random.normal(size=3000) * 10.0 ** random.integers(-12, 12, 3000)
    with numpy.errstate(over="ignore"):
        return numpy.concatenate([values, SPECIAL]).astype(dtype)


def same_bits(ours: numpy.ndarray[Any, Any], theirs: numpy.ndarray[Any, Any]) -> bool:
    nan = numpy.isnan(ours.astype("float32")) & numpy.isnan(theirs.astype("float32"))
    bits = f"u{ours.itemsize}"
    return bool((nan | (ours.view(bits) == theirs.view(bits))).all())


@pytest.mark.parametrize("to", [*SMALL_FLOATS, "float4_e2m1fn", "float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float16", "float32"])
def test_floats_become_the_nearest_small_float(source: str, to: str) -> None:
    x = numbers(source)
    found = theirs(_core.evaluate("Cast", [x], {"to": to, "saturate": 0})[0])
    with numpy.errstate(all="ignore"):
        assert same_bits(found, x.astype(numpy_dtype(to)))


@pytest.mark.parametrize("to", SMALL_FLOATS)
def test_saturation_keeps_what_is_too_large_finite(to: str) -> None:
    largest = LARGEST[to]
    found = theirs(np.array(SPECIAL).astype(to)).astype("float32")
    assert found[2] == largest
    assert found[3] == -largest
    assert numpy.isnan(found[4])
    assert numpy.isfinite(numpy.delete(found, 4)).all()


def test_a_double_is_rounded_once() -> None:
    half_way = 1 + 2.0**-11  # a tie between two float16; rounding to float32 first would lose the digits that break it
    x = np.array([half_way, half_way + 2.0**-40, half_way - 2.0**-40], "float64")
    assert x.astype("float16").tolist() == [1.0, 1 + 2.0**-10, 1.0]
    large = np.array([2**24 + 2**13 + 1, 2**62 + 2**54 + 1], "int64")
    assert large.astype("bfloat16").tolist() == [2.0**24, float(2**62 + 2**55)]


@pytest.mark.parametrize("name", [*SMALL_FLOATS, "float8_e8m0fnu", "float4_e2m1fn", "uint4", "uint2"])
def test_every_code_has_its_value(name: str) -> None:
    count = {"float4_e2m1fn": 16, "uint4": 16, "uint2": 4}.get(name, 256)
    codes = numpy.arange(count, dtype="uint8").view(numpy_dtype(name))
    found = numpy.asarray(ours(codes).astype("float32"))
    numpy.testing.assert_array_equal(found, codes.astype("float32"))


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_small_integers_keep_the_low_bits(name: str) -> None:
    x = numpy.arange(-20, 20, dtype="int16")
    numpy.testing.assert_array_equal(
        theirs(ours(x).astype(name)).astype("int16"), x.astype(numpy_dtype(name)).astype("int16")
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("up", [0.25, 0.5, 2.0, 4.0]), ("down", [0.25, 0.25, 1.0, 4.0]), ("nearest", [0.25, 0.25, 1.0, 4.0])],
)
def test_powers_of_two_round_as_asked(mode: str, expected: list[float]) -> None:
    x = numpy.array([0.25, 0.3, 1.1, 4.0], "float32")
    found = _core.evaluate("Cast", [x], {"to": "float8_e8m0fnu", "round_mode": mode})[0]
    assert found.tolist() == expected
    with pytest.raises(ModelError, match="known are up, down and nearest"):
        _core.evaluate("Cast", [x], {"to": "float8_e8m0fnu", "round_mode": "sideways"})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "BitwiseAnd", "BitwiseXor", "Maximum", "FloorMod", "Less"])
def test_integers_compute_in_their_own_type(op: str, name: str) -> None:
    functions = {
        "Add": numpy.add, "Sub": numpy.subtract, "Mul": numpy.multiply, "BitwiseAnd": numpy.bitwise_and,
        "BitwiseXor": numpy.bitwise_xor, "Maximum": numpy.maximum, "FloorMod": numpy.mod, "Less": numpy.less,
    }  # fmt: skip
    random = numpy.random.default_rng(5)
    low, high = numpy.iinfo(name).min, numpy.iinfo(name).max
    a, b = (random.integers(low, high, 100, dtype=name, endpoint=True) for _ in range(2))
    b[b == 0] = 3
    with numpy.errstate(all="ignore"):
        expected = functions[op](a, b)
    found = _core.evaluate(op, [a, b], {})[0]
    assert found.dtype == expected.dtype.name
    numpy.testing.assert_array_equal(numpy.asarray(found), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_floats_compute_in_float32(name: str) -> None:
    dtype = numpy_dtype(name)
    random = numpy.random.default_rng(6)
    a, b = (random.normal(size=(37, 23)).astype(dtype) for _ in range(2))
    wide_a, wide_b = a.astype("float32"), b.astype("float32")
    step = 2.0**-10 if name == "float16" else 2.0**-7
    for op, expected in (
        ("Add", wide_a + wide_b),
        ("Mul", wide_a * wide_b),
        ("Maximum", numpy.maximum(wide_a, wide_b)),
    ):
        assert same_bits(theirs(_core.evaluate(op, [ours(a), ours(b)], {})[0]), expected.astype(dtype))
    total = theirs(ours(a).sum(0)).astype("float32")
    numpy.testing.assert_allclose(total, wide_a.sum(0), rtol=step, atol=step)
    product = theirs(ours(a) @ ours(numpy.ascontiguousarray(b.T))).astype("float32")
    numpy.testing.assert_allclose(product, wide_a @ wide_b.T, rtol=step, atol=8 * step)
    assert theirs(np.argmax(ours(a), 1)).tolist() == wide_a.argmax(1).tolist()
    assert theirs(_core.evaluate("CumSum", [ours(numpy.ones(3000, dtype)), np.array(0)], {})[0])[-1] > 2900


def test_a_view_keeps_the_bits() -> None:
    x = np.array([1.0, -2.0], "float32")
    assert x.view("int32").tolist() == numpy.array([1.0, -2.0], "float32").view("int32").tolist()
    with pytest.raises(DTypeError, match="item size differs"):
        x.view("int64")
    with pytest.raises(DTypeError, match="bool"):
        np.array([2], "uint8").view("bool")


def test_types_that_are_stored_only_do_not_compute() -> None:
    x = np.array([1, 2]).astype("float8_e5m2")
    assert x.tolist() == [1.0, 2.0]
    with pytest.raises(DTypeError, match="float8_e5m2"):
        _core.evaluate("Add", [x, x], {})


@pytest.mark.parametrize("name", list(DTYPES))
def test_every_type_goes_through_a_session(name: str) -> None:
    x = np.array([2, 1, 1, 2] if name == "float8_e8m0fnu" else [0, 1, 1, 0]).astype(name)
    graph = GraphBuilder("types")
    given = graph.input("x", (4,), name)
    graph.output("y", graph.op("Transpose", [graph.op("Reshape", [given, graph.constant("shape", [2, 2])])]))
    graph.output("wide", graph.op("Cast", [given], to="float32"))
    result = Session(graph.to_bytes()).run({"x": x})
    assert result["y"].dtype == name
    expected = x.astype("float32").tolist()
    assert result["y"].astype("float32").ravel().tolist() == expected
    assert result["wide"].tolist() == expected


def test_bits_may_not_become_bools() -> None:
    with pytest.raises(UnsupportedError, match="use Cast"):
        _core.evaluate("BitCast", [np.array([2], "uint8")], {"to": "bool"})
