"""Results larger than the memory of the machine: refused with the node's name when planned, nothing is allocated."""

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from walle.engine_ext.errors import ShapeError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session

HUGE = 1 << 42


def ints(g: GraphBuilder, name: str, *values: int) -> Any:
    return g.constant(name, np.array(values, np.int64))


def number(g: GraphBuilder, name: str, value: Any) -> Any:
    return g.constant(name, np.array(value))


MODELS: dict[str, Callable[[GraphBuilder, Any], Any]] = {
    "Expand": lambda g, x: g.op("Expand", [x, ints(g, "s", HUGE)], name="culprit"),
    "Tile": lambda g, x: g.op("Tile", [x, ints(g, "s", HUGE)], name="culprit"),
    "Pad": lambda g, x: g.op("Pad", [x, ints(g, "s", 0, HUGE)], name="culprit"),
    "OneHot": lambda g, x: g.op(
        "OneHot", [ints(g, "i", 0), ints(g, "d", HUGE), g.op("Concat", [x, x], axis=0)], name="culprit"
    ),
    "Range": lambda g, x: g.op("Range", [number(g, "a", 0), number(g, "b", HUGE), number(g, "c", 1)], name="culprit"),
    "Range of floats": lambda g, x: g.op(
        "Range", [number(g, "a", 0.0), number(g, "b", float(HUGE)), number(g, "c", 1.0)], name="culprit"
    ),
}


@pytest.mark.parametrize("constant", [True, False], ids=["folded", "planned"])
@pytest.mark.parametrize("operator", MODELS)
def test_an_absurd_size_is_refused_with_the_node(operator: str, *, constant: bool) -> None:
    g = GraphBuilder("g")
    x = g.constant("x", np.ones(1, np.float32)) if constant else g.input("x", (1,))
    g.output("y", MODELS[operator](g, x))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ShapeError, match="culprit"):
        Session(g.to_bytes())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
