"""Decoding of one opened container: frames and sound in the order of presentation, in one thread."""

import dataclasses
from fractions import Fraction

import av

from apps.livestream.media.address import Address
from apps.livestream.media.errors import MediaError
from apps.livestream.media.image import ImageConverter
from apps.livestream.media.items import Allocate, Frame, Item
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.media import Media
from apps.livestream.media.packets import BEHIND, PacketReader
from apps.livestream.media.report import SourceReport
from apps.livestream.media.sampling import FrameSampler
from apps.livestream.media.sound import SoundFormat, SoundTrack
from apps.livestream.media.stop import StopSignal
from apps.livestream.media.video import VideoTrack


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSettings:
    """Settings of a decoder. It begins at the last key frame before `start_ms`."""

    frames_per_second: Fraction | None = None
    max_side: int | None = None
    sound: SoundFormat = dataclasses.field(default_factory=SoundFormat)
    allocate: Allocate | None = None
    limits: MediaLimits = dataclasses.field(default_factory=MediaLimits)
    threads: int = 1
    start_ms: int = 0


class Decoder:
    """Items of one container in the order of presentation. All calls are made in one thread.

    Items are in order unless a stream is farther behind the other than the limits let packets wait; late ones are
    counted in `SourceReport.out_of_order`. `sampler` outlives the decoder when a live source is opened again, and
    `shift_ns` is where this container begins on the source's timeline.
    """

    def __init__(
        self,
        address: Address,
        settings: DecoderSettings,
        report: SourceReport,
        stop: StopSignal,
        *,
        sampler: FrameSampler[av.VideoFrame],
        shift_ns: int = 0,
    ) -> None:
        """Open the address.

        Raises:
            MediaError: it cannot be read.
        """
        self._report = report
        self._stop = stop
        self._shift_ns = shift_ns
        self._resumed_before = report.resumed
        self.media = Media(address, settings.limits, stop=stop, threads=settings.threads)
        if settings.start_ms:
            self.media.seek(settings.start_ms)
        self._reader = PacketReader(self.media, report)
        self._tracks: list[VideoTrack | SoundTrack] = []
        if self.media.video is not None:
            converter = ImageConverter(settings.max_side, settings.limits)
            self._tracks.append(
                VideoTrack(self.media.video, self._reader, report, sampler, converter, settings.allocate, shift_ns)
            )
        if self.media.sound is not None:
            self._tracks.append(
                SoundTrack(
                    self.media.sound,
                    self._reader,
                    report,
                    settings.sound,
                    settings.allocate,
                    settings.limits,
                    shift_ns,
                )
            )
        self._open = list(self._tracks)
        self._heads: dict[VideoTrack | SoundTrack, Item] = {}
        self._last_ms: int | None = None

    def next(self) -> Item | None:
        """Return the next item, or None at the end or once `stop` is set.

        Raises:
            ConnectionLostError: a network source was lost.
        """
        while not self._stop.is_set():
            for track in list(self._open):
                if track not in self._heads:
                    item = track.next()
                    if item is None:
                        self._open.remove(track)
                    elif item is not BEHIND:
                        self._heads[track] = item
            self._report.resumed = self._resumed_before + getattr(self.media.file, "resumed", 0)
            if self._heads:
                track = min(self._heads, key=lambda track: self._heads[track].pts_ms)
                item = self._heads.pop(track)
                if self._last_ms is not None and item.pts_ms < self._last_ms:
                    self._report.out_of_order += 1
                self._last_ms = max(self._last_ms or item.pts_ms, item.pts_ms)
                return item
            if not self._open:
                self._finish()
                return None
        return None

    def drain(self) -> list[Item]:
        """Return what a lost connection left in the decoders, in the order of presentation."""
        items = list(self._heads.values())
        self._heads.clear()
        self._reader.end()
        for track in self._open:
            while isinstance(item := track.next(), Item):
                items.append(item)
        self._open.clear()
        return sorted(items, key=lambda item: item.pts_ms)

    @property
    def end_ns(self) -> int:
        """The end of the last packet on the source's timeline."""
        return self._reader.end_ns + self._shift_ns

    def close(self) -> None:
        """Close the container, and count what was decoded and is not delivered."""
        for item in self._heads.values():
            if isinstance(item, Frame):
                self._report.frames.undelivered += 1
            else:
                self._report.sound.undelivered += item.samples.shape[-1]
        self._heads.clear()
        for track in self._tracks:
            track.close()
        self._open.clear()
        self.media.close()

    def _finish(self) -> None:
        report = self._report
        if report.packets and not (report.frames.decoded or report.sound.decoded or report.complete is False):
            raise MediaError(
                self.media.where,
                f"none of its {report.packets} packets can be decoded: the file is damaged; copy or record it again",
            )
