"""Table of test cases for walle.cv: the arguments of each function, and the tolerance against OpenCV."""

# ruff: noqa: E501 -- rows of a table

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy
from hypothesis import strategies as st

type Args = tuple[tuple[Any, ...], dict[str, Any]]
type Draw = Callable[[st.DataObject, "Picture"], Args]

BORDERS = [cv2.BORDER_CONSTANT, cv2.BORDER_REPLICATE, cv2.BORDER_REFLECT, cv2.BORDER_REFLECT_101]


class Picture(NamedTuple):
    """Image of one example, possibly a view, and a generator for the other arguments."""

    image: numpy.ndarray
    random: numpy.random.Generator

    def like(self) -> numpy.ndarray:
        """Return another image of the same shape and dtype."""
        return numbers(self.random, self.image.shape, str(self.image.dtype))

    def mask(self) -> numpy.ndarray:
        return (self.random.random(self.image.shape[:2]) > 0.5).astype("uint8")


def numbers(random: numpy.random.Generator, shape: tuple[int, ...], dtype: str) -> numpy.ndarray:
    if dtype.startswith("float"):
        return random.random(shape).astype(dtype)
    low, high = (-500, 500) if dtype == "int16" else (0, 256 if dtype == "uint8" else 65536)
    return random.integers(low, high, shape).astype(dtype)


class Case(NamedTuple):
    name: str
    draw: Draw
    dtypes: tuple[str, ...] = ("uint8", "uint16", "float32")
    channels: tuple[int, ...] = (1, 3, 4)
    levels: float = 0  # tolerance of integers
    close: float = 1e-4  # tolerance of floats, relative to 1
    single: int = 0  # integers that may differ by one level more (scripts/cv_page.py)


U8, F32 = ("uint8",), ("float32",)
ANY4 = ("uint8", "uint16", "int16", "float32")


def plain(*args: Any, **options: Any) -> Draw:
    return lambda _, x: ((x.image, *args), options)


def pair_of(**options: Any) -> Draw:
    return lambda _, x: ((x.image, x.like()), options)


def window(data: st.DataObject, odd: bool = True) -> tuple[int, int]:
    sizes = st.sampled_from([1, 3, 5, 7, 11]) if odd else st.integers(1, 12)
    return data.draw(sizes), data.draw(sizes)


def border(data: st.DataObject) -> int:
    return data.draw(st.sampled_from(BORDERS))


def _resize(interpolation: int) -> Draw:
    def draw(data: st.DataObject, x: Picture) -> Args:
        if data.draw(st.booleans()):
            return (x.image, None), {
                "fx": data.draw(st.floats(0.3, 3)),
                "fy": data.draw(st.floats(0.3, 3)),
                "interpolation": interpolation,
            }
        return (x.image, (data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90)))), {
            "interpolation": interpolation
        }

    return draw


def _smooth(x: Picture) -> numpy.ndarray:
    """Return the picture without noise, at least eight pixels wide and high."""
    image = numpy.pad(
        x.image, [(0, max(0, 8 - size)) for size in x.image.shape[:2]] + [(0, 0)] * (x.image.ndim - 2), "edge"
    )
    return numpy.ascontiguousarray(cv2.GaussianBlur(image, (0, 0), 1.5))


def _affine(interpolation: int, *, parallel: bool = True) -> Draw:
    """Return a drawing of rotations. Those parallel to the axes repeat a coordinate, and its rounding, in a whole row."""

    def draw(data: st.DataObject, x: Picture) -> Args:
        height, width = x.image.shape[:2]
        angle = data.draw(st.floats(-180, 180))
        if not parallel and abs(math.sin(math.radians(2 * angle))) < 0.01:
            angle += 20
        matrix = cv2.getRotationMatrix2D((width / 2, height / 2), angle, data.draw(st.floats(0.4, 2)))
        # OpenCV's cubic mirrors differ where they read farther outside than the image is wide.
        mode = border(data) if interpolation == cv2.INTER_LINEAR else data.draw(st.sampled_from(BORDERS[:2]))
        options = {"flags": interpolation, "borderMode": mode, "borderValue": (7, 8, 9, 10)}
        return (_smooth(x), matrix, (data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60)))), options

    return draw


