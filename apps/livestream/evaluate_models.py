"""Quality of the app's models, by their tasks in VMs, on labelled clips and sounds:

    python -m apps.livestream.evaluate_models DATA [--models own|public] [--models-dir DIR] [--json]

DATA has video/, audio/ and images/ as evaluation_labels.json names them. One frame a second of each clip is analysed;
the thresholds are those of the tasks' settings. They were not chosen on these files, except `UNCHANGED` of
frame_choice.py, on bottle-detection.mp4. Voice is compared with the labels of speechbrain's file and, window by window,
with Silero VAD in ONNX Runtime: for the public models that is the same model in another engine, for the app's own the
model that was its teacher. The app's own models were trained on the tuning clips of labels.json and most of the sounds;
train/make_data.py says what was kept from them. Needs PyAV and onnxruntime.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.livestream.frame_choice import Choice, FrameChooser
from apps.livestream.intervals import block_bootstrap, wilson
from apps.livestream.make_gallery import make_gallery
from apps.livestream.own_models import OwnModels
from apps.livestream.task_files import (
    NO_EXCLUSIVE_FILES,
    TASKS,
    Models,
    add_model_options,
    add_modules,
    chosen_models,
    manifest,
    write_task,
)
from walle.errors import ConfigError
from walle.model_files import ModelFolder, default_folder
from walle.vm import VM

LABELS_PATH = Path(__file__).with_name("evaluation_labels.json")
RATE = 16_000
WINDOW = 512
SPEECH = 0.5
SPEECH_FILES = (
    "audio/vad_labelled_a.wav", "audio/speech_read_a.wav", "audio/noisy_speech_16k.wav", "audio/speech_8k.wav",
    "audio/speech_48k.wav", "audio/jfk.flac", "audio/counting.wav", "audio/speech_two_channel_16k.wav",
    "audio/speech_silence_padded.wav", "audio/word_yes_1s.wav", "video/nasa_13013.mp4", "video/googlework_short.mp4",
)  # fmt: skip
QUIET_FILES = (
    "audio/noise_a.wav", "audio/noise_b.wav", "audio/noise_1s.wav", "audio/guitar.wav", "audio/silence_48k.wav",
    "video/big_buck_bunny_0_30.webm",
)  # fmt: skip
PICTURES = (
    "astronaut.png", "chelsea.png", "cat_720p.jpg", "coffee.png", "hot_dog.jpg", "shoes_1.jpg",
    "face_with_toy.jpg",
)  # fmt: skip

NOBODY = ("chelsea.png", "cat_720p.jpg", "coffee.png", "hot_dog.jpg", "shoes_1.jpg")  # photographs of no person

type Image = NDArray[np.uint8]


class EvaluationError(ConfigError):
    """A file or a package that the evaluation lacks."""


class Task:
    """A task in a VM, with the state that it keeps between runs."""

    def __init__(self, vm: VM, name: str) -> None:
        self._vm = vm
        self._name = name
        self.forget()

    def forget(self) -> None:
        """Begin a new stream."""
        self._state: dict[str, Any] | None = None if self._name in ("face", "item") else {}

    async def run(self, **contents: Any) -> dict[str, Any]:
        event = {"event_id": "frame", "page_id": "", "ts_ms": 0, "contents": contents}
        trigger = {"event": event, "position": 1, "visit": "none"}
        arguments: tuple[Any, ...] = (f"live/{self._name}", trigger, [], {}, {}, self._state)
        result = await self._vm.call(
            "walle.pipeline.stream.context:run", *arguments, deadline=60.0, callbacks=NO_EXCLUSIVE_FILES
        )
        self._state = result.get("state")
        output: dict[str, Any] = result["output"]
        return output


@contextlib.asynccontextmanager
async def task(name: str, models: Models, **changed: Any) -> AsyncIterator[Task]:
    """Give a task in a VM; `changed` are arguments of `write_task`."""
    with tempfile.TemporaryDirectory() as folder:
        vm = VM(add_modules(write_task(name, Path(folder), models, **changed)), name=name)
        try:
            yield Task(vm, name)
        finally:
            vm.close()
            await vm.wait_closed()


def av_module() -> Any:
    """Return PyAV; raises EvaluationError without it."""
    try:
        return importlib.import_module("av")
    except ModuleNotFoundError as error:
        raise EvaluationError("PyAV is not installed, which reads the clips: pip install 'av>=19,<20'") from error


def frames(path: Path) -> Iterator[Image]:
    """Yield a frame for each second n of a clip: the first at or after n + 0.5 s, uint8 [height, width, 3] in BGR."""
    with av_module().open(str(path)) as container:
        due_s = 0.5
        for frame in container.decode(video=0):
            if float(frame.pts * frame.time_base) >= due_s:
                yield frame.to_ndarray(format="bgr24")
                due_s += 1


def sound(path: Path) -> NDArray[np.float32]:
    """Return a file's sound as float32 [n], mono at 16 kHz."""
    av = av_module()
    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        parts = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        parts += resampler.resample(None)
    return np.concatenate([part.to_ndarray().reshape(-1) for part in parts]).astype(np.float32)


