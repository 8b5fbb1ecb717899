"""The sound of a source: mono or stereo, of one rate, without gaps, in chunks of one length.

Down-mix: the left side gets front left with weight 1, centre, left surround and back left with the square root of a
half, as in the stereo down-mix of ITU-R BS.775-3; the right side likewise, and the low-frequency channel is left out.
Mono is the sum of both sides. The weights of a side are divided by their sum, so that nothing clips. Channels of an
unknown layout have equal weights; a side without channels gets mono.
"""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

import av
import av.error
import numpy as np
from av.audio.stream import AudioStream

from apps.livestream.media.items import SAMPLE_RATE, Allocate, Samples, Sound, fill
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.packets import BEHIND, AnyPacket, Behind, PacketReader
from apps.livestream.media.report import Gap, SourceReport
from apps.livestream.media.sampling import SECOND

# By which a timestamp may differ from the samples before it: containers round to milliseconds, cameras drift.
_TOLERANCE_NS = SECOND * 30 // 1000
_HALF = math.sqrt(0.5)
_SILENT = (0.0, 0.0)
# Weights of a channel in the left and the right side, by FFmpeg's names of places.
_SIDES = {"FL": (1.0, 0.0), "FR": (0.0, 1.0), "FC": (_HALF, _HALF), "LFE": _SILENT, "LFE2": _SILENT}
_SIDES |= dict.fromkeys(("SL", "BL", "FLC", "TFL", "TBL", "WL", "SDL"), (_HALF, 0.0))
_SIDES |= dict.fromkeys(("SR", "BR", "FRC", "TFR", "TBR", "WR", "SDR"), (0.0, _HALF))
_ELSEWHERE = (0.5, 0.5)  # back centre and further places in the middle
_SCALES = {"u8": 1 / 128, "s16": 1 / 32768, "s32": 1 / 2**31, "s64": 1 / 2**63, "flt": 1.0, "dbl": 1.0}
_MAX_PLANES = 8  # PyAV 19.0 cannot read a frame of that many or more: "plane index 8 out of range"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundFormat:
    """Delivered sound: `chunk` samples of each channel in an item, 1 or 2 channels, samples per second."""

    chunk: int = SAMPLE_RATE // 10
    channels: int = 1
    rate: int = SAMPLE_RATE


