"""Colour conversion: `cvtColor` with OpenCV's codes, and 4:2:0 images in separate planes."""

from __future__ import annotations

from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, into_dst
from walle.engine_ext.errors import ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from typing import Any

# Other names of a format, and the layouts of 4:2:0 and 4:2:2 images.
_YUV: dict[str, dict[str, Any]] = {
    **{key: {"layout": "planar", "u_first": 1} for key in ("I420", "IYUV")},
    **{key: {"layout": "planar", "u_first": 0} for key in ("YV12", "420p", "420P")},
    "NV12": {"layout": "semi_planar", "u_first": 1},
    **{key: {"layout": "semi_planar", "u_first": 0} for key in ("NV21", "420sp", "420SP")},
    **{key: {"layout": "packed", "luma_first": 1, "u_first": 1} for key in ("YUY2", "YUYV", "YUNV")},
    "YVYU": {"layout": "packed", "luma_first": 1, "u_first": 0},
    **{key: {"layout": "packed", "luma_first": 0, "u_first": 1} for key in ("UYVY", "UYNV", "Y422")},
}
_SPACES = {
    **dict.fromkeys(("YCrCb", "YCR_CB", "YUV"), "luma"),
    **dict.fromkeys(("Lab", "LAB"), "lab"),
    **dict.fromkeys(("Luv", "LUV"), "luv"),
    "XYZ": "xyz",
    "HSV": "hsv",
    "HLS": "hls",
}
_PACKED = {"BGR555": 5, "BGR565": 6}
_RGB = {"BGR": (1, 3), "RGB": (0, 3), "BGRA": (1, 4), "RGBA": (0, 4), "LBGR": (1, 3), "LRGB": (0, 3)}

type _Conversion = tuple[str, dict[str, Any]]

_known: dict[int, _Conversion] = {}  # by code; at most as many as there are COLOR_ constants


def cvtColor(src: ImageLike, code: int, dst: ImageLike | None = None, dstCn: int = 0) -> ndarray:
    """Return the image in another colour space; `code` is a COLOR_ constant.

    uint8 for all codes; uint16 and float32 (0 to 1) for grey, YCrCb, YUV and XYZ; float32 for HSV, HLS, Lab and Luv.
    """
    given = as_image(src)
    op, attributes = _known.get(code) or _find_conversion(code)
    if op == "Luma":
        return into_dst(_luma(given, attributes), dst)
    if op == "ColorConvert":
        attributes = _with_channels(given, attributes, dstCn)
    elif op == "YuvToColor" and dstCn:
        attributes = attributes | {"channels": dstCn}
    elif op == "YuvToColor" and given.ndim == 3 and given.shape[2] == 1:
        given = given.reshape(given.shape[:2])
    return into_dst(evaluate(op, [given], attributes), dst)


def cvtColorTwoPlane(src1: ImageLike, src2: ImageLike, code: int, dst: ImageLike | None = None) -> ndarray:
    """Return the BGR image of a luma plane and an interleaved chroma plane (NV12 and NV21 codes)."""
    op, attributes = _known.get(code) or _find_conversion(code)
    if op != "YuvToColor" or attributes["layout"] != "semi_planar":
        raise UnsupportedError(f"cvtColorTwoPlane with code {code}; use a COLOR_YUV2..._NV12 or _NV21 constant")
    return into_dst(evaluate(op, [as_image(src1), as_image(src2)], attributes), dst)


def _with_channels(given: ndarray, attributes: dict[str, Any], channels: int) -> dict[str, Any]:
    """Return the attributes with the number of channels, for a code that takes or returns three as well as four."""
    has = given.shape[2] if given.ndim == 3 else 1
    if has == 4 and attributes["in_channels"] == 3 and attributes["kind"] not in {"shuffle", "premultiply"}:
        attributes = attributes | {"in_channels": 4}
    if channels and attributes["kind"].startswith("from_"):
        attributes = attributes | {"out_channels": channels}
    return attributes


