"""Pictures as clips of one second, so that labelled pictures are played as any other clip."""

from fractions import Fraction
from pathlib import Path

import av

from walle.errors import ConfigError

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png"})


def write_still(picture: Path, clip: Path, *, frames_per_second: int = 4) -> None:
    """Write a Matroska file of one second that shows a picture, lossless, at its size.

    Raises:
        ConfigError: the picture cannot be read.
    """
    try:
        with av.open(str(picture)) as container:
            image = next(container.decode(video=0)).to_ndarray(format="bgr24")
    except (av.error.FFmpegError, StopIteration) as error:
        raise ConfigError(f"{picture}: not a picture that can be read: {error!r}") from error
    with av.open(str(clip), "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=frames_per_second)
        stream.width, stream.height = image.shape[1], image.shape[0]
        stream.pix_fmt = "bgr0"
        for number in range(frames_per_second):
            frame = av.VideoFrame.from_ndarray(image, format="bgr24").reformat(format="bgr0")
            frame.pts, frame.time_base = number, Fraction(1, frames_per_second)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
