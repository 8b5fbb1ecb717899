"""Network sources: the same results as from the file, stalls, losses, resumption, refusals."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.livestream.media import (
    AddressError,
    ConnectionLostError,
    Frame,
    MediaLimits,
    address,
    media,
    open_source,
)
from tests.apps.livestream.media_files import Movie, frames_of, number_of, read, read_until_lost, same, sound_of, until
from tests.apps.livestream.servers import LIVE_HEAD, basic, chunked, file_head, rtsp, serve

pytestmark = pytest.mark.asyncio
QUICK = MediaLimits(open_s=5, probe_s=0.5, stall_s=0.4, backoff_s=0.05, reconnects=3)


def made(folder: Path, suffix: str, **settings: Any) -> tuple[Path, bytes]:
    codecs = {".webm": ("libvpx", "libopus")}
    codec, sound_codec = codecs.get(suffix, ("libx264", "aac"))
    path = Movie(codec=codec, sound_codec=sound_codec, **settings).write(folder / f"a{suffix}")
    return path, path.read_bytes()


@pytest.mark.parametrize("suffix", [".ts", ".mkv", ".webm", ".mp4"])
@pytest.mark.parametrize("frames_per_second", [None, 4])
async def test_a_live_stream_gives_what_its_file_gives(
    tmp_path: Path, suffix: str, frames_per_second: float | None
) -> None:
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"} if suffix == ".mp4" else {}
    path, data = made(tmp_path, suffix, seconds=3, options=options)

    def script(connection: socket.socket, _: bytes, __: int) -> None:
        connection.sendall(LIVE_HEAD)
        chunked(connection, data)

    from_file, _ = await read(path, frames_per_second=frames_per_second)
    with serve(script) as (host, _):
        async with open_source(
            f"http://{host}/live{suffix}", frames_per_second=frames_per_second, when_behind="wait"
        ) as source:
            assert source.info.live
            items = [item async for item in source]
    assert same(items, from_file)
    assert source.report.balanced
    assert source.report.complete is None
    assert source.report.reconnects == 0


@pytest.mark.parametrize("frames_per_second", [None, 4])
async def test_rtsp_gives_what_its_file_gives(tmp_path: Path, frames_per_second: float | None) -> None:
    path, data = made(tmp_path, ".ts", seconds=3)
    from_file, _ = await read(path, frames_per_second=frames_per_second)
    limits = MediaLimits(stall_s=2, reconnects=0)
    with serve(rtsp(data)) as (host, _):
        async with open_source(
            f"rtsp://{host}/a", frames_per_second=frames_per_second, when_behind="wait", limits=limits
        ) as source:
            assert source.info.live
            items, lost = await read_until_lost(source)
    assert "did not come back" in str(lost)  # RTSP has no end: the server left
    assert source.report.balanced
    # FFmpeg keeps the last packet of each stream back: it ends where the next one begins.
    last = len(frames_of(items))
    assert last >= len(frames_of(from_file)) - 1
    assert same(frames_of(items), frames_of(from_file)[:last])
    count = len(sound_of(from_file)) - 2
    assert same(sound_of(items)[:count], sound_of(from_file)[:count])


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
async def test_a_file_on_a_server_is_a_file(tmp_path: Path, suffix: str) -> None:
    """With a length and ranges it can seek: an index at the end is found."""
    path, data = made(tmp_path, suffix, seconds=8)

    def script(connection: socket.socket, request: bytes, _: int) -> None:
        for piece in file_head(data, request):
            connection.sendall(piece)

    with serve(script) as (host, requests):
        items, report = await read(f"http://{host}/a{suffix}?token=secret")
    from_file, _ = await read(path)
    assert same(items, from_file)
    assert report.complete is (None if suffix == ".ts" else True)
    assert len(requests) >= (2 if suffix == ".mp4" else 1)
    assert "secret" not in report.where


async def test_a_lost_connection_is_continued_at_the_same_byte(tmp_path: Path) -> None:
    path, data = made(tmp_path, ".mkv", seconds=6)

    def script(connection: socket.socket, request: bytes, number: int) -> None:
        head, body = file_head(data, request)
        connection.sendall(head + body[: len(data) // 3])
        if number == 1:
            time.sleep(1.5)  # longer than the stall limit

    with serve(script) as (host, requests):
        items, report = await read(f"http://{host}/a", limits=QUICK)
    assert same(items, (await read(path))[0])
    assert len(requests) - 1 >= report.resumed >= 2  # the reader also seeks to the index and back
    assert b"if-range" in requests[1].lower()
    assert report.complete is True


async def test_a_file_that_changed_meanwhile_is_not_continued(tmp_path: Path) -> None:
    _, data = made(tmp_path, ".mkv", seconds=6)

    def script(connection: socket.socket, request: bytes, number: int) -> None:
        if number:
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        else:
            head, body = file_head(data, request)
            connection.sendall(head + body[: len(data) // 2])

    with serve(script) as (host, _):
        async with open_source(f"http://{host}/a", limits=QUICK) as source:
            with pytest.raises(AddressError, match="the file changed while it was read"):
                [item async for item in source]
    assert source.report.balanced
    assert source.report.frames.delivered > 5
    assert source.report.complete is False


@pytest.mark.parametrize("other", ["bytes 7-", "bytes {start}-{end}/7", ""])
async def test_another_part_than_asked_for_is_not_taken(tmp_path: Path, other: str) -> None:
    _, data = made(tmp_path, ".mkv", seconds=6)

    def script(connection: socket.socket, request: bytes, number: int) -> None:
        head, body = file_head(data, request)
        if number:
            start = len(data) - len(body)
            given = f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}".encode()
            assert given in head
            head = head.replace(given, b"Content-Range: " + other.format(start=start, end=len(data) - 1).encode())
        connection.sendall(head + body[: len(data) // 2])

    with serve(script) as (host, _):
        async with open_source(f"http://{host}/a", limits=QUICK) as source:
            with pytest.raises(AddressError, match="the server sends others"):
                [item async for item in source]
    assert source.report.complete is False
    assert source.report.balanced


async def test_a_file_without_ranges_that_is_cut_is_reported(tmp_path: Path) -> None:
    _, data = made(tmp_path, ".mkv", seconds=6)

    def script(connection: socket.socket, _: bytes, __: int) -> None:
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[: len(data) // 2])

    with serve(script) as (host, _):
        async with open_source(f"http://{host}/a", limits=QUICK) as source:
            with pytest.raises(ConnectionLostError, match="the connection was lost"):
                [item async for item in source]
    assert source.report.frames.delivered > 10
    assert source.report.complete is False
    assert source.report.balanced


@pytest.mark.parametrize("fault", ["stall", "reset", "trickle"])
async def test_a_live_stream_that_is_lost_and_comes_back_continues(tmp_path: Path, fault: str) -> None:
    _, data = made(tmp_path, ".ts", seconds=8)

    def script(connection: socket.socket, _: bytes, number: int) -> None:
        connection.sendall(LIVE_HEAD)
        if number:
            chunked(connection, data)
            return
        chunked(connection, data[: len(data) // 2], end=False)
        if fault == "stall":
            time.sleep(1.2)
        if fault == "trickle":
            for _byte in range(40):
                time.sleep(0.05)
                connection.sendall(b"1\r\n\x47\r\n")

    with serve(script) as (host, requests):
        async with open_source(f"http://{host}/live", when_behind="wait", limits=QUICK) as source:
            items = [item async for item in source]
    report = source.report
    assert len(requests) == 2
    assert (report.reconnects, report.gap_count) == (1, 1)
    assert report.balanced
    gap = report.gaps[0]
    assert gap.end_ms > gap.start_ms
    numbers = [number_of(frame.image) for frame in frames_of(items)]
    assert numbers[-80:] == list(range(80))  # the second connection, whole
    assert 20 <= len(numbers) - 80 < 50
    times_ms = [item.pts_ms for item in items]
    assert times_ms == sorted(times_ms)
    second = frames_of(items)[-80].pts_ms
    assert gap.end_ms <= second <= gap.end_ms + 100
    assert frames_of(items)[-81].pts_ms <= gap.start_ms


async def test_a_live_stream_that_does_not_come_back_is_an_error(tmp_path: Path) -> None:
    _, data = made(tmp_path, ".ts", seconds=8)

    def script(connection: socket.socket, _: bytes, number: int) -> None:
        if not number:
            connection.sendall(LIVE_HEAD)
            chunked(connection, data[: len(data) // 2], end=False)

    with serve(script) as (host, requests):
        async with open_source(f"http://{host}/live", when_behind="wait", limits=QUICK) as source:
            items, lost = await read_until_lost(source)
    assert re.search(r"did not come back after 3 attempts .* at [34]\.\d s", str(lost))
    assert len(requests) == 4
    assert len(frames_of(items)) > 8
    assert source.report.balanced


async def test_rtsp_that_stalls_is_connected_to_again(tmp_path: Path) -> None:
    _, data = made(tmp_path, ".ts", seconds=8)
    hold = threading.Event()
    first, second = rtsp(data, stop_after=len(data) // 2, hold=hold), rtsp(data)

    def script(connection: socket.socket, head: bytes, number: int) -> None:
        if number < 2:
            (first, second)[number](connection, head, number)

    limits = MediaLimits(stall_s=1, probe_s=0.5, backoff_s=0.05, reconnects=1)
    with serve(script) as (host, _):
        async with open_source(f"rtsp://{host}/a", when_behind="wait", limits=limits) as source:
            items, _ = await read_until_lost(source)
        hold.set()
    assert source.report.gap_count >= 1
    assert source.report.balanced
    numbers = [number_of(frame.image) for frame in frames_of(items)]
    assert numbers.count(5) == 2


@pytest.fixture
def camera(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a picture of FFmpeg's own in place of a camera, by its description.

    `lavfi` is a capture device of FFmpeg as Video4Linux is, without a file and without an end. Opening, options, pace
    and loss are those of a webcam; the driver and its formats are not there.
    """

    def show(description: str) -> None:
        monkeypatch.setattr(media, "CAPTURE", "lavfi")
        monkeypatch.setattr(address, "_webcam", lambda text: address.Address(address.Kind.WEBCAM, description, text))

    return show


