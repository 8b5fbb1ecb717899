"""Types of walle.nn, for annotations only; never loaded at run time."""

from typing import Any

__all__ = ["Size", "Values"]

# An ndarray, a Parameter, or a value that a tracing records.
type Values = Any
# One number for every axis, or one an axis.
type Size = int | tuple[int, ...] | list[int]
