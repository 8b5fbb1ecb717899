"""Benchmark cases of walle.cv against OpenCV; results are compared before they are timed."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cv2
import numpy  # noqa: ICN001 -- `np` is Walle's here

from walle import cv, np

PEER = f"OpenCV {cv2.__version__}"
SIZES = ((224, 224), (1000, 1000))
MAX_DIFFERENCE = 1.0  # levels of uint8


class Case(NamedTuple):
    """A function on one kind of image; both libraries get the same numbers."""

    name: str
    size: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def difference(ours: Any, theirs: Any) -> float:
    """Return the greatest difference between two results."""
    if isinstance(theirs, tuple):
        return max((difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    return float(numpy.abs(numpy.asarray(ours).astype("float64") - numpy.asarray(theirs)).max())


def agree(case: Case) -> float:
    """Return the greatest difference of the two results. Raise AssertionError if it exceeds MAX_DIFFERENCE."""
    found = difference(case.ours(), case.theirs())
    assert found <= MAX_DIFFERENCE, f"{case.name} {case.size}: the results differ by {found}"
    return found


def cases() -> Iterator[Case]:
    """Yield the cases of both sizes."""
    cv2.setNumThreads(1)
    for height, width in SIZES:
        yield from of_size(height, width)


def of_size(height: int, width: int) -> Iterator[Case]:
    """Yield the cases on images of this size: three channels of uint8 unless the name has another kind."""
    size = f"{height} x {width}"
    random = numpy.random.default_rng(0)
    noise = random.integers(0, 256, (height, width, 3)).astype("uint8")
    colour = cv2.GaussianBlur(noise, (0, 0), 2)
    images = {"": colour, " gray": colour[..., 1].copy(), " float32": colour.astype("float32") / 255}
    other = colour[::-1].copy()
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), 17, 0.9)
    tilt = numpy.array([[1, 0.1, 3], [0.05, 1.1, -4], [1e-4, 2e-4, 1]])
    maps = [m.astype("float32") for m in numpy.meshgrid(numpy.arange(width) * 0.9 + 3, numpy.arange(height) * 0.9 + 5)]
    ones, disc = numpy.ones((3, 3), "uint8"), cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (5, 5))
    small, large = (width * 37 // 100, height * 37 // 100), (width * 8 // 5, height * 8 // 5)
    table = random.integers(0, 256, 256).astype("uint8")

    def case(name: str, *args: Any, on: str = "", label: str = "", **options: Any) -> Case:
        image = images[on]
        shared = [np.asarray(value) if isinstance(value, numpy.ndarray) else value for value in (image, *args)]
        ours, theirs = getattr(cv, name), getattr(cv2, name)
        return Case(
            f"{name}{label}{on}", size, lambda: ours(*shared, **options), lambda: theirs(image, *args, **options)
        )

    codes = [
        "BGR2GRAY",
        "BGR2RGB",
        "BGR2HSV",
        "HSV2BGR",
        "BGR2HLS",
        "BGR2YCrCb",
        "YCrCb2BGR",
        "BGR2Lab",
        "Lab2BGR",
        "BGR2YUV_I420",
    ]
    for code in codes:
        yield case("cvtColor", getattr(cv2, f"COLOR_{code}"), label=f" {code}")
    yield case("cvtColor", cv2.COLOR_BGR2GRAY, on=" float32", label=" BGR2GRAY")
    for way in ("NEAREST", "LINEAR", "CUBIC", "AREA", "LANCZOS4"):
        for label, target in ((" smaller", small), (" larger", large)):
            yield case("resize", target, interpolation=getattr(cv2, f"INTER_{way}"), label=f" {way}{label}")
    yield case("resize", small, on=" float32", label=" LINEAR smaller")
    for way in ("NEAREST", "LINEAR", "CUBIC"):
        yield case("warpAffine", turn, (width, height), flags=getattr(cv2, f"INTER_{way}"), label=f" {way}")
    yield case("warpPerspective", tilt, (width, height))
    yield case("remap", *maps, cv2.INTER_LINEAR)
    yield case("flip", 1)
    yield case("rotate", cv2.ROTATE_90_CLOCKWISE)
    yield case("copyMakeBorder", 8, 8, 8, 8, cv2.BORDER_REFLECT_101)
    yield case("split")
    for width_px in (3, 5, 9):
        yield case("GaussianBlur", (width_px, width_px), 0, label=f" {width_px}")
    yield case("GaussianBlur", (5, 5), 0, on=" float32", label=" 5")
    yield case("blur", (3, 3), label=" 3")
    yield case("blur", (15, 15), label=" 15")
    yield case("filter2D", -1, numpy.ones((7, 7), "float32") / 49, label=" 7")
    for width_px in (3, 5, 11):
        yield case("medianBlur", width_px, label=f" {width_px}")
    yield case("bilateralFilter", 7, 30, 3)
    yield case("Sobel", cv2.CV_16S, 1, 0, on=" gray")
    yield case("Laplacian", cv2.CV_16S, on=" gray")
    yield case("Canny", 40, 90, on=" gray")
    yield case("pyrDown")
    yield case("pyrUp")
    yield case("erode", ones, label=" 3")
    yield case("dilate", numpy.ones((15, 15), "uint8"), label=" 15")
    yield case("dilate", disc, label=" ellipse 5")
    yield case("threshold", 100, 255, cv2.THRESH_BINARY)
    yield case("threshold", 0, 255, cv2.THRESH_OTSU, on=" gray", label=" Otsu")
    yield case("adaptiveThreshold", 255, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY, 11, 2, on=" gray")
    yield case("inRange", (50, 60, 70), (180, 190, 200))
    yield case("add", other)
    yield case("addWeighted", 0.3, other, 0.7, 5)
    yield case("absdiff", other)
    yield case("LUT", table)
    yield case("mean")
    yield case("equalizeHist", on=" gray")
    yield case("integral", on=" gray")
