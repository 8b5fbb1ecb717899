"""Movements that need more than the eight axes of one region are several regions."""

from typing import Any

import numpy
import pytest

import walle
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder

type Array = numpy.ndarray[Any, numpy.dtype[Any]]


def run(op: str, x: Array, backend: str, operand: list[int] | None = None, **attributes: Any) -> Array:
    graph = GraphBuilder("net")
    inputs = [graph.input("x", x.shape)]
    if operand is not None:
        inputs.append(graph.constant("operand", numpy.array(operand, dtype="int64")))
    graph.output("y", graph.op(op, inputs, **attributes))
    return numpy.asarray(walle.Session(graph.to_bytes(), backend=backend).run({"x": x})["y"])


def numbers(*shape: int) -> Array:
    return numpy.arange(numpy.prod(shape), dtype="float32").reshape(shape)


BACKENDS = [one.name for one in walle.backends() if one.available and one.exact]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("repeats", [[2, 3, 2, 3, 2], [3, 1, 2, 2, 4], [2, 2, 2, 2, 2, 2]])
def test_tile_of_many_axes_agrees_with_numpy(backend: str, repeats: list[int]) -> None:
    x = numbers(*[2, 3, 4, 2, 3, 2][: len(repeats)])
    numpy.testing.assert_array_equal(run("Tile", x, backend, repeats), numpy.tile(x, repeats))


@pytest.mark.parametrize("backend", BACKENDS)
def test_expand_of_every_second_axis(backend: str) -> None:
    x = numbers(2, 1, 3, 1, 2, 1, 2, 1, 2, 1)
    shape = [2, 2, 3, 3, 2, 2, 2, 2, 2, 3]
    numpy.testing.assert_array_equal(run("Expand", x, backend, shape), numpy.broadcast_to(x, shape))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transpose_of_nine_axes(backend: str) -> None:
    x = numbers(2, 3, 2, 2, 3, 2, 2, 2, 2)
    perm = list(range(9))[::-1]
    numpy.testing.assert_array_equal(run("Transpose", x, backend, perm=perm), x.transpose(perm))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nearest_resize_of_five_axes(backend: str) -> None:
    x = numbers(2, 3, 2, 3, 2)
    graph = GraphBuilder("net")
    scales = graph.constant("scales", numpy.array([2, 2, 2, 2, 2], dtype="float32"))
    inputs = [graph.input("x", x.shape), None, scales]
    graph.output("y", graph.op("Resize", inputs, mode="nearest"))
    found = numpy.asarray(walle.Session(graph.to_bytes(), backend=backend).run({"x": x})["y"])
    expected = x
    for axis in range(5):
        expected = expected.repeat(2, axis)
    numpy.testing.assert_array_equal(found, expected)


def test_a_movement_of_too_many_regions_is_refused() -> None:
    shape = [2, 1] * 13
    x = numpy.zeros(shape, dtype="float32")
    with pytest.raises(walle.errors.EngineError, match="too many regions"):
        _core.evaluate("Expand", [x, numpy.array([2, 2] * 13)], {})
