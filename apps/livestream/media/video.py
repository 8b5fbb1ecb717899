"""The video of a source: decoded, sampled and converted frames."""

import collections
from collections.abc import Sequence
from fractions import Fraction

import av
import av.error
from av.video.stream import VideoStream

from apps.livestream.media.image import ImageConverter
from apps.livestream.media.items import Allocate, Frame, fill
from apps.livestream.media.media import to_ns
from apps.livestream.media.packets import BEHIND, AnyPacket, Behind, PacketReader
from apps.livestream.media.report import SourceReport
from apps.livestream.media.sampling import SECOND, FrameSampler


class VideoTrack:
    """Frames of a video stream in the order of their presentation.

    `shift_ns` is added to each time: the beginning of this container on the source's own timeline.
    """

    def __init__(
        self,
        stream: VideoStream,
        reader: PacketReader,
        report: SourceReport,
        sampler: FrameSampler[av.VideoFrame],
        converter: ImageConverter,
        allocate: Allocate | None,
        shift_ns: int,
    ) -> None:
        self._allocate = allocate
        self._stream = stream
        self._reader = reader
        self._report = report
        self._sampler = sampler
        self._converter = converter
        self._shift_ns = shift_ns
        self._chosen: collections.deque[tuple[int, av.VideoFrame]] = collections.deque()
        self._last_ns: int | None = None
        self._ended = False
        rate = stream.guessed_rate
        self._interval_ns = SECOND * rate.denominator // rate.numerator if rate and rate.numerator > 0 else SECOND // 25
        ratio = stream.sample_aspect_ratio
        self._aspect = Fraction(ratio.numerator, ratio.denominator) if ratio and ratio.numerator > 0 else Fraction(1)

    def next(self) -> Frame | Behind | None:
        """Return the next chosen frame, BEHIND if there is none for now, or None at the end."""
        while True:
            while self._chosen:
                time_ns, frame = self._chosen.popleft()
                try:
                    image = self._converter.upright(frame, self._aspect)
                except (av.error.FFmpegError, ValueError):
                    self._report.frames.unusable += 1
                    continue
                try:
                    buffer = fill(self._allocate, image)
                except BaseException:
                    self._report.frames.undelivered += 1
                    raise
                if frame.is_corrupt:
                    self._report.corrupt_frames += 1
                return Frame((time_ns + 500_000) // 1_000_000, buffer)
            if self._ended:
                return None
            packet = self._reader.next(self._stream.index)
            if packet is BEHIND:
                return BEHIND
            if packet is None:
                self._ended = True
            self._take(self._decode(packet))
            if self._ended:
                self._chosen += self._sampler.flush()
            self._report.frames.sampled_away = self._sampler.rejected

    def close(self) -> None:
        """Count what was decoded and is not delivered."""
        self._report.frames.undelivered += len(self._chosen) + self._sampler.pending
        self._sampler.flush()
        self._chosen.clear()
        self._ended = True

    def _decode(self, packet: AnyPacket | None) -> Sequence[av.VideoFrame]:
        try:
            return self._stream.codec_context.decode(packet)
        except (av.error.FFmpegError, ValueError):
            self._report.damaged_packets += 1
            return ()

    def _take(self, frames: Sequence[av.VideoFrame]) -> None:
        for frame in frames:
            self._report.frames.decoded += 1
            time_ns = self._time_ns(frame)
            if self._last_ns is not None and time_ns <= self._last_ns:
                self._report.frames.unusable += 1
                continue
            self._last_ns = time_ns
            self._chosen += self._sampler.add(time_ns, frame)

    def _time_ns(self, frame: av.VideoFrame) -> int:
        if frame.pts is None:
            self._report.missing_timestamps += 1
            return self._shift_ns if self._last_ns is None else self._last_ns + self._interval_ns
        return to_ns(frame.pts, self._stream) - (self._reader.start_ns or 0) + self._shift_ns
