"""Elementwise operators over short rows and any strides, longer than one piece, against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import walle.np as np
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session

SHAPES = [
    ((700, 3), (700, 1)),
    ((700, 3), (1, 3)),
    ((700, 1), (1, 3)),
    ((3, 700, 4), (3, 1, 4)),
    ((20, 30, 5), (20, 30, 1)),
    ((20, 30, 2), (1, 30, 1)),
    ((2, 3, 2), (2, 1, 2)),
    ((1100, 32), (1100, 1)),
    ((1100, 33), (1100, 1)),
    ((0, 3), (1, 1)),
    ((5, 0), (5, 1)),
]
VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "transposed": lambda x: numpy.ascontiguousarray(x.T).T,
    "stepped": lambda x: numpy.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[::-1, ..., ::-1],
}


def made(shape: tuple[int, ...], dtype: str, view: str, seed: int) -> Any:
    return VIEWS[view](numpy.random.default_rng(seed).integers(1, 100, shape).astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "int16"])
@pytest.mark.parametrize("view", list(VIEWS))
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_operators_of_one_two_and_three_operands(
    left: tuple[int, ...], right: tuple[int, ...], view: str, dtype: str
) -> None:
    a, b = made(left, dtype, view, 1), made(right, dtype, view, 2)
    own_a, own_b = np.asarray(a), np.asarray(b)
    numpy.testing.assert_array_equal(numpy.asarray(own_a + own_b), a + b)
    numpy.testing.assert_array_equal(numpy.asarray(own_b - own_a), b - a)
    numpy.testing.assert_array_equal(numpy.asarray(own_a < own_b), a < b)
    numpy.testing.assert_array_equal(numpy.asarray(np.square(own_a)), a * a)
    numpy.testing.assert_array_equal(numpy.asarray(np.where(own_a > own_b, own_a, own_b)), numpy.where(a > b, a, b))


def test_a_team_shares_short_rows() -> None:
    graph = GraphBuilder("g")
    given = [graph.input("x", (500, 90, 3)), graph.input("y", (500, 90, 1))]
    graph.output("z", graph.op("Mul", given))
    x, y = made((500, 90, 3), "float32", "whole", 1), made((500, 90, 1), "float32", "whole", 2)
    session = Session(graph.to_bytes(), threads=2)
    numpy.testing.assert_array_equal(numpy.asarray(session.run({"x": x, "y": y})["z"]), x * y)
