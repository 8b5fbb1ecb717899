"""Pictures: decoded frames as upright BGR images.

Colours follow the frame's own matrix and range. A frame without a matrix has that of BT.709 from 1280 x 577 on and
that of BT.601 below, as players assume. High dynamic range is not mapped: its values are shown as they are coded.
"""

import array
import functools
from fractions import Fraction

import av
import numpy as np
from av.sidedata.sidedata import Type
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter

from apps.livestream.media.items import Image
from apps.livestream.media.limits import MediaLimits

_MAX_ASPECT = 16  # a pixel longer than this is damage, and is taken for a square one
# AVCOL_SPC_* (ITU-T H.273, MatrixCoefficients) to the matrices of swscale.
_MATRICES = {
    1: Colorspace.ITU709,
    4: Colorspace.FCC,
    5: Colorspace.ITU601,
    6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M,
    9: Colorspace.BT2020,
    10: Colorspace.BT2020,
}
_RGB = 0


class ImageConverter:
    """Conversion of decoded frames: colours, pixel aspect, rotation and size.

    The longer side of an image has at most `max_side` pixels; a smaller one is not enlarged, but for pixels that are
    not square, whose shorter side is stretched.
    """

    def __init__(self, max_side: int | None, limits: MediaLimits) -> None:
        self._max_side = max_side
        self._limits = limits
        self._reformatter = VideoReformatter()
        self._matrix: tuple[int, int, int, int] | None = None  # display matrix of the stream since its last key frame
        self._matrix_read = False

    def upright(self, frame: av.VideoFrame, aspect: Fraction) -> Image:
        """Return the image as a view: uint8 [h, w, 3], rows and columns of any stride.

        `aspect` is the width of a pixel over its height.

        Raises:
            av.error.FFmpegError, ValueError: the frame cannot be converted, or is larger than the limits allow.
        """
        width, height = output_size(frame.width, frame.height, aspect, self._max_side)
        if width * height > self._limits.pixels:
            raise ValueError(f"a picture of {width} x {height} pixels is larger than MediaLimits.pixels")
        matrix = None if frame.colorspace == _RGB else _MATRICES.get(frame.colorspace, _assumed_matrix(frame))
        converted = self._reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="bgr24",
            src_colorspace=matrix,
            interpolation=Interpolation.BILINEAR,
            threads=1,
        )
        plane = converted.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, : width * 3]
        if frame.key_frame or not self._matrix_read:
            self._matrix = _display_matrix(frame)
            self._matrix_read = True
        return turned(rows.reshape(height, width, 3), self._matrix)


@functools.lru_cache(maxsize=16)
def output_size(width: int, height: int, aspect: Fraction, max_side: int | None) -> tuple[int, int]:
    """Return the size of an image before rotation: square pixels, and at most `max_side` of them on a side."""
    across, down = Fraction(width), Fraction(height)
    if Fraction(1, _MAX_ASPECT) <= aspect <= _MAX_ASPECT:
        if aspect >= 1:
            across *= aspect
        else:
            down /= aspect
    longer = max(across, down)
    if max_side is not None and longer > max_side:
        across, down = across * max_side / longer, down * max_side / longer
    return max(1, round(across)), max(1, round(down))


def turned(image: Image, matrix: tuple[int, int, int, int] | None) -> Image:
    """Return a view of the image, turned and mirrored as a display matrix says (ISO/IEC 14496-12, 6.2.2).

    `matrix` is a, b, c, d: a point moves to (ax + cy, bx + dy). Angles between the right ones are taken to the nearest.
    """
    if matrix is None:
        return image
    a, b, c, d = matrix
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
    return image.transpose(1, 0, 2)[:: -1 if b < 0 else 1, :: -1 if c < 0 else 1]


def _display_matrix(frame: av.VideoFrame) -> tuple[int, int, int, int] | None:
    side_data = frame.side_data
    if Type.DISPLAYMATRIX not in side_data:
        return None
    values = array.array("i", bytes(side_data[Type.DISPLAYMATRIX]))
    if len(values) != 9:
        return None
    return values[0], values[1], values[3], values[4]


def _assumed_matrix(frame: av.VideoFrame) -> Colorspace:
    return Colorspace.ITU709 if frame.width >= 1280 or frame.height > 576 else Colorspace.ITU601