async def test_a_capture_device_is_live_and_sampled_by_its_own_clock(camera: Callable[[str], None]) -> None:
    camera("testsrc=size=320x240:rate=25,realtime=speed=4")
    async with open_source("webcam", frames_per_second=5) as source:
        assert (source.info.live, source.info.duration_ms, source.info.has_sound) == (True, None, False)
        frames = [await anext(source) for _ in range(6)]
    times = [frame.pts_ms for frame in frames]
    assert [time_ms % 200 for time_ms in times] == [0] * 6
    assert times == sorted(set(times))
    assert all(isinstance(frame, Frame) and frame.image.shape == (240, 320, 3) for frame in frames)
    assert source.report.end == "closed by the consumer"
    assert source.report.balanced


async def test_a_camera_that_goes_away_is_opened_again_and_leaves_a_gap(camera: Callable[[str], None]) -> None:
    camera("testsrc=size=64x48:rate=10:duration=0.5")
    async with open_source("webcam", when_behind="wait", limits=QUICK) as source:
        frames = [await anext(source) for _ in range(10)]
    times = [frame.pts_ms for frame in frames]
    assert times == sorted(set(times))
    assert times[5] - times[4] > 100  # the camera was away, and comes back at the time that it is
    assert source.report.reconnects >= 1
    assert source.report.gap_count >= 1


