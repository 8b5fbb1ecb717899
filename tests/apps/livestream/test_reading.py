"""Frames and sound of files: order, times, pace, hand-over, buffers, cancellation."""

import asyncio
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from apps.livestream.media import Frame, MediaLimits, Sound, open_source
from tests.apps.livestream.media_files import DATA, Movie, frames_of, joined, number_of, read, same, sound_of, until
from walle import np as wnp
from walle.base.clock import ManualClock
from walle.errors import ConfigError

pytestmark = pytest.mark.asyncio
VIDEOS = sorted((DATA / "video").glob("*.*")) if (DATA / "video").is_dir() else []
needs_data = pytest.mark.skipif(not VIDEOS, reason="shared/data/video is not beside the checkout")


LARGE = ("big_buck_bunny_0_30.webm", "bottle-detection.mp4", "product_advert_chromecast.mp4")


@needs_data
@pytest.mark.parametrize(
    "path",
    [pytest.param(one, id=one.stem, marks=[pytest.mark.night] if one.name in LARGE else []) for one in VIDEOS],
)
async def test_a_real_file_is_read_whole_and_in_order(path: Path) -> None:
    items, report = await read(path, max_side=64)
    with av.open(str(path)) as container:
        decoded = sum(1 for _ in container.decode(container.streams.best("video")))
    samples, rate = 0, 16_000
    with av.open(str(path)) as container:
        if (sound := container.streams.best("audio")) is not None:
            pieces: list[Any] = list(container.decode(sound))
            samples, rate = sum(piece.samples for piece in pieces), pieces[0].rate
    assert report.complete is True
    assert report.missing_bytes == 0
    assert [item.pts_ms for item in items] == sorted(item.pts_ms for item in items)
    assert len(frames_of(items)) == report.frames.decoded == decoded
    assert report.sound.decoded == samples
    assert all(len(chunk.samples) == 1600 for chunk in sound_of(items))
    assert report.end == "the end of the source"
    assert abs(report.sound.converted - samples * 16000 / rate) <= 1


async def test_each_frame_has_its_number_and_time(tmp_path: Path) -> None:
    movie = Movie(seconds=3)
    items, report = await read(movie.write(tmp_path / "a.mp4"))
    frames = frames_of(items)
    assert [number_of(frame.image) for frame in frames] == list(range(30))
    assert [frame.pts_ms for frame in frames] == movie.frame_times_ms
    assert frames[0].image.shape == (32, 128, 3)
    assert frames[0].image.dtype == np.uint8
    assert frames[0].image.flags.c_contiguous
    assert [chunk.pts_ms for chunk in sound_of(items)] == list(range(0, len(sound_of(items)) * 100, 100))
    assert report.frames.delivered == 30


async def test_variable_frame_rate_is_sampled_by_time(tmp_path: Path) -> None:
    times_ms = [0, 40, 90, 100, 190, 210, 700, 710, 720, 1100, 1490, 1500, 1510, 2000]
    path = Movie(times_ms=times_ms, sound_rate=0).write(tmp_path / "vfr.mkv")
    items, report = await read(path, frames_per_second=2)
    assert [frame.pts_ms for frame in frames_of(items)] == [0, 700, 1100, 1500, 2000]
    assert [number_of(frame.image) for frame in frames_of(items)] == [0, 6, 9, 11, 13]
    assert (report.frames.delivered, report.frames.sampled_away) == (5, 9)
    assert same(items, (await read(path, frames_per_second=2))[0])


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".webm", ".avi", ".flv", ".mov"])
async def test_every_container_gives_the_same_numbers(tmp_path: Path, suffix: str) -> None:
    codecs = {".webm": ("libvpx", "libopus"), ".avi": ("mpeg4", "mp2")}
    codec, sound_codec = codecs.get(suffix, ("libx264", "aac"))
    rate = 48_000 if suffix != ".flv" else 44_100
    options = {"max_b_frames": "0"} if suffix == ".avi" else {}
    movie = Movie(codec=codec, sound_codec=sound_codec, sound_rate=rate, options=options, pix_fmt="yuv420p")
    items, report = await read(movie.write(tmp_path / f"a{suffix}"))
    frames = frames_of(items)
    assert [number_of(frame.image) for frame in frames] == list(range(20))
    times_ms = np.array([frame.pts_ms for frame in frames])
    assert np.abs(times_ms - times_ms[0] - np.array(movie.frame_times_ms)).max() <= 1
    assert report.complete is not False
    assert report.silences == report.overlaps == report.gap_count == 0
    assert 1.9 < len(joined(items)) / 16000 < 2.3