# --- counts of objects


class Counts:
    """Objects found, and labelled, by numbers a frame: places are not compared."""

    def __init__(self) -> None:
        self.right = self.found = self.labelled = 0

    def add(self, found: int, labelled: int) -> None:
        self.right += min(found, labelled)
        self.found += found
        self.labelled += labelled

    def row(self) -> dict[str, Any]:
        return {"precision": share(self.right, self.found), "recall": share(self.right, self.labelled)}


def share(successes: int, trials: int) -> dict[str, Any] | None:
    """Return a share with its 95 % interval; None without trials."""
    if not trials:
        return None
    return {"count": successes, "of": trials, "share": successes / trials, "interval": wilson(successes, trials)}


async def faces(data: Path, models: Models, labels: dict[str, Any], detector: str) -> list[dict[str, Any]]:
    """Return precision and recall of faces by clip and in all, and the share of frames with a face that is none."""
    rows, all_counts, alarms, empty = [], Counts(), 0, 0
    async with task("face", models, settings={"detector": detector}) as detect:
        for clip, expected in labels["faces"].items():
            counts = Counts()
            for image, labelled in zip(frames(data / "video" / clip), expected, strict=True):
                found = len((await detect.run(image=image))["faces"])
                if labelled is None:
                    continue
                for one in (counts, all_counts):
                    one.add(found, labelled)
                if labelled == 0:
                    empty += 1
                    alarms += found > 0
            rows.append({"model": detector, "files": clip, **counts.row()})
    rows.append({"model": detector, "files": "all", **all_counts.row(), "false_frames": share(alarms, empty)})
    return rows


async def items(data: Path, models: Models, labels: dict[str, Any]) -> list[dict[str, Any]]:
    """Return precision and recall of bottles, and false persons and items where no person is."""
    model = "own" if isinstance(models, OwnModels) else "nanodet"
    rows: list[dict[str, Any]] = []
    async with task("item", models) as detect:
        for clip, expected in labels["bottles"].items():
            counts, again, reused = Counts(), Counts(), 0
            chooser, last = FrameChooser(), 0
            for second, (image, labelled) in enumerate(zip(frames(data / "video" / clip), expected, strict=True)):
                bottles = _labelled(await detect.run(image=image), "bottle")
                counts.add(bottles, labelled)
                if chooser.choose(1000 * second, image) is Choice.UNCHANGED:
                    reused += 1
                else:
                    last = bottles
                again.add(last, labelled)
            rows.append({"model": model, "files": clip, "what": "bottle", **counts.row()})
            rows.append({
                "model": model, "files": clip, "what": "bottle, unchanged frames reused", **again.row(),
                "reused": share(reused, len(expected)),
            })  # fmt: skip
        for clip in labels["no_person"]:
            persons = others = total = 0
            for image in frames(data / "video" / clip):
                output = await detect.run(image=image)
                found = {one["label"] for one in output["items"]}
                total += 1
                persons += "person" in found
                others += bool(found - {"person", "bottle"})
            rows.append(
                {
                    "model": model,
                    "files": clip,
                    "what": "person where none is",
                    "false_frames": share(persons, total),
                }
            )
            rows.append({"model": model, "files": clip, "what": "another item", "false_frames": share(others, total)})
    return rows


