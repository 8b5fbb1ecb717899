"""A NumPy reference of ONNX Attention that follows the text of onnx 1.23.2."""

from typing import Any

import numpy


def definition(
    q: numpy.ndarray,
    k: numpy.ndarray,
    v: numpy.ndarray,
    mask: Any = None,
    lengths: Any = None,
    past: int = 0,
    *,
    causal: bool = False,
    left: int = -1,
    right: int = -1,
    softcap: float = 0,
    scale: float | None = None,
) -> dict[str, numpy.ndarray]:
    """The text of onnx 1.23.2 for (batch, heads, length, size) in float64; what each qk_matmul_output_mode shows.

    `past` is how many of the keys come from past_key.
    """
    q, k, v = (one.astype("float64") for one in (q, k, v))
    share, queries, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = numpy.repeat(k, share, axis=1), numpy.repeat(v, share, axis=1)
    raw = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    capped = softcap * numpy.tanh(raw / softcap) if softcap else raw
    bias = numpy.zeros((q.shape[0], 1, queries, keys))
    if mask is not None:
        added = numpy.where(mask, 0, -numpy.inf) if mask.dtype == bool else mask.astype("float64")
        pads = [(0, 0)] * (added.ndim - 1) + [(0, keys - added.shape[-1])]
        bias = bias + numpy.pad(added, pads, constant_values=-numpy.inf)
    j = numpy.arange(keys)
    offset = past if lengths is None else (lengths - queries)[:, None, None, None]
    position = numpy.arange(queries)[:, None] + offset
    hidden = numpy.zeros((queries, keys), bool)
    if causal:
        hidden = hidden | (j > position)
    if left >= 0:
        hidden = hidden | (j < position - left)
    if right >= 0:
        hidden = hidden | (j > position + right)
    if lengths is not None:
        hidden = hidden | (j >= lengths[:, None, None, None])
    bias = numpy.where(hidden, -numpy.inf, bias)
    scores = capped + bias
    empty = numpy.isneginf(bias.max(-1, keepdims=True))
    weights = numpy.exp(scores - numpy.where(empty, 0, scores.max(-1, keepdims=True)))
    weights = numpy.where(empty, 0, weights / numpy.where(empty, 1, weights.sum(-1, keepdims=True)))
    return {"raw": raw, "capped": capped, "scores": scores, "weights": weights, "y": weights @ v}
