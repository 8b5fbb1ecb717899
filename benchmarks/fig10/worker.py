"""Worker process for one engine and one model: reads `seconds` from standard input, prints the times of its runs.

    python benchmarks/fig10/worker.py ENGINE MODEL THREADS REFERENCE [--convert]

`--convert` only writes the engine's own file, so that a converter's memory does not count as the engine's. The first
line is a report of loading; each later one holds the wall and CPU milliseconds of the runs of one turn.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent] + [
    str(ROOT)
]

import numpy as np  # noqa: E402  # the path must be set first

from benchmarks.fig10.engines import ENGINES, inputs_of  # noqa: E402


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def error_of(found: list[Any], reference: Path) -> float:
    """Return the greatest difference to the reference, relative to the greatest value of each output."""
    with np.load(reference) as exact:
        expected_outputs = [exact[name] for name in exact.files]
    return max(
        float(np.abs(np.asarray(one, np.float64).ravel() - other.ravel()).max() / np.abs(other).max())
        for one, other in zip(found, expected_outputs, strict=True)
    )


def turn(engine: Any, inputs: dict[str, Any], seconds: float) -> dict[str, Any]:
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + seconds
    while len(wall) < 2 or time.perf_counter() < end:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        engine.run(inputs)
        wall.append((time.perf_counter() - begin) * 1e3)
        cpu.append((time.process_time() - begin_cpu) * 1e3)
    return {"wall_ms": wall, "cpu_ms": cpu, "peak_mib": peak_mib()}


def main() -> None:
    name, model_text, threads, reference = sys.argv[1:5]
    model = Path(model_text)
    entry = json.loads((model.parent / "manifest.json").read_bytes())[model.stem]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print messages on standard output
    engine = ENGINES[name](model, int(threads), entry)
    engine.imports()
    expected = os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]
    walle = sys.modules.get("walle")
    if walle is not None and expected and not Path(walle.__file__ or "").is_relative_to(Path(expected).resolve()):
        sys.exit(f"{walle.__file__} was imported, not the walle of {expected}")
    engine.convert()
    if sys.argv[5:] == ["--convert"]:
        return
    inputs = inputs_of(entry)
    before_mib = peak_mib()
    begin = time.perf_counter()
    engine.load()
    loaded = time.perf_counter()
    outputs = engine.run(inputs)
    first = time.perf_counter()
    report = {
        "load_ms": (loaded - begin) * 1e3,
        "first_ms": (first - loaded) * 1e3,
        "search_ms": engine.search_ms(),
        "import_mib": before_mib,
        "error": error_of(outputs, Path(reference)),
    }
    print(json.dumps(report), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(engine, inputs, float(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