def _angles(degrees: bool) -> Draw:
    return lambda _, x: ((x.image - 0.5, x.like() - 0.5), {"angleInDegrees": degrees})


def _lengths(degrees: bool) -> Draw:
    return lambda _, x: ((x.image, 300 * x.like()), {"angleInDegrees": degrees})


def _distances(kind: int, size: int) -> Draw:
    return lambda _, x: ((_with_zero(x), kind, size), {})


def _with_zero(x: Picture) -> numpy.ndarray:
    image = (x.image > 30).astype("uint8")
    image[0, 0] = 0  # OpenCV answers one number or another without
    return image


def _template(method: int) -> Draw:
    def draw(data: st.DataObject, x: Picture) -> Args:
        height, width = (data.draw(st.integers(1, size)) for size in x.image.shape[:2])
        top, left = (
            data.draw(st.integers(0, size - part))
            for size, part in zip(x.image.shape[:2], (height, width), strict=True)
        )
        piece = x.image[top : top + height, left : left + width]
        return (x.image, numpy.ascontiguousarray(piece if data.draw(st.booleans()) else piece[::-1, ::-1]), method), {}

    return draw


def _adaptive(way: int) -> Callable[[st.DataObject, Picture], Args]:
    def build(data: st.DataObject, x: Picture) -> Args:
        return (x.image, 255, way, data.draw(st.integers(0, 1)), 7, data.draw(st.sampled_from([2, -3.5]))), {}

    return build


def _perspective(data: st.DataObject, x: Picture) -> Args:
    height, width = x.image.shape[:2]
    corners = numpy.array([[0, 0], [width, 0], [width, height], [0, height]], "float32")
    # Corners move by at most a fifth of the size: at a horizon within the image, positions of float32 are coarse.
    moved = corners * 0.8 + x.random.random((4, 2)) * 0.2 * (width, height)
    matrix = cv2.getPerspectiveTransform(corners, moved.astype("float32"))
    return (_smooth(x), matrix, (width, height)), {
        "borderMode": border(data),
        "flags": data.draw(st.sampled_from([1, 1 | cv2.WARP_INVERSE_MAP])),
    }


def _remap(interpolation: int) -> Draw:
    def draw(data: st.DataObject, x: Picture) -> Args:
        places = (x.random.random((2, 20, 30)) * 60 - 10).astype("float32")
        mode = border(data) if interpolation != cv2.INTER_CUBIC else data.draw(st.sampled_from(BORDERS[:2]))
        return (_smooth(x), places[0], places[1], interpolation), {"borderMode": mode}

    return draw


def _frame(data: st.DataObject, x: Picture) -> Args:
    sides = [data.draw(st.integers(0, 40)) for _ in range(4)]
    return (x.image, *sides, data.draw(st.sampled_from([*BORDERS, cv2.BORDER_WRAP]))), {"value": (1, 2, 3, 4)}


def _derivative(data: st.DataObject, x: Picture) -> Args:
    dx, dy = data.draw(st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 0), (0, 2)]))
    size = data.draw(st.sampled_from([3, 5, 7]))
    return (x.image, cv2.CV_32F, dx, dy), {"ksize": size, "borderType": border(data)}


def _gaussian(data: st.DataObject, x: Picture) -> Args:
    return (x.image, window(data), data.draw(st.sampled_from([0, 0.8, 2.5]))), {"borderType": border(data)}


def _morphology(data: st.DataObject, x: Picture) -> Args:
    form = data.draw(st.sampled_from([cv2.MORPH_RECT, cv2.MORPH_CROSS, cv2.MORPH_ELLIPSE]))
    kernel = cv2.getStructuringElement(form, window(data, odd=False))
    return (x.image, kernel), {"iterations": data.draw(st.integers(1, 3)), "borderType": border(data)}


