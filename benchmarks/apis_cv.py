"""walle.cv against OpenCV on one thread.

`python -m benchmarks.apis_cv` writes docs/api-cv.md.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cv2
import numpy  # noqa: ICN001 -- `np` is Walle's here

from walle import cv, np

SIZES = ((224, 224), (1000, 1000))


class Case(NamedTuple):
    """One function on one kind of image; both libraries get the same numbers."""

    name: str
    ours: Callable[[], Any]
    opencvs: Callable[[], Any]


def cases(height: int, width: int) -> Iterator[Case]:
    """Yield the cases on images of this size, three channels of uint8 unless the name says another."""
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
        return Case(f"{name}{label}{on}", lambda: ours(*shared, **options), lambda: theirs(image, *args, **options))

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
        for label, size in ((" smaller", small), (" larger", large)):
            yield case("resize", size, interpolation=getattr(cv2, f"INTER_{way}"), label=f" {way}{label}")
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


def cpu_us(call: Callable[[], Any], rounds: int = 7) -> float:
    """Return the least CPU time of one call on this thread, in microseconds."""
    call()
    start = time.thread_time()
    call()
    times = max(1, min(50, int(0.002 / max(time.thread_time() - start, 1e-7))))
    best = math.inf
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, (time.thread_time() - start) / times)
    return best * 1e6


def difference(ours: Any, theirs: Any) -> float:
    """Return the greatest difference between two results."""
    if isinstance(theirs, tuple):
        return max((difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    return float(numpy.abs(numpy.asarray(ours).astype("float64") - numpy.asarray(theirs)).max())


def table() -> tuple[list[str], float]:
    """Measure all cases; return rows of a table and the geometric mean of the ratios of time."""
    cv2.setNumThreads(1)
    rows, ratios = [], []
    for height, width in SIZES:
        for one in cases(height, width):
            far = difference(one.ours(), one.opencvs())
            ours, theirs = cpu_us(one.ours), cpu_us(one.opencvs)
            ratios.append(ours / theirs)
            rows.append(
                f"| {one.name} | {height} × {width} | {far:.3g} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |"
            )
    return rows, math.exp(sum(map(math.log, ratios)) / len(ratios))


DIFFERENCES = """\
- Results are `walle.np.ndarray`; images may be any object with the buffer protocol. `dst` is written into and returned.
- dtypes are uint8, uint16, int16 (filters, arithmetic) and float32; float64 is computed in float32 by filters, sizes
  and warps.
- Bytes: HSV, HLS, Lab and Luv, cubic and Lanczos sizes, warps and maps by them, the bilateral filter and means over
  windows of an even number of pixels beyond 256 may differ by one level, since OpenCV rounds its vectors and their
  tails differently, and so may single pixels of warps by INTER_NEAREST and INTER_LINEAR and of `normalize`; linear
  sizes and smaller means do not differ. uint16: GaussianBlur by three levels, pyramids by one; int16: linear sizes by
  one. Luv and Lab back to BGR differ by more where a colour lies outside of BGR. float32 Lab and Luv are computed;
  OpenCV looks them up in a coarse table (up to 0.5 apart).
- `remap` and the warps with INTER_CUBIC, where a mirrored border is read farther outside than the image is wide, may
  choose another pixel, and so may INTER_NEAREST_EXACT at places that lie halfway between two pixels.
- `multiply` of uint16 saturates; OpenCV's product overflows at 2^31.
- LINE_AA is drawn like LINE_8. Edges of thick lines, filled polygons and ellipses may differ by a pixel.
- The numbers of connected areas may come in another order; the areas are the same. `minAreaRect` may name another
  side first.
- `approxPolyDP` keeps the promised distance, not always OpenCV's choice of points. `solve` eliminates whatever the
  flags.
- JPEG and PNG only; EXIF's orientation is not applied; gray from a coloured PNG may differ by one level. `imread` and
  `imwrite`
  are not for tasks, which have no files.
- Not there: `Rodrigues` and `solvePnP` (camera geometry), MORPH_HITMISS, moments of contours, writing of 4:2:2 images.
"""


def markdown() -> str:
    """Return docs/api-cv.md."""
    rows, mean = table()
    names = [name for name in dir(cv) if callable(getattr(cv, name))]
    elsewhere = [name for name in names if not hasattr(cv2, name)]
    lines = [
        "# walle.cv",
        "",
        f"Written by `python -m benchmarks.apis_cv`, against OpenCV {cv2.__version__} on one thread.",
        "",
        "## Names",
        "",
        f"{len(names)} functions and {len(dir(cv)) - len(names)} constants: {', '.join(names)}.",
        "",
        f"All are OpenCV's; {', '.join(elsewhere)} are in its `dnn` or are overloads of others there."
        if elsewhere
        else "",
        "",
        "## Meant differences",
        "",
        DIFFERENCES,
        "## Agreement and time",
        "",
        "The greatest difference of the results, and CPU time of a call in µs.",
        f"Geometric mean of the ratios: {mean:.2f}.",
        "",
        "| function | size | differs by | walle.cv | OpenCV | ratio |",
        "| --- | --: | --: | --: | --: | --: |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
