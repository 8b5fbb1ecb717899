"""Sources that are refused, hostile ones among them."""

import contextlib
import errno
import os
import resource
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from apps.livestream.media import (
    AddressError,
    DecoderMissingError,
    MediaError,
    MediaLimitError,
    MediaLimits,
    NoStreamError,
    SourceReport,
    UnreadableError,
    open_source,
)
from apps.livestream.media.address import Address
from apps.livestream.media.media import Media
from apps.livestream.media.packets import BEHIND, PacketReader
from apps.livestream.media.stop import StopSignal
from tests.apps.livestream.media_files import Movie, frames_of, number_of, read, sound_of

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "not an address"),
        ("nowhere.mp4", "cannot be opened .No such file"),
        ("/etc", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("file:///etc/passwd", "addresses of 'file' are not read"),
        ("concat:a.ts|b.ts", "cannot be opened"),
        ("subfile,,start,0,end,9,,:/etc/passwd", "cannot be opened"),
        ("ftp://host/a.mp4", "addresses of 'ftp' are not read"),
        ("http://", "no host"),
        ("http://[::1/a", "not an address"),
        ("http://host:99999/a", "not an address"),
        ("http://host/a b", "or a space"),
        ("webcam:/dev/nothing", "no camera at /dev/nothing .No such file"),
        ("webcam:57", "no camera at /dev/video57"),
        ("webcam:/etc/passwd", "is not a device"),
        ("webcam:/dev/null", "the camera cannot be read"),
        ("a\0b", "not an address"),
    ],
)
async def test_an_address_that_is_not_read_says_why(where: str, message: str) -> None:
    with pytest.raises(AddressError, match=message):
        await read(where)


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"
NAMING = {
    "m3u8": PLAYLIST,
    "ffconcat": "ffconcat version 1.0\nfile {}\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns={}\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 33\n",
    "mpd": '<?xml version="1.0"?><MPD><Period><BaseURL>{}</BaseURL></Period></MPD>',
    "txt": "{}",
}


@pytest.mark.parametrize("kind", NAMING)
async def test_a_file_that_names_others_opens_none(tmp_path: Path, kind: str) -> None:
    secret = Movie(seconds=1).write(tmp_path / "secret.mp4")
    fifo = tmp_path / "opened.ts"
    os.mkfifo(fifo)
    for target in (str(secret), str(fifo), "http://127.0.0.1:1/a.ts"):
        path = tmp_path / f"list.{kind}"
        path.write_text(NAMING[kind].format(target))
        with pytest.raises(UnreadableError, match="not a media file of a kind that is read"):
            await read(path)
    with pytest.raises(OSError) as caught:
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # a FIFO has a reader only if something opened it
    assert caught.value.errno == errno.ENXIO


async def test_an_mp4_that_refers_to_another_file_opens_none(tmp_path: Path) -> None:
    """A data reference that is not self-contained (ISO/IEC 14496-12, 8.7.2) is not followed."""
    path = Movie(seconds=1).write(tmp_path / "a.mp4")
    data = path.read_bytes()
    at = data.index(b"url \0\0\0\1")
    path.write_bytes(data[:at] + b"url \0\0\0\0" + data[at + 8 :])
    items, _ = await read(path)
    assert len(frames_of(items)) in {0, 10}


@pytest.mark.parametrize("data", [b"", b"\0" * 5000, b"hello, world. " * 1000, bytes(range(256)) * 40])
async def test_a_file_that_is_not_media_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=r"not a media file|truncated"):
        await read(path)


async def test_a_container_without_video_and_sound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        container.add_attachment("notes.txt", "text/plain", b"notes")
        stream: Any = container.add_stream("ass")
        stream.codec_context.extradata = b"[Script Info]\n[V4+ Styles]\n[Events]\n"
        container.start_encoding()
    with pytest.raises((NoStreamError, UnreadableError)):
        await read(path)


@pytest.mark.parametrize(
    ("kind", "name", "replaced"),
    [
        ("video", b"V_MPEG4/ISO/AVC", b"V_MPEG4/ISO/XXX"),
        ("sound", b"A_AAC", b"A_XXX"),
    ],
)
async def test_a_codec_without_a_decoder_is_named(tmp_path: Path, kind: str, name: bytes, replaced: bytes) -> None:
    path = Movie(seconds=1).write(tmp_path / "a.mkv")
    path.write_bytes(path.read_bytes().replace(name, replaced))
    with pytest.raises(DecoderMissingError, match=f"the {kind} is coded in .*no decoder here") as caught:
        await read(path)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (MediaLimits(pixels=4000), "pixels of a picture is 4096, and the limit is 4000; raise MediaLimits.pixels"),
        (MediaLimits(streams=1), "number of streams is 2"),
        (MediaLimits(channels=1), "number of channels is 2"),
        (MediaLimits(sample_rate=44_100), "sample rate is 48000"),
    ],
)
async def test_media_beyond_the_limits_are_refused(tmp_path: Path, limits: MediaLimits, message: str) -> None:
    path = Movie(seconds=1).write(tmp_path / "a.mp4")
    with pytest.raises(MediaLimitError, match=message):
        await read(path, limits=limits)


