"""Sessions with a performance model: its costs choose algorithms, where it covers a layer and knows primitives."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import walle
from tests.engine_ext.search.constant_model import constant_model
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session_info import Plan, PlannedOp

BACKEND = _core.backend()


@pytest.fixture(autouse=True)
def no_model() -> Iterator[None]:
    yield
    _core.set_performance_model(BACKEND, None)


def plan(
    x: tuple[int, ...] = (1, 32, 28, 28),
    w: tuple[int, ...] = (48, 32, 3, 3),
    *,
    backend: str = BACKEND,
    **attributes: Any,
) -> tuple[Plan, PlannedOp]:
    """Return the plan of one convolution, and its step."""
    graph = GraphBuilder("g")
    weights = graph.constant("w", np.ones(w, "float32"))
    attributes = {"pads": [w[2] // 2] * 4} | attributes
    graph.output("y", graph.op("Conv", [graph.input("x", x), weights], name="conv", **attributes))
    found = walle.Session(graph.to_bytes(), backend=backend).plan()
    assert found is not None
    return found, next(op for op in found.ops if op.name == "conv")


def primitives(step: PlannedOp) -> dict[str, float]:
    return {f"{one.algorithm}({one.parameter})": one.predicted_us for one in step.candidates}


def test_the_primitive_that_the_model_predicts_to_be_the_cheapest_is_chosen() -> None:
    before, step = plan()
    assert "learned" not in before.source
    names = list(primitives(step))
    assert len(names) > 1
    for cheapest in names:
        us = {name: 1000.0 if name != cheapest else 1.0 for name in names}
        _core.set_performance_model(BACKEND, constant_model(us))
        found, step = plan()
        assert f"{step.algorithm}({step.parameters})" == cheapest
        assert step.predicted_us == pytest.approx(1, abs=1 / 64)
        assert found.source == f"learned, {before.source}"
        assert found == plan()[0]._replace(search_ms=found.search_ms, plan_ms=found.plan_ms)
    _core.set_performance_model(BACKEND, None)
    assert plan()[0].ops == before.ops


def test_a_primitive_without_prediction_costs_the_rates_times_the_median_ratio() -> None:
    by_rates = primitives(plan()[1])
    known, *others = by_rates
    _core.set_performance_model(BACKEND, constant_model({known: 3 * by_rates[known]}))
    found = primitives(plan()[1])
    assert found[known] == pytest.approx(3 * by_rates[known], abs=1 / 64)
    assert [found[name] for name in others] == pytest.approx(
        [3 * by_rates[name] for name in others], rel=1e-3, abs=1 / 32
    )


@pytest.mark.parametrize("change_us", [1.0, 100.0])
def test_predicted_changes_of_layout_decide_between_packed_and_plain_algorithms(change_us: float) -> None:
    us = dict.fromkeys(primitives(plan()[1]), 1000.0) | {"direct(0)": 10.0, "im2col GEMM(0)": 15.0}
    _core.set_performance_model(BACKEND, constant_model(us | {"pack": change_us, "unpack": change_us}))
    found, step = plan()
    assert step.algorithm == ("direct" if change_us == 1 else "im2col GEMM")
    assert found.costs[BACKEND] == pytest.approx(12 if change_us == 1 else 15, abs=1)


@pytest.mark.parametrize(
    "case",
    [
        {"w": (48, 32, 9, 9)},  # a kernel beyond the samples' range
        {"x": (1, 32, 300, 300)},
        {"x": (2, 32, 28, 28)},
        {"x": (1, 32, 28, 20)},
        {"pads": [0] * 4},
        {"w": (32, 1, 3, 3), "group": 32},
        {"dilations": [2, 2], "pads": [2] * 4},
        {"strides": [1, 2]},
    ],
)
def test_other_layers_keep_their_costs_by_rates(case: dict[str, Any]) -> None:
    before, step = plan(**case)
    _core.set_performance_model(BACKEND, constant_model(dict.fromkeys(primitives(step), 1e6)))
    found, _ = plan(**case)
    assert (found.ops, found.source) == (before.ops, before.source)


def test_a_model_without_any_primitive_of_the_layer_changes_nothing() -> None:
    before, _ = plan()
    for us in ({"abacus(0)": 1.0}, {"direct(0)": 1e30}):  # the second one is not a time
        _core.set_performance_model(BACKEND, constant_model(us))
        found, _ = plan()
        assert (found.ops, found.source) == (before.ops, before.source)


def test_a_model_of_one_backend_does_not_decide_between_backends() -> None:
    before, step = plan(backend="auto")
    for us in (1e-3, 1e6):
        _core.set_performance_model(BACKEND, constant_model(dict.fromkeys(primitives(step), us)))
        found, _ = plan(backend="auto")
        assert found.backend == before.backend
        assert found.costs[BACKEND] != before.costs[BACKEND]