def empty_scenes(data: Path) -> Iterator[tuple[str, str, Image]]:
    """Yield kind, name and image of scenes without a person: photographs, a drawn empty room, and plain frames.

    The data have no photograph of an empty room. The drawn one is the background of the tasks' simulations.
    """
    for name in NOBODY:
        yield "photographs without a person", name, _picture(data / "images" / name)
    yield "drawn empty room", "empty.png", _picture(TASKS / "item" / "simulation" / "empty.png")
    for grey in (0, 64, 128, 192, 255):
        yield "plain grey frames", f"grey {grey}", np.full((360, 640, 3), grey, np.uint8)


async def nobody(data: Path, models: Models) -> list[dict[str, Any]]:
    """Return the shares of scenes without a person in which a person, or a face, is found."""
    counts: dict[str, list[int]] = {}
    async with task("item", models) as detect, task("face", models) as look:
        for kind, _, image in empty_scenes(data):
            found = counts.setdefault(kind, [0, 0, 0])
            found[0] += 1
            found[1] += any(one["label"] == "person" for one in (await detect.run(image=image))["items"])
            found[2] += bool((await look.run(image=image))["faces"])
    return [
        {"model": model, "files": kind, "what": f"{what} where none is", "false_frames": share(found[place], found[0])}
        for kind, found in counts.items()
        for model, what, place in (("nanodet", "person", 1), ("yunet", "face", 2))
    ]


def _picture(path: Path) -> Image:
    with av_module().open(str(path)) as container:
        return np.asarray(next(container.decode(video=0)).to_ndarray(format="bgr24"), np.uint8)


def _labelled(output: dict[str, Any], label: str) -> int:
    return sum(one["label"] == label for one in output["items"])


# --- recognition


def variants(image: Image) -> Iterator[Image]:
    """Yield an image mirrored, cut to nine tenths at each corner, darker, brighter, and at a quarter of its size."""
    rows, columns = (round(0.9 * side) for side in image.shape[:2])
    yield image[:, ::-1]
    for down in (slice(rows), slice(-rows, None)):
        for across in (slice(columns), slice(-columns, None)):
            yield image[down, across]
    yield (image * 0.6).astype(np.uint8)
    yield np.clip(image * 1.4, 0, 255).astype(np.uint8)
    yield image[::4, ::4]


def recognition(data: Path, models: Models) -> list[dict[str, Any]]:
    """Return how often an altered picture is most like its original among seven pictures.

    It is an easy test: originals, not other photographs of the items, which the data lack.
    """
    import walle
    from apps.livestream.make_gallery import embedder, embedding, item_image

    made = make_gallery([f"{name}={data / 'images' / name}" for name in PICTURES], models)
    known = np.array([made["items"][name][0] for name in PICTURES])
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    right = total = 0
    with tempfile.TemporaryDirectory() as folder:
        session = walle.Session(embedder(models, Path(folder, "embedder.walle")))
        for number, name in enumerate(PICTURES):
            _, image = item_image(f"{name}={data / 'images' / name}")
            for one in variants(np.asarray(image)):
                values = np.array(embedding(session, walle.np.asarray(np.ascontiguousarray(one))))
                right += int(np.argmax(known @ values)) == number
                total += 1
    return [
        {
            "model": f"{made['model']} embedding",
            "files": f"{len(PICTURES)} images",
            "what": "altered picture named",
            "right": share(right, total),
        }
    ]


# --- voice


