"""Clip and Relu in models that are differentiated: one step each, and one for the gradient."""

from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.nn.tracing import Trace
from walle.engine_ext.session import Session
from walle.engine_ext.session_info import plan_of

F = nn.functional

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
    clips: dict[str, dict[str, Any]] = {"relu6": {"min": 0.0, "max": 6.0}, "above": {"min": 0.0}, "below": {"max": 6.0}}
    for name, bounds in clips.items():
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 6, 9, 8), (2, 3, 70, 80), (9, 5)])
@pytest.mark.parametrize(
    ("op", "bounds"), [("Relu", {}), ("Clip", {"min": 0.0, "max": 0.5}), ("Clip", {"max": 0.5})], ids=str
)
def test_bounds_are_part_of_the_normalisation_before_them(
    op: str, bounds: dict[str, Any], shape: tuple[int, ...], dtype: str
) -> None:
    x, weight = (RNG.normal(size=shape).astype(dtype) for _ in range(2))
    graph = GraphBuilder("bounds")
    given, scale = graph.input("x", shape, dtype), graph.input("scale", (shape[1],), dtype)
    channels = [graph.constant(name, numpy.full(shape[1], 0.1, dtype)) for name in ("bias", "mean", "variance")]
    y = graph.op(op, [graph.op("BatchNormalization", [given, scale, *channels], training_mode=1)], **bounds)
    total = graph.op("ReduceSum", [graph.op("Mul", [y, graph.constant("weight", weight)])], keepdims=0)
    graph.output("y", y)
    for name, value in zip(("dx", "dscale"), graph.node("Gradient", [total, given, scale], 2, "it", {}), strict=True):
        graph.output(name, value)
    session = Session(graph.to_bytes())
    assert "ChannelNormalize" in ops(session)
    is_apart = bounds == {"max": 0.5} or len(shape) == 2  # others are part of the normalisation's gradient
    assert ("Gate" in ops(session)) == is_apart
    assert not {"Relu", "Clip"} & set(ops(session))
    found = {
        name: numpy.asarray(value)
        for name, value in session.run({"x": x, "scale": numpy.ones(shape[1], dtype)}).items()
    }
    low, high = bounds.get("min", 0.0 if op == "Relu" else -numpy.inf), bounds.get("max", numpy.inf)
    exact, axes = x.astype("float64"), tuple(axis for axis in range(x.ndim) if axis != 1)
    mean, variance = exact.mean(axes, keepdims=True), exact.var(axes, keepdims=True)
    normal = (exact - mean) / numpy.sqrt(variance + 1e-5)
    gradient = numpy.where((normal + 0.1 > low) & (normal + 0.1 < high), weight, 0)
    expected = gradient - gradient.mean(axes, keepdims=True) - normal * (gradient * normal).mean(axes, keepdims=True)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    numpy.testing.assert_allclose(found["y"], numpy.clip(normal + 0.1, low, high), atol=tolerance)
    numpy.testing.assert_allclose(found["dx"], expected / numpy.sqrt(variance + 1e-5), atol=2 * tolerance)
    numpy.testing.assert_allclose(
        found["dscale"], (gradient * normal).sum(axes), rtol=20 * tolerance, atol=tolerance * x.size / 50
    )


def test_inference_keeps_the_parts_of_clip() -> None:
    graph = GraphBuilder("inference")
    graph.output("y", graph.op("Clip", [graph.input("x", (4, 4))], min=0.0, max=6.0))
    assert set(ops(Session(graph.to_bytes()))) == {"Maximum", "Minimum"}


@pytest.mark.parametrize("backend", ["auto", "scalar"])
def test_a_gate_is_that_of_the_result_that_depthwise_lanes_normalise(backend: str) -> None:
    """Results that are 0 but for their rounding are computed twice: for the convolution, and for the gates."""
    channels = 64
    value = numpy.random.default_rng(1).uniform(0.5, 2, channels).astype("float32")
    x = numpy.tile(value[:, None, None] * numpy.tile([1, -1], 8).reshape(4, 4).astype("float32"), (2, 1, 1, 1))
    variance = (value.astype("float64") ** 2).astype("float32")
    bias = -(1 / numpy.sqrt(variance.astype("float64") + 1e-5)).astype("float32") * value
    arrays = {"x": x, "scale": numpy.ones(channels), "bias": bias, "w": numpy.ones((channels, 1, 3, 3))}
    given = {name: np.asarray(array, "float32") for name, array in arrays.items()}
    with Trace("gates") as trace:
        inputs: dict[str, Any] = {name: trace.input(name, array) for name, array in given.items()}
        y = F.relu6(F.batch_norm(inputs["x"], None, None, inputs["scale"], inputs["bias"], training=True))
        y = F.conv2d(y, inputs["w"], None, 1, 1, 1, channels)
        gradients = trace.gradient(np.sum(y), [inputs[name] for name in ("bias", "w", "x")])
        for name, result in zip(("y", "bias", "w", "x"), (y, *gradients), strict=True):
            trace.output(name, result)
    session = _core.Session(trace.graph(), backend)
    results = {name: numpy.asarray(array) for name, array in session.run(given).items()}
    plan = session.plan()
    assert plan is not None
    assert {"normalised lanes", "gated"} <= {op.algorithm for op in plan_of(plan).ops}
    assert ((results["y"].max((0, 2, 3)) > 0) == (results["bias"] != 0)).all()
