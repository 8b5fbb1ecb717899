"""walle.np against NumPy on arrays of 1, 10 and 100 elements, where a call costs more than its loop (§4.2).

Each operation and NumPy's are timed alternately, in CPU time of the thread, so that other load affects both; the median
of the rounds is reported, after the results are compared. The ratio is ours over NumPy's, so less than 1 is faster.

    python benchmarks/small_arrays.py [--only NAME] [--rounds 15] [--json]
"""
# ruff: noqa: ARG001, ARG005, E402, ICN001 -- operations on one of two modules, which not all of them need

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import numpy

import walle.np as walle_np
from benchmarks.headline import print_headline

SIZES = (1, 10, 100)
_HEADLINE, _HEADLINE_SIZE = "a + b", 10
LEAST_S = 0.001  # a round repeats a call for at least this long
ROUNDS = 15

# An operation takes NumPy or walle.np and the inputs: float32 vectors a and b, a mask m, indices i, the list l of a's
# numbers, the middle index k, the size n.
type Operation = Callable[[Any, SimpleNamespace], Any]


def iterate(np: Any, x: SimpleNamespace) -> Any:
    last = None
    for one in x.a:
        last = one
    return last


def set_element(np: Any, x: SimpleNamespace) -> Any:
    x.c[x.k] = 1.5
    return x.c


def set_slice(np: Any, x: SimpleNamespace) -> Any:
    x.c[: x.k] = 0
    return x.c


OPERATIONS: dict[str, Operation] = {
    "a[k]": lambda np, x: x.a[x.k],
    "float(a[k])": lambda np, x: float(x.a[x.k]),
    "a[1:k]": lambda np, x: x.a[1 : x.k],
    "a[k] = 1.5": set_element,
    "a[:k] = 0": set_slice,
    "a[mask]": lambda np, x: x.a[x.m],
    "a[indices]": lambda np, x: x.a[x.i],
    "for x in a": iterate,
    "a.shape": lambda np, x: x.a.shape,
    "a.tolist()": lambda np, x: x.a.tolist(),
    "a.reshape(-1, 1)": lambda np, x: x.a.reshape(-1, 1),
    "a.astype": lambda np, x: x.a.astype("float64"),
    "a.copy()": lambda np, x: x.a.copy(),
    "a + b": lambda np, x: x.a + x.b,
    "a * 2.0": lambda np, x: x.a * 2.0,
    "a < b": lambda np, x: x.a < x.b,
    "-a": lambda np, x: -x.a,
    "maximum": lambda np, x: np.maximum(x.a, x.b),
    "sqrt": lambda np, x: np.sqrt(x.a),
    "exp": lambda np, x: np.exp(x.a),
    "a.sum()": lambda np, x: x.a.sum(),
    "sum": lambda np, x: np.sum(x.a),
    "mean": lambda np, x: np.mean(x.a),
    "a.max()": lambda np, x: x.a.max(),
    "argmax": lambda np, x: np.argmax(x.a),
    "any": lambda np, x: np.any(x.m),
    "concatenate": lambda np, x: np.concatenate([x.a, x.b]),
    "stack": lambda np, x: np.stack([x.a, x.b]),
    "array(list)": lambda np, x: np.array(x.l, "float32"),
    "asarray": lambda np, x: np.asarray(x.a),
    "zeros": lambda np, x: np.zeros(x.n, "float32"),
    "arange": lambda np, x: np.arange(x.n),
    "dot": lambda np, x: np.dot(x.a, x.b),
    "where": lambda np, x: np.where(x.m, x.a, x.b),
    "clip": lambda np, x: np.clip(x.a, 0.25, 0.75),
    "sort": lambda np, x: np.sort(x.a),
}


def inputs(np: Any, n: int) -> SimpleNamespace:
    rng = numpy.random.default_rng(n)
    a, b = (rng.random(n, dtype="float32") + numpy.float32(0.01) for _ in range(2))
    made = {"a": a, "b": b, "c": a.copy(), "m": a < b, "i": rng.integers(0, n, n)}
    own = made if np is numpy else {name: np.asarray(array) for name, array in made.items()}
    return SimpleNamespace(**own, l=a.tolist(), k=n // 2, n=n)


def seconds(operation: Operation, np: Any, x: SimpleNamespace, times: int) -> float:
    repeat = range(times)
    start = time.thread_time()
    for _ in repeat:
        operation(np, x)
    return (time.thread_time() - start) / times


def compare(operation: Operation, n: int, rounds: int) -> tuple[float, float]:
    """Return the median times of walle.np and NumPy in s, measured alternately."""
    sides = [(np, inputs(np, n)) for np in (walle_np, numpy)]
    own, peer = (numpy.asarray(operation(np, x)) for np, x in sides)
    numpy.testing.assert_allclose(own, peer, rtol=1e-6)
    assert own.shape == peer.shape
    times = [max(1, math.ceil(LEAST_S / max(seconds(operation, np, x, 10), 1e-8))) for np, x in sides]
    rows = [
        [seconds(operation, np, x, count) for (np, x), count in zip(sides, times, strict=True)] for _ in range(rounds)
    ]
    return statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)


def measure(only: str, rounds: int) -> Iterator[dict[str, Any]]:
    for name, operation in OPERATIONS.items():
        if only in name:
            pairs = [compare(operation, n, rounds) for n in SIZES]
            yield {"name": name, "ns": [own * 1e9 for own, _ in pairs], "numpy_ns": [peer * 1e9 for _, peer in pairs],
                   "ratios": [own / peer for own, peer in pairs]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only operations whose name holds this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = list(measure(options.only, options.rounds))
    ratios = [ratio for row in rows for ratio in row["ratios"]]
    mean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
    if options.json:
        print(
            json.dumps(
                {"sizes": SIZES, "rows": rows, "geometric_mean": mean, "greatest": max(ratios, default=0)}, indent=1
            )
        )
        return
    print(f"walle.np against NumPy {numpy.__version__}: CPU ns a call (ratio), by number of elements")
    print(f"{'operation':20}" + "".join(f"{n:>26}" for n in SIZES))
    for row in rows:
        cells = (
            f"{own:10.0f} /{peer:6.0f} ({ratio:4.2f})"
            for own, peer, ratio in zip(row["ns"], row["numpy_ns"], row["ratios"], strict=True)
        )
        print(f"{row['name']:20}" + "".join(f"{cell:>26}" for cell in cells))
    print(f"{len(rows)} operations, geometric mean of the ratios {mean:.2f}, greatest {max(ratios, default=0):.2f}")
    row = next((row for row in rows if row["name"] == _HEADLINE), rows[0])
    at = SIZES.index(_HEADLINE_SIZE)
    print_headline(
        f"{row['name']} of {_HEADLINE_SIZE} float32 elements, a call, CPU time",
        unit="ns",
        better="lower",
        ours=row["ns"][at],
        peers={"NumPy": row["numpy_ns"][at]},
    )


if __name__ == "__main__":
    main()
