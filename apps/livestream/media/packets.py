"""Packets of a container by stream, and the evidence of whether they reached its end."""

import collections
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import av
import av.error
from av.packet import Packet

from apps.livestream.media.errors import ConnectionLostError
from apps.livestream.media.media import Media, reason, to_ns
from apps.livestream.media.report import SourceReport
from apps.livestream.media.sampling import SECOND

# Steps of a transport stream's clock that are not pauses: the thresholds of FFmpeg's own program.
_JUMP_NS = 10 * SECOND
_BACKWARD_JUMP_NS = SECOND // 10
_PACKET_BYTES = 512  # memory of a packet beside its data: a hostile file has packets of one byte
_MAX_FAULTS = 50  # faults of the demuxer, one after the other without a packet between
# Containers whose header has the duration, and by how much it differs from the end of the last packet in whole files.
# FFmpeg computes the duration of the others from the bit rate, or takes that of the last packet.
_DURATION_IN_HEADER = dict.fromkeys(("mov", "matroska", "flv", "avi", "asf", "caf", "w64"), SECOND // 5)
_DURATION_IN_HEADER["flac"] = SECOND // 100  # in samples


class Behind(Enum):
    """The answer of a stream that has no packet yet, while enough of the other stream's wait."""

    BEHIND = "behind"


type AnyPacket = Packet[Any]  # PyAV's class takes no type argument at run time

BEHIND: Final = Behind.BEHIND


class PacketReader:
    """Demuxer of the chosen streams: each stream's packets in their order, whatever the order in the container.

    Packets of the other stream wait, compressed and within `MediaLimits.packet_bytes`. Their `dts` and `pts` have the
    jumps of a transport stream's clock removed.
    """

    def __init__(self, media: Media, report: SourceReport) -> None:
        self._media = media
        self._report = report
        self._queues: dict[int, collections.deque[AnyPacket]] = {
            stream.index: collections.deque() for stream in media.streams
        }
        self._queued_bytes = dict.fromkeys(self._queues, 0)
        self._counts = dict.fromkeys(self._queues, 0)
        self._demuxed: Iterator[AnyPacket] = media.container.demux(media.streams)
        self._ended = False
        self._clock_ns: dict[int, tuple[int, int]] = {}  # each stream's last packet by dts: its time and its end
        self._offset_ns = 0
        self._end_ns: int | None = None
        self._has_jumps = media.format in {"mpegts", "mpeg", "rtsp"}
        self.start_ns = media.start_ns

    def next(self, index: int) -> AnyPacket | Behind | None:
        """Return the next packet of a stream, BEHIND if there is none for now, or None at the end.

        Raises:
            ConnectionLostError: a network source was lost.
        """
        queue = self._queues[index]
        while not queue:
            if self._ended:
                return None
            if self._others_wait(index):
                return BEHIND
            self._read()
        packet = queue.popleft()
        self._queued_bytes[index] -= packet.size + _PACKET_BYTES
        return packet

    def end(self) -> None:
        """Read no further; packets that wait are still given."""
        self._ended = True

    @property
    def end_ns(self) -> int:
        """The end of the last packet that was read, after the beginning of the source."""
        return max(0, (self._end_ns or 0) - (self.start_ns or 0))

    def _others_wait(self, index: int) -> bool:
        for other, queue in self._queues.items():
            if other == index or not queue:
                continue
            if self._queued_bytes[other] > self._media.limits.packet_bytes:
                return True
            if self._media.live and self._span_ns(queue) > self._media.limits.live_interleave_s * SECOND:
                return True
        return False

    def _span_ns(self, queue: collections.deque[AnyPacket]) -> int:
        first, last = queue[0], queue[-1]
        if first.dts is None or last.dts is None:
            return 0
        return to_ns(last.dts - first.dts, last.stream)

    def _read(self) -> None:
        """Queue one packet, or note the end."""
        faults = 0
        while True:
            self._media.allow(self._media.limits.stall_s)
            try:
                packet = next(self._demuxed, None)
            except (av.error.FFmpegError, ConnectionLostError, OSError) as error:
                self._check_connection(error)
                self._report.damaged_packets += 1
                faults += 1
                if faults == _MAX_FAULTS:
                    self._finish("damaged: nothing further can be read")
                    return
                self._demuxed = self._media.container.demux(self._media.streams)
                continue
            if packet is None:
                self._check_connection(None)
                self._finish("the end of the source")
                return
            if packet.size == 0:  # PyAV's mark of the end of a stream
                continue
            self._queue(packet)
            return

    def _check_connection(self, error: Exception | None) -> None:
        """Raise the loss of the connection, for which a demuxer's error or end may stand."""
        if self._media.lost is not None:
            raise self._media.lost
        if isinstance(error, ConnectionLostError):
            raise error
        if error is None and self._media.endless:
            raise ConnectionLostError(self._media.where, "the stream was lost (its sender closed it)")
        if error is not None and self._media.live:
            what = "it stalled" if isinstance(error, av.error.ExitError) else reason(error)
            raise ConnectionLostError(self._media.where, f"the stream was lost ({what})") from error

    def _queue(self, packet: AnyPacket) -> None:
        stream = packet.stream
        self._report.packets += 1
        self._counts[stream.index] += 1
        if packet.is_corrupt:
            self._report.damaged_packets += 1
        dts = packet.dts if packet.dts is not None else packet.pts
        if dts is not None:
            self._follow_clock(packet, dts)
        self._queues[stream.index].append(packet)
        self._queued_bytes[stream.index] += packet.size + _PACKET_BYTES

    def _follow_clock(self, packet: AnyPacket, dts: int) -> None:
        stream = packet.stream
        at_ns = to_ns(dts, stream) + self._offset_ns
        last_ns, due_ns = self._clock_ns.get(stream.index, (None, at_ns))
        if self._has_jumps and last_ns is not None and not last_ns - _BACKWARD_JUMP_NS <= at_ns <= due_ns + _JUMP_NS:
            self._offset_ns -= at_ns - due_ns
            at_ns = due_ns
            self._report.timestamp_jumps += 1
        if self._offset_ns:
            base = packet.time_base
            shift = self._offset_ns * base.denominator // (base.numerator * SECOND)
            packet.dts = None if packet.dts is None else packet.dts + shift
            packet.pts = None if packet.pts is None else packet.pts + shift
        length_ns = to_ns(packet.duration or 0, stream)
        if not length_ns and last_ns is not None:
            length_ns = max(0, at_ns - last_ns)
        self._clock_ns[stream.index] = (at_ns, at_ns + length_ns)
        shown_ns = at_ns if packet.pts is None else to_ns(packet.pts, stream)
        if self.start_ns is None:
            self.start_ns = min(shown_ns, at_ns)
        if not packet.is_discard:
            self._end_ns = max(shown_ns + length_ns, self._end_ns or shown_ns)
        self._report.ended_ms = self.end_ns // 1_000_000

    def _finish(self, end: str) -> None:
        """Note the end, and whether the source is whole by the container's own structure, index and duration."""
        self._ended = True
        report = self._report
        report.end = end
        media = self._media
        if media.live:
            return
        indexed = {stream.index: len(stream.index_entries) for stream in media.streams} if media.format == "mov" else {}
        report.missing_packets = sum(max(0, count - self._counts[index]) for index, count in indexed.items())
        report.missing_bytes = media.missing_bytes
        short = False
        if media.format in _DURATION_IN_HEADER and media.end_ns is not None:
            expected_ns = media.end_ns - (self.start_ns or 0)
            report.expected_ms = expected_ns // 1_000_000
            short = expected_ns - self.end_ns > _DURATION_IN_HEADER[media.format]
        if report.missing_bytes or report.missing_packets or short:
            report.complete = False
        elif report.missing_bytes == 0 or indexed or report.expected_ms is not None:
            report.complete = True
