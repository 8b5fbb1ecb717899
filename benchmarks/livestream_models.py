"""Table 1: the four models of highlight recognition, each and together, against ONNX Runtime in the same run.

The paper's architectures with seeded weights (benchmarks/highlights/architectures.py), the public models of the
livestream app, and the app's tasks as they run in a VM. One thread; both engines in one process, in turns of random
order; medians of CPU and wall milliseconds. Before it is timed, each model's outputs are compared.

    python benchmarks/livestream_models.py [--rounds 40] [--models-dir DIR] [--json]

Needs onnx and onnxruntime. The public models come from --models-dir, $WALLE_MODELS or the cache of `walle model get`;
without them the tasks run with the app's own models, and the report says so.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402  # the path must be set first
import onnxruntime  # noqa: E402

import walle  # noqa: E402
from apps.livestream.task_files import (  # noqa: E402
    NO_EXCLUSIVE_FILES,
    Models,
    add_modules,
    choose_models,
    tasks_of,
    write_task,
)
from benchmarks.headline import print_headline  # noqa: E402
from benchmarks.highlights import architectures, public_models  # noqa: E402
from walle.engine_ext.session import load  # noqa: E402
from walle.model_files import ModelFileError, ModelFolder, default_folder  # noqa: E402
from walle.vm import VM  # noqa: E402

PAPER_MS = {  # Table 1: Huawei P50 Pro, iPhone 11
    "item_detection": (56.92, 33.71),
    "item_recognition": (25.68, 29.74),
    "face_detection": (41.42, 22.58),
    "voice_detection": (0.07, 0.01),
}
WINDOWS_A_SECOND = 16_000 / 512  # windows of Silero VAD
MAX_DIFFERENCE = 1e-3  # difference of an output, relative to its greatest value, or to 0.01 if that is less
_SEED = 7

type Times = dict[str, list[float]]
type Run = Callable[[], Any]


def peer(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(session: Any) -> dict[str, Any]:
    """Return random inputs; a free dimension of Silero VAD is its batch or its window."""
    rng = np.random.default_rng(_SEED)
    inputs: dict[str, Any] = {}
    for one in session.get_inputs():
        if one.name == "sr":
            inputs[one.name] = np.array(16_000, np.int64)
        else:
            sizes = {"batch": 1, "sequence": 576}
            shape = [sizes.get(size, size) for size in one.shape]
            inputs[one.name] = rng.standard_normal(shape).astype(np.float32)
    return inputs


def runs_of(ours: Path, theirs: Path) -> tuple[Run, Run]:
    """Return a run of each engine on the same inputs, after comparing their outputs."""
    mine, other = load(ours), peer(theirs)
    inputs = inputs_of(other)
    names = [one.name for one in other.get_outputs()]
    found, expected = mine.run(inputs), other.run(names, inputs)
    for name, value in zip(names, expected, strict=True):
        difference = float(np.abs(np.asarray(found[name]) - value).max() / max(float(np.abs(value).max()), 0.01))
        if not difference <= MAX_DIFFERENCE:
            sys.exit(f"livestream_models: {ours.name}: output {name} differs by {difference:.2g}")
    return lambda: mine.run(inputs), lambda: other.run(names, inputs)


def interleaved(runs: Mapping[str, Run], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median CPU and wall milliseconds of each, and the least wall time."""
    cpu: Times = {name: [] for name in runs}
    wall: Times = {name: [] for name in runs}
    order = list(runs)
    rng = random.Random(_SEED)
    for finished in range(-2, rounds):  # the first two are not counted
        rng.shuffle(order)
        for name in order:
            begin, begin_cpu = time.perf_counter(), time.process_time()
            runs[name]()
            took_cpu, took = time.process_time() - begin_cpu, time.perf_counter() - begin
            if finished >= 0:
                cpu[name].append(took_cpu * 1e3)
                wall[name].append(took * 1e3)
    return {
        name: {
            "cpu_ms": statistics.median(cpu[name]),
            "wall_ms": statistics.median(wall[name]),
            "least_ms": min(wall[name]),
        }
        for name in runs
    }


def in_turn(runs: list[Run]) -> Run:
    return lambda: [run() for run in runs]


