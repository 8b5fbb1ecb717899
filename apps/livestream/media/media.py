"""An opened container with its chosen streams, inside the limits."""

import contextlib
import math
import os
from typing import Any, BinaryIO, cast

import av
import av.container
import av.error
from av.audio.stream import AudioStream
from av.stream import Disposition
from av.video.stream import VideoStream

from apps.livestream.media.address import Address, Kind
from apps.livestream.media.errors import (
    AddressError,
    ConnectionLostError,
    DecoderMissingError,
    MediaError,
    MediaLimitError,
    NoStreamError,
    UnreadableError,
)
from apps.livestream.media.http_file import HttpFile
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.sampling import SECOND
from apps.livestream.media.stop import StopSignal
from apps.livestream.media.structure import missing_bytes

# Containers that are one file. Playlists and scripts (hls, dash, concat, sdp, image2 ...), which name further files or
# addresses, are not among them.
FORMATS = (
    "aac,ac3,aiff,amr,asf,avi,caf,eac3,flac,flv,h264,hevc,ivf,m4v,matroska,webm,mjpeg,mov,mp4,mp3,mpeg,mpegts,"
    "mpegvideo,nut,obu,ogg,wav,w64"
)
CAPTURE = "video4linux2,v4l2"  # FFmpeg's names of what reads webcams
_BUFFER = 1 << 16
# A transport stream has no index: FFmpeg may go to a packet of sound behind the last key frame.
_SEEK_MARGINS_US = (0, 5_000_000, 20_000_000, 80_000_000)


