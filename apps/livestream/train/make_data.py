"""Data pack for train.py: `python -m apps.livestream.train.make_data DATA PACK [--models-dir DIR]`.

DATA has video/, audio/ and images/ of the project's test data. Frames of the tuning clips (labels.json) and the images
are labelled by the public detectors, sounds by the public voice detector; the test clips are not read. Drawings and
synthetic voices come with exact labels. PACK gets .npz files that train.py reads with NumPy alone:

    frames.npz    yuv (bytes of all frames, planes of Y, U and V), sizes, boxes, held_out
    sprites.npz   image uint8 [n, 128, 128, 4], class, face (left, top, width, height in shares; negative: none)
    sounds.npz    int16 at 16 kHz, one entry a sound, and a probability of speech of each 512 samples

Needs PyAV and opencv-python. With espeak-ng on the path there are synthetic sentences too: its voices are made by rule,
and what a program says is not under the program's licence.
"""

import argparse
import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from apps.livestream import drawing, sounds
from apps.livestream.evaluate_models import Task, av_module, sound, task
from apps.livestream.quality.labels import LABELS, Clip, read_labels
from walle.model_files import ModelFolder, default_folder

type Image = NDArray[np.uint8]

CLASSES = ("person", "bottle", "cup", "cell phone", "book", "article")
FACE = len(CLASSES)  # the class number of a face, in the pack
OF_COCO = {
    "person": "person", "bottle": "bottle", "cup": "cup", "wine glass": "cup", "cell phone": "cell phone",
    "remote": "cell phone", "book": "book",
}  # fmt: skip
ARTICLES = (
    "backpack", "handbag", "suitcase", "frisbee", "sports ball", "bowl", "banana", "apple", "sandwich", "orange",
    "hot dog", "pizza", "donut", "cake", "laptop", "mouse", "keyboard", "toaster", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush", "tie", "knife", "spoon", "fork",
)  # fmt: skip
SURE, UNSURE = 0.42, 0.25  # scores of the public item detector: from SURE on a label, between them neither
FACE_SURE, FACE_UNSURE = 0.65, 0.4
ITEM_SETTINGS = {"score": UNSURE}  # settings of the item task that labels frames
FRAME_SIDE, SPRITE_SIDE = 400, 128
FRAMES_PER_SECOND = 4
HELD_OUT = 0.8  # the part of each clip before the held-out one
SPRITES = {"bottle": 170, "cup": 150, "cell phone": 130, "book": 140, "article": 150, "hand": 170, "presenter": 300}
HELD_OUT_SOUNDS = ("vad_labelled_a.wav", "speech_48k.wav", "word_yes_1s.wav", "noise_a.wav", "noise_1s.wav")
SPEECH_SOUNDS = (
    "jfk.flac", "noisy_speech_16k.wav", "speech_8k.wav", "speech_read_a.wav", "speech_silence_padded.wav",
    "speech_two_channel_16k.wav", "counting.wav", "noise_b.wav", "guitar.wav", "silence_48k.wav",
)  # fmt: skip
VOICES = (
    "en-us", "en-gb", "en-gb-scotland", "de", "fr-fr", "es", "it", "pt-br", "pl", "nl", "sv", "ru", "tr", "hi", "cmn",
    "ja", "ko", "ar", "id", "sw",
)  # fmt: skip
SENTENCES = (
    "Look at this bottle. It keeps your tea warm for a whole day, and it fits into every bag. {n} of them are left.",
    "Good evening everybody, and welcome back! Today I have got number {n} for you, and I love it.",
    "Thank you for your question. Yes, the small one costs {n}, and there is another colour.",
)


# --- frames


async def frames(data: Path, models: ModelFolder) -> dict[str, Any]:
    """Return the frames with the public detectors' labels."""
    planes: list[NDArray[np.uint8]] = []
    sizes: list[tuple[int, ...]] = []
    boxes: list[list[float]] = []
    held: list[bool] = []
    sprites: list[tuple[Image, int, tuple[float, ...]]] = []
    async with task("item", models, settings=ITEM_SETTINGS) as items, task("face", models) as faces:
        for name, image, is_held in _pictures(data):
            found = [] if "bunny" in name else await _labelled(image, items, faces)
            if not is_held:
                sprites += _cut_outs(image, found)
            small = _fitted(image)
            scale = small.shape[1]
            for label, sure, box in found:
                boxes.append([len(sizes), label, sure, *(side * scale for side in box)])
            yuv = cv2.cvtColor(small, cv2.COLOR_BGR2YUV_I420)
            planes.append(yuv.reshape(-1))
            sizes.append(small.shape[:2])
            held.append(is_held)
    print(f"{len(sizes)} frames, {len(boxes)} boxes, {len(sprites)} cut-outs")
    return {
        "frames": {
            "yuv": np.concatenate(planes), "sizes": np.array(sizes, np.int32), "boxes": np.array(boxes, np.float32),
            "held_out": np.array(held),
        },
        "sprites": sprites,
    }  # fmt: skip


