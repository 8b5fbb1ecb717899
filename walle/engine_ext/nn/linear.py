"""Dense layers, embeddings, and layers that change a shape."""

from __future__ import annotations

import math

from walle.engine_ext import np
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn import functional, init
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.sizes import check_size
from walle.engine_ext.nn.tracing import Parameter
from walle.engine_ext.np.base import normalize_axis, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["Embedding", "Flatten", "Linear", "Unflatten"]


class Linear(Module):
    """x @ weight.T + bias: (..., in_features) → (..., out_features).

    `weight` is (out_features, in_features); weight and bias begin uniform within 1 / sqrt(in_features).
    """

    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, dtype: str = "float32") -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(np.zeros((out_features, in_features), dtype=dtype))
        self.register_parameter("bias", Parameter(np.zeros(out_features, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Values) -> ndarray:
        check_size(input, -1, self.in_features, f"(..., {self.in_features})")
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """Rows of a table by index: integers of any shape → (..., embedding_dim).

    `weight` is (num_embeddings, embedding_dim) and begins normal. The row `padding_idx` begins with 0 and is not
    trained.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *,
                 dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else normalize_axis(padding_idx, num_embeddings)
        self.weight = Parameter(np.zeros((num_embeddings, embedding_dim), dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """Return a layer with these rows, frozen by default."""
        rows = np.array(embeddings)
        if len(rows.shape) != 2:
            raise ShapeError(f"Embedding: rows of shape {rows.shape}; it takes (num_embeddings, embedding_dim)")
        layer = cls(rows.shape[0], rows.shape[1], padding_idx, dtype=rows.dtype)
        layer.weight = Parameter(rows, requires_grad=not freeze)
        return layer

    def reset_parameters(self) -> None:
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.data[self.padding_idx] = 0.0

    def forward(self, input: Values) -> ndarray:
        return functional.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim`: (batch, a, b, ...) → (batch, a · b · ...) by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Values) -> ndarray:
        shape = tuple(input.shape)
        if not shape:
            return np.reshape(input, (1,))
        start, end = normalize_axis(self.start_dim, len(shape)), normalize_axis(self.end_dim, len(shape))
        if start > end:
            raise ShapeError(f"input of shape {shape}; start_dim {self.start_dim} is after end_dim {self.end_dim}")
        return np.reshape(input, (*shape[:start], product(shape[start : end + 1]), *shape[end + 1 :]))

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits an axis into several: Unflatten(1, (a, b)) makes (batch, a · b) → (batch, a, b)."""

    def __init__(self, dim: int, unflattened_size: tuple[int, ...] | list[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Values) -> ndarray:
        shape = tuple(input.shape)
        axis = normalize_axis(self.dim, len(shape))
        return np.reshape(input, (*shape[:axis], *self.unflattened_size, *shape[axis + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