def _hit_or_miss(data: st.DataObject, x: Picture) -> Args:
    width, height = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    kernel = x.random.integers(-1, 2, (height, width)).astype(data.draw(st.sampled_from(["int8", "int32", "float32"])))
    return (x.image // 128 * 255, cv2.MORPH_HITMISS, kernel), {"iterations": data.draw(st.integers(1, 2))}


def _canny(data: st.DataObject, x: Picture) -> Args:
    low, high = data.draw(st.floats(0, 300)), data.draw(st.floats(0, 600))
    return (_smooth(x), low, high), {
        "apertureSize": data.draw(st.sampled_from([3, 5])),
        "L2gradient": data.draw(st.booleans()),
    }


def _threshold(data: st.DataObject, x: Picture) -> Args:
    bound = data.draw(st.one_of(st.floats(-10, 300), st.sampled_from([0.5, 255.0, 70000.0])))
    return (x.image, bound, data.draw(st.integers(0, 255)), data.draw(st.integers(0, 4))), {}


def _kernel(data: st.DataObject, x: Picture) -> Args:
    width, height = window(data, odd=False)
    kernel = x.random.integers(-3, 4, (height, width)) * data.draw(st.sampled_from([1.0, 0.037]))
    return (x.image, data.draw(st.sampled_from([-1, cv2.CV_32F])), kernel.astype("float32")), {
        "delta": data.draw(st.sampled_from([0, 2.5])),
        "borderType": border(data),
    }


def _separable(data: st.DataObject, x: Picture) -> Args:
    weights = [(x.random.random(size) - 0.3).astype("float32") for size in window(data)]
    return (x.image, cv2.CV_32F, *weights), {"borderType": border(data)}


def _of_color(code: int) -> Draw:
    return plain(code)


CASES = [
    *(Case("resize", _resize(way), levels=1, close=2e-4) for way in range(5)),
    Case("resize", _resize(cv2.INTER_LINEAR), U8),
    Case("resize", _resize(cv2.INTER_LINEAR), F32, close=2e-6),
    Case("resize", _resize(cv2.INTER_LINEAR_EXACT), U8),
    Case("warpAffine", _affine(cv2.INTER_NEAREST), U8),
    Case("warpAffine", _affine(cv2.INTER_LINEAR, parallel=False), U8, single=2),
    Case("warpAffine", _affine(cv2.INTER_LINEAR), levels=1, close=2e-2),
    Case("warpAffine", _affine(cv2.INTER_CUBIC), levels=1, close=2e-2),
    Case("warpPerspective", _perspective, U8, single=2),
    Case("warpPerspective", _perspective, levels=1, close=2e-3),
    *(Case("remap", _remap(way), U8, levels=1) for way in (0, 1, 2, 4)),
    Case("remap", _remap(1), F32, close=1e-3),
    Case("copyMakeBorder", _frame, ANY4),
    *(Case("flip", plain(code), ANY4) for code in (-1, 0, 1)),
    *(Case("rotate", plain(code), ANY4) for code in (0, 1, 2)),
    Case("transpose", plain(), ANY4),
    Case("GaussianBlur", _gaussian, levels=2),
    Case("GaussianBlur", _gaussian, U8),
    Case("blur", lambda data, x: ((x.image, window(data, odd=False)), {"borderType": border(data)}), levels=1),
    Case("blur", lambda data, x: ((x.image, window(data, odd=False)), {"borderType": border(data)}), U8),
    Case("boxFilter", lambda data, x: ((x.image, cv2.CV_32F, window(data)), {"normalize": False, "borderType": border(data)}), close=1e-2),
    Case("sqrBoxFilter", lambda data, x: ((x.image, cv2.CV_32F, window(data)), {"borderType": border(data)}), U8, close=1e-2),
    Case("medianBlur", lambda data, x: ((x.image, data.draw(st.sampled_from([3, 5]))), {}), ANY4),
    Case("medianBlur", lambda data, x: ((x.image, data.draw(st.sampled_from([7, 15, 33]))), {}), U8),
    Case("bilateralFilter", lambda data, x: ((_smooth(x), data.draw(st.integers(3, 9)), 30, 4), {"borderType": border(data)}), U8, (1, 3), levels=1),
    Case("bilateralFilter", lambda data, x: ((_smooth(x), 5, 0.2, 3), {}), F32, (1, 3), close=2e-3),
    Case("Sobel", _derivative, ("uint8", "uint16", "int16", "float32"), close=1e-1),
    Case("Scharr", lambda data, x: ((x.image, cv2.CV_16S, *data.draw(st.sampled_from([(1, 0), (0, 1)]))), {"borderType": border(data)}), U8),
    Case("Laplacian", lambda data, x: ((x.image, cv2.CV_32F), {"ksize": data.draw(st.sampled_from([1, 3, 5])), "borderType": border(data)}), ANY4, close=1e-1),
    Case("filter2D", _kernel, levels=1, close=2e-2),
    Case("sepFilter2D", _separable, levels=1, close=2e-1),
    Case("pyrDown", plain(), close=1e-4, levels=1),
    Case("pyrUp", plain(), levels=1),
    Case("erode", _morphology, ANY4),
    Case("dilate", _morphology, ANY4),
    *(Case("morphologyEx", plain(op, numpy.ones((3, 5), "uint8"))) for op in range(7)),
    *(Case("morphologyEx", plain(op, numpy.ones((2, 1), "uint8")), ANY4) for op in range(2, 7)),
    Case("morphologyEx", _hit_or_miss, U8, (1,)),
    Case("Canny", _canny, U8, (1, 3)),
    Case("threshold", _threshold, ANY4),
    Case("threshold", plain(0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU), U8, (1,)),
    Case("threshold", plain(0, 255, cv2.THRESH_BINARY_INV | cv2.THRESH_TRIANGLE), U8, (1,)),
    *(Case("adaptiveThreshold", _adaptive(way), U8, (1,)) for way in (0, 1)),
    Case("add", pair_of(), ANY4, close=1e-6),
    Case("add", lambda _, x: ((x.image, x.like()), {"mask": x.mask()}), ANY4),
    Case("add", plain((3, 200, 17, 5)), ANY4),
    Case("subtract", pair_of(), ANY4),
    Case("absdiff", pair_of(), ANY4),
    Case("multiply", pair_of(scale=0.01), ("uint8", "float32")),
    Case("min", pair_of(), ANY4),
    Case("max", pair_of(), ANY4),
    Case("addWeighted", lambda _, x: ((x.image, 0.3, x.like(), 0.9, -3), {}), ANY4, levels=1),
    *(Case(name, pair_of(), ("uint8", "uint16", "int16")) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    Case("bitwise_not", plain(), ("uint8", "uint16", "int16")),
    Case("convertScaleAbs", plain(None, 1.7, -30), ANY4, levels=1),
    Case("LUT", lambda _, x: ((x.image, x.random.integers(0, 256, 256).astype("uint8")), {}), U8),
    Case("inRange", lambda _, x: ((x.image, (10, 20, 30, 0), (200, 190, 250, 255)), {}), ("uint8", "uint16", "int16"), (3, 4)),
    Case("mean", lambda _, x: ((x.image, x.mask()), {}), ANY4, close=1e-3),
    Case("meanStdDev", plain(), ANY4, close=1e-1),
    Case("sumElems", plain(), ANY4, close=1e-1),
    Case("countNonZero", lambda _, x: ((x.image // 200,), {}), ("uint8", "uint16"), (1,)),
    Case("minMaxLoc", plain(), ANY4, (1,)),
    Case("minMaxLoc", lambda _, x: ((x.image, x.mask()), {}), ANY4, (1,)),
    Case("norm", plain(cv2.NORM_L1), ANY4, close=1e-1),
    Case("normalize", plain(None, 0, 255, cv2.NORM_MINMAX), ANY4, levels=1, close=1e-3),
    Case("normalize", plain(None, 1, 0, cv2.NORM_L2, cv2.CV_32F), ANY4),
    Case("integral", plain(), ("uint8", "float32"), close=1e-3),
    Case("equalizeHist", plain(), U8, (1,)),
    Case("split", plain(), ANY4),
    Case("merge", lambda _, x: (([x.image, x.like()],), {}), ANY4, (1,)),
    Case("hconcat", lambda _, x: (([x.image, x.like()],), {}), ANY4),
    Case("vconcat", lambda _, x: (([x.image, x.like()],), {}), ANY4),
    Case("calcHist", lambda _, x: (([x.image], [0], x.mask(), [32], [0, 256]), {}), U8, (1,)),
    *(Case("divide", pair_of(scale=scale), ANY4, close=1e-3) for scale in (1, 20.5)),
    Case("divide", plain(7), ANY4, (1, 3), close=1e-3),
    Case("divide", lambda _, x: ((300, x.image), {}), U8, (1,)),
    *(Case("compare", pair_of(cmpop=op), ANY4) for op in range(6)),
    Case("compare", plain(100, cv2.CMP_GE), ANY4, (1,)),
    *(Case(name, pair_of(), F32) for name in ("magnitude",)),
    *(Case("phase", _angles(degrees), F32, close=2e-4 * (57 if degrees else 1)) for degrees in (False, True)),
    Case("cartToPolar", lambda _, x: ((x.image, x.like() - 0.5), {}), F32, close=2e-4),
    *(Case("polarToCart", _lengths(degrees), F32, close=2e-4) for degrees in (False, True)),
    *(Case("pow", plain(power), ("uint8", "float32")) for power in (2, 3)),
    Case("pow", plain(0.7), F32),
    *(Case(name, plain(), F32, close=2e-4) for name in ("sqrt", "exp")),
    Case("log", lambda _, x: ((x.image + 1,), {}), F32),
    *(Case("reduce", plain(dim, kind), ANY4, levels=1) for dim in (0, 1) for kind in (cv2.REDUCE_AVG, cv2.REDUCE_MAX, cv2.REDUCE_MIN)),
    *(Case("reduce", plain(dim, kind, None, cv2.CV_32F), ANY4, close=2e-1) for dim in (0, 1) for kind in (cv2.REDUCE_SUM, cv2.REDUCE_AVG)),
    Case("transform", lambda _, x: ((x.image, x.random.random((2, 3))), {}), ANY4, (3,), levels=1, close=1e-2),
    Case("transform", lambda _, x: ((x.image, x.random.random((3, 4))), {}), ANY4, (3,), levels=1, close=1e-2),
    Case("perspectiveTransform", lambda _, x: ((x.random.random((9, 1, 2)).astype("float32"), x.random.random((3, 3)) + 0.5), {}), F32, (1,)),
    *(Case("matchTemplate", _template(method), ("uint8", "float32"), (1, 3), close=3.0 if method % 2 == 0 else 2e-3) for method in range(6)),
    *(Case("distanceTransform", _distances(kind, size), U8, (1,), close=2e-3) for kind, size in ((cv2.DIST_L1, 3), (cv2.DIST_C, 3), (cv2.DIST_L2, 3), (cv2.DIST_L2, 5), (cv2.DIST_L2, 0))),
    Case("calcBackProject", lambda _, x: (([x.image], [0], (x.random.random((16, 1)) * 200).astype("float32"), [0, 256], 1), {}), U8, (1, 3), levels=1),
    Case("calcHist", lambda _, x: (([x.image], [0, 2], None, [8, 16], [0, 256, 10, 200]), {}), U8, (3,)),
]  # fmt: skip