async def test_a_rate_that_grows_beyond_the_limit_within_the_stream_is_damage(tmp_path: Path) -> None:
    """The container says 48 kHz, its later packets 10 MHz: 9 s of silence between those are 360 MB."""

    def packets(rate: int) -> list[Any]:
        encoder: Any = av.CodecContext.create("wavpack", "w")
        encoder.sample_rate, encoder.layout, encoder.format = rate, "mono", "fltp"
        encoder.time_base = Fraction(1, rate)
        frame = av.AudioFrame.from_ndarray(np.full((1, 4096), 0.5, np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        return [*encoder.encode(frame), *encoder.encode(None)]

    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        sound: Any = container.add_stream("wavpack", rate=48_000, layout="mono")
        sound.codec_context.format = "fltp"
        container.start_encoding()
        for at_ms, packet in zip((0, 90, 9_000), packets(48_000) + packets(10_000_000) * 2, strict=True):
            copy = av.Packet(bytes(packet))
            copy.stream, copy.time_base, copy.pts, copy.dts = sound, Fraction(1, 1000), at_ms, at_ms
            container.mux_one(copy)
    _, report = await read(path)
    assert (report.sound.decoded, report.sound.silence, report.damaged_packets) == (4096, 0, 2)


async def test_packets_of_one_byte_wait_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("mjpeg", rate=10)
        video.width, video.height, video.pix_fmt = 32, 32, "yuvj420p"
        sound = container.add_stream("pcm_u8", rate=8000, layout="mono")
        container.start_encoding()
        for at in range(5_000):
            packet: Any = av.Packet(b"\x80")
            packet.stream, packet.time_base, packet.pts, packet.dts = sound, Fraction(1, 8000), at, at
            container.mux_one(packet)
        frame = av.VideoFrame(32, 32, "yuvj420p")
        frame.pts, frame.time_base = 100, Fraction(1, 10)
        container.mux([*video.encode(frame), *video.encode(None)])
    report = SourceReport(where="a.mkv")
    limits = MediaLimits(packet_bytes=100_000)
    with contextlib.closing(Media(Address.parse(path), limits, stop=StopSignal())) as media:
        assert media.video is not None
        assert PacketReader(media, report).next(media.video.index) is BEHIND
        assert report.packets < 250


def png_header(width: int, height: int) -> bytes:
    return struct.pack(">II", width, height)


async def test_a_picture_that_claims_to_be_enormous_is_not_allocated(tmp_path: Path) -> None:
    """The container says 64 x 64; the pictures say 20,000 x 20,000, 1.2 GB each as BGR."""
    path = tmp_path / "a.nut"
    with av.open(str(path), "w") as container:
        video = container.add_stream("png", rate=10)
        video.width, video.height, video.pix_fmt = 64, 64, "rgb24"
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            frame.pts = number
            for packet in video.encode(frame):
                data = bytearray(bytes(packet))
                at = data.index(b"IHDR") + 4
                data[at : at + 8] = png_header(20_000, 20_000)
                changed = av.Packet(bytes(data))
                changed.stream, changed.pts, changed.dts = video, packet.pts, packet.dts
                changed.time_base = packet.time_base
                container.mux(changed)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        items, report = await read(path)
    except MediaError:
        items, report = [], None
    assert not frames_of(items)
    assert report is None or report.damaged_packets > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200_000


async def test_pixels_that_are_not_square_do_not_make_a_picture_enormous(tmp_path: Path) -> None:
    path = Movie(seconds=1, aspect=Fraction(10_000, 1), sound_rate=0).write(tmp_path / "a.mkv")
    items, _ = await read(path)
    assert {frame.image.shape for frame in frames_of(items)} <= {(32, 128, 3)}
    path = Movie(seconds=1, aspect=Fraction(8, 1), sound_rate=0).write(tmp_path / "b.mkv")
    items, report = await read(path, limits=MediaLimits(pixels=8000))
    assert not frames_of(items)
    assert report.frames.unusable == report.frames.decoded == 10


async def test_a_clock_of_a_transport_stream_that_jumps_is_put_right(tmp_path: Path) -> None:
    """Two recordings, one behind the other: the second begins where the first ended."""
    one = Movie(seconds=3).write(tmp_path / "a.ts").read_bytes()
    path = tmp_path / "both.ts"
    path.write_bytes(one + one)
    items, report = await read(path)
    assert report.timestamp_jumps == 1
    numbers = [number_of(frame.image) for frame in frames_of(items)]
    assert numbers == [*range(30), *range(30)]
    steps_ms = {round(step, -1) for step in np.diff([frame.pts_ms for frame in frames_of(items)])}
    assert steps_ms <= {80, 90, 100, 110, 120}
    assert len(sound_of(items)) in range(59, 64)
    assert report.silences <= 1


async def test_random_bytes_within_headers_end_in_an_error_or_a_report(tmp_path: Path) -> None:
    """Each of 120 damaged headers is refused or read; none ends the process or fails in another way."""
    whole = {suffix: Movie(seconds=1).write(tmp_path / f"a{suffix}").read_bytes() for suffix in (".mp4", ".mkv", ".ts")}
    refused = 0
    for suffix, data in whole.items():
        generator = np.random.default_rng(len(data))
        head = len(data) if suffix == ".mp4" else 1000
        for _ in range(40):
            damaged = bytearray(data)
            for at in generator.integers(max(0, head - 2500), head, 4):
                damaged[at] = generator.integers(256)
            path = tmp_path / f"damaged{suffix}"
            path.write_bytes(damaged)
            try:
                await read(path, limits=MediaLimits(pixels=1_000_000))
            except MediaError:
                refused += 1
    assert 0 < refused < 120


async def test_the_info_is_there_only_when_open(tmp_path: Path) -> None:
    source = open_source(tmp_path / "a.mp4")
    with pytest.raises(AssertionError, match="not open"):
        _ = source.info
    with pytest.raises(AddressError):
        await source.start()
    await source.close()