def _clips() -> list[Clip]:
    """Return the project's first tuning clips, which are in one folder; added ones and crops are not learned from."""
    return [clip for clip in read_labels(LABELS) if clip.set == "tuning" and not clip.source and clip.crop is None]


def _pictures(data: Path) -> Any:
    """Yield name, image and whether it is held out, of the tuning clips and the images."""
    for clip in _clips():
        with av_module().open(str(data / "video" / clip.file)) as container:
            due_s, step = 0.1, 1 / (2 if "bunny" in clip.name else FRAMES_PER_SECOND)
            for frame in container.decode(video=0):
                at = float(frame.pts * frame.time_base)
                if at >= due_s:
                    yield clip.name, frame.to_ndarray(format="bgr24"), at > HELD_OUT * clip.seconds
                    due_s += step
    for path in sorted((data / "images").iterdir()):
        image = cv2.imread(str(path))
        if image is not None:
            yield path.stem, image, False


async def _labelled(image: Image, items: Task, faces: Task) -> list[tuple[int, float, list[float]]]:
    """Return class number, 1 for sure or 0, and the box in shares of the width, of what the detectors find."""
    width = image.shape[1]
    found = []
    items.forget()
    for one in (await items.run(image=image))["items"]:
        name = OF_COCO.get(one["label"], "article" if one["label"] in ARTICLES else "")
        if name:
            found.append((CLASSES.index(name), float(one["score"] >= SURE), [side / width for side in one["box"]]))
    seen = (await faces.run(image=image))["faces"]
    return found + [(FACE, float(one["score"] >= FACE_SURE), [side / width for side in one["box"]]) for one in seen]


