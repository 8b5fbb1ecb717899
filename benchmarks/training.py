"""Training on the engine: CPU time of a step (forward, backward, SGD) of six networks, beside PyTorch's (§4.2).

Each side is a process of its own with one thread; steps of both take turns, --rounds times --steps each, and the least
and the median CPU time of a step count. PyTorch runs in its fastest mode: eagerly, images in either of its memory
formats, or compiled (--compile, which takes minutes). Its process may be another Python's (--peer PATH), where PyTorch
is not installed beside Walle. A picture and a page are written to out/.

"build" is the CPU time of the first step above a later one, the least of three networks: tracing and planning, imports
apart. "peak" is the most resident memory in a later step above that before the model was made: parameters, gradients,
states, activations and the batch. A tiny network has been trained before, so that libraries are loaded, and free
memory is released.

    walle figures training -- [--networks gru,din] [--rounds 5] [--steps 4] [--peer python] [--compile] [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.headline import print_headline  # noqa: E402  # the path must be set first
from benchmarks.training_sides.process import TITLES  # noqa: E402

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Side:
    """A process of `training_sides.process`."""

    def __init__(self, python: str, name: str) -> None:
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", "benchmarks.training_sides.process", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | _ONE_THREAD,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that trains has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def has_torch(python: str) -> bool:
    probe = [python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


def measure(
    network: str, sides: dict[str, str], rounds: int, steps: int, *, compiles: bool
) -> dict[str, dict[str, Any]]:
    """Return for each side its mode, milliseconds of a step and of building it, bytes at its peak, and the loss."""
    running = {name: Side(python, name) for name, python in sides.items()}
    try:
        found: dict[str, dict[str, Any]] = {
            name: one.ask(network=network, compile=compiles) for name, one in running.items()
        }
        times: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, one in running.items():
                answer = one.ask(steps=steps)
                times[name] += answer.pop("ms")
                found[name] |= answer
        for name, taken in times.items():
            median_ms = statistics.median(taken)
            found[name] |= {"least_ms": min(taken), "median_ms": median_ms, **running[name].ask(peak=True)}
            first_ms = running[name].ask(build=network)["first_ms"]
            found[name]["build_ms"] = max(first_ms - median_ms, 0.0)
        return found
    finally:
        for one in running.values():
            one.end()


def _picture(rows: dict[str, dict[str, dict[str, float]]], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.6 * len(rows) + 1.2))
    for place, (network, sides) in enumerate(rows.items()):
        for shift, (name, one) in enumerate(sides.items()):
            axes.barh(place + 0.35 * shift, one["least_ms"], 0.33, color=("#2563eb", "#f97316")[shift % 2], label=name)
            axes.text(one["least_ms"], place + 0.35 * shift, f" {one['least_ms']:.1f}", va="center", fontsize=8)
        axes.text(0, place - 0.28, TITLES[network], fontsize=8)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(dict(zip(labels, handles, strict=True)).values(), dict(zip(labels, handles, strict=True)).keys())
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlabel("CPU ms of a training step, one thread")
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "training.png", dpi=150)
    plt.close(figure)
    rest = "".join(
        f"<tr><td>{TITLES[network]}<td>{name}, {one['mode']}<td>{one['least_ms']:.1f}<td>{one['median_ms']:.1f}"
        f"<td>{one['build_ms']:.0f}<td>{one['peak_bytes'] / 1e6:.1f}"
        for network, sides in rows.items()
        for name, one in sides.items()
    )
    (out / "training.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Training steps</title><img src=training.png alt='CPU ms of a step'>"
        f"<table><tr><th>network<th>engine<th>least ms<th>median ms<th>build ms<th>peak MB{rest}</table>\n"
    )


def _print_table(rows: dict[str, dict[str, dict[str, Any]]]) -> None:
    print(
        f"{'CPU ms of a step, least (median)':34} {'walle':>15} {'PyTorch':>15} {'ratio':>5}  {'mode':13} "
        f"{'build ms':>9} {'peak MB':>13} {'ratio':>5}"
    )
    for name, row in rows.items():
        ours, peer = row["walle"], row.get("torch")
        mine = f"{ours['least_ms']:.1f} ({ours['median_ms']:.1f})"
        if peer is None:
            print(
                f"{TITLES[name]:34} {mine:>15} {'not installed':>15} {'':5}  {'':13} {ours['build_ms']:9.0f} "
                f"{ours['peak_bytes'] / 1e6:13.1f}"
            )
            continue
        theirs = f"{peer['least_ms']:.1f} ({peer['median_ms']:.1f})"
        builds = f"{ours['build_ms']:.0f} / {peer['build_ms']:.0f}"
        peaks = f"{ours['peak_bytes'] / 1e6:.1f} / {peer['peak_bytes'] / 1e6:.1f}"
        print(
            f"{TITLES[name]:34} {mine:>15} {theirs:>15} {ours['least_ms'] / peer['least_ms']:5.2f}  {peer['mode']:13} "
            f"{builds:>9} {peaks:>13} {ours['peak_bytes'] / peer['peak_bytes']:5.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(TITLES), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of each side in a round")
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="a Python that has PyTorch")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--compile", action="store_true", help="measure PyTorch's compiled mode too; it takes minutes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = args.networks.split(",")
    for name in names:
        if name not in TITLES:
            parser.error(f"unknown network {name!r}; known are {', '.join(TITLES)}")
    sides = {"walle": sys.executable}
    if has_torch(args.peer):
        sides["torch"] = args.peer
    rows = {}
    for place, name in enumerate(names):
        if sys.stderr.isatty():
            print(f"\r\033[K{place + 1} of {len(names)}: {TITLES[name]}", end="", file=sys.stderr, flush=True)
        rows[name] = measure(name, sides, args.rounds, args.steps, compiles=args.compile)
    _picture(rows, args.out)
    if args.json:
        print(json.dumps(rows))
    else:
        _print_table(rows)
    for name in names[:2]:
        torch = rows[name].get("torch")
        print_headline(
            f"CPU time of a training step, {TITLES[name]}, one thread",
            unit="ms",
            better="lower",
            ours=rows[name]["walle"]["least_ms"],
            peers={"torch": torch["least_ms"] if torch else "not installed"},
        )


if __name__ == "__main__":
    main()