def _luma(given: ndarray, attributes: dict[str, Any]) -> ndarray:
    if attributes["layout"] == "packed":
        if given.ndim != 3 or given.shape[2] != 2:
            raise ShapeError(f"a 4:2:2 image of shape {given.shape}; it has two channels")
        return given[:, :, 1 - attributes["luma_first"]].copy()
    if given.shape[0] % 3:
        raise ShapeError(
            f"a 4:2:0 image of shape {given.shape}; its height must be a multiple of 3, 3/2 of the picture's"
        )
    return given[: given.shape[0] // 3 * 2].reshape(given.shape[0] // 3 * 2, given.shape[1]).copy()


def _find_conversion(code: int) -> _Conversion:
    for name, number in vars(constants).items():
        if name.startswith("COLOR_") and number == code:
            _known[code] = _conversion(name.removeprefix("COLOR_"))
            return _known[code]
    raise UnsupportedError(f"unknown colour conversion {code}; use one of the COLOR_ constants")


def _conversion(name: str) -> _Conversion:
    source, _, target = name.partition("2")
    if source == "BGR5" or (
        source[:3] == "BGR" and name[3:6] in {"555", "565"}
    ):  # BGR5552RGB: the first 2 belongs to the format's name
        source, target = name[:6], name[7:]
    if (source == "YUV" and ("_" in target or "420" in name)) or name.startswith("YUV420"):
        return _from_yuv(name)
    if target.startswith("YUV_"):
        blue_first, _channels = _RGB[source]
        return "ColorToYuv", {**_YUV[target[4:]], "blue_first": blue_first}
    return "ColorConvert", _pixelwise(source, target)


def _from_yuv(name: str) -> _Conversion:
    if name.startswith("YUV420"):
        layout, _, target = name.removeprefix("YUV420").partition("2")
        layout = f"420{layout}"
    else:
        target, _, layout = name.removeprefix("YUV2").partition("_")
    if layout == "420":
        layout = "I420"
    if target == "GRAY":
        return "Luma", _YUV[layout]
    blue_first, channels = _RGB[target]
    return "YuvToColor", {**_YUV[layout], "blue_first": blue_first, "channels": channels}


def _pixelwise(source: str, target: str) -> dict[str, Any]:
    target, _, full = target.partition("_FULL") if target.endswith("_FULL") else (target, "", None)
    extra: dict[str, Any] = {"full": int(full is not None)}
    if {source, target} <= {"RGBA", "mRGBA", "M_RGBA"}:
        return {"kind": "premultiply" if source == "RGBA" else "unpremultiply", "in_channels": 4, "out_channels": 4}
    if source in _PACKED:
        if target == "GRAY":
            return {"kind": "packed_to_gray", "green_bits": _PACKED[source], "in_channels": 2, "out_channels": 1}
        blue_first, channels = _RGB[target]
        return {"kind": "from_packed", "green_bits": _PACKED[source], "in_channels": 2, "out_channels": channels,
                "blue_first": blue_first}  # fmt: skip
    if target in _PACKED:
        if source == "GRAY":
            return {"kind": "gray_to_packed", "green_bits": _PACKED[target], "in_channels": 1, "out_channels": 2}
        blue_first, channels = _RGB[source]
        return {"kind": "to_packed", "green_bits": _PACKED[target], "in_channels": channels, "out_channels": 2,
                "blue_first": blue_first}  # fmt: skip
    if source == "GRAY":
        return {"kind": "from_gray", "in_channels": 1, "out_channels": _RGB[target][1]}
    if target == "GRAY":
        return {"kind": "to_gray", "in_channels": _RGB[source][1], "out_channels": 1, "blue_first": _RGB[source][0]}
    if source in _RGB and target in _RGB:
        return {"kind": "shuffle", "in_channels": _RGB[source][1], "out_channels": _RGB[target][1],
                "swapped": int(_RGB[source][0] != _RGB[target][0])}  # fmt: skip
    rgb, space = (source, target) if source in _RGB else (target, source)
    extra |= {"linear": int(rgb[0] == "L"), "crcb": int(space in {"YCrCb", "YCR_CB"}), "blue_first": _RGB[rgb][0]}
    kind = ("to_" if source in _RGB else "from_") + _SPACES[space]
    return {"kind": kind, "in_channels": 3, "out_channels": 3, **extra}
