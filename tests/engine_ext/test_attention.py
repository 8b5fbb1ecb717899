"""Attention against its definition in NumPy: shared heads, masks, causality, padding, a cache."""

from typing import Any

import numpy
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import ShapeError

RNG = numpy.random.default_rng(5)


def normal(*shape: int) -> numpy.ndarray:
    return RNG.normal(size=shape).astype("float32")


def run(*inputs: numpy.ndarray | None, outputs: int = 1, **attributes: Any) -> list[numpy.ndarray]:
    return [numpy.asarray(one) for one in _core.evaluate("Attention", list(inputs), attributes, outputs)]


def reference(q: numpy.ndarray, k: numpy.ndarray, v: numpy.ndarray, bias: Any) -> numpy.ndarray:
    share = q.shape[1] // k.shape[1]
    k, v = numpy.repeat(k, share, axis=1), numpy.repeat(v, share, axis=1)
    scores = q.astype("float64") @ k.swapaxes(2, 3) / numpy.sqrt(q.shape[3]) + bias
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    result: numpy.ndarray = weights / weights.sum(-1, keepdims=True) @ v
    return result


def test_masks_causality_and_padding_add_up() -> None:
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 6)
    seen = numpy.tril(numpy.ones((3, 5), bool))
    mask = normal(2, 1, 3, 4)  # the last key is beyond it, and so hidden
    lengths = numpy.array([5, 2])
    padding = numpy.where(numpy.arange(5) < lengths[:, None, None, None], 0, -numpy.inf)
    wide = numpy.concatenate([mask, numpy.full((2, 1, 3, 1), -numpy.inf)], axis=3)
    causal = numpy.where(seen, 0, -numpy.inf)
    for given, attributes, bias in [
        ((None, None, None, None), {}, 0),
        ((seen, None, None, None), {}, causal),
        ((None, None, None, None), {"is_causal": 1}, causal),
        ((mask, None, None, lengths), {"is_causal": 1}, wide + padding + causal),
    ]:
        numpy.testing.assert_allclose(
            run(q, k, v, *given, **attributes)[0], reference(q, k, v, bias), rtol=1e-4, atol=1e-5
        )


def test_a_cache_comes_in_front_and_goes_out() -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4)
    past_k, past_v = normal(1, 2, 2, 4), normal(1, 2, 2, 4)
    y, key, value, scores = run(q, k, v, None, past_k, past_v, outputs=4, is_causal=1, qk_matmul_output_mode=3)
    all_k, all_v = numpy.concatenate([past_k, k], 2), numpy.concatenate([past_v, v], 2)
    bias = numpy.where(numpy.arange(5) <= numpy.arange(3)[:, None] + 2, 0, -numpy.inf)
    numpy.testing.assert_array_equal(key, all_k)
    numpy.testing.assert_array_equal(value, all_v)
    numpy.testing.assert_allclose(y, reference(q, all_k, all_v, bias), rtol=1e-4, atol=1e-5)
    numpy.testing.assert_allclose(scores.sum(-1), numpy.ones((1, 2, 3)), rtol=1e-5)


def test_flat_operands_are_split_into_heads() -> None:
    q, k, v = normal(2, 3, 8), normal(2, 5, 4), normal(2, 5, 6)
    apart = [x.reshape(2, x.shape[1], heads, -1).swapaxes(1, 2) for x, heads in ((q, 4), (k, 2), (v, 2))]
    wanted = reference(apart[0], apart[1], apart[2], 0).swapaxes(1, 2).reshape(2, 3, -1)
    numpy.testing.assert_allclose(run(q, k, v, q_num_heads=4, kv_num_heads=2)[0], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="with 3 heads"):
        run(q, k, v, q_num_heads=3, kv_num_heads=2)