def paper_models(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of Table 1's architectures, and of all four in turn."""
    manifest = architectures.write(folder)
    rows, mine, others = [], list[Run](), list[Run]()
    for name, entry in manifest.items():
        ours = folder / f"{name}.walle"
        walle.convert(folder / f"{name}.onnx", ours)
        run, other = runs_of(ours, folder / f"{name}.onnx")
        mine.append(run)
        others.append(other)
        rows.append({
            "model": name,
            "parameters": entry["params"],
            "gflop": entry["flops"] / 1e9,
            "paper_ms": PAPER_MS[name],
            **interleaved({"walle": run, "onnxruntime": other}, rounds),
        })  # fmt: skip
    together = interleaved({"walle": in_turn(mine), "onnxruntime": in_turn(others)}, rounds)
    total = tuple(round(sum(times), 2) for times in zip(*PAPER_MS.values(), strict=True))
    parameters, gflop = (sum(row[key] for row in rows) for key in ("parameters", "gflop"))
    rows.append({"model": "all four", "parameters": parameters, "gflop": gflop, "paper_ms": total, **together})
    return rows


def public_rows(folder: Path, models: ModelFolder, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of the public models; Silero VAD's are of a second of sound."""
    rows = []
    for name, (ours, theirs) in public_models.write(folder, models).items():
        run, other = runs_of(ours, theirs)
        times = interleaved({"walle": run, "onnxruntime": other}, rounds)
        if name == "voice_silero":
            scaled = {engine: {k: v * WINDOWS_A_SECOND for k, v in one.items()} for engine, one in times.items()}
            rows.append({"model": f"{name}, 1 s", **scaled})
        else:
            rows.append({"model": name, **times})
    return rows


async def task_rows(folder: Path, models: Models, rounds: int) -> list[dict[str, Any]]:
    """Return the medians of whole runs in a VM: a changing 1280x720 frame, a second of sound, or a second's decision.

    CPU is the process's, with what the call of the VM costs.
    """
    rng = np.random.default_rng(_SEED)
    base = rng.integers(0, 256, (45, 80, 3), dtype=np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    frames = [np.roll(base, 160 * k, axis=1).copy() for k in range(4)]  # each differs from the one before
    sound = (0.1 * rng.standard_normal(16_000)).astype(np.float32)
    rows = []
    for name in tasks_of(models):
        vm = VM(add_modules(write_task(name, folder / name, models)), name=name)
        state: dict[str, Any] | None = None if name == "face" else {}
        cpu, wall, phases = list[float](), list[float](), list[dict[str, float]]()
        for number in range(-3, rounds):
            second = number + 3
            image = frames[second % len(frames)]
            contents: dict[str, Any] = {"image": image, "second": second}
            if name == "voice":
                contents = {"samples": sound, "pts_ms": 1000 * second}
            elif name == "highlight":  # a frame on which the other tasks found nothing
                frame = {"size": list(image.shape[:2]), "items": [], "faces": [], "image": image}
                contents = {"second": second, "pts_ms": 1000 * second, "voice": 0.0, "frames": [frame]}
            event = {"event_id": "x", "page_id": "", "ts_ms": 1, "contents": contents}
            trigger = {"event": event, "position": 1, "visit": "none"}
            begin, begin_cpu = time.perf_counter(), time.process_time()
            arguments: tuple[Any, ...] = (f"live/{name}", trigger, [], {}, {}, state)
            result = await vm.call(
                "walle.pipeline.stream.context:run_timed", *arguments, deadline=60.0, callbacks=NO_EXCLUSIVE_FILES
            )
            took_cpu, took = time.process_time() - begin_cpu, time.perf_counter() - begin
            state = result.get("state")
            if number >= 0:
                cpu.append(took_cpu * 1e3)
                wall.append(took * 1e3)
                phases.append(result["phase_ms"])
        vm.close()
        await vm.wait_closed()
        median = {key: statistics.median(one[key] for one in phases) for key in phases[0]}
        rows.append(
            {"task": name, "cpu_ms": statistics.median(cpu), "wall_ms": statistics.median(wall), "phase_ms": median}
        )
    return rows


def model_lines(rows: list[dict[str, Any]]) -> list[str]:
    head = f"{'':22}{'M param':>9}{'GFLOP':>8}{'walle CPU':>11}{'ORT CPU':>9}{'ratio':>7}{'walle':>8}{'ORT':>8}"
    lines = [f"{head}  (median ms; last two: wall)   paper: P50 Pro, iPhone 11"]
    for row in rows:
        ours, other = row["walle"], row["onnxruntime"]
        size = f"{row['parameters'] / 1e6:9.3f}{row['gflop']:8.3f}" if "gflop" in row else " " * 17
        paper = "" if "paper_ms" not in row else f"   {row['paper_ms'][0]:8.2f}{row['paper_ms'][1]:8.2f}"
        ratio = ours["cpu_ms"] / other["cpu_ms"]
        times = f"{ours['cpu_ms']:11.3f}{other['cpu_ms']:9.3f}{ratio:7.2f}{ours['wall_ms']:8.2f}{other['wall_ms']:8.2f}"
        lines.append(f"{row['model']:22}{size}{times}{paper}")
    return lines


def task_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'task in a VM':22}{'CPU ms':>9}{'wall ms':>9}   phases, wall ms"]
    for row in rows:
        phases = ", ".join(f"{name} {ms:.2f}" for name, ms in row["phase_ms"].items())
        lines.append(f"{row['task']:22}{row['cpu_ms']:9.2f}{row['wall_ms']:9.2f}   {phases}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Table 1: latency of the highlight recognition's models.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--models-dir", type=Path, help="folder of published models, of `walle model get`")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    models = ModelFolder(options.models_dir or default_folder())
    report: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "onnxruntime": onnxruntime.__version__,
        "rounds": options.rounds,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report["architectures"] = paper_models(folder, options.rounds)
        try:
            report["public"] = public_rows(folder, models, options.rounds)
        except ModelFileError as error:
            report["public"], report["absent"] = [], str(error)
        chosen = choose_models(None, models)
        report["tasks_with"] = chosen.why
        report["tasks"] = asyncio.run(task_rows(folder, chosen.models, options.rounds))
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"one thread, {options.rounds} rounds, ONNX Runtime {report['onnxruntime']}")
    print("Table 1's architectures, untrained", *model_lines(report["architectures"]), sep="\n")
    if report["public"]:
        print("public models", *model_lines(report["public"]), sep="\n")
    else:
        print(f"the public models were not measured: {report['absent']}")
    print(f"tasks, with {report['tasks_with']}", *task_lines(report["tasks"]), sep="\n")
    together = report["architectures"][-1]
    print_headline(
        "the four models of Table 1 in turn, random weights, one thread",
        unit="ms",
        better="lower",
        ours=together["walle"]["wall_ms"],
        peers={"onnxruntime": together["onnxruntime"]["wall_ms"]},
    )


if __name__ == "__main__":
    main()
