"""Attention against its definition in NumPy: shared heads, masks, causality, windows, padding, a cache."""

from typing import Any

import ml_dtypes
import numpy
import pytest

from tests.engine_ext.attention_text import definition
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, ShapeError, UnsupportedError
from walle.errors import EngineError
from walle.onnx_backend import from_engine, to_engine

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
    lengths = numpy.array([5, 3])
    padding = numpy.where(numpy.arange(5) < lengths[:, None, None, None], 0, -numpy.inf)
    wide = numpy.concatenate([mask, numpy.full((2, 1, 3, 1), -numpy.inf)], axis=3)
    causal = numpy.where(seen, 0, -numpy.inf)
    behind = numpy.arange(5) <= numpy.arange(3)[:, None] + (lengths - 3)[:, None, None, None]
    for given, attributes, bias in [
        ((None, None, None, None), {}, 0),
        ((seen, None, None, None), {}, causal),
        ((None, None, None, None), {"is_causal": 1}, causal),
        ((mask, None, None, lengths), {"is_causal": 1}, wide + padding + numpy.where(behind, 0, -numpy.inf)),
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


def close(found: numpy.ndarray, expected: numpy.ndarray, rtol: float = 1e-4) -> None:
    assert found.shape == expected.shape
    numpy.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol / 10)


def external(queries: int, keys: int, lengths: list[int], heads: int = 4) -> tuple[list[Any], numpy.ndarray]:
    """Operands of an attention whose cache is updated outside: all keys, of which `lengths` are filled."""
    batch = len(lengths)
    operands = [normal(batch, heads, queries, 8), normal(batch, 2, keys, 8), normal(batch, 2, keys, 8)]
    return operands, numpy.array(lengths, "int64")


@pytest.mark.parametrize(
    ("queries", "lengths"),
    [
        (1, [3, 6]),  # decoding: one query behind all keys of its sequence
        (3, [6, 6]),  # continued prefill
        (3, [4, 7]),
        (4, [4, 7]),  # a first prefill beside a continued one
        (4, [2, 5]),  # fewer keys than queries: the first queries see none
    ],
)
def test_causality_goes_by_the_keys_in_front_of_the_queries(queries: int, lengths: list[int]) -> None:
    (q, k, v), filled = external(queries, 8, lengths)
    found = run(q, k, v, None, None, None, filled, is_causal=1)[0]
    close(found, definition(q, k, v, None, filled, causal=True)["y"])
    mask = normal(queries, 7)
    found = run(q, k, v, mask, None, None, filled, is_causal=1)[0]
    close(found, definition(q, k, v, mask, filled, causal=True)["y"])
    flags = RNG.random((2, 1, queries, 8)) < 0.7
    found = run(q, k, v, flags, None, None, filled, is_causal=1)[0]
    close(found, definition(q, k, v, flags, filled, causal=True)["y"])


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    q, k, v = normal(2, 2, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 6)
    flags = numpy.ones((3, 5), bool)
    flags[1] = False
    added = numpy.where(flags, normal(3, 5), -numpy.inf).astype("float32")
    for mask in (flags, added):
        for causal in (0, 1):
            y, _, _, weights = run(q, k, v, mask, outputs=4, is_causal=causal, qk_matmul_output_mode=3)
            expected = definition(q, k, v, mask, causal=bool(causal))
            assert not y[:, :, 1].any()
            assert not weights[:, :, 1].any()
            close(y, expected["y"])
            close(weights, expected["weights"])
            close(run(q, k, v, mask, is_causal=causal)[0], expected["y"])
    (q, k, v), filled = external(3, 5, [0, 2])
    y = run(q, k, v, None, None, None, filled)[0]
    assert not y[0].any()
    close(y, definition(q, k, v, None, filled)["y"])


def test_a_hidden_key_has_no_part_in_a_capped_softmax() -> None:
    q, k, v = normal(1, 2, 4, 8), normal(1, 2, 6, 8), normal(1, 2, 6, 8)
    v[:, :, 4:] = 1e4  # a value that the result would show at once
    mask = numpy.zeros((4, 6), "float32")
    mask[:, 4:] = -numpy.inf
    expected = definition(q, k, v, mask, softcap=0.5)
    close(run(q, k, v, mask, softcap=0.5)[0], expected["y"])
    assert abs(run(q, k, v, mask, softcap=0.5)[0]).max() < 10


