"""Clips and thumbnails."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from apps.livestream.media import ClipError, clip, encode_jpeg, thumbnail
from tests.apps.livestream.media_files import (
    DATA,
    Movie,
    frames_of,
    joined,
    names_in,
    number_of,
    read,
    write_beginning,
)
from walle import cv

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("source", [".mp4", ".mkv", ".webm", ".ts"])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm"])
async def test_a_clip_has_the_frames_and_the_sound_of_its_time(tmp_path: Path, source: str, suffix: str) -> None:
    codec, sound_codec = ("libvpx", "libopus") if source == ".webm" else ("libx264", "aac")
    path = Movie(seconds=6, codec=codec, sound_codec=sound_codec).write(tmp_path / f"a{source}")
    out = tmp_path / f"clip{suffix}"
    await clip(path, 2050, 4050, out)
    items, report = await read(out)
    whole, _ = await read(path)
    wanted = [number_of(frame.image) for frame in frames_of(whole) if 2050 <= frame.pts_ms < 4050]
    assert len(wanted) == 20
    assert [number_of(frame.image) for frame in frames_of(items)] == wanted
    assert report.complete is True
    assert abs(report.ended_ms - 2000) < 120
    level = np.sqrt(np.mean(joined(items)[4000:28_000] ** 2))
    assert abs(level - 0.5 / np.sqrt(2)) < 0.03
    assert names_in(tmp_path) == sorted([path.name, out.name])


async def test_a_clip_of_sound_alone_and_of_video_alone(tmp_path: Path) -> None:
    sound = Movie(rate=0, sound_codec="pcm_s16le", sound_rate=16_000).write(tmp_path / "a.wav")
    await clip(sound, 500, 1500, tmp_path / "sound.mp4")
    items, _ = await read(tmp_path / "sound.mp4")
    assert not frames_of(items)
    assert 0.9 < len(joined(items)) / 16_000 < 1.2
    video = Movie(sound_rate=0, rotation=90).write(tmp_path / "a.mp4")
    await clip(video, 0, 1000, tmp_path / "video.webm", max_side=64)
    items, _ = await read(tmp_path / "video.webm")
    assert [frame.image.shape for frame in frames_of(items)] == [(64, 16, 3)] * 10  # upright, smaller


async def test_odd_sizes_are_made_even(tmp_path: Path) -> None:
    path = Movie(sound_rate=0, size=(129, 35), pix_fmt="yuv444p").write(tmp_path / "a.mkv")
    await clip(path, 0, 1000, tmp_path / "b.mp4")
    items, _ = await read(tmp_path / "b.mp4")
    assert {frame.image.shape for frame in frames_of(items)} == {(34, 128, 3)}


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "name", "message"),
    [
        (1000, 1000, "b.mp4", "its end must be after its start"),
        (-5, 1000, "b.mp4", "its end must be after its start"),
        (90_000, 91_000, "b.mp4", "it has nothing from 90 s to 91 s"),
        (0, 1000, "b.gif", "clips are written as .mp4, .mkv, .webm"),
        (0, 1000, "nowhere/b.mp4", "the clip cannot be written"),
    ],
)
async def test_a_clip_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, start_ms: int, end_ms: int, name: str, message: str
) -> None:
    path = Movie(seconds=1).write(tmp_path / "a.mp4")
    with pytest.raises(ClipError, match=message):
        await clip(path, start_ms, end_ms, tmp_path / name)
    assert names_in(tmp_path) == ["a.mp4"]


@pytest.mark.night
async def test_a_cancelled_clip_leaves_nothing_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = Movie(seconds=60, rate=25, size=(320, 240)).write(tmp_path / "a.mp4")
    out = tmp_path / "b.mp4"
    out.write_bytes(b"old")
    task = asyncio.create_task(clip(path, 0, 60_000, out))
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert out.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize(("at_ms", "number"), [(0, 0), (99, 0), (100, 1), (1234, 12), (1999, 19)])
async def test_a_thumbnail_is_the_frame_that_is_shown(tmp_path: Path, at_ms: int, number: int) -> None:
    path = Movie(sound_rate=0).write(tmp_path / "a.mp4")
    data = await thumbnail(path, at_ms, quality=95)
    image = np.asarray(cv.imdecode(np.frombuffer(data, np.uint8), cv.IMREAD_COLOR))
    assert data.startswith(b"\xff\xd8\xff")
    assert number_of(image) == number


async def test_a_thumbnail_past_the_end_is_refused(tmp_path: Path) -> None:
    path = Movie(sound_rate=0).write(tmp_path / "a.mp4")
    with pytest.raises(ClipError, match=r"it shows nothing at 2\.5 s; it ends at 2 s"):
        await thumbnail(path, 2500)
    sound = Movie(rate=0, sound_codec="pcm_s16le").write(tmp_path / "a.wav")
    with pytest.raises(ClipError, match="shows nothing"):
        await thumbnail(sound, 500)


async def test_a_thumbnail_of_a_real_file(tmp_path: Path) -> None:
    path = DATA / "video/product_advert_chromecast.mp4"
    if not path.exists():
        pytest.skip("shared/data/video is not beside the checkout")
    path = write_beginning(path, tmp_path / "advert.mkv", video_s=3.5, sound_s=3.5)
    data = await thumbnail(path, 3000)
    image = np.asarray(cv.imdecode(np.frombuffer(data, np.uint8), cv.IMREAD_COLOR))
    whole, _ = await read(path, frames_per_second=1, max_side=320)
    shown = next(frame for frame in frames_of(whole) if abs(frame.pts_ms - 3000) <= 17)
    assert image.shape == shown.image.shape
    assert np.abs(image.astype(int) - shown.image).mean() < 5
    assert len(data) < 30_000


async def test_jpeg_quality_is_a_size() -> None:
    image = np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8)
    assert len(encode_jpeg(image, 20)) < len(encode_jpeg(image, 95))
