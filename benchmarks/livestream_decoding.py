"""CPU time of reading video and sound (§7.1: what runs on the app's side of the device before any model).

Each file is read by the app's `open_source` and by OpenCV's VideoCapture, whole and as an app samples it: 5 frames per
second, at most 320 pixels on a side. `decode` is PyAV alone, without images: what any reader on FFmpeg spends. All use
one decoding thread. OpenCV reads no sound, so that only files without sound compare like with like; the others have the
sound's decoding, down-mix and resampling in the app's figure. CPU time is that of all threads of the process; rounds
alternate, and figures are medians. Without files, a clip that the app draws is read, with its sound and without.

    python benchmarks/livestream_decoding.py [--rounds 5] [--files FILE ...] [--json]
    python benchmarks/livestream_decoding.py --memory HOURS    # resident memory over a long transport stream
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from apps.livestream.drawn_clip import write_clip
from apps.livestream.media import Frame, open_source
from benchmarks.headline import print_headline

DATA = Path(__file__).parents[1].parent / "shared/data/video"
FRAMES_PER_SECOND = 5
MAX_SIDE = 320
_LOOP_S = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=Path, nargs="*", help="default: those of shared/data/video beside the checkout")
    parser.add_argument("--memory", type=float, metavar="HOURS", help="read a stream of this length instead")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory is not None:
        result: Any = memory(arguments.memory)
    else:
        with tempfile.TemporaryDirectory() as folder:
            files = arguments.files or sorted(DATA.glob("*.*")) or _drawn(Path(folder))
            result = [measure(path, arguments.rounds) for path in files]
    if arguments.json:
        print(json.dumps(result, indent=1))
    elif arguments.memory is not None:
        print("\n".join(f"{name}: {value}" for name, value in result.items()))
    else:
        show(result)


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Return microseconds of CPU per decoded frame, by reader, and what the file is."""
    readers: dict[str, Callable[[Path], int]] = {
        "decode": _decode,
        "app": lambda path: asyncio.run(_app(path)),
        "opencv": _opencv,
        "app sampled": lambda path: asyncio.run(_app(path, frames_per_second=FRAMES_PER_SECOND, max_side=MAX_SIDE)),
        "opencv sampled": _opencv_sampled,
    }
    times: dict[str, list[float]] = {name: [] for name in readers}
    frames = _decode(path)
    for _ in range(rounds):
        for name, read in readers.items():
            before_s = time.process_time()
            count = read(path)
            times[name].append((time.process_time() - before_s) / frames * 1e6)
            assert count, f"{name} reads no frame of {path}"
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        size = f"{video.width}x{video.height}"
        codec = video.codec_context.name
        sound = bool(container.streams.audio)
    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    return {"file": path.name, "codec": codec, "size": size, "sound": sound, "frames": frames, **medians}


def show(rows: list[dict[str, Any]]) -> None:
    print(f"CPU us per decoded frame; PyAV {av.__version__}, OpenCV {cv2.__version__}")
    names = ["file", "codec", "size", "sound", "frames", "decode", "app", "opencv", "app sampled", "opencv sampled"]
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for row in rows:
        print("| " + " | ".join(str(row[name]) for name in names) + " |")
    row = next((row for row in rows if not row["sound"]), rows[0])
    print_headline(
        f"a frame of {row['file']} ({row['codec']}, {row['size']}) read and sampled {FRAMES_PER_SECOND} times a second,"
        " CPU time",
        unit="µs",
        better="lower",
        ours=row["app sampled"],
        peers={"OpenCV": row["opencv sampled"]},
    )


def memory(hours: float) -> dict[str, Any]:
    """Return resident memory in MiB while a transport stream of this length is read, and what was read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.ts"
        loop = _made_loop(Path(folder) / "loop.ts")
        repeats = max(10, round(hours * 3600 / _LOOP_S))
        with path.open("wb") as file:
            for _ in range(repeats):
                file.write(loop)
        return asyncio.run(_resident(path, repeats))


async def _resident(path: Path, repeats: int) -> dict[str, Any]:
    samples: list[tuple[int, float]] = []
    before_s = time.process_time()
    async with open_source(path, frames_per_second=FRAMES_PER_SECOND) as source:
        async for item in source:
            if item.pts_ms // 60_000 >= len(samples):
                gc.collect()
                samples.append((item.pts_ms, _resident_mib()))
    assert source.report.balanced
    warm = samples[max(1, len(samples) // 10) :]
    return {
        "stream_s": repeats * _LOOP_S,
        "frames decoded": source.report.frames.decoded,
        "samples of sound": source.report.sound.delivered,
        "MiB after a tenth": round(warm[0][1], 1),
        "MiB at the end": round(warm[-1][1], 1),
        "MiB at most": round(max(value for _, value in warm), 1),
        "CPU s": round(time.process_time() - before_s, 1),
    }


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _made_loop(path: Path) -> bytes:
    """Return a transport stream of `_LOOP_S` seconds: 160 x 90 pixels at 10 frames per second, and a tone."""
    generator = np.random.default_rng(1)
    container: Any
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 160, 90, "yuv420p"
        sound = container.add_stream("aac", rate=48_000, layout="stereo")
        picture = generator.integers(0, 256, (90, 160, 3), np.uint8)
        for number in range(10 * _LOOP_S):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, number, axis=1), format="bgr24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(video.encode(frame))
            for at in range(number * 4800 // 1024 * 1024, (number + 1) * 4800 // 1024 * 1024, 1024):
                tone = np.sin(np.arange(at, at + 1024) * 0.05).astype(np.float32)
                piece = av.AudioFrame.from_ndarray(np.stack([tone, tone]), format="fltp", layout="stereo")
                piece.sample_rate, piece.pts, piece.time_base = 48_000, at, Fraction(1, 48_000)
                container.mux(sound.encode(piece))
        container.mux(video.encode(None))
        container.mux(sound.encode(None))
    return path.read_bytes()


def _drawn(folder: Path) -> list[Path]:
    """Write a clip that the app draws, with its sound and without; return both files."""
    whole, silent = write_clip(folder / "drawn.mp4"), folder / "drawn_silent.mp4"
    container: Any
    with av.open(str(whole)) as source, av.open(str(silent), "w") as container:
        copied = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = copied
                container.mux(packet)
    return [whole, silent]


def _decode(path: Path) -> int:
    with av.open(str(path)) as container:
        stream = container.streams.best("video")
        assert stream is not None
        stream.codec_context.thread_count = 1
        return sum(1 for _ in container.decode(stream))


async def _app(path: Path, **settings: Any) -> int:
    async with open_source(path, **settings) as source:
        return sum([isinstance(item, Frame) async for item in source])


def _capture(path: Path) -> Any:
    return cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])


def _opencv(path: Path) -> int:
    capture = _capture(path)
    count = 0
    while capture.read()[0]:
        count += 1
    return count


def _opencv_sampled(path: Path) -> int:
    """Decode each frame, convert and scale those that are due, as an app on OpenCV would."""
    capture = _capture(path)
    due_ms, count = 0.0, 0
    while capture.grab():
        if capture.get(cv2.CAP_PROP_POS_MSEC) < due_ms:
            continue
        due_ms += 1000 / FRAMES_PER_SECOND
        image = capture.retrieve()[1]
        scale = min(1.0, MAX_SIDE / max(image.shape[:2]))
        cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        count += 1
    return count


if __name__ == "__main__":
    main()
