"""Argument types of walle.np, for annotations only; never loaded at run time."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from walle.engine_ext._core import ndarray

__all__ = ["ArrayLike", "Axis", "DType", "Shape"]


class _HasBuffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


type ArrayLike = ndarray | _HasBuffer | complex | Sequence[Any]
type DType = str | type[complex | float | int | bool]
type Shape = int | ndarray | Iterable[int]
type Axis = int | Iterable[int] | None
