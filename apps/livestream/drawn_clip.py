"""The demo's own clip: a drawn presenter talks and shows two articles, with sound. `write_clip` makes it in seconds.

The parts are those of PARTS: music before an empty room, then the presenter, who talks, and holds an article in a drawn
hand for some seconds. Nothing in it is from a film, so the demo needs no file.
"""

import dataclasses
import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from apps.livestream import drawing
from apps.livestream.media.clip import H264_ENCODERS
from apps.livestream.sounds import RATE, Samples, babble, music
from walle import cv

WIDTH, HEIGHT = 640, 360
FRAMES_PER_SECOND = 12
SEED = 3

type Image = NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Seconds of the clip in which the same is seen and heard."""

    seconds: int
    presenter: bool = False
    talks: bool = False
    article: str = ""  # a name of drawing.ARTICLES


PARTS = (
    Part(3),
    Part(4, presenter=True, talks=True),
    Part(5, presenter=True, talks=True, article="bottle"),
    Part(3, presenter=True),
    Part(4, presenter=True, talks=True, article="book"),
    Part(3),
)
SECONDS = sum(part.seconds for part in PARTS)


def shown_seconds() -> list[int]:
    """Return the seconds in which an article is presented."""
    found: list[int] = []
    start = 0
    for part in PARTS:
        if part.article:
            found += range(start, start + part.seconds)
        start += part.seconds
    return found


class Stage:
    """The clip's room and what is in it. Each frame is drawn for its own time, so that everything moves a little."""

    def __init__(self, seed: int = SEED) -> None:
        self._room = _room()
        self._seed = seed
        self._presenters = [
            drawing.presenter(420, np.random.default_rng(seed), mouth=mouth).image for mouth in (0.0, 0.4, 0.9)
        ]
        self._articles = {
            name: drawing.ARTICLES[name](190, np.random.default_rng(seed + 1)).image for name in drawing.ARTICLES
        }
        self._hand = drawing.hand(230, np.random.default_rng(seed + 2)).image

    def frame(self, part: Part, time_s: float, part_s: float) -> Image:
        """Return the frame of a part, `part_s` after its start, uint8 [360, 640, 3] in BGR."""
        image = self._room.copy()
        sway = round(6 * math.sin(1.3 * time_s))
        if part.presenter:
            mouth = round(1 + math.sin(17 * time_s)) if part.talks else 0
            _put(image, self._presenters[mouth], 250 + sway, 240)
        if part.article:
            rise = round(120 * max(0.0, 1 - 3 * part_s))  # the article is lifted into the picture
            x, y = 440 - sway + round(10 * math.sin(2 * time_s)), 190 + rise + round(6 * math.cos(2.3 * time_s))
            _put(image, self._articles[part.article], x, y)
            _put(image, self._hand, x, y + 95)
        return image


def _room() -> Image:
    image = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    image[:] = np.linspace(205, 165, HEIGHT)[:, None, None] * np.array([0.95, 0.98, 1.0])
    image[290:] = (90, 115, 140)
    made: Image = np.asarray(cv.rectangle(image, (40, 40), (150, 150), (150, 130, 100), -1))
    made = np.asarray(cv.rectangle(made, (50, 50), (140, 140), (225, 205, 170), -1))
    return np.ascontiguousarray(np.asarray(cv.GaussianBlur(made, (3, 3), 0)))


def _put(image: Image, drawn: Image, x: int, y: int) -> None:
    """Lay a drawing over the image, its middle at x, y."""
    size = drawn.shape[0]
    left, top = x - size // 2, y - size // 2
    x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + size, WIDTH), min(top + size, HEIGHT)
    if x0 >= x1 or y0 >= y1:
        return
    part = drawn[y0 - top : y1 - top, x0 - left : x1 - left].astype(np.float32)
    weight = part[..., 3:] / 255
    image[y0:y1, x0:x1] = image[y0:y1, x0:x1] * (1 - weight) + part[..., :3] * weight + 0.5


def sound(seed: int = SEED) -> Samples:
    """Return the clip's sound, float32 [n] at 16 kHz: a voice where the presenter talks, music where nobody does."""
    rng = np.random.default_rng(seed)
    voice, played = babble(SECONDS, rng), music(SECONDS, rng)
    parts, start = [], 0
    for part in PARTS:
        stop = start + part.seconds * RATE
        source = voice if part.talks else np.zeros_like(voice) if part.presenter else 0.5 * played
        parts.append(source[start:stop])
        start = stop
    return np.concatenate(parts)


def write_clip(path: Path, seed: int = SEED) -> Path:
    """Write the clip as an MP4 with H.264 and AAC; return its path.

    Raises:
        OSError: it cannot be written.
    """
    stage, samples = Stage(seed), sound(seed)
    encoder = next(name for name in H264_ENCODERS if name in av.codecs_available)
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        video = container.add_stream(encoder, rate=FRAMES_PER_SECOND)
        assert isinstance(video, av.VideoStream)  # the encoder is one of video
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        video.codec_context.time_base = Fraction(1, FRAMES_PER_SECOND)
        audio = container.add_stream("aac", rate=RATE, layout="mono")
        assert isinstance(audio, av.AudioStream)
        number = start_s = 0
        for part in PARTS:
            for k in range(part.seconds * FRAMES_PER_SECOND):
                image = stage.frame(part, start_s + k / FRAMES_PER_SECOND, k / FRAMES_PER_SECOND)
                frame = av.VideoFrame.from_ndarray(image, format="bgr24")
                frame.pts, frame.time_base = number, Fraction(1, FRAMES_PER_SECOND)
                container.mux(video.encode(frame))
                number += 1
            start_s += part.seconds
            chunk = np.ascontiguousarray(samples[(start_s - part.seconds) * RATE : start_s * RATE])
            heard = av.AudioFrame.from_ndarray(chunk[None], format="fltp", layout="mono")
            heard.sample_rate, heard.pts = RATE, (start_s - part.seconds) * RATE
            heard.time_base = Fraction(1, RATE)
            container.mux(audio.encode(heard))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
    return path
