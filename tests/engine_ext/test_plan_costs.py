"""Predicted costs of operators with one algorithm: what they grow with."""

from typing import Any

import numpy as np
import pytest

from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder, Value

BACKEND = [name for name, available, exact in _core.backends() if available and exact][-1]


def costs(graph: GraphBuilder) -> dict[str, float]:
    """Return the predicted microseconds of each kind of operator."""
    plan = _core.Session(graph.to_bytes(), BACKEND).plan()
    assert plan is not None
    found: dict[str, float] = {}
    for op in plan["ops"]:
        found[op[1]] = found.get(op[1], 0) + op[4]
    return found


def constant(graph: GraphBuilder, name: str, *shape: int) -> Value:
    values = np.ones(shape, np.float32)
    return graph.raw(name, "float32", shape, memoryview(values).cast("B"))


def recurrent(cell: str, gates: int, *, steps: int = 20, batch: int = 1, hidden: int = 32) -> float:
    graph = GraphBuilder("recurrent")
    x = graph.input("x", (steps, batch, 8))
    w, r = constant(graph, "w", 1, gates * hidden, 8), constant(graph, "r", 1, gates * hidden, hidden)
    graph.output("y", graph.op(cell, [x, w, r], outputs=1, hidden_size=hidden))
    return costs(graph)["RecurrentSteps"]


@pytest.mark.parametrize(("cell", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_recurrent_net_costs_more_with_its_steps_weights_and_rows(cell: str, gates: int) -> None:
    once = recurrent(cell, gates)
    assert recurrent(cell, gates, steps=200) > 8 * once
    assert recurrent(cell, gates, hidden=256) > 8 * once
    assert once < recurrent(cell, gates, batch=4) < recurrent(cell, gates, batch=8)


def test_cells_with_more_gates_cost_more() -> None:
    assert recurrent("RNN", 1) < recurrent("GRU", 3) < recurrent("LSTM", 4)


def one_op(op: str, shape: tuple[int, ...], **attributes: Any) -> float:
    graph = GraphBuilder("op")
    graph.output("y", graph.op(op, [graph.input("x", shape)], **attributes))
    return sum(costs(graph).values())


def test_functions_cost_more_than_a_move() -> None:
    move = one_op("Neg", (64, 256))
    assert move < one_op("Exp", (64, 256)) < one_op("Tanh", (64, 256))
    assert one_op("Softmax", (64, 256), axis=-1) > 2 * move


def test_values_beyond_the_near_caches_cost_more_for_each_byte() -> None:
    near, far = one_op("Neg", (1 << 16,)), one_op("Neg", (1 << 22,))
    assert far > 1.2 * (1 << 6) * near


def test_strided_pooling_of_a_plain_layout_costs_more_than_rows() -> None:
    rows = one_op("AveragePool", (1, 16, 33, 33), kernel_shape=[2, 2])
    strided = one_op("AveragePool", (1, 16, 65, 65), kernel_shape=[2, 2], strides=[2, 2])
    assert strided > rows < one_op("MaxPool", (1, 16, 65, 65), kernel_shape=[2, 2], strides=[2, 2])


def gather(rows: int) -> float:
    graph = GraphBuilder("gather")
    graph.output("y", graph.op("Gather", [constant(graph, "table", rows, 64), graph.input("i", (4,), "int64")], axis=0))
    return sum(costs(graph).values())


def test_a_gather_costs_what_it_reads_of_its_table() -> None:
    assert gather(10_000) == gather(100)
