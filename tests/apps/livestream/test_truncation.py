"""Truncated and damaged files: FFmpeg ends most of them as if they were whole."""

import asyncio
import dataclasses
import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from apps.livestream.media import Item, SourceReport, UnreadableError
from apps.livestream.media.structure import missing_bytes
from tests.apps.livestream.media_files import DATA, Movie, frames_of, number_of, read, same, sound_of
from tests.night.cases import at_night

CUTS = [0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.97, 0.995]
# Suffix, codec of video and of sound, the muxer's options.
KINDS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "mp4": (".mp4", "libx264", "aac", {}),
    "mp4 with its index in front": (".mp4", "libx264", "aac", {"movflags": "faststart"}),
    "mp4 in fragments": (".mp4", "libx264", "aac", {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    "mkv": (".mkv", "libx264", "aac", {}),
    "webm": (".webm", "libvpx", "libopus", {}),
    "ts": (".ts", "libx264", "aac", {}),
    "avi": (".avi", "mpeg4", "mp2", {}),
    "flv": (".flv", "libx264", "aac", {}),
}


def rate_of(suffix: str) -> int:
    return 44_100 if suffix == ".flv" else 48_000


@pytest.fixture(scope="module", params=KINDS)
def movie(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    suffix, codec, sound_codec, options = KINDS[request.param]
    made = Movie(seconds=2, codec=codec, sound_codec=sound_codec, sound_rate=rate_of(suffix), options=options)
    return made.write(tmp_path_factory.mktemp("whole") / f"a{suffix}")


@pytest.fixture(scope="module")
def whole(movie: Path) -> tuple[list[Item], SourceReport]:
    """Return what the whole file gives."""
    return asyncio.run(read(movie))


def test_a_complete_file_is_reported_as_complete(movie: Path, whole: tuple[list[Item], SourceReport]) -> None:
    items, report = whole
    assert len(frames_of(items)) == 20
    assert report.complete is (None if movie.suffix == ".ts" else True)
    assert "truncated" not in report.summary()


def cut_file(movie: Path, folder: Path, share: float) -> tuple[Path, int]:
    whole = movie.read_bytes()
    length = int(len(whole) * share)
    if movie.suffix == ".ts" and length % 188 == 0:
        length -= 1
    cut = folder / f"cut{movie.suffix}"
    cut.write_bytes(whole[:length])
    return cut, length


def damaged_file(movie: Path, folder: Path, seed: int) -> Path:
    """Write a copy with twelve runs of 16 random bytes in the middle fifth."""
    data = bytearray(movie.read_bytes())
    generator = np.random.default_rng(seed)
    for _ in range(12):
        at = int(generator.integers(len(data) * 2 // 5, len(data) * 3 // 5 - 16))
        data[at : at + 16] = generator.bytes(16)
    damaged = folder / f"damaged{movie.suffix}"
    damaged.write_bytes(data)
    return damaged


@pytest.mark.asyncio
@pytest.mark.parametrize("share", CUTS)
async def test_a_truncated_file_is_never_reported_as_complete(
    movie: Path, whole: tuple[list[Item], SourceReport], tmp_path: Path, share: float
) -> None:
    """152 cuts: each is an error that says so, or ends with all that was decoded and the place of its end."""
    cut, length = cut_file(movie, tmp_path, share)
    try:
        items, report = await read(cut)
    except UnreadableError as error:
        assert "truncated" in str(error) or length < 2000, error  # noqa: PT017
        return
    assert report.complete is False, report
    assert "(truncated)" in report.summary()
    if report.expected_ms is not None:
        assert f"ended at {report.ended_ms / 1000:.1f} s of {report.expected_ms / 1000:.1f} s" in report.summary()
    assert report.ended_ms < 2300
    before, _ = whole
    shown = [(number_of(frame.image), frame.pts_ms) for frame in frames_of(items)]
    start_ms = shown[0][1] if shown else 0  # the cut may have left no sound, which begins before the video
    assert [number for number, _ in shown] == sorted({number for number, _ in shown})  # the last lack those between
    assert all(abs(at_ms - start_ms - number * 100) <= 1 for number, at_ms in shown)
    sure = max(0, len(sound_of(items)) - 2)  # the last chunks: what the codec puts after its last whole packet
    assert same(sound_of(items)[:sure], sound_of(before)[:sure])


@pytest.mark.asyncio
async def test_a_transport_stream_cut_between_packets_is_not_known_to_be_complete(tmp_path: Path) -> None:
    """It has no length and no index: where a packet of 188 bytes ends, its end may be anywhere."""
    whole = Movie(seconds=4).write(tmp_path / "a.ts").read_bytes()
    cut = tmp_path / "cut.ts"
    cut.write_bytes(whole[: len(whole) // 2 // 188 * 188])
    _, report = await read(cut)
    assert report.complete is None


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.flac", "flac"), ("a.ogg", "libopus")])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
async def test_truncated_sound_is_never_reported_as_complete(
    tmp_path: Path, name: str, codec: str, share: float
) -> None:
    seconds = 10 if share == 0.99 else 2  # a hundredth of less is a part of the last frame, which still decodes
    path = Movie(rate=0, seconds=seconds, sound_codec=codec).write(tmp_path / name)
    _, report = await read(path)
    assert report.complete is True
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    try:
        _, report = await read(path)
    except UnreadableError as error:
        assert "truncated" in str(error)  # noqa: PT017
        return
    assert report.complete is False
    assert report.sound.delivered < seconds * 16_000


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name", ["googlework_short.mp4", "talking_head_cap12.mp4", "big_buck_bunny_0_30.webm", "asl_book.mkv"]
)
@pytest.mark.parametrize("share", [0.2, *at_night(0.6, 0.95)])
async def test_real_files_cut_short_are_reported(tmp_path: Path, name: str, share: float) -> None:
    source = DATA / "video" / name
    if not source.exists():
        pytest.skip("shared/data/video is not beside the checkout")
    whole = source.read_bytes()
    cut = tmp_path / name
    cut.write_bytes(whole[: int(len(whole) * share)])
    _, report = await read(cut, frames_per_second=1, max_side=64)
    assert report.complete is False
    assert report.expected_ms is not None
    assert report.ended_ms < report.expected_ms


def test_ffmpeg_alone_does_not_tell(tmp_path: Path) -> None:
    """The reason for `structure.py`: a file cut in half ends without an error."""
    whole = Movie(seconds=4).write(tmp_path / "a.mkv").read_bytes()
    container: Any
    with av.open(io.BytesIO(whole[: len(whole) // 2])) as container:
        assert 0 < sum(1 for _ in container.demux()) < 200


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(6))
async def test_damage_in_the_middle_is_counted_and_passed(
    movie: Path, whole: tuple[list[Item], SourceReport], tmp_path: Path, seed: int
) -> None:
    damaged = damaged_file(movie, tmp_path, seed)
    try:
        items, report = await read(damaged)
    except UnreadableError:
        assert movie.suffix == ".mp4"  # the damage hit the index
        return
    assert not same(items, whole[0])
    if movie.suffix not in {".avi", ".webm"}:  # decoders of MPEG-4 and VP8 conceal damage and do not say so
        assert noticed(report)
    assert len(frames_of(items)) > 5


def noticed(report: SourceReport) -> bool:
    counts = dataclasses.asdict(report)
    names = ("damaged_packets", "corrupt_frames", "silences", "overlaps", "missing_packets", "gap_count")
    return any(counts[name] for name in names) or report.frames.decoded < 20 or report.frames.unusable > 0


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        (b"", None),
        (b"plain text, not media", None),
        (b"\0\0\0\x10ftypisom" + bytes(4) + b"\0\0\0\x08moov", 0),
        (b"\0\0\0\x10ftypisom" + bytes(4) + b"\0\0\0\x20moov", 24),
        (b"\0\0\0\x10ftypisom" + bytes(4), 1),  # no index yet
        (b"\0\0\0\x10ftypisom" + bytes(4) + b"\0\0\0", 5),
        (b"\0\0\0\x10ftypisom" + bytes(4) + b"\0\0\0\0mdat" + bytes(100), None),
        (b"\0\0\0\x10ftypisom" + bytes(4) + b"\0\0\0\x01mdat" + (1 << 40).to_bytes(8), (1 << 40) - 16),
        (b"RIFF" + (20).to_bytes(4, "little") + b"WAVE" + bytes(10), 6),
        (b"RIFF" + b"\xff" * 4 + b"WAVE" + bytes(10), None),
        (b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x8a" + bytes(4), 6),
        (b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01" + b"\xff" * 7 + bytes(4), None),  # a header of unknown length
        (b"\x1a\x45\xdf\xa3\x00", None),
        ((b"\x47" + bytes(187)) * 3, None),
        ((b"\x47" + bytes(187)) * 3 + b"\x47" + bytes(100), 87),
        (b"OggS\0\x04" + bytes(20) + b"\x01\x05" + bytes(5), 0),
        (b"OggS\0\x04" + bytes(20) + b"\x01\x05" + bytes(3), 2),
        (b"OggS\0\0" + bytes(20) + b"\x01\x05" + bytes(5), 1),
    ],
)
def test_missing_bytes_of_each_structure(data: bytes, missing: int | None) -> None:
    assert missing_bytes(io.BytesIO(data), len(data)) == missing


def test_a_file_of_endless_boxes_is_left() -> None:
    boxes = b"\0\0\0\x08free" * 200_000
    assert missing_bytes(io.BytesIO(boxes), len(boxes)) is None


def test_a_file_of_endless_void_elements_is_left() -> None:
    class Counting(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            return super().read(size)

    file = Counting(b"\x1a\x45\xdf\xa3\x80" + b"\xec\x80" * 1_000_000)
    assert missing_bytes(file, 2_000_005) is None
    assert file.reads < 500_000