def _fitted(image: Image) -> Image:
    """Return the image at most FRAME_SIDE wide and high, with even sides."""
    scale = min(1.0, FRAME_SIDE / max(image.shape[:2]))
    size = (round(image.shape[1] * scale) // 2 * 2, round(image.shape[0] * scale) // 2 * 2)
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def _cut_outs(image: Image, found: list[tuple[int, float, list[float]]]) -> Any:
    """Return sprites: heads within a soft ellipse, and articles cut out along their edges."""
    width = image.shape[1]
    sprites = []
    for label, sure, box in found:
        left, top, across, down = (side * width for side in box)
        if not sure or min(across, down) < 28 or label == 0:
            continue
        grown = 0.4 if label == FACE else 0.15
        x0, y0 = max(0, round(left - grown * across)), max(0, round(top - grown * 1.3 * down))
        x1 = min(width, round(left + across * (1 + grown)))
        y1 = min(image.shape[0], round(top + down * (1 + grown * 0.7)))
        part = image[y0:y1, x0:x1]
        mask = np.zeros(part.shape[:2], np.uint8)
        if label == FACE:
            cv2.ellipse(
                mask,
                (mask.shape[1] // 2, mask.shape[0] // 2),
                (mask.shape[1] * 46 // 100, mask.shape[0] * 47 // 100),
                0,
                0,
                360,
                255,
                -1,
            )
        else:
            cut = np.zeros(part.shape[:2], np.uint8)
            inner = (round(left) - x0, round(top) - y0, round(across), round(down))
            cv2.grabCut(part, cut, inner, np.zeros((1, 65)), np.zeros((1, 65)), 3, cv2.GC_INIT_WITH_RECT)
            mask[(cut == 1) | (cut == 3)] = 255
            if mask.mean() < 50:
                continue
        mask = cv2.GaussianBlur(mask, (0, 0), 1 + 0.015 * max(mask.shape))
        scale = SPRITE_SIDE / max(part.shape[:2])
        size = (max(1, round(part.shape[1] * scale)), max(1, round(part.shape[0] * scale)))
        pasted = np.zeros((SPRITE_SIDE, SPRITE_SIDE, 4), np.uint8)
        pasted[: size[1], : size[0]] = cv2.resize(np.dstack([part, mask]), size, interpolation=cv2.INTER_AREA)
        face = (-1.0, -1.0, -1.0, -1.0)
        if label == FACE:
            s = scale / SPRITE_SIDE
            face = ((left - x0) * s, (top - y0) * s, across * s, down * s)
        sprites.append((pasted, 0 if label == FACE else label, face))
    return sprites


# --- sprites


def drawings(rng: np.random.Generator) -> list[tuple[Image, int, tuple[float, ...]]]:
    """Return drawn sprites with their classes; a hand is of the class person, as public detectors call it."""
    made: list[tuple[Image, int, tuple[float, ...]]] = []
    for name, count in SPRITES.items():
        draw = {"hand": drawing.hand, "presenter": drawing.presenter}.get(name) or drawing.ARTICLES[name]
        for _ in range(count):
            one = draw(SPRITE_SIDE, rng)
            made.append(
                (
                    one.image,
                    CLASSES.index(name) if name in CLASSES else 0 if name == "presenter" else -1,
                    one.face or (-1.0,) * 4,
                )
            )
    return made


# --- sounds


async def sound_pack(data: Path, models: ModelFolder, rng: np.random.Generator) -> dict[str, Any]:
    """Return sounds as int16, and the probability of speech of each of their windows."""
    pack: dict[str, Any] = {}

    def add(name: str, samples: NDArray[np.float32], windows: Any) -> None:
        pack[f"{name}/samples"] = np.clip(samples * 32767, -32768, 32767).astype(np.int16)
        pack[f"{name}/speech"] = np.asarray(windows, np.float16)

    async with task("voice", models) as voice:
        files = [(data / "audio" / name, name in HELD_OUT_SOUNDS) for name in (*SPEECH_SOUNDS, *HELD_OUT_SOUNDS)]
        files += [(data / "video" / clip.file, False) for clip in _clips() if "asl" not in clip.name]
        for path, is_held in files:
            samples = sound(path)
            voice.forget()
            windows = (await voice.run(samples=samples, pts_ms=0))["windows"]
            if "bunny" in path.name or "noise_" in path.name or "guitar" in path.name:
                windows = [0.0] * len(windows)
            cut = len(samples) if path.parent.name == "audio" else round(HELD_OUT * len(windows)) * 512
            add(f"{'held_out' if is_held else 'real'}/{path.name}", samples[:cut], windows[: cut // 512])
            if cut < len(samples):
                add(f"held_out/{path.name}", samples[cut:], windows[cut // 512 :])
    for number in range(14):
        samples = sounds.babble(8, rng)
        add(f"babble/{number}", samples, _loud(samples))
        samples = sounds.music(8, rng)
        add(f"music/{number}", samples, np.zeros(len(samples) // 512))
    if espeak := shutil.which("espeak-ng"):
        for number, voice_name in enumerate(VOICES):
            for variant in range(2):
                samples = _spoken(
                    espeak, voice_name, SENTENCES[(number + variant) % len(SENTENCES)].format(n=number + 7), rng
                )
                add(f"espeak/{number}-{variant}", samples, _loud(samples))
    return pack


def _spoken(espeak: str, voice: str, text: str, rng: np.random.Generator) -> NDArray[np.float32]:
    person = ("+m1", "+m3", "+m5", "+m7", "+f1", "+f2", "+f3", "+f4", "+f5")[int(rng.integers(9))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "said.wav")
        options = [
            "-v",
            voice + person,
            "-p",
            str(rng.integers(20, 80)),
            "-s",
            str(rng.integers(130, 200)),
            "-w",
            str(path),
        ]
        subprocess.run([espeak, *options, text], check=True)
        return sound(path)


def _loud(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 for windows of a clean voice that are loud, or within 100 ms after such a one, else 0."""
    count = len(samples) // 512
    power = np.sqrt((samples[: count * 512].reshape(count, 512) ** 2).mean(1))
    loud = power > 0.03 * np.percentile(power, 95)
    for shift in (1, 2, 3):
        loud[shift:] |= loud[:-shift] & (shift < 3)
    found: NDArray[np.float32] = loud.astype(np.float32)
    return found


async def write_pack(data: Path, pack: Path, models: ModelFolder) -> None:
    """Write the files of the pack into a folder."""
    rng = np.random.default_rng(7)
    np.savez_compressed(pack / "sounds.npz", **await sound_pack(data, models, rng))
    found = await frames(data, models)
    np.savez_compressed(pack / "frames.npz", **found["frames"])
    sprites = found["sprites"] + drawings(rng)
    np.savez_compressed(
        pack / "sprites.npz",
        image=np.stack([image for image, _, _ in sprites]),
        label=np.array([label for _, label, _ in sprites], np.int32),
        face=np.array([face for _, _, face in sprites], np.float32),
        drawn=np.arange(len(sprites)) >= len(found["sprites"]),
    )


def main() -> None:
    """Write the data pack."""
    parser = argparse.ArgumentParser(description="Write the data pack for train.py.")
    parser.add_argument("data", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--models-dir", type=Path)
    arguments = parser.parse_args()
    arguments.pack.mkdir(parents=True, exist_ok=True)
    asyncio.run(write_pack(arguments.data, arguments.pack, ModelFolder(arguments.models_dir or default_folder())))


if __name__ == "__main__":
    main()
