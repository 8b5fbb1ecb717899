"""Training on the engine: CPU time of a step (forward, backward, SGD) of six networks, beside PyTorch's (§4.2).

Each side is a process of its own with one thread; steps of both take turns, --rounds times --steps each, and the least
and the median CPU time of a step count. PyTorch runs eagerly, images in the faster of its two memory formats. Its
process may be another Python's (--peer PATH), where PyTorch is not installed beside Walle. "build" is the CPU time of
the first step, with tracing and planning. A picture and a page are written to out/.

    walle figures training -- [--networks gru,din] [--rounds 5] [--steps 4] [--peer python] [--json]
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


def measure(network: str, sides: dict[str, str], rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Return for each side the milliseconds of a step, of the first one, the bytes at its peak, and the last loss."""
    running = {name: Side(python, name) for name, python in sides.items()}
    try:
        found: dict[str, dict[str, float]] = {name: one.ask(network=network) for name, one in running.items()}
        times: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, one in running.items():
                answer = one.ask(steps=steps)
                times[name] += answer.pop("ms")
                found[name] |= answer
        for name, taken in times.items():
            found[name] |= {"least_ms": min(taken), "median_ms": statistics.median(taken)}
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
        f"<tr><td>{TITLES[network]}<td>{name}<td>{one['least_ms']:.1f}<td>{one['median_ms']:.1f}<td>{one['first_ms']:.0f}"
        for network, sides in rows.items()
        for name, one in sides.items()
    )
    (out / "training.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Training steps</title><img src=training.png alt='CPU ms of a step'>"
        f"<table><tr><th>network<th>engine<th>least ms<th>median ms<th>first ms{rest}</table>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(TITLES), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of each side in a round")
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="a Python that has PyTorch")
    parser.add_argument("--out", type=Path, default=Path("out"))
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
        rows[name] = measure(name, sides, args.rounds, args.steps)
    _picture(rows, args.out)
    if args.json:
        print(json.dumps(rows))
    else:
        print(f"{'CPU ms of a step, least (median)':36} {'walle':>16} {'PyTorch':>16} {'ratio':>6} {'build ms':>9}")
        for name, row in rows.items():
            ours, peer = row["walle"], row.get("torch")
            shown = f"{peer['least_ms']:8.1f} ({peer['median_ms']:.1f})" if peer else "not installed"
            ratio = f"{ours['least_ms'] / peer['least_ms']:6.2f}" if peer else ""
            mine = f"{ours['least_ms']:8.1f} ({ours['median_ms']:.1f})"
            print(f"{TITLES[name]:36} {mine:>16} {shown:>16} {ratio:>6} {ours['first_ms']:9.0f}")
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