def test_each_mode_shows_its_stage_of_the_scores() -> None:
    q, k, v, mask = normal(1, 2, 3, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8), normal(3, 5)
    expected = definition(q, k, v, mask, causal=True, softcap=0.8)
    for mode, stage in enumerate(("raw", "capped", "scores", "weights")):
        found = run(q, k, v, mask, outputs=4, is_causal=1, softcap=0.8, qk_matmul_output_mode=mode)
        close(found[0], expected["y"])
        close(found[3], expected[stage])


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("left", "right"), [(2, -1), (-1, 1), (2, 0), (0, 0), (1, 2), (2**62, 2**62), (2, 2**62)])
def test_windows_bound_the_keys_on_both_sides(left: int, right: int, causal: int) -> None:
    windows: dict[str, Any] = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    expected: dict[str, Any] = {"left": left, "right": right, "causal": bool(causal)}
    q, k, v = normal(2, 4, 6, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 8)
    close(run(q, k, v, **windows)[0], definition(q, k, v, **expected)["y"])
    new_k, new_v = k[:, :, 3:], v[:, :, 3:]
    y = run(q, new_k, new_v, None, k[:, :, :3], v[:, :, :3], **windows)[0]
    close(y, definition(q, k, v, past=3, **expected)["y"])
    (q, k, v), filled = external(3, 8, [2, 7])
    flags = RNG.random((4, 3, 8)) < 0.7
    y = run(q, k, v, flags, None, None, filled, **windows)[0]
    close(y, definition(q, k, v, flags, filled, **expected)["y"])


@pytest.mark.parametrize(("dtype", "ulp"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_16_bit_floats_are_rounded_once(dtype: str, ulp: float) -> None:
    narrow = getattr(ml_dtypes, dtype, None) or numpy.dtype(dtype)
    (q, k, v), filled = external(3, 8, [3, 7])
    mask = normal(2, 1, 3, 7)
    q, k, v, mask = (one.astype(narrow) for one in (q, k, v, mask))
    given = [to_engine(one) for one in (q, k, v, mask, None, None, filled)]
    found = from_engine(_core.evaluate("Attention", given, {"is_causal": 1, "softcap": 2.0}, 1)[0])
    expected = definition(q, k, v, mask, filled, causal=True, softcap=2.0)["y"]
    assert found.dtype == narrow
    close(found.astype("float32"), expected, rtol=1.01 * ulp)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("keys", [256, 512, 4096])
def test_a_sum_over_many_keys_is_not_rounded_to_16_bits(dtype: str, keys: int) -> None:
    """A sum of ones that is rounded to bfloat16 at every addition stays at 256: 512 equal keys would give 2, not 1."""
    narrow = getattr(ml_dtypes, dtype, None) or numpy.dtype(dtype)
    operands = [numpy.ones((1, 1, length, 8), narrow) for length in (1, keys, keys)]
    found = from_engine(_core.evaluate("Attention", [to_engine(one) for one in operands], {}, 1)[0])
    assert found.dtype == narrow
    numpy.testing.assert_array_equal(found.astype("float32"), numpy.ones((1, 1, 1, 8)))


@pytest.mark.parametrize(
    ("inputs", "attributes", "error", "message"),
    [
        ({4}, {}, ModelError, "past_key and past_value must be given together"),
        ({4, 5, 6}, {}, ModelError, "nonpad_kv_seqlen cannot be combined with past_key"),
        (set(), {"left_window_size": -2}, ModelError, "left_window_size is -2"),
        (set(), {"softmax_precision": 7}, UnsupportedError, "softmax_precision is 7"),
    ],
)
def test_operands_that_do_not_go_together_are_refused(
    inputs: set[int], attributes: dict[str, Any], error: type[EngineError], message: str
) -> None:
    (q, k, v), filled = external(3, 5, [3, 5], heads=2)
    optional = {4: normal(2, 2, 1, 8), 5: normal(2, 2, 1, 8), 6: filled}
    with pytest.raises(error, match=message):
        run(q, k, v, None, *(optional[at] if at in inputs else None for at in (4, 5, 6)), **attributes)
