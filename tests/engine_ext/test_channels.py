"""Operators by channel, which normalisation by batch consists of in training, and gates."""

from typing import Any

import numpy
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ModelError, ShapeError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session

RNG = numpy.random.default_rng(35)
SHAPES = [(4, 3), (2, 3, 7), (3, 5, 2, 9), (2, 3, 70, 71), (1, 2, 3, 4, 5), (5, 130)]


def run(op: str, *inputs: numpy.ndarray, **attributes: Any) -> numpy.ndarray:
    return numpy.asarray(_core.evaluate(op, list(inputs), attributes)[0])


def others(x: numpy.ndarray) -> tuple[int, ...]:
    return tuple(axis for axis in range(x.ndim) if axis != 1)


def close(ours: numpy.ndarray, theirs: numpy.ndarray, dtype: str) -> None:
    assert ours.dtype == dtype
    rtol, atol = (2e-6, 2e-5) if dtype == "float32" else (1e-13, 1e-12)
    numpy.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def wide(value: numpy.ndarray, x: numpy.ndarray) -> numpy.ndarray:
    return value.reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_operators_by_channel_agree_with_their_definitions(shape: tuple[int, ...], dtype: str) -> None:
    x, g = (RNG.normal(2, 3, shape).astype(dtype) for _ in range(2))
    a, b, p = (RNG.normal(size=shape[1]).astype(dtype) for _ in range(3))
    exact, exact_g, axes = x.astype("float64"), g.astype("float64"), others(x)
    moments = run("ChannelMoments", x)
    assert moments.shape == (2, shape[1])
    close(moments, numpy.array([exact.mean(axes), exact.var(axes)]), dtype)
    count = x.size // shape[1]
    sums = run("ChannelSums", g, x, a)
    products = (exact_g * (exact - wide(a, x))).sum(axes)
    close(sums / count, numpy.array([exact_g.sum(axes), products]) / count, dtype)
    close(run("ChannelAffine", x, a), exact * wide(a, x), dtype)
    affine = exact * wide(a, x) + wide(b, x)
    close(run("ChannelAffine", x, a, b), affine, dtype)
    close(run("ChannelAffine", x, a, b, g, p), affine + exact_g * wide(p, x), dtype)
    normal = (exact - wide(exact.mean(axes), x)) / numpy.sqrt(wide(exact.var(axes), x) + 0.1)
    expected = normal * wide(a, x) + wide(b, x)
    close(run("ChannelNormalize", x, moments, a, b, epsilon=0.1), expected, dtype)


@pytest.mark.parametrize("shape", [(8, 4), (4, 4, 100), (2, 4, 80, 90)])
def test_variance_is_exact_where_the_mean_is_large_and_batches_differ(shape: tuple[int, ...]) -> None:
    x = RNG.normal(5000, 1, shape).astype("float32")
    x[0] -= 4000
    exact = x.astype("float64")
    mean, variance = run("ChannelMoments", x)
    numpy.testing.assert_allclose(mean, exact.mean(others(x)), rtol=1e-6)
    numpy.testing.assert_allclose(variance, exact.var(others(x)), rtol=1e-5)


def test_nothing_has_no_moments_and_sums_of_zero() -> None:
    empty, zeros = numpy.zeros((0, 3, 2), "float32"), numpy.zeros(3, "float32")
    assert numpy.isnan(run("ChannelMoments", empty)).all()
    assert run("ChannelSums", empty, empty, zeros).tolist() == [[0.0] * 3] * 2
    assert run("ChannelAffine", empty, zeros).shape == (0, 3, 2)
    assert run("ChannelMoments", numpy.zeros((2, 0, 3), "float32")).shape == (2, 0)


@pytest.mark.parametrize("backend", ["auto", "scalar"])
def test_results_are_equal_to_the_bit_with_any_number_of_threads(backend: str) -> None:
    shape = (6, 24, 100, 75)
    x, g = (RNG.normal(size=shape).astype("float32") for _ in range(2))
    graph = GraphBuilder("channels")
    at_x, at_g = graph.input("x", shape), graph.input("g", shape)
    moments = graph.op("ChannelMoments", [at_x])
    scale = graph.constant("scale", RNG.normal(size=24).astype("float32"))
    graph.output("moments", moments)
    graph.output("y", graph.op("ChannelNormalize", [at_x, moments, scale, scale]))
    graph.output("sums", graph.op("ChannelSums", [at_g, at_x, scale]))
    graph.output("z", graph.op("ChannelAffine", [at_x, scale, scale, at_g, scale]))
    graph.output("gate", graph.op("Gate", [at_g, at_x], low=-1.0, high=0.5))
    file = graph.to_bytes()
    alone, shared = (Session(file, backend=backend, threads=n).run({"x": x, "g": g}) for n in (1, 2))
    for name in alone:
        numpy.testing.assert_array_equal(numpy.asarray(alone[name]), numpy.asarray(shared[name]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gate_passes_what_is_between_its_bounds(dtype: str) -> None:
    x = numpy.array([-1, 0, 1, 6, 7, numpy.inf, -numpy.inf, numpy.nan] * 9, dtype)
    g = numpy.arange(1, x.size + 1).astype(dtype)
    expected = numpy.where((x > 0) & (x < 6), g, 0)
    numpy.testing.assert_array_equal(run("Gate", g, x, low=0.0, high=6.0), expected)
    numpy.testing.assert_array_equal(run("Gate", g, x, low=0.0), numpy.where(x > 0, g, 0))
    numpy.testing.assert_array_equal(run("Gate", g, x, high=0.0), numpy.where(x < 0, g, 0))
    beyond = (x < 0) | (x > 6)
    numpy.testing.assert_array_equal(run("Gate", g, x, low=0.0, high=6.0, includes_bounds=1), numpy.where(beyond, 0, g))


def test_operands_that_do_not_fit_are_refused() -> None:
    x, number = numpy.zeros((2, 3, 4), "float32"), numpy.zeros(3, "float32")
    with pytest.raises(ShapeError, match=r"ChannelMoments of shape \(4,\)"):
        run("ChannelMoments", x[0, 0])
    with pytest.raises(DTypeError, match="ChannelMoments does not support int64"):
        run("ChannelMoments", x.astype("int64"))
    with pytest.raises(DTypeError, match="have one dtype"):
        run("ChannelAffine", x, number.astype("float64"))
    with pytest.raises(ShapeError, match=r"of shape \(3,\), not \(4,\)"):
        run("ChannelSums", x, x, numpy.zeros(4, "float32"))
    with pytest.raises(ModelError, match="with its factors, or neither"):
        run("ChannelAffine", x, number, number, x)
    with pytest.raises(ShapeError, match="must be equal"):
        run("Gate", x, x[0])
    with pytest.raises(DTypeError, match="float32 or float64"):
        run("Gate", x.astype("float16"), x.astype("float16"))
