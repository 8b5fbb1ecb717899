"""`walle.cv`: images with OpenCV's names, arguments and results, on the engine's operators and raster.

Images are arrays [height, width] or [height, width, channels], pixels interleaved, BGR. The
differences from OpenCV are in scripts/cv_page.py. A part is loaded when one of its names is first used, because every
task VM may import this.
"""

from walle.engine_ext import lazy

TYPE_CHECKING = False  # importing `typing` would take a third of a task VM's start-up
if TYPE_CHECKING:
    from walle.engine_ext.cv.arithmetic import *  # noqa: F403
    from walle.engine_ext.cv.arrange import *  # noqa: F403
    from walle.engine_ext.cv.blob import *  # noqa: F403
    from walle.engine_ext.cv.color import *  # noqa: F403
    from walle.engine_ext.cv.constants import *  # noqa: F403
    from walle.engine_ext.cv.contours import *  # noqa: F403
    from walle.engine_ext.cv.drawing import *  # noqa: F403
    from walle.engine_ext.cv.elementwise import *  # noqa: F403
    from walle.engine_ext.cv.files import *  # noqa: F403
    from walle.engine_ext.cv.filters import *  # noqa: F403
    from walle.engine_ext.cv.histogram import *  # noqa: F403
    from walle.engine_ext.cv.kernels import *  # noqa: F403
    from walle.engine_ext.cv.lines import *  # noqa: F403
    from walle.engine_ext.cv.matching import *  # noqa: F403
    from walle.engine_ext.cv.morphology import *  # noqa: F403
    from walle.engine_ext.cv.regions import *  # noqa: F403
    from walle.engine_ext.cv.shapes import *  # noqa: F403
    from walle.engine_ext.cv.sizes import *  # noqa: F403
    from walle.engine_ext.cv.text import *  # noqa: F403
    from walle.engine_ext.cv.thresholds import *  # noqa: F403
    from walle.engine_ext.cv.warp import *  # noqa: F403

_PARTS = {
    "arithmetic": (
        "LUT",
        "absdiff",
        "add",
        "addWeighted",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "blendLinear",
        "convertScaleAbs",
        "countNonZero",
        "inRange",
        "integral",
        "integral2",
        "max",
        "mean",
        "meanStdDev",
        "min",
        "minMaxLoc",
        "multiply",
        "norm",
        "normalize",
        "solve",
        "subtract",
        "sumElems",
    ),
    "arrange": (
        "copyMakeBorder",
        "copyTo",
        "flip",
        "hconcat",
        "merge",
        "repeat",
        "rotate",
        "split",
        "transpose",
        "vconcat",
    ),
    "blob": (
        "NMSBoxes",
        "blobFromImage",
        "blobFromImages",
        "imagesFromBlob",
        "dnn",
    ),
    "color": (
        "cvtColor",
        "cvtColorTwoPlane",
    ),
    "contours": (
        "approxPolyDP",
        "arcLength",
        "boundingRect",
        "boxPoints",
        "connectedComponents",
        "connectedComponentsWithStats",
        "contourArea",
        "convexHull",
        "findContours",
        "isContourConvex",
        "minAreaRect",
        "moments",
    ),
    "drawing": (
        "arrowedLine",
        "circle",
        "drawContours",
        "ellipse",
        "ellipse2Poly",
        "fillConvexPoly",
        "fillPoly",
        "line",
        "polylines",
        "rectangle",
    ),
    "elementwise": (
        "accumulateWeighted",
        "cartToPolar",
        "compare",
        "divide",
        "exp",
        "log",
        "magnitude",
        "perspectiveTransform",
        "phase",
        "polarToCart",
        "pow",
        "reduce",
        "sqrt",
        "transform",
    ),
    "files": (
        "haveImageReader",
        "haveImageWriter",
        "imdecode",
        "imencode",
    ),
    "filters": (
        "GaussianBlur",
        "Laplacian",
        "Scharr",
        "Sobel",
        "bilateralFilter",
        "blur",
        "boxFilter",
        "filter2D",
        "medianBlur",
        "pyrDown",
        "pyrUp",
        "sepFilter2D",
        "spatialGradient",
        "sqrBoxFilter",
    ),
    "histogram": (
        "CLAHE",
        "calcBackProject",
        "calcHist",
        "compareHist",
        "createCLAHE",
        "equalizeHist",
    ),
    "kernels": (
        "getDerivKernels",
        "getGaborKernel",
        "getGaussianKernel",
        "getStructuringElement",
    ),
    "lines": (
        "HoughLines",
        "HoughLinesP",
    ),
    "matching": ("matchTemplate",),
    "morphology": (
        "dilate",
        "erode",
        "morphologyEx",
    ),
    "regions": (
        "distanceTransform",
        "floodFill",
    ),
    "shapes": (
        "HuMoments",
        "fitLine",
        "matchShapes",
        "minEnclosingCircle",
        "pointPolygonTest",
    ),
    "sizes": ("resize",),
    "text": (
        "getTextSize",
        "putText",
    ),
    "thresholds": (
        "Canny",
        "adaptiveThreshold",
        "threshold",
    ),
    "warp": (
        "convertMaps",
        "getAffineTransform",
        "getPerspectiveTransform",
        "getRectSubPix",
        "getRotationMatrix2D",
        "invertAffineTransform",
        "remap",
        "warpAffine",
        "warpPerspective",
    ),
}
_MODULE_OF = {name: part for part, names in _PARTS.items() for name in names}


def __getattr__(name: str) -> object:
    part = _MODULE_OF.get(name, "constants")
    if name.startswith("_") or (part == "constants" and not name.isupper() and "_" not in name):
        raise AttributeError(f"module 'walle.cv' has no attribute {name!r}")
    value = getattr(lazy.load(f"walle.engine_ext.cv.{part}"), name, None)
    if value is None:
        raise AttributeError(f"module 'walle.cv' has no attribute {name!r}")
    globals()[name] = value  # later look-ups do not call this function
    return value


def __dir__() -> list[str]:
    constants = lazy.load("walle.engine_ext.cv.constants")
    return sorted({*_MODULE_OF, *(name for name in vars(constants) if name.isupper() or name.startswith("COLOR_"))})
