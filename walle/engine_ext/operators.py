"""The operator registry as Python sees it: every operator in one of the paper's four categories (§4.1)."""

from typing import NamedTuple

from walle.engine_ext import _core


class OperatorInfo(NamedTuple):
    """One operator: "atomic" and the raster have kernels; "transform" becomes regions; "composite" is made of both."""

    name: str
    category: str
    decomposes_to: tuple[str, ...]


def operators() -> list[OperatorInfo]:
    """Return all operators in alphabetical order."""
    return [OperatorInfo(name, category, tuple(parts)) for name, category, parts in _core.operators()]
