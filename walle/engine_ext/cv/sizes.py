"""Resizing of images."""

from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, into_dst, pair, to_dtype_of, to_sampling_dtype
from walle.engine_ext.errors import ShapeError, UnsupportedError

INTERPOLATIONS = {
    constants.INTER_NEAREST: "nearest",
    constants.INTER_LINEAR: "linear",
    constants.INTER_CUBIC: "cubic",
    constants.INTER_AREA: "area",
    constants.INTER_LANCZOS4: "lanczos4",
    constants.INTER_LINEAR_EXACT: "linear_exact",
    constants.INTER_NEAREST_EXACT: "nearest_exact",
}


def interpolation_name(interpolation: int) -> str:
    name = INTERPOLATIONS.get(interpolation)
    if name is None:
        raise UnsupportedError(f"unknown interpolation {interpolation}; use one of the INTER_ constants")
    return name


def resize(
    src: ImageLike,
    dsize: tuple[int, int] | None,
    dst: ImageLike | None = None,
    fx: float = 0,
    fy: float = 0,
    interpolation: int = constants.INTER_LINEAR,
) -> ndarray:
    """Return the image in size `dsize` (width, height), or scaled by `fx` and `fy`."""
    given = as_image(src)
    name = interpolation_name(interpolation)
    if dsize is not None and tuple(dsize) != (0, 0):
        width, height = pair(dsize)
        attributes = {"width": width, "height": height, "interpolation": name}
    elif fx > 0 and fy > 0:
        width, height = round(given.shape[1] * fx), round(given.shape[0] * fy)
        attributes = {"width": width, "height": height, "interpolation": name, "scale_x": 1 / fx, "scale_y": 1 / fy}
    else:
        raise ShapeError("resize without a size; give dsize (width, height), or fx and fy greater than 0")
    if (height, width) == given.shape[:2]:
        return into_dst(given.copy(), dst)
    if name.startswith("nearest"):
        return into_dst(evaluate("ImageResize", [given], attributes), dst)
    return into_dst(to_dtype_of(evaluate("ImageResize", [to_sampling_dtype(given)], attributes), given), dst)
