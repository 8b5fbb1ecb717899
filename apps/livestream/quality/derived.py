"""Clips made from pictures and from parts of other clips, so that each is played as any other clip."""

import contextlib
from collections.abc import Generator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from apps.livestream.quality.labels import Clip
from walle.errors import ConfigError

_PICTURES = frozenset({".bmp", ".jpeg", ".jpg", ".png"})
_FRAMES_PER_SECOND = 4


def playable(clip: Clip, path: Path, folder: Path) -> Path:
    """Return a file that the app plays: the clip's own, or, of a picture or a part, one that is made in `folder`.

    What is made has 4 frames a second, in Matroska, lossless, without sound. A picture is shown for the clip's seconds;
    with a `zoom` its frames are cut towards its middle, each a little more, and scaled to its size.

    Raises:
        ConfigError: the file cannot be read, or the part is outside it.
    """
    is_picture = path.suffix.lower() in _PICTURES
    if not is_picture and clip.crop is None:
        return path
    try:
        with contextlib.closing(_frames(path)) as frames:
            images = _chosen(frames, clip, is_picture=is_picture)
    except av.error.FFmpegError as error:
        raise ConfigError(f"{path}: not a clip or picture that can be read: {error!r}") from error
    if clip.crop is not None:
        left, top, width, height = clip.crop
        images = [image[top : top + height, left : left + width] for image in images]
        if any(image.shape[:2] != (height, width) for image in images):
            raise ConfigError(f"{path}: the crop {list(clip.crop)} of clip {clip.name!r} reaches out of its frames")
    if len(images) != clip.seconds * _FRAMES_PER_SECOND:
        raise ConfigError(f"{path}: it ends before the {clip.seconds} seconds of clip {clip.name!r}")
    made = folder / f"{clip.name}.mkv"
    _write(images, made)
    return made


def _chosen(
    frames: Generator[tuple[float, npt.NDArray[np.uint8]]], clip: Clip, *, is_picture: bool
) -> list[npt.NDArray[np.uint8]]:
    count = clip.seconds * _FRAMES_PER_SECOND
    if is_picture:
        shares = [1 - (1 - clip.zoom) * number / max(count - 1, 1) for number in range(count)]
        return [_zoomed(image, share) for image in [image for _, image in frames][:1] for share in shares]
    found: list[npt.NDArray[np.uint8]] = []
    for time_s, image in frames:
        if len(found) == count:
            break
        if time_s >= clip.start + len(found) / _FRAMES_PER_SECOND:
            found.append(image)
    return found


def _zoomed(image: npt.NDArray[np.uint8], share: float) -> npt.NDArray[np.uint8]:
    """Return the middle of an image, `share` of its width and height, at the size of the image."""
    if share == 1:
        return image
    height, width = image.shape[:2]
    tall, wide = round(height * share), round(width * share)
    top, left = (height - tall) // 2, (width - wide) // 2
    middle = np.ascontiguousarray(image[top : top + tall, left : left + wide])
    frame = av.VideoFrame.from_ndarray(middle, format="bgr24").reformat(width, height, interpolation="BILINEAR")
    return np.asarray(frame.to_ndarray(), np.uint8)


def _frames(path: Path) -> Generator[tuple[float, npt.NDArray[np.uint8]]]:
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            time_s = 0.0 if frame.pts is None or frame.time_base is None else float(frame.pts * frame.time_base)
            yield (time_s if number else 0.0), np.asarray(frame.to_ndarray(format="bgr24"), np.uint8)


def _write(images: list[npt.NDArray[np.uint8]], path: Path) -> None:
    with av.open(str(path), "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=_FRAMES_PER_SECOND)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "bgr0"
        for number, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24").reformat(format="bgr0")
            frame.pts, frame.time_base = number, Fraction(1, _FRAMES_PER_SECOND)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
