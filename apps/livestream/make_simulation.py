"""Generator of the events for the tasks' simulations: `python -m apps.livestream.make_simulation`.

Drawn scenes and synthetic sounds, small enough for the repository, in which the public models find a clock, a face and
a voice, so that a simulation runs through all of a version. How well models recognise is measured on real files
(evaluate_models.py).
"""

import json
import math
import struct
from pathlib import Path
from typing import Any

from apps.livestream.task_files import NAMES, TASKS
from walle import cv, np

WIDTH, HEIGHT = 320, 180
START_MS = 1_700_000_000_000
RATE = 16_000
CHUNK = 1_600  # samples of a sound event, 100 ms
# What each frame shows: an empty room, a clock on its wall, the clock and a face.
SCENES = ("empty", "clock", "clock", "face", "face", "empty")
# The sound of each event: silence, a voice-like buzz (a pulse train through two resonances), a pure tone.
SOUNDS = ("silence", "buzz", "buzz", "tone")


def scene(kind: str) -> np.ndarray:
    """Return a frame, uint8 [180, 320, 3]."""
    image = np.full((HEIGHT, WIDTH, 3), 190, dtype="uint8")
    image = cv.rectangle(image, (0, 130), (WIDTH, HEIGHT), (70, 90, 120), -1)
    if kind != "empty":
        image = _clock(image, 90, 90, 70)
    if kind == "face":
        image = _face(image, 250, 90)
    return image


def _clock(image: np.ndarray, x: int, y: int, radius: int) -> np.ndarray:
    """Draw a clock at ten past twelve."""
    image = cv.circle(image, (x, y), radius, (30, 30, 30), -1)
    image = cv.circle(image, (x, y), radius - 8, (245, 245, 245), -1)
    for hour in range(12):
        across, down = math.cos(hour * math.pi / 6), math.sin(hour * math.pi / 6)
        inner, outer = ((round(x + length * across), round(y + length * down)) for length in (radius - 18, radius - 12))
        image = cv.line(image, inner, outer, (20, 20, 20), 2)
    image = cv.line(image, (x, y), (x, y - 40), (20, 20, 20), 3)
    return cv.line(image, (x, y), (x + 28, y + 10), (20, 20, 20), 4)


def _face(image: np.ndarray, x: int, y: int) -> np.ndarray:
    """Draw a face of about 90 x 115 pixels: hair, neck, skin, eyes with brows, nose and mouth."""

    def disc(at: tuple[int, int], axes: tuple[int, int], colour: tuple[int, int, int]) -> None:
        nonlocal image
        image = cv.ellipse(image, at, axes, 0, 0, 360, colour, -1)

    disc((x, y - 8), (52, 66), (30, 40, 50))
    image = cv.rectangle(image, (x - 18, y + 50), (x + 18, HEIGHT), (130, 160, 210), -1)
    disc((x, y), (44, 58), (140, 170, 220))
    for side in (-17, 17):
        disc((x + side, y - 10), (9, 5), (245, 245, 245))
        disc((x + side, y - 10), (4, 4), (30, 30, 40))
        image = cv.line(image, (x + side - 10, y - 20), (x + side + 10, y - 21), (40, 50, 60), 4)
    image = cv.line(image, (x, y - 8), (x - 5, y + 14), (110, 140, 190), 3)
    image = cv.line(image, (x - 6, y + 15), (x + 6, y + 15), (100, 125, 175), 4)
    disc((x, y + 32), (16, 5), (80, 80, 180))
    return cv.GaussianBlur(image, (5, 5), 0)


def sound(kind: str) -> list[float]:
    """Return the samples of an event."""
    if kind == "silence":
        return [0.0] * CHUNK
    if kind == "tone":
        return [0.3 * math.sin(2 * math.pi * 440 * n / RATE) for n in range(CHUNK)]
    values = [1.0 if n % 133 == 0 else 0.0 for n in range(CHUNK)]  # 120 Hz
    for frequency in (700, 1200):
        values = _resonance(values, frequency)
    most = max(map(abs, values))
    return [0.3 * value / most for value in values]


def _resonance(values: list[float], frequency: float) -> list[float]:
    """Return the values through a filter of two poles with a bandwidth of 100 Hz."""
    radius = math.exp(-math.pi * 100 / RATE)
    first, second = 2 * radius * math.cos(2 * math.pi * frequency / RATE), -radius * radius
    out = [0.0, 0.0]
    for value in values:
        out.append(value + first * out[-1] + second * out[-2])
    return out[2:]


def npy(samples: list[float]) -> bytes:
    """Return a .npy file, format 1.0, of float32 [n]."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(samples)},), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(samples)}f", *samples)


def files(task: str) -> dict[str, bytes]:
    """Return the files of a task's simulation by name: events.jsonl and what it names."""
    made: dict[str, bytes] = {}
    events: list[dict[str, Any]] = []
    if task == "voice":
        for number, kind in enumerate(SOUNDS):
            name = f"{kind}.npy"
            made[name] = npy(sound(kind))
            contents = {"samples": {"$npy": name}, "pts_ms": 100 * number}
            events.append({"event_id": "sound", "page_id": "", "ts_ms": START_MS + 100 * number, "contents": contents})
    elif task == "highlight":
        for number, kind in enumerate(SCENES):
            contents = _second(number, kind, made)
            events.append(
                {"event_id": "second", "page_id": "", "ts_ms": START_MS + 1000 * number, "contents": contents}
            )
    else:
        for number, kind in enumerate(SCENES):
            name = f"{kind}.png"
            made[name] = memoryview(cv.imencode(".png", scene(kind))[1]).tobytes()
            contents = {"image": {"$image": name}, "second": number, "pts_ms": 1000 * number}
            events.append({"event_id": "frame", "page_id": "", "ts_ms": START_MS + 1000 * number, "contents": contents})
    lines = [json.dumps(event, separators=(",", ":")) + "\n" for event in events]
    return {"events.jsonl": "".join(lines).encode(), **made}


def _second(number: int, kind: str, made: dict[str, bytes]) -> dict[str, Any]:
    """Return the contents of a `second` event: nothing, or an item that a person's box touches more and more surely."""
    name = f"{kind}.png"
    made[name] = memoryview(cv.imencode(".png", scene(kind))[1]).tobytes()
    items = [] if number == 0 else [{"label": "clock", "score": 0.6, "box": [120, 40, 70, 70]}]
    if items:
        items.append({"label": "person", "score": round(0.15 * number, 2), "box": [150, 0, 90, 150]})
    frame = {"size": [HEIGHT, WIDTH], "items": items, "faces": [], "image": {"$image": name}}
    return {"second": number, "pts_ms": 1000 * number, "voice": round(0.1 * number, 1), "frames": [frame]}


def write_simulations(tasks: Path = TASKS) -> None:
    """Write the simulations of all tasks."""
    for task in NAMES:
        folder = tasks / task / "simulation"
        folder.mkdir(exist_ok=True)
        for name, data in files(task).items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    write_simulations()
