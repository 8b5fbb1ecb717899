"""The voice task in a real VM: real speech and noise, labels, ONNX Runtime as the reference, any chunks."""

import json
import random
import wave
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.apps.livestream import reference
from tests.apps.livestream.conftest import TaskVm, running
from walle.model_files import ModelFolder
from walle.vm import TaskError

RATE = 16_000
SPEECH = ("vad_labelled_a.wav", "noisy_speech_16k.wav", "speech_read_a.wav", "counting.wav")
QUIET = ("noise_a.wav", "noise_b.wav", "noise_1s.wav", "guitar.wav")

type Folders = Callable[..., Path]
type Samples = NDArray[np.float32]


def read(path: Path) -> Samples:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return (np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768)).astype(np.float32)


async def play(task: TaskVm, samples: Samples, lengths: Iterable[int], start_ms: int = 0) -> list[dict[str, Any]]:
    """Return the outputs of chunks of these lengths; what is left is the last chunk."""
    outputs, place = [], 0
    for length in [*lengths, len(samples)]:
        chunk = samples[place : place + length]
        outputs.append(await task.run(samples=chunk.copy(), pts_ms=start_ms + round(place / 16)))
        place += len(chunk)
    assert place == len(samples)
    return outputs


def windows(outputs: list[dict[str, Any]]) -> list[float]:
    return [probability for output in outputs for probability in output["windows"]]


def seconds(outputs: list[dict[str, Any]]) -> dict[int, tuple[float, int]]:
    return {one["second"]: (one["mean"], one["windows"]) for output in outputs for one in output["seconds"]}


def labelled_speech(path: Path) -> tuple[NDArray[np.bool_], int]:
    """Return which samples are labelled as speech, and how many from the start have a label at all."""
    speech = np.zeros(10 * RATE, bool)
    end = 0
    for entry in json.loads(path.read_text()).values():
        start, end = entry["wav"]["start"], entry["wav"]["stop"]
        bounds = [start + round(float(bound) * RATE) for bound in entry["speech"].split()]
        for begin, stop in zip(bounds[::2], bounds[1::2], strict=True):
            speech[begin:stop] = True
    return speech, end


def by_onnx_runtime(made: Any, samples: Samples) -> list[float]:
    state, before = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
    found = []
    for start in range(0, len(samples) - 511, 512):
        window = np.concatenate([before, samples[start : start + 512]])
        out = made.run(["output", "stateN"], {"input": window[None], "state": state, "sr": np.array(RATE)})
        found.append(float(out[0][0, 0]))
        state, before = out[1], window[-64:]
    return found


@pytest.mark.asyncio
async def test_it_agrees_with_onnx_runtime_on_every_window(
    task_folder: Folders, models: ModelFolder, sounds: Path
) -> None:
    made = reference.session(models.path / "vad_silero_16k_op15.onnx")
    async with running(task_folder("voice"), "voice") as task:
        for name in (*SPEECH, *QUIET):
            task.state = {}
            samples = read(sounds / name)
            found, expected = windows(await play(task, samples, [])), by_onnx_runtime(made, samples)
            assert len(found) == len(expected) == len(samples) // 512
            np.testing.assert_allclose(found, expected, atol=2e-3)
            close = [abs(probability - 0.5) < 2e-3 for probability in expected]
            assert [p > 0.5 for p in found] == [p > 0.5 for p in expected] or any(close), name


@pytest.mark.asyncio
async def test_chunks_of_any_length_give_the_whole_files_result_to_the_bit(task_folder: Folders, sounds: Path) -> None:
    samples = read(sounds / "vad_labelled_a.wav")[: 3 * RATE]
    rng = random.Random(4)
    async with running(task_folder("voice"), "voice") as task:
        whole = await play(task, samples, [], start_ms=250)
        for lengths in (
            [1600] * 30,
            [512] * 90,
            [1, 0, 511, 513, 64, 448, 5000, 1],
            [rng.randrange(0, 700) for _ in range(100)],
            [RATE, RATE, RATE - 1],
        ):
            task.state = {}
            outputs = await play(task, samples, lengths, start_ms=250)
            assert windows(outputs) == windows(whole)
            assert seconds(outputs) == seconds(whole)
            assert [output["restarted"] for output in outputs] == [True] + [False] * (len(outputs) - 1)
            starts = [output["start_ms"] for output in outputs if output["windows"]]
            counts = np.cumsum([0] + [len(output["windows"]) for output in outputs if output["windows"]])[:-1]
            assert starts == [250 + 32 * count for count in counts]


