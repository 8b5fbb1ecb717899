"""Sizes of windows: one number for every axis, or one an axis."""

from __future__ import annotations

from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import as_shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext.nn.likes import Size, Values


def per_axis(size: Size, axes: int, name: str) -> tuple[int, ...]:
    """Return n numbers.

    Raises:
        ShapeError: `size` has neither one nor n numbers; `name` says of what.
    """
    sizes = as_shape(size)
    if len(sizes) == 1:
        return sizes * axes
    if len(sizes) != axes:
        raise ShapeError(f"{name} {size!r} has {len(sizes)} numbers; it takes one, or one for each of {axes} axes")
    return sizes


def check_axes(x: Values, allowed: tuple[int, ...], layout: str) -> None:
    """Check the number of axes.

    Raises:
        ShapeError: x has another number than those allowed; the message names the layout.
    """
    if len(x.shape) not in allowed:
        raise ShapeError(f"input of shape {tuple(x.shape)}; it takes {layout}")


def check_size(x: Values, axis: int, size: int, layout: str) -> None:
    """Check the size of one axis.

    Raises:
        ShapeError: x lacks the axis, or its size there is not `size`; the message names the layout.
    """
    shape = tuple(x.shape)
    if not -len(shape) <= axis < len(shape) or shape[axis] != size:
        raise ShapeError(f"input of shape {shape}; it takes {layout}")
