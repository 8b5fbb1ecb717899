"""A model that loads a hundred times as long as it runs: tens of thousands of small products to plan."""

import functools

from walle.engine_ext.model import GraphBuilder

_NODES = 60_000
_SIZE = 4


@functools.cache
def slow_model() -> bytes:
    """Return a `.walle` model with input `x` [1, 4] and output `y` [1, 4], zeros for any input."""
    graph = GraphBuilder("slow")
    weights = graph.raw("weights", "float32", (_SIZE, _SIZE), bytes(4 * _SIZE * _SIZE))
    value = graph.input("x", (1, _SIZE))
    for _ in range(_NODES // 2):
        value = graph.op("Relu", [graph.op("MatMul", [value, weights])])
    graph.output("y", value)
    return graph.to_bytes()
