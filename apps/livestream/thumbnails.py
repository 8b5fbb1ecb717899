"""Small JPEGs of frames for the page."""

from typing import Any

from walle import cv
from walle import np as wnp

_SIDE = 480
_QUALITY = 80


def jpeg(image: Any) -> bytes:
    """Return an image, uint8 [height, width, 3] in BGR, as a JPEG whose longer side is at most 480 pixels."""
    pixels = wnp.asarray(image)
    height, width = pixels.shape[:2]
    scale = min(1.0, _SIDE / max(height, width))
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        pixels = cv.resize(pixels, size, interpolation=cv.INTER_AREA)
    _, data = cv.imencode(".jpg", pixels, [cv.IMWRITE_JPEG_QUALITY, _QUALITY])
    return memoryview(data).tobytes()
