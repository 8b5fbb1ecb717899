"""Normalisations and optimizers against NumPy, in float32 and in float16, which is computed in float32."""

from typing import Any

import numpy
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, ShapeError, UnsupportedError

RNG = numpy.random.default_rng(3)


def normal(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def run(op: str, *inputs: numpy.ndarray, outputs: int = 1, **attributes: Any) -> list[numpy.ndarray]:
    return [numpy.asarray(one) for one in _core.evaluate(op, list(inputs), attributes, outputs)]


def normalised(x: numpy.ndarray, axes: tuple[int, ...], epsilon: float) -> numpy.ndarray:
    x = x.astype("float64")
    return (x - x.mean(axes, keepdims=True)) / numpy.sqrt(x.var(axes, keepdims=True) + epsilon)


def close(ours: numpy.ndarray, theirs: numpy.ndarray, dtype: str = "float32") -> None:
    assert ours.dtype == dtype
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    numpy.testing.assert_allclose(ours.astype("float64"), theirs, rtol=tolerance, atol=tolerance)


def by_channel(value: numpy.ndarray, rank: int) -> numpy.ndarray:
    return value.reshape(-1, *[1] * (rank - 2)).astype("float64")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 6), (3, 6, 5), (2, 6, 3, 4)])
def test_batch_normalization_agrees_with_its_definition(shape: tuple[int, ...], dtype: str) -> None:
    x, rank = normal(*shape, dtype=dtype), len(shape)
    scale, bias, mean = (normal(6, dtype=dtype) for _ in range(3))
    variance = numpy.abs(normal(6, dtype=dtype)) + dtype_one(dtype)
    wanted = (x - by_channel(mean, rank)) / numpy.sqrt(by_channel(variance, rank) + 1e-3)
    wanted = wanted * by_channel(scale, rank) + by_channel(bias, rank)
    close(run("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-3)[0], wanted, dtype)
    y, new_mean, new_variance = run(
        "BatchNormalization", x, scale, bias, mean, variance, outputs=3, training_mode=1, momentum=0.75
    )
    axes = tuple(axis for axis in range(rank) if axis != 1)
    close(y, normalised(x, axes, 1e-5) * by_channel(scale, rank) + by_channel(bias, rank), dtype)
    close(new_mean, 0.75 * mean.astype("float64") + 0.25 * x.astype("float64").mean(axes), dtype)
    close(new_variance, 0.75 * variance.astype("float64") + 0.25 * x.astype("float64").var(axes), dtype)
    with pytest.raises(ModelError, match="training_mode only"):
        run("BatchNormalization", x, scale, bias, mean, variance, outputs=3)


def dtype_one(dtype: str) -> Any:
    return numpy.dtype(dtype).type(1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_instance_group_layer_and_rms(dtype: str) -> None:
    x, scale, bias = normal(2, 6, 3, 4, dtype=dtype), normal(6, dtype=dtype), normal(6, dtype=dtype)
    affine = by_channel(scale, 4), by_channel(bias, 4)
    wanted = normalised(x, (2, 3), 1e-2) * affine[0] + affine[1]
    close(run("InstanceNormalization", x, scale, bias, epsilon=1e-2)[0], wanted, dtype)
    grouped = normalised(x.reshape(2, 3, -1), (2,), 1e-5).reshape(x.shape)
    close(run("GroupNormalization", x, scale, bias, num_groups=3)[0], grouped * affine[0] + affine[1], dtype)
    with pytest.raises(ShapeError, match="6 channels in 4 groups"):
        run("GroupNormalization", x, scale, bias, num_groups=4)
    last, shift = normal(3, 4, dtype=dtype), normal(3, 4, dtype=dtype)
    y, mean, inverse = run("LayerNormalization", x, last, shift, outputs=3, axis=2)
    close(y, normalised(x, (2, 3), 1e-5) * last + shift, dtype)
    wide = x.astype("float64")
    close(mean, wide.mean((2, 3), keepdims=True))
    close(inverse, 1 / numpy.sqrt(wide.var((2, 3), keepdims=True) + 1e-5))
    root = numpy.sqrt((wide**2).mean((2, 3), keepdims=True) + 1e-5)
    close(run("RMSNormalization", x, last, axis=-2)[0], wide / root * last, dtype)


def test_mean_variance_lp_and_lrn() -> None:
    x = normal(2, 7, 3, 4)
    close(run("MeanVarianceNormalization", x)[0], normalised(x, (0, 2, 3), 0))
    x[0, :, 0, 0] = 0
    wide = x.astype("float64")
    for p in (1, 2):
        norm = (numpy.abs(wide) ** p).sum(1, keepdims=True) ** (1 / p)
        close(run("LpNormalization", x, axis=1, p=p)[0], wide / numpy.where(norm == 0, 1, norm))
    with pytest.raises((UnsupportedError, ModelError), match="3"):
        run("LpNormalization", x, p=3)
    for size in (1, 2, 3, 9):
        sums = numpy.zeros(x.shape)
        for channel in range(7):
            first, last = channel - (size - 1) // 2, channel + size // 2
            sums[:, channel] = (wide[:, max(first, 0) : last + 1] ** 2).sum(1)
        wanted = wide / (1.5 + 0.5 / size * sums) ** 0.75
        close(run("LRN", x, size=size, alpha=0.5, bias=1.5)[0], wanted)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_is_safe_for_large_numbers_and_16_bits(op: str) -> None:
    x = normal(3, 5) * 1000
    shifted = x.astype("float64") - x.max(0)
    exact = numpy.exp(shifted) / numpy.exp(shifted).sum(0)
    with numpy.errstate(divide="ignore"):
        wanted = exact if op == "Softmax" else shifted - numpy.log(numpy.exp(shifted).sum(0))
    close(run(op, x, axis=0)[0], wanted)
    half = normal(4, 6, dtype="float16")
    powers = numpy.exp(half.astype("float64"))
    exact = powers / powers.sum(-1, keepdims=True)
    close(run(op, half)[0], exact if op == "Softmax" else numpy.log(exact), "float16")


@pytest.mark.parametrize("count", [0, 3])
def test_optimizers_take_several_tensors(count: int) -> None:
    rate, times = numpy.array(0.1, "float32"), numpy.array(count, "int64")
    x, g, v = ([normal(3), normal(2, 2)] for _ in range(3))
    h = [numpy.abs(normal(3)), numpy.abs(normal(2, 2))]
    l2 = [a * 0.25 + b for a, b in zip(x, g, strict=True)]

    found = run("Adagrad", rate, times, *x, *g, *h, outputs=4, norm_coefficient=0.25, decay_factor=0.5)
    sums = [a + b * b for a, b in zip(h, l2, strict=True)]
    slow = 0.1 / (1 + count * 0.5)
    wanted = [a - slow * b / (numpy.sqrt(c) + 1e-6) for a, b, c in zip(x, l2, sums, strict=True)]
    for ours, theirs in zip(found, [*wanted, *sums], strict=True):
        close(ours, theirs)

    for mode in ("standard", "nesterov"):
        found = run(
            "Momentum", rate, times, *x, *g, *v, outputs=4, alpha=0.9, beta=0.5, norm_coefficient=0.25, mode=mode
        )
        share = 0.5 if count else 1.0
        momenta = [0.9 * a + share * b for a, b in zip(v, l2, strict=True)]
        steps = momenta if mode == "standard" else [b + 0.9 * a for a, b in zip(momenta, l2, strict=True)]
        for ours, theirs in zip(found, [*(a - 0.1 * s for a, s in zip(x, steps, strict=True)), *momenta], strict=True):
            close(ours, theirs)

    found = run("Adam", rate, times, *x, *g, *v, *h, outputs=6, alpha=0.9, beta=0.75, epsilon=0.01)
    means = [0.9 * a + 0.1 * b for a, b in zip(v, g, strict=True)]
    squares = [0.75 * a + 0.25 * b * b for a, b in zip(h, g, strict=True)]
    bias = numpy.sqrt(1 - 0.75**count) / (1 - 0.9**count) if count else 1.0
    wanted = [a - 0.1 * bias * m / (numpy.sqrt(s) + 0.01) for a, m, s in zip(x, means, squares, strict=True)]
    for ours, theirs in zip(found, [*wanted, *means, *squares], strict=True):
        close(ours, theirs)