async def test_a_camera_that_cannot_be_read_is_refused(camera: Callable[[str], None]) -> None:
    camera("nosuchsource")
    with pytest.raises(AddressError, match=r"webcam: the camera cannot be read .* is it in use"):
        async with open_source("webcam"):
            pass


async def test_a_live_source_drops_frames_and_no_sound(tmp_path: Path) -> None:
    path, data = made(tmp_path, ".ts", seconds=4)

    def script(connection: socket.socket, _: bytes, __: int) -> None:
        connection.sendall(LIVE_HEAD)
        chunked(connection, data)

    with serve(script) as (host, _):
        async with open_source(f"http://{host}/live", queue_frames=3) as source:
            await until(lambda: source._ended)
            items = [item async for item in source]
    from_file, _ = await read(path)
    assert [number_of(frame.image) for frame in frames_of(items)] == [37, 38, 39]
    assert source.report.frames.dropped == 37
    assert same(sound_of(items), sound_of(from_file))
    assert source.report.balanced


async def test_video_continues_where_the_sound_of_a_live_stream_ends(tmp_path: Path) -> None:
    """A frame waits for sound that may precede it for a second of stream, not until the sound comes back."""
    _, data = made(tmp_path, ".ts", seconds=8, sound_ms=[(0, 2000)])
    released = threading.Event()

    def script(connection: socket.socket, _: bytes, __: int) -> None:
        connection.sendall(LIVE_HEAD)
        chunked(connection, data, end=False)
        released.wait(20)

    limits = MediaLimits(probe_s=0.5, stall_s=15)
    with serve(script) as (host, _):
        async with open_source(f"http://{host}/live", when_behind="wait", limits=limits) as source, asyncio.timeout(10):
            shown = -1
            async for item in source:
                shown = number_of(item.image) if isinstance(item, Frame) else shown
                if shown == 60:
                    break
        released.set()
    assert source.report.balanced


