"""Media files that the tests make: frames that carry their number, tones, and every container."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from apps.livestream.media import ConnectionLostError, Frame, Item, Sound, Source, SourceReport, open_source

DATA = Path(__file__).parents[3].parent / "shared/data"
BITS = 8
CELL = 16


@dataclasses.dataclass(kw_only=True)
class Movie:
    """A file to make. Frame n shows the bits of n as `BITS` cells of black and white."""

    seconds: float = 2.0
    rate: int = 10  # frames per second; 0 for none
    size: tuple[int, int] = (CELL * BITS, 32)
    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    times_ms: Sequence[int] | None = None  # times of the frames, in place of `seconds` and `rate`
    rotation: int = 0
    aspect: Fraction | None = None
    sound_rate: int = 48_000  # 0 for none
    layout: str = "stereo"
    sound_codec: str = "aac"
    tone_hz: float = 440.0
    sound_ms: Sequence[tuple[int, int]] | None = None  # (time, length) of the pieces of sound
    audio: npt.NDArray[np.float32] | None = None  # [channels, n], in place of the tone
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    gop: int = 10

    def write(self, path: Path) -> Path:
        container: Any
        with av.open(str(path), "w", options=self.options) as container:
            video = self._add_video(container) if self.rate else None
            sound = None
            if self.sound_rate:
                sound = container.add_stream(self.sound_codec, rate=self.sound_rate, layout=self.layout)
                sound.codec_context.time_base = Fraction(1, self.sound_rate)
            container.start_encoding()
            packets = []
            if video is not None:
                for at_ms, frame in self.frames():
                    frame.pts, frame.time_base = at_ms, Fraction(1, 1000)
                    packets += [(at_ms / 1000, packet) for packet in video.encode(frame)]
                packets += [(self.length_ms / 1000, packet) for packet in video.encode(None)]
            if sound is not None:
                for at_s, piece in self._sounds(sound):
                    packets += [(at_s, packet) for packet in sound.encode(piece)]
                packets += [(self.length_ms / 1000, packet) for packet in sound.encode(None)]
            for _, packet in sorted(packets, key=lambda pair: pair[0]):
                container.mux(packet)
        return path

    @property
    def length_ms(self) -> int:
        if self.times_ms is not None:
            return self.times_ms[-1] + 100
        return round(self.seconds * 1000)

    @property
    def frame_times_ms(self) -> list[int]:
        if self.times_ms is not None:
            return list(self.times_ms)
        return [round(number * 1000 / self.rate) for number in range(round(self.seconds * self.rate))]

    def frames(self) -> list[tuple[int, av.VideoFrame]]:
        found = []
        for number, at_ms in enumerate(self.frame_times_ms):
            frame = av.VideoFrame.from_ndarray(numbered(number, self.size), format="bgr24")
            found.append((at_ms, frame.reformat(format=self.pix_fmt)))
        return found

    def _add_video(self, container: Any) -> Any:
        video = container.add_stream(self.codec, rate=self.rate)
        video.width, video.height = self.size
        video.pix_fmt = self.pix_fmt
        video.codec_context.time_base = Fraction(1, 1000)
        video.codec_context.gop_size = self.gop
        if self.aspect is not None:
            video.codec_context.sample_aspect_ratio = self.aspect
        if self.rotation:
            video.set_display_rotation(self.rotation)
        return video

    def samples(self) -> npt.NDArray[np.float32]:
        if self.audio is not None:
            return self.audio
        channels = av.AudioLayout(self.layout).nb_channels
        times = np.arange(self.length_ms * self.sound_rate // 1000) / self.sound_rate
        return np.tile(0.5 * np.sin(2 * np.pi * self.tone_hz * times), (channels, 1)).astype(np.float32)

    def _sounds(self, stream: Any) -> list[tuple[float, av.AudioFrame]]:
        samples = self.samples()
        step = stream.codec_context.frame_size or 1024
        pieces = [(0, samples.shape[1])]
        if self.sound_ms is not None:
            pieces = [
                (start_ms * self.sound_rate // 1000, (start_ms + length_ms) * self.sound_rate // 1000)
                for start_ms, length_ms in self.sound_ms
            ]
        kind = stream.codec_context.format.name
        found = []
        for first, last in pieces:
            for at in range(first, last, step):
                piece = samples[:, at : min(at + step, last)]
                if piece.shape[1] < step and stream.codec_context.frame_size:
                    piece = np.pad(piece, ((0, 0), (0, step - piece.shape[1])))
                found.append((at / self.sound_rate, audio_frame(piece, kind, self.layout, self.sound_rate, at)))
        return found


def audio_frame(samples: npt.NDArray[np.float32], kind: str, layout: str, rate: int, at: int) -> av.AudioFrame:
    values: npt.NDArray[Any] = samples
    if kind.startswith("s16"):
        values = np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)
    if not kind.endswith("p"):
        values = values.T.reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(values), format=kind, layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
    return frame


def numbered(number: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return a BGR picture whose upper rows have the bits of `number`, the lowest at the left; below it is grey."""
    width, height = size
    image = np.full((height, width, 3), 128, np.uint8)
    for bit in range(BITS):
        image[: height // 2, bit * CELL : (bit + 1) * CELL] = 235 if number >> bit & 1 else 20
    return image


def number_of(image: Any) -> int:
    """Return the number that a picture of `numbered`, unscaled and upright, shows."""
    row = np.asarray(image)[CELL // 2, :, 1]
    return sum((int(row[bit * CELL + CELL // 2]) > 128) << bit for bit in range(BITS))


def write_beginning(source: Path, target: Path, *, video_s: float, sound_s: float) -> Path:
    """Write the first seconds of a file with the same packets: enough for tests of decisions."""
    whole: Any
    part: Any
    with av.open(str(source)) as whole, av.open(str(target), "w") as part:
        limits = {whole.streams.best("video"): video_s, whole.streams.best("audio"): sound_s}
        streams = {stream: part.add_stream_from_template(stream) for stream in limits}
        for packet in whole.demux(list(limits)):
            if packet.pts is not None and packet.pts * packet.time_base < limits[packet.stream]:
                packet.stream = streams[packet.stream]
                part.mux(packet)
    return target


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, for at most 20 seconds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a source tells no one what it does in between
            await asyncio.sleep(0.01)


async def read(where: Path | str, **settings: Any) -> tuple[list[Item], SourceReport]:
    """Return all items of a source and its report, whose account adds up."""
    async with open_source(where, **settings) as source:
        items = [item async for item in source]
    assert source.report.balanced, source.report
    return items, source.report


async def read_until_lost(source: Source) -> tuple[list[Item], ConnectionLostError]:
    """Return the items of an open source up to the loss of its connection, which must come, and that."""
    items: list[Item] = []
    try:
        async for item in source:
            items.append(item)  # noqa: PERF401 - an error must not lose those before it
    except ConnectionLostError as error:
        return items, error
    raise AssertionError(f"the source ended: {source.report}")


def frames_of(items: Sequence[Item]) -> list[Frame]:
    return [item for item in items if isinstance(item, Frame)]


def sound_of(items: Sequence[Item]) -> list[Sound]:
    return [item for item in items if isinstance(item, Sound)]


def joined(items: Sequence[Item]) -> npt.NDArray[np.float32]:
    """Return the sound of all chunks as one array."""
    chunks = [chunk.samples for chunk in sound_of(items)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)


def same(left: Sequence[Item], right: Sequence[Item]) -> bool:
    """Return whether two lists of items are equal to the bit."""
    return len(left) == len(right) and all(
        type(one) is type(other) and one.pts_ms == other.pts_ms and np.array_equal(_values(one), _values(other))
        for one, other in zip(left, right, strict=True)
    )


def _values(item: Item) -> Any:
    return item.image if isinstance(item, Frame) else item.samples


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
