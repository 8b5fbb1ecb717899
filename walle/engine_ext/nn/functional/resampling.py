"""Padding, and sampling of images at other sizes."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from walle.engine_ext.nn.sizes import per_axis

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Size, Values

__all__ = ["interpolate", "pad"]

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}


def pad(input: Values, pad: tuple[int, ...] | list[int], mode: str = "constant", value: float | None = None) -> ndarray:
    """Return x with elements added before and after its last axes: the last axis first, (before, after, ...).

    Negative numbers remove elements.

    Raises:
        ShapeError: there are more pairs than axes, an odd number, or the mode is unknown.
    """
    axes = len(input.shape)
    if len(pad) % 2 or len(pad) > 2 * axes:
        raise ShapeError(f"pad: {len(pad)} numbers for {axes} axes; it takes a pair for each of the last axes")
    if mode not in _PAD_MODES:
        raise ShapeError(f"pad: mode {mode!r}; it takes {', '.join(map(repr, _PAD_MODES))}")
    before, after = [0] * axes, [0] * axes
    for at in range(len(pad) // 2):
        before[axes - 1 - at], after[axes - 1 - at] = pad[2 * at], pad[2 * at + 1]
    pads = [*before, *after]
    if mode != "constant":
        return operator("Pad", [input], pads=pads, mode=_PAD_MODES[mode])
    if not value:
        return operator("Pad", [input], pads=pads)
    return operator("Pad", [input, np.array(pads, dtype="int64"), np.array(value, dtype=str(input.dtype))])


def interpolate(input: Values, size: Size | None = None, scale_factor: float | tuple[float, ...] | None = None,
                mode: str = "nearest", align_corners: bool | None = None,
                recompute_scale_factor: bool | None = None, antialias: bool = False) -> ndarray:  # fmt: skip
    """Return x (batch, channels, ...) sampled at another size of its axes after the channels.

    Modes: nearest, nearest-exact, linear (one axis), bilinear, bicubic (two), trilinear (three), area.

    Raises:
        ShapeError: neither or both of `size` and `scale_factor` are given, or the mode does not fit the shape.
        UnsupportedError: antialias is asked for with a mode other than bilinear and bicubic.
    """
    axes = len(input.shape) - 2
    if (size is None) == (scale_factor is None) or axes < 1:
        raise ShapeError(
            f"interpolate: input of shape {tuple(input.shape)}, size {size}, scale_factor {scale_factor}; it takes "
            "(batch, channels, ...) and one of the two"
        )
    if size is not None:
        sizes, scales = per_axis(size, axes, "size"), None
    else:
        assert scale_factor is not None  # one of the two is given
        given = (scale_factor,) * axes if isinstance(scale_factor, int | float) else tuple(scale_factor)
        if len(given) != axes:
            raise ShapeError(f"interpolate: scale_factor {scale_factor!r}; it takes one number or {axes}")
        sizes = tuple(int(length * scale) for length, scale in zip(input.shape[2:], given, strict=True))
        scales = None if recompute_scale_factor else given
    if mode == "area":
        return adaptive_avg_pool1d(input, sizes) if axes == 1 else adaptive_avg_pool2d(input, sizes)
    attributes = _sampling(mode, axes, bool(align_corners))
    if antialias:
        if mode not in {"bilinear", "bicubic"}:
            raise UnsupportedError(f"interpolate: antialias with mode {mode!r}; it takes bilinear or bicubic")
        attributes |= {"antialias": 1, "exclude_outside": 1}
    if scales is None or align_corners:
        shape = np.array((*input.shape[:2], *sizes), dtype="int64")
        return operator("Resize", [input, None, None, shape], **attributes)
    factors = np.array((1.0, 1.0, *scales), dtype="float32")
    return operator("Resize", [input, None, factors], **attributes)


def _sampling(mode: str, axes: int, align_corners: bool) -> dict[str, object]:
    if mode == "nearest":
        return {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "nearest-exact":
        return {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}
    coordinates = "align_corners" if align_corners else "half_pixel"
    if _LINEAR.get(mode) == axes + 2:
        return {"mode": "linear", "coordinate_transformation_mode": coordinates}
    if mode == "bicubic" and axes == 2:
        return {"mode": "cubic", "cubic_coeff_a": -0.75, "coordinate_transformation_mode": coordinates}
    raise ShapeError(f"interpolate: mode {mode!r} for {axes} axes; linear takes 1, bilinear and bicubic 2, trilinear 3")
