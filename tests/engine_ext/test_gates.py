"""Clip and Relu in models that are differentiated: one step each, and one for the gradient."""

from typing import Any

import numpy
import pytest

from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session

RNG = numpy.random.default_rng(35)


def ops(session: Session) -> list[str]:
    plan = session.plan()
    assert plan is not None
    return [op.op for op in plan.ops]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["auto", "scalar"])
def test_clip_and_its_gradient_are_one_step_each(backend: str, dtype: str) -> None:
    x = numpy.concatenate([RNG.uniform(-4, 10, 9000), [0, 6, 7, -1]]).astype(dtype)
    weight = RNG.normal(size=x.shape).astype(dtype)
    graph = GraphBuilder("clip")
    given = graph.input("x", x.shape, dtype)
    cases: dict[str, dict[str, Any]] = {"relu6": {"min": 0.0, "max": 6.0}, "above": {"min": 0.0}, "below": {"max": 6.0}}
    for name, bounds in cases.items():
        y = graph.op("Clip", [given], **bounds)
        graph.output(name, y)
        total = graph.op("ReduceSum", [graph.op("Mul", [y, graph.constant(f"w_{name}", weight)])], keepdims=0)
        graph.output(f"d_{name}", graph.op("Gradient", [total, given]))
    session = Session(graph.to_bytes(), backend=backend)
    found = {name: numpy.asarray(value) for name, value in session.run({"x": x}).items()}
    numpy.testing.assert_array_equal(found["relu6"], numpy.clip(x, 0, 6))
    numpy.testing.assert_array_equal(found["d_relu6"], numpy.where((x > 0) & (x < 6), weight, 0))
    numpy.testing.assert_array_equal(found["d_above"], numpy.where(x > 0, weight, 0))
    numpy.testing.assert_array_equal(found["d_below"], numpy.where(x < 6, weight, 0))
    assert ops(session).count("Clip") == ops(session).count("Gate") == 3
    assert not {"Maximum", "Minimum", "Where"} & set(ops(session))


def test_clip_of_a_frozen_convolution_is_part_of_it() -> None:
    x, w = RNG.normal(size=(1, 3, 8, 8)).astype("float32"), RNG.normal(size=(8, 3, 3, 3)).astype("float32")
    graph = GraphBuilder("frozen")
    y = graph.op("Clip", [graph.op("Conv", [graph.input("x", x.shape), graph.constant("w", w)])], min=0.0, max=1.0)
    scale = graph.input("scale", (8, 1, 1))
    total = graph.op("ReduceSum", [graph.op("Mul", [y, scale])], keepdims=0)
    graph.output("gradient", graph.op("Gradient", [total, scale]))
    session = Session(graph.to_bytes())
    assert not {"Clip", "Gate", "Maximum", "Minimum"} & set(ops(session))
    found = numpy.asarray(session.run({"x": x, "scale": numpy.ones((8, 1, 1), "float32")})["gradient"])
    windows = numpy.lib.stride_tricks.sliding_window_view(x[0].astype("float64"), (3, 3), (1, 2))
    expected = numpy.clip(numpy.einsum("cyxij,ocij->oyx", windows, w), 0, 1).sum((1, 2), keepdims=True)
    numpy.testing.assert_allclose(found, expected, rtol=1e-5)


def test_inference_keeps_the_parts_of_clip() -> None:
    graph = GraphBuilder("inference")
    graph.output("y", graph.op("Clip", [graph.input("x", (4, 4))], min=0.0, max=6.0))
    assert set(ops(Session(graph.to_bytes()))) == {"Maximum", "Minimum"}
