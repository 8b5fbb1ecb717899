"""Attention by scaled dot products."""

from __future__ import annotations

import math

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn.functional.normalization import dropout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(query: Values, key: Values, value: Values, attn_mask: Values | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> ndarray:  # fmt: skip
    """Return softmax(query keyᵀ scale + mask) value: (..., q, d), (..., k, d), (..., k, v) → (..., q, v).

    A mask is broadcast to (..., q, k): of bool, true where a key is attended to; of floats, added. `is_causal` lets
    query i attend to keys up to i. Dropout applies whenever `dropout_p` is positive.

    Raises:
        ShapeError: the shapes do not fit, or both a mask and `is_causal` are given.
    """
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = np.repeat(key, repeats, axis=-3), np.repeat(value, repeats, axis=-3)
    result: ndarray = np.matmul(dropout(attention_weights(query, key, attn_mask, is_causal, scale), dropout_p), value)
    return result


def attention_weights(query: Values, key: Values, attn_mask: Values | None = None, is_causal: bool = False,
                      scale: float | None = None) -> ndarray:  # fmt: skip
    """Return softmax(query keyᵀ scale + mask): (..., q, d) and (..., k, d) → (..., q, k).

    Raises:
        ShapeError: the shapes do not fit, or both a mask and `is_causal` are given.
    """
    if is_causal and attn_mask is not None:
        raise ShapeError("attention: attn_mask and is_causal exclude each other")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"attention: queries of shape {tuple(query.shape)}, keys of shape {tuple(key.shape)}; the last axes differ"
        )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = np.matmul(np.multiply(query, factor), np.swapaxes(key, -1, -2))
    if is_causal:
        attn_mask = np.tri(query.shape[-2], key.shape[-2], dtype="bool")
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, float("-inf")) if attn_mask.dtype == "bool" else np.add(scores, attn_mask)
    return operator("Softmax", [scores], axis=-1)