@pytest.mark.parametrize("at", ["before the head", "in the head of the file", "in the middle"])
async def test_a_stalled_source_closes_at_once(tmp_path: Path, at: str) -> None:
    _, data = made(tmp_path, ".ts", seconds=20)
    released = threading.Event()

    def script(connection: socket.socket, _: bytes, __: int) -> None:
        if at != "before the head":
            connection.sendall(LIVE_HEAD)
            chunked(connection, data[: 400 if at == "in the head of the file" else len(data) // 2], end=False)
        released.wait(20)

    async def consume(address: str) -> None:
        async with open_source(address, limits=MediaLimits(open_s=2, stall_s=15, probe_s=0.5)) as source:
            async for _ in source:
                pass

    with serve(script) as (host, requests):
        task = asyncio.create_task(consume(f"http://{host}/live"))
        await until(lambda: requests)
        await asyncio.sleep(0.3)
        before_s = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        took_s = time.monotonic() - before_s
        released.set()
    assert took_s < 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("media")]


async def refused(where: str) -> str:
    with pytest.raises(AddressError) as caught:
        await read(where)
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "401"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "redirects .*file:///etc"),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://10.0.0.1/x\r\nContent-Length: 0\r\n\r\n", "which is not followed"),
    ],
)
async def test_refusals_of_a_server_are_clear(answer: bytes, message: str) -> None:
    with serve(lambda connection, *_: connection.sendall(answer)) as (host, requests):
        error = await refused(f"http://user:secret@{host}/a")
    assert re.search(message, error)
    assert "secret" not in error
    assert len(requests) == 1


async def test_a_password_is_sent_and_not_shown(tmp_path: Path) -> None:
    _, data = made(tmp_path, ".ts")

    def script(connection: socket.socket, _: bytes, __: int) -> None:
        connection.sendall(LIVE_HEAD)
        chunked(connection, data)

    with serve(script) as (host, requests):
        _, report = await read(f"http://camera:secret@{host}/live")
    assert basic("camera", "secret").encode() in requests[0]
    assert "secret" not in str(report)


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
async def test_a_server_that_does_not_answer(scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionLostError, match="is the address right") as caught:
        await read(f"{scheme}://camera:secret@127.0.0.1:{port}/a", limits=QUICK)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
async def test_a_server_that_never_answers(scheme: str) -> None:
    released = threading.Event()
    limits = MediaLimits(open_s=0.5, stall_s=0.5)

    def script(*_: object) -> None:
        released.wait(20)

    with serve(script) as (host, _):
        before_s = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await read(f"{scheme}://{host}/a", limits=limits)
        assert time.monotonic() - before_s < 5
        released.set()