def silero(path: Path) -> Any:
    """Return a function from samples to the probabilities of the published model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def probabilities(samples: NDArray[np.float32]) -> list[float]:
        state, before = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
        found = []
        for start in range(0, len(samples) - WINDOW + 1, WINDOW):
            window = np.concatenate([before, samples[start : start + WINDOW]])
            out, state = session.run(
                ["output", "stateN"], {"input": window[None], "state": state, "sr": np.array(RATE)}
            )
            found.append(float(out[0, 0]))
            before = window[-64:]
        return found

    return probabilities


def labelled_windows(path: Path) -> list[bool | None]:
    """Return whether each window is labelled as speech; None for one that has both."""
    speech: list[bool] = []
    for entry in json.loads(path.read_bytes()).values():
        part = [False] * (entry["wav"]["stop"] - entry["wav"]["start"])
        bounds = [round(float(bound) * RATE) for bound in entry["speech"].split()]
        for begin, end in zip(bounds[::2], bounds[1::2], strict=True):
            part[begin:end] = [True] * (end - begin)
        speech += part
    windows = [set(speech[start : start + WINDOW]) for start in range(0, len(speech) - WINDOW + 1, WINDOW)]
    return [one.pop() if len(one) == 1 else None for one in windows]


def against_labels(found: Sequence[float], labels: Sequence[bool | None]) -> list[bool]:
    """Return whether each labelled window was told right; there may be more windows than labels."""
    pairs = zip(found[: len(labels)], labels, strict=True)
    return [(one > SPEECH) == label for one, label in pairs if label is not None]


def precision_and_recall(found: Sequence[float], labels: Sequence[bool | None]) -> dict[str, Any]:
    """Return precision and recall of speech over the labelled windows; there may be more windows than labels."""
    pairs = [
        (one > SPEECH, label) for one, label in zip(found[: len(labels)], labels, strict=True) if label is not None
    ]
    right = sum(answer and label for answer, label in pairs)
    return {
        "precision": share(right, sum(answer for answer, _ in pairs)),
        "recall": share(right, sum(label for _, label in pairs)),
    }


async def voice(data: Path, models: Models, published: ModelFolder) -> list[dict[str, Any]]:
    """Return the agreement with Silero VAD in ONNX Runtime and with the labels, and the share that is speech."""
    by_peer = silero(published.file(manifest().entries["voice_silero"]))
    rows: list[dict[str, Any]] = []
    async with task("voice", models) as detect:
        for name in (*SPEECH_FILES, *QUIET_FILES):
            samples = sound(data / name)
            detect.forget()
            found: list[float] = []
            for start in range(0, len(samples), RATE // 10):
                chunk = samples[start : start + RATE // 10]
                found += (await detect.run(samples=chunk, pts_ms=start * 1000 // RATE))["windows"]
            expected = by_peer(samples)
            same = [(a > SPEECH) == (b > SPEECH) for a, b in zip(found, expected, strict=True)]
            row: dict[str, Any] = {
                "model": "own" if isinstance(models, OwnModels) else "silero",
                "files": name,
                "speech": share(sum(one > SPEECH for one in found), len(found)),
                "as_onnxruntime": share(sum(same), len(same)),
                "largest_difference": max(abs(a - b) for a, b in zip(found, expected, strict=True)),
            }
            if name == "audio/vad_labelled_a.wav":
                labels = labelled_windows(data / "audio/vad_labelled_a.json")
                for key, probabilities in (("as_labels", found), ("onnxruntime_as_labels", expected)):
                    right = against_labels(probabilities, labels)
                    row[key] = {**(share(sum(right), len(right)) or {}), "interval": block_bootstrap(right)}
                row |= precision_and_recall(found, labels)
            rows.append(row)
    return rows


# --- the report


def _text(value: Any) -> str:
    match value:
        case {"count": count, "of": of, "share": part, "interval": (low, high)}:
            return f"{100 * part:.1f} % ({count} of {of}; {100 * low:.1f} to {100 * high:.1f})"
        case float():
            return f"{value:.1e}"
        case None:
            return "-"
        case _:
            return str(value)


def lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each row; intervals are 95 %."""
    found = []
    for row in rows:
        head = f"{row['model']:20} {row['files']:34}"
        values = [
            f"{key.replace('_', ' ')}: {_text(value)}" for key, value in row.items() if key not in {"model", "files"}
        ]
        found.append(f"{head} {'; '.join(values)}")
    return found


async def evaluate(data: Path, models: Models, published: ModelFolder) -> list[dict[str, Any]]:
    """Return the rows of all models of a set; `published` has the voice detector that is compared with.

    Raises:
        EvaluationError: PyAV is not installed.
        ModelFileError: a model is not in the folder of models.
    """
    labels = json.loads(LABELS_PATH.read_bytes())
    return [
        *[
            row
            for detector in (("own",) if isinstance(models, OwnModels) else ("yunet", "ultraface"))
            for row in await faces(data, models, labels, detector)
        ],
        *await items(data, models, labels),
        *await nobody(data, models),
        *recognition(data, models),
        *await voice(data, models, published),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Quality of the livestream app's models on labelled files.")
    parser.add_argument("data", type=Path, help="folder with video/, audio/ and images/")
    add_model_options(parser)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    published = ModelFolder(arguments.models_dir or default_folder())
    rows = asyncio.run(evaluate(arguments.data, chosen_models(arguments), published))
    print(json.dumps(rows, indent=1) if arguments.json else "\n".join(lines(rows)))  # noqa: T201 -- a command's result


if __name__ == "__main__":
    main()
