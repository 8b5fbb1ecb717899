"""Rates, layouts, gaps and overlaps of decoded sound."""

import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from apps.livestream.media import Gap, MediaLimits
from apps.livestream.media.sound import mixed
from tests.apps.livestream.media_files import DATA, Movie, audio_frame, joined, read, sound_of

TONE_HZ = 440.0


def tone(count: int, amplitude: float = 0.5, start: int = 0) -> npt.NDArray[np.float64]:
    sines: npt.NDArray[np.float64] = amplitude * np.sin(2 * np.pi * TONE_HZ * np.arange(start, start + count) / 16_000)
    return sines


@pytest.mark.asyncio
@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1"])
@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
async def test_a_tone_keeps_its_pitch_phase_and_length(tmp_path: Path, rate: int, layout: str) -> None:
    movie = Movie(rate=0, seconds=1.55, sound_rate=rate, layout=layout, sound_codec="pcm_s16le")
    items, report = await read(movie.write(tmp_path / "a.wav"))
    samples = joined(items)
    count = report.sound.converted
    assert abs(count - 24_800) <= 1
    assert np.abs(samples[200 : count - 200] - tone(count)[200:-200]).max() < 2e-3
    assert len(samples) == 25_600
    assert not samples[count:].any()
    assert report.sound.padding == 25_600 - count
    assert report.sound.decoded == 1.55 * rate // 1
    assert report.complete is True


@pytest.mark.asyncio
@pytest.mark.parametrize("sound_ms", [20, 32, 100, 1000, 5000])
async def test_chunks_have_the_stated_length(tmp_path: Path, sound_ms: int) -> None:
    path = Movie(rate=0, sound_rate=44_100, sound_codec="flac").write(tmp_path / "a.flac")
    items, _ = await read(path, sound_ms=sound_ms)
    whole, _ = await read(path)
    assert {len(chunk.samples) for chunk in sound_of(items)} == {16 * sound_ms}
    assert [chunk.pts_ms for chunk in sound_of(items)] == [number * sound_ms for number in range(len(items))]
    assert {chunk.samples.dtype for chunk in sound_of(items)} == {np.dtype(np.float32)}
    assert np.array_equal(joined(items)[:32_000], joined(whole)[:32_000])


# The stereo down-mix of ITU-R BS.775-3 with both sides added, by FFmpeg's order of the channels.
HALF = np.sqrt(0.5)
DOWN_MIX = {
    "mono": [1],
    "stereo": [1, 1],
    "2.1": [1, 1, 0],
    "3.0": [1, 1, 2 * HALF],
    "quad": [1, 1, HALF, HALF],
    "5.0": [1, 1, 2 * HALF, HALF, HALF],
    "5.1": [1, 1, 2 * HALF, 0, HALF, HALF],
    "5.1(side)": [1, 1, 2 * HALF, 0, HALF, HALF],
    "7.1": [1, 1, 2 * HALF, 0, HALF, HALF, HALF, HALF],
}


@pytest.mark.parametrize("layout", DOWN_MIX)
def test_the_down_mix_is_the_stated_one(layout: str) -> None:
    weights = np.array(DOWN_MIX[layout])
    weights = weights / weights.sum()
    channels = np.random.default_rng(1).uniform(-1, 1, (len(weights), 64)).astype(np.float32)
    frame = audio_frame(channels, "flt", layout, 48_000, 0)
    assert np.allclose(mixed(frame, 1), weights @ channels, atol=1e-6)
    loudest = audio_frame(np.ones_like(channels), "flt", layout, 48_000, 0)
    assert np.allclose(mixed(loudest, 1), 1)
    assert np.allclose(mixed(loudest, 2), 1)


def test_left_stays_left_in_stereo() -> None:
    channels = np.zeros((6, 8), np.float32)
    channels[0], channels[5] = 1, 0.5  # front left, back right
    left, right = mixed(audio_frame(channels, "fltp", "5.1", 48_000, 0), 2)
    assert np.allclose(left, 1 / (1 + 2 * HALF))
    assert np.allclose(right, 0.5 * HALF / (1 + 2 * HALF))


@pytest.mark.parametrize("layout", ["FL", "FR+LFE", "FL+SL"])
def test_a_side_without_channels_gets_the_other(layout: str) -> None:
    count = len(layout.split("+"))
    channels = np.array([[0.5, -0.25], [0.5, -0.25]][:count], np.float32)
    left, right = mixed(audio_frame(channels, "fltp", layout, 48_000, 0), 2)
    assert left.tolist() == right.tolist() == [0.5, -0.25]


@pytest.mark.parametrize("kind", ["u8", "s16", "s32", "flt", "dbl", "u8p", "s16p", "s32p", "fltp", "dblp"])
def test_each_sample_format_has_full_scale_one(kind: str) -> None:
    values = np.array([[-1, -0.5, 0, 0.5], [-1, -0.5, 0, 0.5]])
    coded: dict[str, npt.NDArray[Any]] = {
        "u8": np.round(values * 128 + 128).astype(np.uint8),
        "s16": (values * 2**15).astype(np.int16),
        "s32": (values * 2**31).astype(np.int32),
        "flt": values.astype(np.float32),
        "dbl": values.astype(np.float64),
    }
    scaled = coded[kind.removesuffix("p")]
    if not kind.endswith("p"):
        scaled = scaled.T.reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(scaled), format=kind, layout="stereo")
    frame.sample_rate = 16_000
    assert mixed(frame, 1).tolist() == [[-1, -0.5, 0, 0.5]]
    assert mixed(frame, 1).dtype == np.float32


