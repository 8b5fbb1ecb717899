"""Clips and thumbnails of files."""

import asyncio
import concurrent.futures
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import av.error
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace
from av.video.stream import VideoStream

from apps.livestream.media.address import Address
from apps.livestream.media.decoder import Decoder, DecoderSettings
from apps.livestream.media.errors import ClipError
from apps.livestream.media.items import Frame, Image, Item, Samples, Sound
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.report import SourceReport
from apps.livestream.media.sampling import FrameSampler
from apps.livestream.media.sound import SoundFormat
from apps.livestream.media.stop import StopSignal
from walle import cv

_VIDEO_BASE = Fraction(1, 1000)
_SOUND_RATE = 48_000
# Encoders of video by preference, that of sound and its samples in a frame, by the file's suffix. PyAV's wheels have
# x264; another build of FFmpeg may lack it.
H264_ENCODERS = ("libx264", "libopenh264", "mpeg4")
_ENCODERS: dict[str, tuple[tuple[str, ...], str, int]] = {
    ".mp4": (H264_ENCODERS, "aac", 1024),
    ".mkv": (H264_ENCODERS, "aac", 1024),
    ".webm": (("libvpx", "libvpx-vp9"), "libopus", 960),
}
_HD_HEIGHT = 576  # a larger picture has the colours of BT.709, as `image.py` takes it


async def clip(
    where: str | os.PathLike[str],
    start_ms: int,
    end_ms: int,
    out: str | os.PathLike[str],
    *,
    max_side: int | None = None,
    limits: MediaLimits | None = None,
) -> None:
    """Write the part of a file from `start_ms` up to `end_ms` to `out`, coded again: .mp4, .mkv or .webm.

    The clip has each frame of that time, upright, and the sound in stereo; its time 0 is `start_ms`. `out` appears
    when the clip is whole; after an error or a cancellation there is none.

    Raises:
        MediaError: the source cannot be read. ClipError: it has nothing at that time, or `out` cannot be written.
    """
    source, target = Path(where), Path(out)
    if target.suffix.lower() not in _ENCODERS:
        raise ClipError(str(out), f"clips are written as {', '.join(_ENCODERS)}; give such a name")
    if not 0 <= start_ms < end_ms:
        raise ClipError(str(where), f"from {start_ms} ms to {end_ms} ms has no length; its end must be after its start")
    encoders, sound_encoder, samples = _ENCODERS[target.suffix.lower()]
    settings = DecoderSettings(
        sound=SoundFormat(chunk=samples, channels=2, rate=_SOUND_RATE),
        max_side=max_side,
        limits=limits or MediaLimits(),
        start_ms=start_ms,
    )
    encoder = next(name for name in encoders if name in av.codecs_available)

    def write(stop: StopSignal) -> None:
        partial = target.with_name(f".{target.stem}.partial{target.suffix}")
        try:
            with _Reading(source, settings, stop) as decoder, av.open(str(partial), "w") as container:
                writer = _ClipWriter(decoder, container, encoder, sound_encoder, start_ms, end_ms)
                if not writer.write() and not stop.is_set():
                    raise ClipError(str(where), f"it has nothing from {start_ms / 1000:g} s to {end_ms / 1000:g} s")
            if not stop.is_set():
                partial.replace(target)
        except (av.error.FFmpegError, OSError) as error:
            raise ClipError(str(out), f"the clip cannot be written ({error})") from error
        finally:
            partial.unlink(missing_ok=True)

    await _in_thread(write)


async def thumbnail(
    where: str | os.PathLike[str],
    at_ms: int,
    *,
    max_side: int = 320,
    quality: int = 85,
    limits: MediaLimits | None = None,
) -> bytes:
    """Return a JPEG file of the frame that a file shows at `at_ms`; `quality` is 1 (smallest) to 100.

    Raises:
        MediaError: the file cannot be read. ClipError: it shows nothing at that time.
    """
    settings = DecoderSettings(max_side=max_side, limits=limits or MediaLimits(), start_ms=at_ms)
    source = Path(where)

    def make(stop: StopSignal) -> bytes:
        shown: Frame | None = None
        with _Reading(source, settings, stop) as decoder:
            while (item := decoder.next()) is not None:
                if item.pts_ms > at_ms:
                    break
                if isinstance(item, Frame):
                    shown = item
            ended_ms = decoder.end_ns // 1_000_000
        if shown is None or (item is None and at_ms >= ended_ms):
            raise ClipError(str(where), f"it shows nothing at {at_ms / 1000:g} s; it ends at {ended_ms / 1000:g} s")
        return encode_jpeg(shown.image, quality)

    return await _in_thread(make)