@pytest.mark.asyncio
async def test_seconds_are_means_of_the_windows_that_begin_in_them(task_folder: Folders, sounds: Path) -> None:
    samples = read(sounds / "counting.wav")
    async with running(task_folder("voice"), "voice") as task:
        outputs = await play(task, samples, [4000] * 20, start_ms=700)
    probabilities = windows(outputs)
    expected: dict[int, list[float]] = {}
    for number, probability in enumerate(probabilities):
        expected.setdefault((700 + 32 * number) // 1000, []).append(probability)
    found = seconds(outputs)
    assert found.keys() == expected.keys()
    for second, values in expected.items():
        mean, count = found[second]
        assert mean == pytest.approx(float(np.mean(values)), abs=1e-4)
        assert count == len(values)


@pytest.mark.asyncio
async def test_speech_is_separated_from_noise_and_music(task_folder: Folders, sounds: Path) -> None:
    async with running(task_folder("voice"), "voice") as task:
        for name in SPEECH:
            task.state = {}
            assert np.mean(np.array(windows(await play(task, read(sounds / name), []))) > 0.5) > 0.45, name
        for name in QUIET:
            task.state = {}
            assert np.mean(np.array(windows(await play(task, read(sounds / name), []))) > 0.5) < 0.02, name


@pytest.mark.asyncio
async def test_it_agrees_with_the_labels(task_folder: Folders, sounds: Path) -> None:
    samples = read(sounds / "vad_labelled_a.wav")
    speech, labelled_samples = labelled_speech(sounds / "vad_labelled_a.json")
    labelled = [float(speech[start : start + 512].mean()) for start in range(0, labelled_samples - 511, 512)]
    async with running(task_folder("voice"), "voice") as task:
        found = windows(await play(task, samples, []))
    clear = [(p > 0.5) == (share > 0.5) for p, share in zip(found, labelled, strict=False) if share in (0.0, 1.0)]
    assert len(clear) > 100
    assert np.mean(clear) >= 0.95


@pytest.mark.asyncio
async def test_after_a_gap_it_begins_again(task_folder: Folders, sounds: Path) -> None:
    samples = read(sounds / "speech_read_a.wav")[:RATE]
    async with running(task_folder("voice"), "voice") as task:
        fresh = await task.run(samples=samples.copy(), pts_ms=5000)
        assert fresh["restarted"]
        assert not (await task.run(samples=samples[:700].copy(), pts_ms=6000))["restarted"]
        for start_ms in (9000, 2000):  # a chunk is missing; the source jumped back
            again = await task.run(samples=samples.copy(), pts_ms=start_ms)
            assert again["restarted"]
            assert again["windows"] == fresh["windows"]
            assert again["start_ms"] == start_ms


@pytest.mark.asyncio
async def test_sounds_of_another_form_are_refused_and_leave_the_state_unchanged(
    task_folder: Folders, sounds: Path
) -> None:
    samples = read(sounds / "speech_read_a.wav")[: 2 * RATE]
    broken = samples[:100].copy()
    broken[50] = np.nan
    async with running(task_folder("voice"), "voice") as task:
        whole = windows(await play(task, samples, []))
        task.state = {}
        outputs = [await task.run(samples=samples[:RATE].copy(), pts_ms=0)]
        for contents, message in (
            ({"pts_ms": 1000}, "need `samples`"),
            ({"samples": [0.0], "pts_ms": 1000}, "need `samples`"),
            ({"samples": np.zeros(10, np.int16), "pts_ms": 1000}, r"must be float32 \[n\].*are int16 \[10\]"),
            ({"samples": np.zeros((10, 2), np.float32), "pts_ms": 1000}, r"are float32 \[10, 2\]"),
            ({"samples": np.zeros(60 * RATE + 1, np.float32), "pts_ms": 1000}, "at most 960000"),
            ({"samples": samples}, "need `pts_ms`"),
            ({"samples": samples, "pts_ms": 1.5}, "need `pts_ms`"),
            ({"samples": broken, "pts_ms": 1000}, "must be finite"),
        ):
            with pytest.raises(TaskError, match=message):
                await task.run(**contents)
        outputs.append(await task.run(samples=samples[RATE:].copy(), pts_ms=1000))
    assert windows(outputs) == whole


@pytest.mark.asyncio
async def test_the_state_stays_small(task_folder: Folders, sounds: Path) -> None:
    samples = read(sounds / "noise_b.wav")
    async with running(task_folder("voice"), "voice") as task:
        await play(task, samples, [1601] * 60)
        assert task.state is not None
        sizes = [len(value) for value in task.state.values() if isinstance(value, bytes)]
    assert sum(sizes) < 4 * (512 + 64 + 256)