def apart(path: Path) -> Path:
    """Write a file with all sound behind all video but the last frames."""
    movie = Movie(seconds=4)
    container: Any
    with av.open(str(path), "w", options={"max_interleave_delta": "1"}) as container:
        video = movie._add_video(container)
        sound = container.add_stream("aac", rate=48_000, layout="stereo")
        container.start_encoding()
        for at_ms, frame in movie.frames():
            frame.pts, frame.time_base = at_ms, Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for _, piece in movie._sounds(sound):
            container.mux(sound.encode(piece))
        container.mux(sound.encode(None))
    with av.open(str(path)) as container:
        kinds = [packet.stream.type for packet in container.demux() if packet.size]
    assert "audio" not in kinds[:38]
    return path


async def test_streams_that_are_not_interleaved_come_in_order(tmp_path: Path) -> None:
    """The order is the times', while the compressed packets wait."""
    items, report = await read(apart(tmp_path / "apart.mkv"))
    assert [item.pts_ms for item in items] == sorted(item.pts_ms for item in items)
    assert report.out_of_order == 0
    assert len(frames_of(items)) == 40


async def test_streams_that_are_too_far_apart_lose_nothing(tmp_path: Path) -> None:
    path = apart(tmp_path / "apart.mkv")
    in_order, _ = await read(path)
    items, report = await read(path, limits=MediaLimits(packet_bytes=500))
    assert report.out_of_order > 10
    assert same(frames_of(items), frames_of(in_order))
    assert same(sound_of(items), sound_of(in_order))


async def test_sound_alone_and_video_alone(tmp_path: Path) -> None:
    Movie(rate=0, sound_codec="pcm_s16le").write(tmp_path / "sound.wav")
    Movie(sound_rate=0).write(tmp_path / "video.mp4")
    async with open_source(tmp_path / "sound.wav") as source:
        assert (source.info.has_video, source.info.has_sound) == (False, True)
        assert all([isinstance(item, Sound) async for item in source])
    async with open_source(tmp_path / "video.mp4") as source:
        assert (source.info.has_video, source.info.has_sound) == (True, False)
        assert (source.info.width, source.info.height, source.info.duration_ms) == (128, 32, 2000)
        assert all([isinstance(item, Frame) async for item in source])


async def test_a_cover_picture_is_not_a_video(tmp_path: Path) -> None:
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=48_000, layout="stereo")
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        picture = av.VideoFrame(64, 64, "yuvj420p")
        picture.pts = 0
        container.mux(cover.encode(picture) + cover.encode(None))
        for _, frame in Movie(seconds=1)._sounds(sound):
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    async with open_source(path) as source:
        assert not source.info.has_video
        assert {type(item) for item in [item async for item in source]} == {Sound}


async def test_images_and_samples_are_in_the_callers_buffers(tmp_path: Path) -> None:
    given: list[Any] = []
    threads = set()

    def allocate(shape: tuple[int, ...], dtype: str) -> Any:
        threads.add(threading.current_thread())
        given.append(wnp.zeros(shape, dtype=dtype))
        return given[-1]

    path = Movie(seconds=1).write(tmp_path / "a.mp4")
    items, _ = await read(path, allocate=allocate)
    plain, _ = await read(path)
    buffers = [item.image if isinstance(item, Frame) else item.samples for item in items]
    assert {id(buffer) for buffer in buffers} == {id(buffer) for buffer in given}
    assert threading.current_thread() not in threads
    assert same(items, plain)


@pytest.mark.parametrize(
    ("allocate", "fault"),
    [
        (lambda shape, dtype: np.zeros(shape, dtype)[:1], "elements"),
        (lambda shape, dtype: bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), "read-only"),
    ],
)
async def test_a_wrong_buffer_is_refused(tmp_path: Path, allocate: Any, fault: str) -> None:
    path = Movie(seconds=1).write(tmp_path / "a.mp4")
    async with open_source(path, allocate=allocate) as source:
        with pytest.raises(TypeError, match=fault):
            await anext(source)
    assert source.report.frames.balanced


async def test_an_error_of_the_callers_allocation_reaches_the_caller(tmp_path: Path) -> None:
    def allocate(shape: tuple[int, ...], dtype: str) -> Any:
        raise ValueError(f"no memory for {shape} {dtype}")

    path = Movie(seconds=1, sound_rate=0).write(tmp_path / "a.mp4")
    async with open_source(path, allocate=allocate) as source:
        with pytest.raises(ValueError, match="no memory for"):
            await anext(source)
    assert source.report.balanced


