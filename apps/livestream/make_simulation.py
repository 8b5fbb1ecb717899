"""Generator of the events for the tasks' simulations: `python -m apps.livestream.make_simulation`.

Drawn scenes and synthetic sounds, small enough for the repository: the simulation shows that a version loads and runs.
What the models recognise is measured on real files (evaluate_models.py).
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
# The place of the drawn bottle in each frame, as a share of the width; None: an empty table.
SCENES = (None, 0.3, 0.3, 0.6, 0.6, None)
# The sound of each event: silence, a voice-like buzz (a pulse train through two resonances), a pure tone.
SOUNDS = ("silence", "buzz", "buzz", "tone")


def scene(place: float | None) -> np.ndarray:
    """Return a frame, uint8 [180, 320, 3]: a table before a wall, and a bottle and a face-like disc."""
    image = np.full((HEIGHT, WIDTH, 3), 200, dtype="uint8")
    image = cv.rectangle(image, (0, 120), (WIDTH, HEIGHT), (60, 90, 130), -1)
    if place is not None:
        x = round(place * WIDTH)
        image = cv.rectangle(image, (x, 70), (x + 30, 140), (160, 60, 20), -1)
        image = cv.rectangle(image, (x + 10, 45), (x + 20, 70), (160, 60, 20), -1)
        image = cv.circle(image, (WIDTH - 60, 60), 30, (150, 180, 230), -1)
        image = cv.circle(image, (WIDTH - 70, 55), 4, (40, 40, 40), -1)
        image = cv.circle(image, (WIDTH - 50, 55), 4, (40, 40, 40), -1)
    return image


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
        for number, place in enumerate(SCENES):
            contents = _second(number, place, made)
            events.append(
                {"event_id": "second", "page_id": "", "ts_ms": START_MS + 1000 * number, "contents": contents}
            )
    else:
        for number, place in enumerate(SCENES):
            name = "empty.png" if place is None else f"bottle_{round(100 * place)}.png"
            made[name] = memoryview(cv.imencode(".png", scene(place))[1]).tobytes()
            contents = {"image": {"$image": name}, "second": number, "pts_ms": 1000 * number}
            events.append({"event_id": "frame", "page_id": "", "ts_ms": START_MS + 1000 * number, "contents": contents})
    lines = [json.dumps(event, separators=(",", ":")) + "\n" for event in events]
    return {"events.jsonl": "".join(lines).encode(), **made}


def _second(number: int, place: float | None, made: dict[str, bytes]) -> dict[str, Any]:
    """Return the contents of a `second` event: an empty table, or a bottle that a hand touches more and more surely."""
    name = "empty.png" if place is None else f"bottle_{round(100 * place)}.png"
    made[name] = memoryview(cv.imencode(".png", scene(place))[1]).tobytes()
    items = []
    if place is not None:
        x = round(place * WIDTH)
        items = [
            {"label": "bottle", "score": 0.6, "box": [x, 45, 30, 95]},
            {"label": "person", "score": round(0.25 + 0.1 * number, 2), "box": [x, 0, 60, 80]},
        ]
    frame = {"size": [HEIGHT, WIDTH], "items": items, "faces": [], "image": {"$image": name}}
    return {"second": number, "pts_ms": 1000 * number, "voice": 0.1 * number, "frames": [frame]}


def write_simulations(tasks: Path = TASKS) -> None:
    """Write the simulations of all tasks."""
    for task in NAMES:
        folder = tasks / task / "simulation"
        folder.mkdir(exist_ok=True)
        for name, data in files(task).items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    write_simulations()
