"""Fig. 10: this engine against ONNX Runtime, MNN, OpenVINO, ncnn and PyTorch (if installed) on nine networks.

Each engine runs in a process of its own; the processes take short turns in random order. The figures are medians of CPU
and wall time, loading, the first run, search, memory above that after import, the error against float64 (this engine's
own, on the model converted to float64), and the share of a core's peak, measured by multiply-adds in registers in the
same run.

    python benchmarks/engine.py [FOLDER] [--models resnet18,din] [--engines walle,mnn] [--threads 1,2] [--json]
    python benchmarks/engine.py --against HEAD~5       # both revisions of this engine, interleaved
    python benchmarks/engine.py --quantised            # the networks in int8, by ONNX Runtime's quantiser
    python benchmarks/engine.py --plans                # the choices of search against all candidates, timed
    python benchmarks/engine.py --costs                # the predicted costs of operators against measured ones

FOLDER holds the networks as ONNX files with a manifest.json; missing ones are written with seeded random weights. A
picture and a page are written to out/.
"""

import argparse
import contextlib
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.fig10 import costs, interleave, networks, plans, report, revision  # noqa: E402  # the path must be set first
from benchmarks.fig10.engines import ENGINES, inputs_of  # noqa: E402
from benchmarks.fig10.reference import reference  # noqa: E402
from benchmarks.headline import print_headline  # noqa: E402

_PEAK_SECONDS = 0.5
_HEADLINE = "mobilenet_v2"


def _names(text: str, known: list[str], what: str) -> list[str]:
    names = text.split(",") if text else known
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"engine: no {what} {', '.join(unknown)}; known are: {', '.join(known)}")
    return names


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def contestants(names: list[str], against: str, root: Path | None) -> list[interleave.Contestant]:
    """Return the engines that can run here; print the others with the reason."""
    present = []
    for name in names:
        absent = ENGINES[name].absent()
        if absent:
            _say(f"engine: {name} is left out: {absent}")
            continue
        present.append(interleave.Contestant(name, name))
        if against and report.ours(name):
            present.append(interleave.Contestant(f"{name}@{against}", name, root))
    return present


def peak_gflops() -> float:
    """Return the measured peak of one core by its best backend, in 10^9 float32 operations a second."""
    from walle.engine_ext import _core

    return max(
        _core.peak_gflops(name, _PEAK_SECONDS) for name, available, exact in _core.backends() if available and exact
    )


@contextlib.contextmanager
def other_revision(name: str) -> Iterator[Path | None]:
    if not name:
        yield None
        return
    _say(f"engine: building {name}")
    try:
        with revision.built(name) as root:
            yield root
    except RuntimeError as error:
        sys.exit(f"engine: {error}")


def compare(options: argparse.Namespace, names: list[str], manifest: dict[str, Any]) -> None:
    ran = [name for name, one in ENGINES.items() if name == "walle" or (one.precision == "int8") == options.quantised]
    engines = _names(options.engines, ran, "engine")
    results: report.Results = {}
    with other_revision(options.against) as root:
        present = contestants(engines, options.against, root)
        if not present:
            sys.exit("engine: none of these engines can run here; the reasons are above")
        gflops = peak_gflops()
        for threads in map(int, options.threads.split(",")):
            results[threads] = {}
            for name in names:
                model = options.folder / f"{name}.onnx"
                wide = _float64(model)
                turns = interleave.measure(present, model, wide, threads, options.rounds, options.seconds)
                for finished, row in turns:
                    results[threads][name] = row
                    _progress(f"{name}, {threads} thread(s): round {finished} of {options.rounds}")
    facts = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "peak_gflops": gflops,
        "rounds": options.rounds,
        "turn_s": options.seconds,
    }
    text = report.table(results, manifest, gflops)
    known = f"{facts['machine']}, one core's peak {gflops:.1f} GFLOP/s, {options.rounds} turns of {options.seconds} s"
    out = ROOT / "out"
    picture = out / "engine.png"
    report.plot(results, picture)
    report.page(text, known, picture, out / "engine.html")
    if options.json:
        shares = {"ratios": report.ratios(results), "revisions": report.revisions(results)}
        print(json.dumps(facts | {"results": results} | shares, indent=1))
    else:
        print(known, text, f"picture: {picture}, page: {out / 'engine.html'}", sep="\n")
        print_headline_of(results, engines, "walle-int8" if options.quantised else "walle")


def print_headline_of(results: report.Results, engines: list[str], ours: str) -> None:
    """Print the CPU time of MobileNetV2, or of the first network without it, on the fewest threads."""
    threads = min(results)
    name = _HEADLINE if _HEADLINE in results[threads] else next(iter(results[threads]))
    row = results[threads][name]
    if "cpu_ms" not in row.get(ours, {}):
        return
    absent = {label: ENGINES[label].absent() for label in engines}
    peers = {
        label: "not installed" if why.lower() == f"{label} not installed" else why for label, why in absent.items()
    } | {
        label: result["cpu_ms"] if "cpu_ms" in result else f"failed: {result['failed']}"
        for label, result in row.items()
    }
    alike = {
        label: found
        for label, found in peers.items()
        if not report.ours(label) and report.precision_of(label) == report.precision_of(ours)
    }
    what = f"{name}, random weights, {threads} thread{'s' if threads > 1 else ''}, CPU time of a run"
    print_headline(what, unit="ms", better="lower", ours=row[ours]["cpu_ms"], peers=alike)


def _float64(model: Path) -> Path:
    """Return the reference file, computed in a process of its own, because float64 takes much memory."""
    command = [sys.executable, "-m", "benchmarks.fig10.reference", str(model)]
    env = interleave.environment(None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"engine: {model.stem} in float64: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return reference(model)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def judge(options: argparse.Namespace, names: list[str], manifest: dict[str, Any]) -> None:
    from walle import convert

    reports = []
    for name in names:
        path = options.folder / f"{name}.walle"
        if not path.exists():
            convert(options.folder / f"{name}.onnx", path)
        measure = costs.compare_costs if options.costs else plans.quality
        reports.append(measure(path, inputs_of(manifest[name]), options.rounds, options.backend))
        _progress(f"{name} is measured")
    _progress("")
    table = costs.table if options.costs else plans.table
    print(json.dumps(reports, indent=1) if options.json else table(reports))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "networks")
    parser.add_argument("--models", default="", help="networks, separated by commas; default: all")
    parser.add_argument("--engines", default="", help="engines, separated by commas; default: all")
    parser.add_argument("--threads", default="1,2", help="thread counts, separated by commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each engine (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn (default: %(default)s)")
    parser.add_argument("--against", default="", metavar="REV", help="time this revision of the engine too")
    parser.add_argument(
        "--quantised", action="store_true", help="time the networks quantised to int8, beside walle's float32"
    )
    judged = parser.add_mutually_exclusive_group()
    judged.add_argument("--plans", action="store_true", help="evaluate the choices of search instead")
    judged.add_argument("--costs", action="store_true", help="compare predicted with measured costs instead")
    parser.add_argument("--backend", default="auto", help="with --plans, --costs: the backend (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    manifest_path = options.folder / "manifest.json"
    given = list(json.loads(manifest_path.read_bytes())) if manifest_path.exists() else []
    names = _names(options.models, list(dict.fromkeys([*networks.NETWORKS, *given])), "network")
    networks.write(options.folder, [name for name in names if name in networks.NETWORKS])
    manifest = json.loads(manifest_path.read_bytes())
    (judge if options.plans or options.costs else compare)(options, names, manifest)


if __name__ == "__main__":
    main()