class Media:
    """An open container. `video` and `sound` are its best streams, or None.

    `live` has no end that is known; the end of an `endless` one is a loss.

    It belongs to one thread.
    """

    def __init__(
        self,
        address: Address,
        limits: MediaLimits,
        *,
        stop: StopSignal,
        threads: int = 1,
    ) -> None:
        """Open the address. `threads` is how many threads each decoder may use.

        Raises:
            MediaError: it cannot be read; see `errors.py`.
        """
        self.where = address.shown
        self.limits = limits
        self.missing_bytes: int | None = None
        self.file: BinaryIO | HttpFile | None = None
        self._stack = contextlib.ExitStack()
        with self._stack:
            match address.kind:
                case Kind.FILE:
                    file = self._stack.enter_context(_open_file(address))
                    self.missing_bytes = missing_bytes(file, os.fstat(file.fileno()).st_size)
                    self.file = file
                case Kind.HTTP:
                    self.file = HttpFile(address.target, address.shown, limits, stop=stop)
                    self._stack.callback(self.file.close)
                case Kind.WEBCAM | Kind.RTSP:
                    pass
            self.live = address.kind in {Kind.RTSP, Kind.WEBCAM} or (isinstance(self.file, HttpFile) and self.file.live)
            self.endless = address.kind is Kind.WEBCAM
            self.container = self._stack.enter_context(self._open_container(address))
            if address.kind is Kind.RTSP:  # a recording on such a server has a duration
                self.endless = self.container.duration is None
            if len(self.container.streams) > limits.streams:
                raise MediaLimitError(
                    self.where, "the number of streams", len(self.container.streams), limits.streams, "streams"
                )
            self.video = self._choose_video(threads)
            self.sound = self._choose_sound(threads)
            if self.video is None and self.sound is None:
                raise NoStreamError(self.where, "neither video nor sound in it; give a recording or a stream")
            for stream in self.container.streams:
                if stream not in self.streams:
                    stream.discard = av.stream.Discard.all
            self._stack = self._stack.pop_all()

    @property
    def streams(self) -> list[VideoStream | AudioStream]:
        return [stream for stream in (self.video, self.sound) if stream is not None]

    @property
    def format(self) -> str:
        """The container's name in FFmpeg, as in "mov" or "matroska"."""
        return self.container.format.name.split(",")[0]

    @property
    def start_ns(self) -> int | None:
        """The least time at which one of the streams begins, by its clock; None if a live one does not say."""
        starts = [to_ns(stream.start_time, stream) for stream in self.streams if stream.start_time is not None]
        return min(starts, default=None if self.live else 0)

    @property
    def end_ns(self) -> int | None:
        """The time at which the container ends by its own header, on its clock; None if it has no duration."""
        duration = self.container.duration
        if duration is None or duration <= 0:
            return None
        start = 0 if self.format == "matroska" else self.container.start_time or 0  # Matroska counts from zero
        return (start + duration) * 1_000

    @property
    def lost(self) -> MediaError | None:
        """Why the connection ended, if it did so before the end of the source."""
        return self.file.failure if isinstance(self.file, HttpFile) else None

    def allow(self, seconds: float) -> None:
        """Let the next packet take at most this long."""
        if isinstance(self.file, HttpFile):
            self.file.allow(seconds)

    def seek(self, at_ms: int) -> None:
        """Go to a key frame at or before a time after the beginning: the last one, where the container has an index."""
        start_us = (self.start_ns or 0) // 1_000
        target_us = start_us + at_ms * 1_000
        for margin_us in (*_SEEK_MARGINS_US, at_ms * 1_000):
            from_us = max(start_us, target_us - margin_us)
            with contextlib.suppress(av.error.FFmpegError):  # a file without an index is read from the beginning
                self.container.seek(from_us)
                if self.video is None or self._next_key_frame_us() <= target_us:
                    self.container.seek(from_us)
                    return

    def _next_key_frame_us(self) -> float:
        assert self.video is not None
        for packet in self.container.demux(self.video):
            if packet.is_keyframe and packet.pts is not None:
                return to_ns(packet.pts, self.video) / 1_000
        return math.inf

    def close(self) -> None:
        self._stack.close()

    def _open_container(self, address: Address) -> av.container.InputContainer:
        limits = self.limits
        options = {
            "format_whitelist": FORMATS,
            "protocol_whitelist": "none",
            "probesize": str(limits.probe_bytes),
            "analyzeduration": str(int(limits.probe_s * 1e6)),
            "max_streams": str(limits.streams + 1),
        }
        file: Any = self.file
        format_name = None
        match address.kind:
            case Kind.RTSP:
                # TCP alone: over UDP, a server names the address to which packets go.
                options |= {"format_whitelist": "rtsp,mpegts", "protocol_whitelist": "rtsp,rtp,tcp"}
                options |= {"rtsp_transport": "tcp", "allowed_media_types": "video+audio"}
                file = address.target
            case Kind.WEBCAM:
                options |= {"format_whitelist": CAPTURE}
                file, format_name = address.target, CAPTURE.partition(",")[0]
            case Kind.HTTP | Kind.FILE:
                pass
        try:
            container: av.container.InputContainer = av.open(
                file,
                "r",
                format=format_name,
                options=_codec_options(limits),
                container_options=options,
                buffer_size=_BUFFER,
                timeout=(limits.open_s, limits.stall_s),
                io_open=None if address.kind is Kind.WEBCAM else _refuse_nested,
            )
        except (av.error.FFmpegError, MediaError, OSError, ValueError) as error:
            raise self._open_error(address, error) from error
        return container

    def _open_error(self, address: Address, error: Exception) -> Exception:
        if self.lost is not None:
            return self.lost
        if isinstance(error, MediaError):
            return error
        if address.kind is Kind.WEBCAM:
            return AddressError(self.where, f"the camera cannot be read ({reason(error)}); is it in use?")
        if address.kind is Kind.RTSP:
            if isinstance(error, av.error.ExitError):
                return ConnectionLostError(self.where, f"no answer in {self.limits.open_s:g} s; is the address right?")
            return ConnectionLostError(self.where, f"it cannot be opened ({reason(error)}); is the address right?")
        if self.missing_bytes:
            return UnreadableError(
                self.where,
                f"the file is truncated: at least {self.missing_bytes} bytes are missing, its index among them; "
                "copy or record it again",
            )
        return UnreadableError(
            self.where,
            f"not a media file of a kind that is read, or its beginning is damaged ({reason(error)}); "
            f"kinds: {FORMATS}. Playlists are not followed: give the address of the stream itself",
        )

    def _choose_video(self, threads: int) -> VideoStream | None:
        best = self.container.streams.best("video")
        candidates = [best, *self.container.streams.video] if best is not None else list(self.container.streams.video)
        for stream in candidates:
            if not stream.disposition & Disposition.attached_pic:  # the cover picture of a song
                break
        else:
            return None
        context = stream.codec_context
        if context is None:
            raise DecoderMissingError(self.where, "video", _codec_name(self.container, stream.index))
        video = cast("VideoStream", stream)
        pixels = video.codec_context.width * video.codec_context.height
        if pixels > self.limits.pixels:
            raise MediaLimitError(self.where, "the number of pixels of a picture", pixels, self.limits.pixels, "pixels")
        context.options = _codec_options(self.limits)
        context.thread_count = threads
        return video

    def _choose_sound(self, threads: int) -> AudioStream | None:
        best = self.container.streams.best("audio")
        if best is None:
            if not self.container.streams.audio:
                return None
            best = self.container.streams.audio[0]
        if best.codec_context is None:
            raise DecoderMissingError(self.where, "sound", _codec_name(self.container, best.index))
        sound = cast("AudioStream", best)
        for what, value, limit, name in (
            ("the number of channels", sound.codec_context.layout.nb_channels, self.limits.channels, "channels"),
            ("the sample rate", sound.codec_context.sample_rate, self.limits.sample_rate, "sample_rate"),
        ):
            if value > limit:
                raise MediaLimitError(self.where, what, value, limit, name)
        sound.codec_context.options = _codec_options(self.limits)
        sound.codec_context.thread_count = threads
        return sound


def to_ns(timestamp: int, stream: VideoStream | AudioStream) -> int:
    """Return a timestamp of the stream in nanoseconds."""
    base = stream.time_base
    return timestamp * base.numerator * SECOND // base.denominator


def _open_file(address: Address) -> BinaryIO:
    try:
        return open(address.target, "rb")
    except OSError as error:
        raise AddressError(address.shown, f"cannot be opened ({error.strerror})") from error


def _refuse_nested(url: str, _flags: int, _options: dict[str, str]) -> None:
    raise PermissionError(f"the file names a further file or address, {url[:200]!r}, which is not opened")


def _codec_options(limits: MediaLimits) -> dict[str, str]:
    return {"max_pixels": str(limits.pixels)}


def _codec_name(container: av.container.InputContainer, index: int) -> str:
    """Return the codec of a stream without a decoder, as FFmpeg describes it."""
    for line in container.dumps_format().splitlines():
        if f"Stream #0:{index}" in line:
            return line.split(": ", 2)[-1].strip()[:80]
    return "an unknown codec"


def reason(error: Exception) -> str:
    """Return what went wrong, without the address, which may have a password."""
    return str(getattr(error, "strerror", None) or error)
