"""Steps that transpose channels to lanes: windows whose rows are far apart are left to other algorithms."""

from typing import Any

import pytest

from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session_info import Plan, plan_of

_CHANNELS, _ROWS, _COLUMNS = 16, 256, 512  # lanes of rows that are 200 apart take 6.6 MB


def _plan(op: str, dilation: int, **attributes: Any) -> Plan:
    graph = GraphBuilder("lanes")
    inputs = [graph.input("x", (1, _CHANNELS, _ROWS, _COLUMNS))]
    if op == "Conv":
        inputs.append(graph.input("w", (_CHANNELS, 1, 2, 2)))
    graph.output("y", graph.op(op, inputs, kernel_shape=[2, 2], dilations=[dilation, 1], **attributes))
    plan = _core.Session(_core.Graph.open(graph.to_bytes()), "auto").plan()
    assert plan is not None
    return plan_of(plan)


def test_a_pool_reads_far_rows_without_transposing_them() -> None:
    assert _plan("MaxPool", 200).arena_bytes < 1 << 20


@pytest.mark.parametrize("dilation", [1, 200])
def test_a_depthwise_convolution_by_lanes_reads_near_rows_alone(dilation: int) -> None:
    plan = _plan("Conv", dilation, group=_CHANNELS)
    found = {one.algorithm for op in plan.ops for one in op.candidates}
    assert found
    assert ("depthwise lanes" in found) == (dilation == 1)