def encode_jpeg(image: Image, quality: int = 85) -> bytes:
    """Return a JPEG file of the image, uint8 [h, w, 3] BGR; `quality` is 1 (smallest) to 100."""
    done, data = cv.imencode(".jpg", image, [cv.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return bytes(data)


class _Reading:
    """A decoder of a file, as a context. A path is never taken for an address."""

    def __init__(self, path: Path, settings: DecoderSettings, stop: StopSignal) -> None:
        report = SourceReport(where=str(path))
        sampler = FrameSampler[VideoFrame](None)
        self._decoder = Decoder(Address.parse(path), settings, report, stop, sampler=sampler)

    def __enter__(self) -> Decoder:
        return self._decoder

    def __exit__(self, *_: object) -> None:
        self._decoder.close()


async def _in_thread[T](function: Callable[[StopSignal], T]) -> T:
    """Return what the function returns in a thread; a cancellation stops it and waits for its end."""
    stop = StopSignal()
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="clip") as thread:
        future = asyncio.get_running_loop().run_in_executor(thread, function, stop)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.gather(future, return_exceptions=True)
            raise


class _ClipWriter:
    """Encoding of one clip into an open container."""

    def __init__(
        self,
        decoder: Decoder,
        container: OutputContainer,
        encoder: str,
        sound_encoder: str,
        start_ms: int,
        end_ms: int,
    ) -> None:
        self._decoder = decoder
        self._container = container
        self._encoder = encoder
        self._start_ms, self._end_ms = start_ms, end_ms
        self._video: VideoStream | None = None  # made for the first frame, whose size it has
        self._sound: AudioStream | None = None
        if decoder.media.sound is not None:
            self._sound = container.add_stream(sound_encoder, rate=_SOUND_RATE, layout="stereo")  # type: ignore[assignment]

    def write(self) -> bool:
        """Write the whole clip; return False if the source has nothing at its time."""
        waiting: list[Item] = []  # sound before the first frame: a container's streams are made before its first packet
        written = False
        media = self._decoder.media
        kinds: list[tuple[type[Item], object]] = [(Frame, media.video), (Sound, media.sound)]
        open_tracks = {kind for kind, stream in kinds if stream is not None}
        while open_tracks and (item := self._decoder.next()) is not None:
            if item.pts_ms >= self._end_ms:
                open_tracks.discard(type(item))
                continue
            if item.pts_ms < self._start_ms or type(item) not in open_tracks:
                continue
            written = True
            if isinstance(item, Frame) and self._video is None:
                self._begin_video(item.image)
            waiting.append(item)
            if self._video is not None or media.video is None:
                for ready in waiting:
                    self._encode(ready)
                waiting.clear()
        for ready in waiting:
            self._encode(ready)
        if written:
            for stream in (self._video, self._sound):
                if stream is not None:
                    self._container.mux(stream.encode(None))
        return written

    def _begin_video(self, image: Image) -> None:
        assert self._decoder.media.video is not None
        rate = self._decoder.media.video.guessed_rate or 25
        height, width = image.shape[:2]
        stream = self._container.add_stream(self._encoder, rate=rate)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = max(2, width & ~1), max(2, height & ~1)  # chroma of 4:2:0 has half the size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = _VIDEO_BASE
        stream.codec_context.colorspace = 1 if height > _HD_HEIGHT else 6
        stream.codec_context.color_range = ColorRange.MPEG
        self._video = stream

    def _encode(self, item: Item) -> None:
        if isinstance(item, Frame):
            self._encode_frame(item.image, item.pts_ms - self._start_ms)
        else:
            self._encode_sound(item.samples, item.pts_ms - self._start_ms)

    def _encode_frame(self, image: Image, at_ms: int) -> None:
        assert self._video is not None
        frame = VideoFrame.from_ndarray(image, format="bgr24").reformat(
            width=self._video.width,
            height=self._video.height,
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709 if image.shape[0] > _HD_HEIGHT else Colorspace.ITU601,
            dst_color_range=ColorRange.MPEG,
            threads=1,
        )
        frame.pts, frame.time_base = at_ms, _VIDEO_BASE
        self._container.mux(self._video.encode(frame))

    def _encode_sound(self, samples: Samples, at_ms: int) -> None:
        assert self._sound is not None
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout="stereo")
        frame.sample_rate = _SOUND_RATE
        frame.pts = at_ms * _SOUND_RATE // 1000
        frame.time_base = Fraction(1, _SOUND_RATE)
        self._container.mux(self._sound.encode(frame))
