"""Federated rounds: accuracy by round and CPU of a client-round beside Flower, drop-outs and hostile clients (§1, §8).

20 clients with 2 labels each, a network of 64 hidden units, 2 local epochs of SGD; scikit-learn's digits and MNIST-5k.
Parts: "accuracy" by round of five algorithms, from the same shards, first weights and batches on both sides; "cost",
CPU of a client-round through codec, round and aggregation, and of the bare training loop; "hostile", 30 % drop-outs and
10 % hostile clients by aggregator. A picture is written to out/.

Flower 1.41 pins other packages, so it has a Python of its own: --peer PATH or WALLE_FLOWER_PYTHON. Its server, client
manager and strategies run as released, clients in its process train in NumPy; it has no network and no Ray there.

    walle figures federated -- [--parts accuracy,cost,hostile] [--data digits,mnist] [--peer PYTHON] [--quick] [--json]
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.federated_parts import accuracy, cost, hostile  # noqa: E402  # the path must be set first
from benchmarks.federated_parts.flower import VARIABLE, flower_python  # noqa: E402  # the path must be set first
from benchmarks.federated_parts.shards import TITLES  # noqa: E402  # the path must be set first
from benchmarks.headline import print_headline  # noqa: E402  # the path must be set first

_PARTS = ("accuracy", "cost", "hostile")
_ROUNDS = 10
_HOSTILE_ROUNDS = 30
_ABSENT = f"not found, name its Python by {VARIABLE}"


def _picture(result: dict[str, Any], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in result.get("accuracy", []) if row["seed"] == 0]
    poisoned = result.get("hostile", [])
    panels = bool(rows) + len(poisoned)
    if not panels:
        return
    columns = min(panels, 4)
    lines = -(-panels // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(5 * columns, 4 * lines), squeeze=False)
    axes = list(grid.flat)
    for axis in axes[panels:]:
        axis.set_axis_off()
    first = axes.pop(0) if rows else None
    if first is not None:
        for place, row in enumerate(rows):
            label = f"{TITLES[row['data']]}, {row['algorithm']}"
            numbers = range(1, len(row["walle"]) + 1)
            first.plot(numbers, row["walle"], color=f"C{place}", lw=1, label=label)
            if "flower" in row:
                first.plot(numbers, row["flower"], "x", color=f"C{place}", ms=4)
        first.set_xlabel("round; crosses: Flower")
        first.set_ylabel("accuracy")
        first.legend(fontsize=6)
    for axis, row in zip(axes, poisoned, strict=False):
        for place, kind in enumerate(hostile.AGGREGATORS):
            points = [row["points"][attack][kind] for attack in hostile.ATTACKS]
            axis.bar([one + 0.16 * place for one in range(len(points))], points, 0.15, label=kind)
        axis.axhline(-1, color="gray", lw=0.5)
        axis.set_xticks([one + 0.32 for one in range(len(hostile.ATTACKS))], hostile.ATTACKS, fontsize=7)
        axis.set_title(f"{TITLES[row['data']]}, {row['labels'] or 'all'} labels a client", fontsize=8)
        axis.set_ylabel("points against clean FedAvg", fontsize=7)
        axis.legend(fontsize=6)
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "federated.png", dpi=150)
    plt.close(figure)


def main() -> None:
    """Measure the parts and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(_PARTS))
    parser.add_argument("--data", default="digits,mnist")
    parser.add_argument("--algorithms", default=",".join(accuracy.ALGORITHMS))
    parser.add_argument("--labels", default="2,5,0", help="labels a client in the part hostile; 0: images at random")
    parser.add_argument("--seeds", type=int, help="default 3")
    parser.add_argument("--peer", metavar="PYTHON", help=f"a Python that has Flower 1.41; default ${VARIABLE}")
    parser.add_argument("--quick", action="store_true", help="one data set, seed and attack setting, in a few seconds")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := sorted(set(parts) - set(_PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known are {', '.join(_PARTS)}")
    data = ["digits"] if args.quick else args.data.split(",")
    algorithms = ["fedavg"] if args.quick else args.algorithms.split(",")
    seeds = args.seeds or (1 if args.quick else 3)
    python = flower_python(args.peer)
    result: dict[str, Any] = {}
    if "accuracy" in parts:
        result["accuracy"] = accuracy.measure_accuracy(data, algorithms, _ROUNDS, seeds, python)
    if "cost" in parts:
        result["cost"] = cost.measure_cost(data, _ROUNDS, 1 if args.quick else 7, python)
    if "hostile" in parts:
        labels = [0] if args.quick else [int(one) for one in args.labels.split(",")]
        rounds = _ROUNDS if args.quick else _HOSTILE_ROUNDS
        result["hostile"] = hostile.measure_hostile(data, labels, rounds, seeds)
    _picture(result, args.out)
    if args.json:
        print(json.dumps(result))
    else:
        for part, lines in (("accuracy", accuracy.lines), ("cost", cost.lines), ("hostile", hostile.lines)):
            if part in result:
                print("\n".join(lines(result[part])))
    if rows := result.get("cost"):
        whole, _ = rows[0]["walle"]
        print_headline(
            f"federated client-round, FedAvg on {TITLES[rows[0]['data']]}, CPU", unit="ms", better="lower",
            ours=whole, peers={"Flower": rows[0]["flower"][0] if "flower" in rows[0] else _ABSENT},
        )  # fmt: skip
    if rows := result.get("accuracy"):
        last = rows[0]["flower"][-1] if "flower" in rows[0] else None
        print_headline(
            f"accuracy after {_ROUNDS} federated rounds, {rows[0]['algorithm']} on {TITLES[rows[0]['data']]}",
            unit="%", better="higher", ours=100 * rows[0]["walle"][-1],
            peers={"Flower": _ABSENT if last is None else 100 * last},
        )  # fmt: skip


if __name__ == "__main__":
    main()