def test_values_that_are_not_numbers_are_silent() -> None:
    channels = np.array([[0.5, np.nan, np.inf, -np.inf]], np.float32)
    assert mixed(audio_frame(channels, "fltp", "mono", 16_000, 0), 1).tolist() == [[0.5, 0, 1, -1]]


@pytest.mark.asyncio
async def test_eight_planes_are_read(tmp_path: Path) -> None:
    """PyAV cannot read the planes of such a frame itself."""
    path = tmp_path / "a.mka"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=48_000, layout="7.1")
        sines = np.tile(np.repeat(tone(16_000), 3), (8, 1)).astype(np.float32)
        pack = av.AudioResampler(format="fltp", layout="7.1", rate=48_000)
        for at in range(0, 47 * 1024, 1024):
            frame = audio_frame(sines[:, at : at + 1024], "flt", "7.1", 48_000, at)
            container.mux([packet for planar in pack.resample(frame) for packet in sound.encode(planar)])
        container.mux(sound.encode(None))
    items, report = await read(path)
    assert report.damaged_packets == 0
    assert 0.3 < np.abs(joined(items)[2000:14_000]).max() < 0.6


@pytest.mark.asyncio
@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
async def test_a_gap_is_filled_with_silence(tmp_path: Path, rate: int) -> None:
    movie = Movie(seconds=4, sound_rate=rate, sound_codec="pcm_s16le", sound_ms=[(0, 1000), (1700, 2000)])
    items, report = await read(movie.write(tmp_path / "a.mkv"))
    samples = joined(items)
    inserted = report.sound.silence
    assert abs(inserted - 0.7 * rate) <= rate * 0.002  # Matroska rounds times to milliseconds
    assert (report.silences, report.overlaps) == (1, 0)
    assert np.abs(samples[16_100:27_100]).max() < 1e-3
    assert np.abs(samples[28_000:59_000] - tone(59_000)[28_000:]).max() < 0.2  # a millisecond of phase
    assert [chunk.pts_ms for chunk in sound_of(items)] == list(range(0, 3700, 100))


@pytest.mark.asyncio
async def test_overlapping_sound_is_trimmed(tmp_path: Path) -> None:
    movie = Movie(seconds=3, sound_rate=48_000, sound_codec="pcm_s16le", sound_ms=[(0, 1000)])
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("pcm_s16le", rate=48_000, layout="stereo")
        samples = movie.samples()
        for at, shown_at in ((0, 0), (48_000, 24_000), (96_000, 72_000)):  # each second is said to begin early
            frame = audio_frame(samples[:, at : at + 48_000], "s16", "stereo", 48_000, shown_at)
            packet = sound.encode(frame)[0]
            container.mux(packet)
    items, report = await read(path)
    assert report.overlaps == 1
    assert report.sound.trimmed == 24_000
    assert report.sound.decoded == 144_000
    assert report.sound.converted == 40_000
    expected = np.concatenate([tone(16_000), tone(24_000, start=24_000)])
    inner = np.r_[200:15_800, 16_200:39_800]
    assert np.abs(joined(items)[inner] - expected[inner]).max() < 2e-3


@pytest.mark.asyncio
async def test_a_long_gap_is_reported_and_not_filled(tmp_path: Path) -> None:
    movie = Movie(seconds=40, rate=1, sound_rate=48_000, sound_codec="pcm_s16le", sound_ms=[(0, 1050), (30_000, 1000)])
    path = movie.write(tmp_path / "a.mkv")
    items, report = await read(path)
    assert report.gaps == [Gap(1050, 30_000, "no sound in the source")]
    assert report.sound.silence == 0
    assert report.sound.segments == 2
    times_ms = [chunk.pts_ms for chunk in sound_of(items)]
    assert times_ms == [*range(0, 1100, 100), *range(30_000, 31_000, 100)]
    filled, report = await read(path, limits=MediaLimits(silence_s=60))
    assert report.gap_count == 0
    assert report.sound.silence == 28_950 * 48
    assert len(sound_of(filled)) == 310


@pytest.mark.asyncio
async def test_sound_that_begins_later_has_its_own_time(tmp_path: Path) -> None:
    movie = Movie(seconds=3, sound_codec="pcm_s16le", sound_ms=[(730, 1000)])
    items, report = await read(movie.write(tmp_path / "a.mkv"))
    assert [chunk.pts_ms for chunk in sound_of(items)] == [730 + 100 * number for number in range(10)]
    assert report.silences == report.gap_count == 0


@pytest.mark.asyncio
async def test_labelled_speech_is_the_files_own_samples() -> None:
    """A 16 kHz mono file is delivered unchanged: what models were labelled on is what they get."""
    path = DATA / "audio/vad_labelled_a.wav"
    if not path.exists():
        pytest.skip("shared/data/audio is not beside the checkout")
    with wave.open(str(path)) as file:
        raw = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    items, report = await read(path)
    assert np.array_equal(joined(items)[: len(raw)], raw.astype(np.float32) / 32768)
    assert report.sound.converted == len(raw)
