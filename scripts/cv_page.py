"""Page of walle.cv, docs/reference/cv.md: its names and its differences from OpenCV."""

import cv2

from walle import cv

DIFFERENCES = """\
- Results are `walle.np.ndarray`; images may be any object with the buffer protocol. `dst` is written into and returned.
- dtypes are uint8, uint16, int16 (filters, arithmetic) and float32; float64 is computed in float32 by filters,
  resizing and warps.
- uint8 may differ by one level in HSV, HLS, Lab and Luv, cubic and Lanczos resizing, warps and maps by them, the
  bilateral filter, and means over windows of an even number of pixels beyond 256, because OpenCV rounds its vectors and
  their tails differently. Single pixels may differ by one level in warps by INTER_NEAREST and INTER_LINEAR, resizing by
  INTER_AREA, `addWeighted` and `normalize`. Linear resizing and means over smaller windows do not differ. uint16 and
  int16 may differ by one in resizing and means. Luv and Lab to BGR differ by more for colours outside BGR. float32 Lab
  and Luv are computed; OpenCV reads them from a coarse table (up to 0.5 apart).
- Images of two channels: OpenCV samples warps and maps by INTER_LINEAR at 32nds of a pixel; walle.cv samples them
  exactly, as both do for one, three and four channels.
- `remap` and warps with INTER_CUBIC may choose another pixel where a mirrored border is read farther outside than the
  image is wide, and INTER_NEAREST_EXACT halfway between two pixels.
- `blur` of two white bytes is white; OpenCV's sum of them overflows, and its result is black.
- Warps and maps of int16 differ from OpenCV's, which samples such images at coarser positions.
- `multiply` of uint16 saturates; OpenCV's product overflows at 2^31.
- `pow` of 16-bit integers saturates; OpenCV's products overflow.
- `putText` has another stroke font than OpenCV, in the size of OpenCV's older fonts; FONT_ constants choose its size
  and slant.
- `distanceTransform` adds steps of 1/65536 of a pixel. `phase` and `cartToPolar` are exact to float32; OpenCV's angles
  are approximations, up to 0.0002 apart. `matchTemplate` has no mask, `fitLine` only DIST_L2, `HoughLines` one scale,
  `CLAHE` uint8 only, `distanceTransform` no labels.
- LINE_AA is drawn like LINE_8. Edges of thick lines, filled polygons and ellipses may differ by a pixel.
- Connected components may be numbered in another order; the components are the same. `minAreaRect` may list another
  side first.
- `approxPolyDP` keeps the promised distance, but may choose other points than OpenCV. `solve` uses elimination for
  every flag.
- JPEG and PNG only; EXIF orientation is not applied; gray from a coloured PNG may differ by one level (of 16 bits by
  five). `imread` and `imwrite` are missing, because tasks have no files.
- Not supported: `Rodrigues` and `solvePnP` (camera geometry), writing of 4:2:2 images.
"""


def page() -> str:
    """Return docs/reference/cv.md."""
    names = [name for name in dir(cv) if callable(getattr(cv, name))]
    elsewhere = [name for name in names if not hasattr(cv2, name)]
    lines = [
        "# walle.cv",
        "",
        f"Functions and constants with the names and results of OpenCV {cv2.__version__}, except for the differences",
        "below. `python -m benchmarks.apis --part cv` measures their times beside OpenCV's, and compares the results.",
        "",
        "## Names",
        "",
        f"{len(names)} functions and {len(dir(cv)) - len(names)} constants: {', '.join(names)}.",
        "",
        f"All are OpenCV's names; in OpenCV, {', '.join(elsewhere)} are in `dnn` or are overloads.",
        "",
        "## Intended differences",
        "",
        DIFFERENCES,
    ]
    return "\n".join(lines)