class SoundTrack:
    """Chunks of a sound stream. Gaps are filled with silence and overlaps trimmed, so that times follow from counts.

    A gap longer than `MediaLimits.silence_s`, or a change of the sample rate, ends a segment: its last chunk is filled
    with zeros, and the next begins at its own time.
    """

    def __init__(
        self,
        stream: AudioStream,
        reader: PacketReader,
        report: SourceReport,
        sound_format: SoundFormat,
        allocate: Allocate | None,
        limits: MediaLimits,
        shift_ns: int,
    ) -> None:
        self._format = sound_format
        self._stream = stream
        self._reader = reader
        self._report = report
        self._account = report.sound
        self._chunk = sound_format.chunk
        self._allocate = allocate
        self._silence_ns = int(limits.silence_s * SECOND)
        self._max_rate = limits.sample_rate
        self._shift_ns = shift_ns
        self._rate = 0  # rate of the segment; 0 before the first frame
        self._start_ns = 0  # start of the segment
        self._fed = 0  # samples of the segment, at its rate
        self._resampler: av.AudioResampler | None = None
        self._converted: list[Samples] = []  # each [channels, n]
        self._waiting = 0  # samples in `_converted`
        self._given = 0  # samples of the segment in delivered chunks
        self._chunks: list[Sound] = []  # whole, in reverse order
        self._ended = False

    def next(self) -> Sound | Behind | None:
        """Return the next chunk, BEHIND if there is none for now, or None at the end."""
        while True:
            if self._chunks:
                return self._chunks.pop()
            if self._ended:
                return None
            packet = self._reader.next(self._stream.index)
            if packet is BEHIND:
                return BEHIND
            chunks: list[Sound] = []
            for frame in self._decode(packet):
                self._take(frame, chunks)
            if packet is None:
                self._end_segment(chunks)
                self._ended = True
            self._chunks = chunks[::-1]

    def close(self) -> None:
        """Count what was decoded and is not delivered."""
        account = self._account
        account.undelivered += sum(chunk.samples.shape[-1] for chunk in self._chunks) + self._waiting
        if self._rate:  # what the resampler has not given yet
            due = self._converted_count()
            given = self._given + self._waiting
            account.unconverted += max(0, due - given)
            account.due += given
        self._rate = self._waiting = self._fed = self._given = 0
        self._chunks, self._converted = [], []
        self._resampler = None
        self._ended = True

    def _decode(self, packet: AnyPacket | None) -> Sequence[av.AudioFrame]:
        try:
            return self._stream.codec_context.decode(packet)
        except (av.error.FFmpegError, ValueError):
            self._report.damaged_packets += 1
            return ()

    def _take(self, frame: av.AudioFrame, chunks: list[Sound]) -> None:
        rate = frame.sample_rate
        if not 0 < rate <= self._max_rate or frame.samples <= 0:  # a codec may change its rate on the way
            self._report.damaged_packets += 1
            return
        samples = mixed(frame, self._format.channels)
        self._account.decoded += samples.shape[1]
        if rate != self._rate and self._rate:
            self._end_segment(chunks)
        if not self._rate:
            self._begin_segment(rate, self._time_ns(frame))
        late_ns = self._time_ns(frame) - self._position_ns()
        if late_ns > max(self._silence_ns, _TOLERANCE_NS):
            self._report.add_gap(
                Gap(self._position_ns() // 1_000_000, self._time_ns(frame) // 1_000_000, "no sound in the source")
            )
            self._end_segment(chunks)
            self._begin_segment(rate, self._time_ns(frame))
        elif late_ns > _TOLERANCE_NS:
            missing = late_ns * rate // SECOND
            self._report.silences += 1
            self._account.silence += missing
            self._feed(self._zeros(missing), chunks)
        elif late_ns < -_TOLERANCE_NS:
            surplus = min(samples.shape[1], -late_ns * rate // SECOND)
            self._report.overlaps += 1
            self._account.trimmed += surplus
            samples = samples[:, surplus:]
        if samples.shape[1]:
            self._feed(samples, chunks)

    def _time_ns(self, frame: av.AudioFrame) -> int:
        if frame.pts is None:
            self._report.missing_timestamps += 1
            return self._position_ns() if self._rate else self._shift_ns
        base = frame.time_base
        at_ns = frame.pts * base.numerator * SECOND // base.denominator
        return at_ns - (self._reader.start_ns or 0) + self._shift_ns

    def _position_ns(self) -> int:
        return self._start_ns + self._fed * SECOND // self._rate

    def _begin_segment(self, rate: int, at_ns: int) -> None:
        self._account.segments += 1
        self._rate = rate
        self._start_ns = at_ns
        self._fed = self._given = 0
        self._resampler = None
        if rate != self._format.rate:
            self._resampler = av.AudioResampler(format="fltp", layout=self._layout, rate=self._format.rate, threads=1)

    @property
    def _layout(self) -> str:
        return "mono" if self._format.channels == 1 else "stereo"

    def _zeros(self, count: int) -> Samples:
        return np.zeros((self._format.channels, count), np.float32)

    def _feed(self, samples: Samples, chunks: list[Sound]) -> None:
        if self._resampler is None:
            self._fed += samples.shape[1]
            self._add(samples, chunks)
            return
        for at in range(0, samples.shape[1], self._rate):  # long silence in pieces
            piece = samples[:, at : at + self._rate]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), format="fltp", layout=self._layout)
            frame.sample_rate = self._rate
            frame.pts = self._fed
            frame.time_base = Fraction(1, self._rate)
            self._fed += piece.shape[1]
            for converted in self._resampler.resample(frame):
                self._add(np.asarray(converted.to_ndarray(), np.float32), chunks)

    def _end_segment(self, chunks: list[Sound]) -> None:
        """Convert what the resampler still has, and fill the last chunk with zeros."""
        if not self._rate:
            return
        if self._resampler is not None:
            for converted in self._resampler.resample(None):
                self._add(np.asarray(converted.to_ndarray(), np.float32), chunks)
        self._account.due += self._converted_count()
        if self._waiting:
            padding = self._chunk - self._waiting
            self._account.padding += padding
            self._converted.append(self._zeros(padding))
            self._waiting += padding
            self._cut(chunks)
        self._rate = 0

    def _add(self, samples: Samples, chunks: list[Sound]) -> None:
        self._account.converted += samples.shape[1]
        self._converted.append(samples)
        self._waiting += samples.shape[1]
        if self._waiting >= self._chunk:
            self._cut(chunks)

    def _cut(self, chunks: list[Sound]) -> None:
        """Move whole chunks from the converted samples to `chunks`."""
        samples = np.concatenate(self._converted, axis=1)
        whole = samples.shape[1] // self._chunk * self._chunk
        for at in range(0, whole, self._chunk):
            time_ns = self._start_ns + self._given * SECOND // self._format.rate
            piece = samples[:, at : at + self._chunk]
            buffer = fill(self._allocate, piece[0] if self._format.channels == 1 else piece)
            chunks.append(Sound((time_ns + 500_000) // 1_000_000, buffer))
            self._given += self._chunk
        self._converted = [samples[:, whole:]]
        self._waiting = samples.shape[1] - whole

    def _converted_count(self) -> int:
        """Return how many delivered samples those of the segment are, rounded up."""
        return -(-self._fed * self._format.rate // self._rate)


def mixed(frame: av.AudioFrame, channels: int) -> Samples:
    """Return a frame's samples as float32 [channels, n], 1 or 2 channels; values that are not numbers are 0."""
    count = frame.layout.nb_channels
    if frame.format.is_planar and count >= _MAX_PLANES:
        (frame,) = av.AudioResampler(format=frame.format.packed, threads=1).resample(frame)
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, count).T
    kind = frame.format.packed.name
    samples = values.astype(np.float32)
    if kind == "u8":
        samples -= 128
    if _SCALES[kind] != 1:
        samples *= np.float32(_SCALES[kind])
    if kind in {"flt", "dbl"} and not np.isfinite(samples).all():
        samples = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)
    if count == channels:
        return samples
    weights = _weights([channel.name for channel in frame.layout.channels], channels)
    combined: Samples = np.einsum("sc,cn->sn", weights, samples)
    return combined


def _weights(places: Sequence[str], channels: int) -> Samples:
    """Return the weight of each place in each delivered channel: [channels, places], rows that sum to 1."""
    if "FL" in places or "FC" in places:
        sides = np.array([_SIDES.get(place, _ELSEWHERE) for place in places], np.float32).T
    else:
        sides = np.ones((2, len(places)), np.float32)
    both = sides.sum(axis=0, keepdims=True)
    # A side without channels has those of the other.
    sides = both if channels == 1 else np.where(sides.any(axis=1, keepdims=True), sides, both)
    return sides / sides.sum(axis=1, keepdims=True)