@pytest.mark.parametrize("pace", [1.0, 4.0])
async def test_the_pace_is_kept_by_the_clock(tmp_path: Path, pace: float) -> None:
    path = Movie(seconds=2).write(tmp_path / "a.mp4")
    clock = ManualClock()
    start_s = clock.monotonic()
    arrived: list[tuple[float, int]] = []
    async with open_source(path, pace=pace, clock=clock) as source:

        async def consume() -> None:
            async for item in source:
                at_s = clock.monotonic() - start_s
                arrived.append((at_s, item.pts_ms))

        consumer = asyncio.create_task(consume())
        while not consumer.done():
            await asyncio.sleep(0.002)  # for the decoding thread
            await clock.advance(0.01)
        await consumer
    assert source.report.balanced
    late_s = [at_s - pts_ms / 1000 / pace for at_s, pts_ms in arrived]
    assert min(late_s) > -1e-6
    assert arrived[-1][0] >= (arrived[-1][1] - arrived[0][1]) / 1000 / pace


async def test_a_file_waits_for_its_consumer(tmp_path: Path) -> None:
    path = Movie(seconds=6, rate=20, sound_rate=0).write(tmp_path / "a.mp4")
    async with open_source(path, queue_frames=3) as source:
        await asyncio.sleep(0.3)
        assert source.report.frames.decoded < 20
        frames = []
        async for item in source:
            frames.append(item)
            await asyncio.sleep(0)
    assert len(frames) == 120
    assert source.report.frames.dropped == 0
    assert source.report.balanced


async def test_a_consumer_that_is_behind_loses_the_oldest_frames_and_no_sound(tmp_path: Path) -> None:
    path = Movie(seconds=3).write(tmp_path / "a.mp4")
    whole, _ = await read(path)
    async with open_source(path, when_behind="drop", queue_frames=2) as source:
        await until(lambda: source._ended)
        items = [item async for item in source]
    assert [number_of(frame.image) for frame in frames_of(items)] == [28, 29]
    assert source.report.frames.dropped == 28
    assert np.array_equal(joined(items), joined(whole))
    assert source.report.balanced


async def test_unread_sound_makes_the_source_wait(tmp_path: Path) -> None:
    path = Movie(seconds=8).write(tmp_path / "a.mp4")
    async with open_source(path, when_behind="drop", limits=MediaLimits(sound_queue_s=1)) as source:
        await asyncio.sleep(0.5)
        assert not source.report.end
        items = [item async for item in source]
    assert len(sound_of(items)) >= 80
    assert source.report.balanced


@pytest.mark.parametrize("after", [0, 1, 7])
async def test_closing_early_counts_what_was_decoded(tmp_path: Path, after: int) -> None:
    path = Movie(seconds=6, sound_rate=44_100).write(tmp_path / "a.mp4")
    async with open_source(path, frames_per_second=4) as source:
        for _ in range(after):
            await anext(source)
        await asyncio.sleep(0.05)
    report = source.report
    assert report.balanced, report
    assert report.end == "closed by the consumer"
    assert report.complete is None
    assert report.frames.undelivered + report.sound.undelivered > 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("media")]
    with pytest.raises(StopAsyncIteration):
        await anext(source)


async def test_cancelling_the_consumer_ends_the_thread(tmp_path: Path) -> None:
    path = Movie(seconds=6).write(tmp_path / "a.mp4")
    opened = asyncio.Event()
    sources = []

    async def consume() -> None:
        async with open_source(path, pace=1.0) as source:
            sources.append(source)
            async for _ in source:
                opened.set()

    task = asyncio.create_task(consume())
    await opened.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sources[0].report.balanced
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("media")]


@pytest.mark.parametrize(
    "setting",
    [
        {"frames_per_second": 0},
        {"frames_per_second": float("nan")},
        {"max_side": -1},
        {"sound_ms": 0},
        {"pace": 0.0},
        {"queue_frames": 0},
    ],
)
async def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        open_source("a.mp4", **setting)


async def test_more_decoding_threads_give_the_same(tmp_path: Path) -> None:
    path = Movie(seconds=3).write(tmp_path / "a.mp4")
    assert same((await read(path, decoder_threads=3))[0], (await read(path))[0])
