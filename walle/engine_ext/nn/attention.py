"""Attention over several heads, and the encoder layer of a transformer (Vaswani et al. 2017)."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn import functional, init
from walle.engine_ext.nn.dropout import Dropout
from walle.engine_ext.nn.functional.attention import attention_weights
from walle.engine_ext.nn.linear import Linear
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.normalization import LayerNorm
from walle.engine_ext.nn.sizes import check_axes, check_size
from walle.engine_ext.nn.tracing import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["MultiheadAttention", "TransformerEncoderLayer"]


class MultiheadAttention(Module):
    """Attention over `num_heads` parts of the features.

    Queries (q, batch, embed_dim), keys (k, batch, kdim), values (k, batch, vdim), or with `batch_first` the batch
    first, or without a batch. Returns outputs in the queries' shape, and weights (batch, q, k) or None.
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *,
                 kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        if embed_dim % num_heads:
            raise ShapeError(f"MultiheadAttention: {num_heads} heads do not divide {embed_dim} features")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        is_joint = self.kdim == self.vdim == embed_dim
        widths = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        joint = Parameter(np.zeros((3 * embed_dim, embed_dim), dtype=dtype)) if is_joint else None
        self.register_parameter("in_proj_weight", joint)
        for name, width in widths.items():
            part = None if is_joint else Parameter(np.zeros((embed_dim, width), dtype=dtype))
            self.register_parameter(f"{name}_proj_weight", part)
        self.register_parameter("in_proj_bias", Parameter(np.zeros(3 * embed_dim, dtype=dtype)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(self, query: Values, key: Values, value: Values, key_padding_mask: Values | None = None,
                need_weights: bool = True, attn_mask: Values | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[ndarray, ndarray | None]:  # fmt: skip
        """Return outputs and weights.

        `key_padding_mask` (batch, k) and `attn_mask` (q, k) or (batch · heads, q, k): of bool, true where a key is
        ignored; of floats, added. `is_causal` says that `attn_mask` is causal; without one, a causal mask is used.
        """
        has_batch = len(query.shape) == 3
        for part, width in ((query, self.embed_dim), (key, self.kdim), (value, self.vdim)):
            layout = f"(batch, length, {width})" if self.batch_first else f"(length, batch, {width})"
            check_axes(part, (3,) if has_batch else (2,), layout)
            check_size(part, -1, width, layout)
        parts = [query, key, value]
        if not has_batch:
            parts = [np.expand_dims(part, 0) for part in parts]
        elif not self.batch_first:
            parts = [np.swapaxes(part, 0, 1) for part in parts]
        mask = self._mask(parts, key_padding_mask, attn_mask, is_causal, has_batch)
        queries, keys, values = [self._heads(part) for part in self._projected(parts)]
        scores = attention_weights(queries, keys, mask)
        mixed = np.matmul(functional.dropout(scores, self.dropout, self.training), values)
        joined = np.reshape(np.swapaxes(mixed, 1, 2), (parts[0].shape[0], parts[0].shape[1], self.embed_dim))
        output = self.out_proj(joined)
        weights = (np.mean(scores, axis=1) if average_attn_weights else scores) if need_weights else None
        if not has_batch:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else np.swapaxes(output, 0, 1), weights

    def _projected(self, parts: list[Values]) -> list[Values]:
        size = self.embed_dim
        if self.in_proj_weight is None:
            weights: list[Any] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = [self.in_proj_weight[at * size : (at + 1) * size] for at in range(3)]
        if self.in_proj_bias is None:
            return [functional.linear(part, weight) for part, weight in zip(parts, weights, strict=True)]
        biases = [self.in_proj_bias[at * size : (at + 1) * size] for at in range(3)]
        return [functional.linear(*triple) for triple in zip(parts, weights, biases, strict=True)]

    def _heads(self, part: Values) -> ndarray:
        """Return (batch, heads, length, features of a head) of (batch, length, features)."""
        batch, length, _ = part.shape
        return np.swapaxes(np.reshape(part, (batch, length, self.num_heads, -1)), 1, 2)

    def _mask(self, parts: list[Values], key_padding_mask: Values | None, attn_mask: Values | None, is_causal: bool,
              has_batch: bool) -> Values | None:  # fmt: skip
        """Return both masks as one of floats, to add to (batch, heads, q, k)."""
        batch, count = parts[0].shape[:2]
        keys = parts[1].shape[1]
        dtype = str(parts[0].dtype)
        if is_causal and attn_mask is None:
            attn_mask = np.logical_not(np.tri(count, keys, dtype="bool"))
        mask = None
        if attn_mask is not None:
            wanted = ((count, keys), (batch * self.num_heads, count, keys))
            if tuple(attn_mask.shape) not in wanted:
                raise ShapeError(f"attn_mask of shape {tuple(attn_mask.shape)}; it takes {wanted[0]} or {wanted[1]}")
            mask = _added(attn_mask, dtype)
            if len(attn_mask.shape) == 3:
                mask = np.reshape(mask, (batch, self.num_heads, count, keys))
        if key_padding_mask is not None:
            padding = key_padding_mask if has_batch else np.expand_dims(key_padding_mask, 0)
            if tuple(padding.shape) != (batch, keys):
                raise ShapeError(f"key_padding_mask of shape {tuple(padding.shape)}; it takes {(batch, keys)}")
            added = np.expand_dims(_added(padding, dtype), (1, 2))
            mask = added if mask is None else np.add(mask, added)
        return mask


def _added(mask: Values, dtype: str) -> Values:
    if mask.dtype != "bool":
        return mask
    return np.where(mask, np.full((), float("-inf"), dtype=dtype), np.zeros((), dtype=dtype))


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself and two dense layers, each added to its input and normalised.

    Input (length, batch, d_model), or with `batch_first` (batch, length, d_model), or without a batch; shape unchanged.
    `norm_first` normalises the inputs of the two parts, not their results.
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[[Any], Any] = "relu", layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
                 dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        if isinstance(activation, str) and activation not in {"relu", "gelu"}:
            raise ShapeError(f"TransformerEncoderLayer: activation {activation!r}; it takes 'relu', 'gelu', a function")
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = getattr(functional, activation) if isinstance(activation, str) else activation

    def forward(self, src: Values, src_mask: Values | None = None, src_key_padding_mask: Values | None = None,
                is_causal: bool = False) -> ndarray:  # fmt: skip
        x: ndarray = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return np.add(x, self._feed(self.norm2(x)))
        x = self.norm1(x + self._attend(x, src_mask, src_key_padding_mask, is_causal))
        result: ndarray = self.norm2(x + self._feed(x))
        return result

    def _attend(self, x: Values, mask: Values | None, padding: Values | None, is_causal: bool) -> Any:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)[0])

    def _feed(self, x: Values) -> Any:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))
