"""Arrays of ml_dtypes as inputs and results: bfloat16 and the storage types, by their own dtype."""

import sys
from typing import Any

import ml_dtypes
import numpy
import pytest

import walle
import walle.np as np
from walle.engine_ext.errors import DTypeError
from walle.engine_ext.model import BITS_ONLY, GraphBuilder

type Array = numpy.ndarray[Any, numpy.dtype[Any]]

TYPES = sorted(BITS_ONLY)


def sample(name: str, *shape: int) -> Array:
    values = numpy.arange(int(numpy.prod(shape)), dtype="float32").reshape(shape) % 2
    return values.astype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("name", TYPES)
def test_an_array_is_accepted_by_its_dtype_and_given_back_as_such_without_a_copy(name: str) -> None:
    x = sample(name, 3, 4)
    ours = np.asarray(x)
    assert ours.dtype == name
    assert ours.shape == (3, 4)
    assert ours.address == x.__array_interface__["data"][0]
    back = numpy.asarray(ours)
    assert back.dtype == x.dtype
    assert back.__array_interface__["data"][0] == ours.address
    assert back.tobytes() == x.tobytes()


def test_strides_are_kept_both_ways() -> None:
    x = numpy.arange(24, dtype="float32").reshape(4, 6).astype(ml_dtypes.bfloat16)
    for view in (x[::2, ::-1], x.T, x[1:, 2:3], x[:0], x[0, 0:1].reshape(())):
        ours = np.asarray(view)
        assert ours.shape == view.shape
        back = numpy.asarray(ours)
        assert back.dtype == x.dtype
        assert (back == view).all()


def test_a_number_and_rows_of_arrays_are_accepted() -> None:
    number = np.asarray(ml_dtypes.bfloat16(1.5))
    assert (number.dtype, number.shape, float(number)) == ("bfloat16", (), 1.5)
    rows = np.asarray([sample("bfloat16", 3), sample("bfloat16", 3)])
    assert (rows.dtype, rows.shape) == ("bfloat16", (2, 3))
    assert (np.asarray(sample("bfloat16", 3)) + sample("bfloat16", 3)).dtype == "bfloat16"


def test_writing_to_a_shared_array_shows_on_the_other_side() -> None:
    ours = np.asarray(sample("bfloat16", 4))
    theirs = numpy.asarray(ours)
    theirs[0] = 7
    assert float(ours[0]) == 7


def test_another_dtype_and_a_copy_can_be_asked_for() -> None:
    ours = np.asarray(sample("bfloat16", 4))
    wide = numpy.asarray(ours, dtype="float32")
    assert wide.dtype == numpy.float32
    assert wide.tolist() == [0, 1, 0, 1]
    apart = numpy.array(ours)
    apart[0] = 9
    assert float(ours[0]) == 0
    with pytest.raises(ValueError, match="without a copy"):
        numpy.asarray(ours, dtype="float32", copy=False)
    assert np.asarray(numpy.float32(2)).__array__().tolist() == 2


def test_without_ml_dtypes_the_bits_are_given_and_the_dtype_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = np.asarray(sample("bfloat16", 2)), np.asarray(sample("float8_e5m2", 2))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert [numpy.asarray(one).dtype.name for one in ours] == ["uint16", "uint8"]
    assert numpy.asarray(ours[0]).tolist() == [0, 0x3F80]
    assert [one.dtype for one in ours] == ["bfloat16", "float8_e5m2"]


def test_a_buffer_with_a_format_is_refused_by_name_and_bytes_are_given() -> None:
    ours = np.asarray(sample("bfloat16", 2))
    with pytest.raises(BufferError, match="bfloat16; view the array as uint16"):
        memoryview(ours)
    assert memoryview(ours.view("uint16")).tolist() == [0, 0x3F80]
    assert ours.tobytes() == sample("bfloat16", 2).tobytes()


def graph(name: str) -> GraphBuilder:
    builder = GraphBuilder("net")
    x = builder.input("x", (2, 3), name)
    y = builder.op("Identity", [x]) if name != "bfloat16" else builder.op("Mul", [x, builder.constant("w", weight())])
    builder.output("y", y)
    return builder


def weight() -> Array:
    return numpy.array([2, 3, 0.5], dtype="float32").astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("runner", [walle.Session, walle.Module])
def test_models_take_and_give_arrays_of_ml_dtypes(name: str, runner: Any) -> None:
    x = sample(name, 2, 3)
    found = numpy.asarray(runner(graph(name).to_bytes()).run({"x": x})["y"])
    assert found.dtype == x.dtype
    assert found.tobytes() == (x * weight() if name == "bfloat16" else x).tobytes()


def test_a_model_of_another_type_refuses_the_array() -> None:
    with pytest.raises(DTypeError, match="bfloat16"):
        walle.Session(graph("float8_e5m2").to_bytes()).run({"x": sample("bfloat16", 2, 3)})


@pytest.mark.parametrize("name", TYPES)
def test_a_constant_is_made_from_an_array_by_its_dtype(name: str) -> None:
    builder = GraphBuilder("net")
    builder.output("y", builder.op("Identity", [builder.constant("c", sample(name, 2, 3))]))
    found = numpy.asarray(walle.Session(builder.to_bytes()).run({})["y"])
    assert found.tobytes() == sample(name, 2, 3).tobytes()
    assert found.dtype == sample(name, 1).dtype
    with pytest.raises(DTypeError, match=f"the array is {name}"):
        builder.constant("d", sample(name, 2), dtype="float32")
