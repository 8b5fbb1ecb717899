"""walle.cv against OpenCV on one thread, as docs/api-cv.md shows it; apis.py measures.

`python -m benchmarks.apis_cv` writes docs/api-cv.md.
"""

import cv2

from benchmarks.apis import ROUNDS, measure
from walle import cv

DIFFERENCES = """\
- Results are `walle.np.ndarray`; images may be any object with the buffer protocol. `dst` is written into and returned.
- dtypes are uint8, uint16, int16 (filters, arithmetic) and float32; float64 is computed in float32 by filters, sizes
  and warps.
- Bytes: HSV, HLS, Lab and Luv, cubic and Lanczos sizes, warps and maps by them, the bilateral filter and means over
  windows of an even number of pixels beyond 256 may differ by one level, since OpenCV rounds its vectors and their
  tails differently, and so may single pixels of warps by INTER_NEAREST and INTER_LINEAR, of sizes by
  INTER_AREA, of `addWeighted` and of `normalize`; linear sizes and smaller means do not differ. uint16 and int16: sizes
  and means by one. Luv and Lab back to BGR differ by more where a colour lies outside of BGR. float32 Lab and Luv are
  computed; OpenCV looks them up in a coarse table (up to 0.5 apart).
- Images of two channels: OpenCV reads warps and maps by INTER_LINEAR at 32nds of a pixel; here they are read exactly,
  as those of one, three and four channels are in both.
- `remap` and the warps with INTER_CUBIC, where a mirrored border is read farther outside than the image is wide, may
  choose another pixel, and so may INTER_NEAREST_EXACT at places that lie halfway between two pixels.
- `blur` of two white bytes is white; OpenCV's sum of them overflows, and gives black.
- Warps and maps of int16 are not OpenCV's, which reads such images at coarser places.
- `multiply` of uint16 saturates; OpenCV's product overflows at 2^31.
- LINE_AA is drawn like LINE_8. Edges of thick lines, filled polygons and ellipses may differ by a pixel.
- The numbers of connected areas may come in another order; the areas are the same. `minAreaRect` may name another
  side first.
- `approxPolyDP` keeps the promised distance, not always OpenCV's choice of points. `solve` eliminates whatever the
  flags.
- JPEG and PNG only; EXIF's orientation is not applied; gray from a coloured PNG may differ by one level (of 16 bits by
  five). `imread` and `imwrite` are not for tasks, which have no files.
- Not there: `Rodrigues` and `solvePnP` (camera geometry), writing of 4:2:2 images.
"""


def markdown() -> str:
    """Return docs/api-cv.md."""
    measured = measure("cv", "", ROUNDS)
    rows = [
        f"| {row['name']} | {row['size']} | {row['differs']:.3g} | {row['us']:,.0f} | {row['peer_us']:,.0f} "
        f"| {row['ratio']:.2f} |"
        for row in measured["rows"]
    ]
    names = [name for name in dir(cv) if callable(getattr(cv, name))]
    elsewhere = [name for name in names if not hasattr(cv2, name)]
    lines = [
        "# walle.cv",
        "",
        f"Written by `python -m benchmarks.apis_cv`, against {measured['peer']} on one thread.",
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
        "The greatest difference of the results, and CPU time of a call in µs: the median of rounds in which the two",
        f"take turns. Geometric mean of the ratios: {measured['geometric_mean']:.2f}.",
        "",
        "| function | size | differs by | walle.cv | OpenCV | ratio |",
        "| --- | --: | --: | --: | --: | --: |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
