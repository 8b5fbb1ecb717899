"""Stop latency by kind of loop: from a call's deadline until its VM has stopped and can serve the next call (§4.3).

Each kind is one long statement of a task: a loop of Python, a function of the standard library, an operator of the
engine. A call without a deadline says how long it takes; then the deadline falls at `--points` moments spread over that
time. The VM serves another call afterwards, or was abandoned at the end of its grace period (0.25 s), which costs a
device a thread and the task a strike.

    python benchmarks/stop_latency.py [--points 9] [--kinds sort,svd] [--json]

The latency includes what else the machine does: run it on an idle one. Endless loops have deadlines of 20 to 60 ms.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.headline import print_headline
from walle.vm import VM, DeadlineExceeded

LIMITS = {"memory_mb": 1024, "log_kb": 64, "output_kb": 64, "recursion": 1000}
LONGEST_S = 5.0  # longest call of any kind


class Kind(NamedTuple):
    name: str
    prepare: str  # statements that make globals
    run: str  # one statement
    endless: bool = False


_MATRIX = "a = np.random.random(({n}, {n})).astype('float64')"
_SPECIAL = _MATRIX + "; a = a @ a.T + {n} * np.eye({n})"

KINDS = [
    Kind("python loop", "", "while True: pass", endless=True),
    Kind("python loop that catches all", "", "catch()", endless=True),
    Kind("time.sleep", "import time", "time.sleep(60)", endless=True),
    Kind("regular expression", "import re", "re.match(r'(a+)+$', 'a' * 60 + 'b')", endless=True),
    Kind("any(itertools.repeat(0))", "import itertools", "any(itertools.repeat(0))", endless=True),
    Kind("elementwise, 40 M", "x = np.random.random(40_000_000).astype('float32')", "np.sin(x)"),
    Kind("sum, broadcast 2e9", "x = np.broadcast_to(np.ones((1,)), (2_000_000_000,))", "np.sum(x)"),
    Kind("cumsum, 40 M", "x = np.random.random(40_000_000).astype('float32')", "np.cumsum(x)"),
    Kind("product, 2000, float32", _MATRIX.format(n=2000) + ".astype('float32')", "a @ a"),
    Kind("product, 2000, float64", _MATRIX.format(n=2000), "a @ a"),
    Kind("product, 2000, int64", "a = np.ones((2000, 2000), dtype='int64')", "a @ a"),
    Kind("product, row of 30 M", "a = np.ones((1, 30_000_000)); b = np.ones((30_000_000, 1))", "a @ b"),
    Kind(
        "product, one row, broadcast",
        "a = np.broadcast_to(np.ones((1, 1)), (1, 40_000)); b = np.broadcast_to(np.ones((1, 1)), (40_000, 40_000))",
        "a @ b",
    ),
    Kind(
        "product, k of 4 M", "a = np.ones((16, 4_000_000), 'float32'); b = np.ones((4_000_000, 8), 'float32')", "a @ b"
    ),
    Kind("einsum, 400^3", "a = np.ones((400, 400, 40))", "np.einsum('ijk,jlk->ilk', a, a)"),
    Kind("sort, 10 M", "x = np.random.random(10_000_000)", "np.sort(x)"),
    Kind("argsort, 10 M", "x = np.random.random(10_000_000)", "np.argsort(x)"),
    Kind("sort, 10 M, int8", "x = np.ones(10_000_000, dtype='int8')", "np.sort(x)"),
    Kind("sort, rows of 20", "x = np.random.random((500_000, 20))", "np.sort(x)"),
    Kind("median, 10 M", "x = np.random.random(10_000_000)", "np.median(x)"),
    Kind("unique, 5 M", "x = np.random.random(5_000_000)", "np.unique(x)"),
    Kind("searchsorted, 5 M in 5 M", "x = np.sort(np.random.random(5_000_000))", "np.searchsorted(x, x[::-1])"),
    Kind("fft, 2^22", "x = np.random.random(1 << 22)", "np.fft.rfft(x)"),
    Kind("fft, prime 1,000,003", "x = np.random.random(1_000_003)", "np.fft.rfft(x)"),
    Kind("fft, rows", "x = np.random.random((2000, 2000))", "np.fft.rfft(x)"),
    Kind("fft2, 2000", "x = np.random.random((2000, 2000))", "np.fft.rfft2(x)"),
    Kind("solve, 1500", _MATRIX.format(n=1500) + "; b = np.ones(1500)", "np.linalg.solve(a, b)"),
    Kind("inv, 1500", _MATRIX.format(n=1500), "np.linalg.inv(a)"),
    Kind("det, 1500", _MATRIX.format(n=1500), "np.linalg.det(a)"),
    Kind("cholesky, 1500", _SPECIAL.format(n=1500), "np.linalg.cholesky(a)"),
    Kind("qr, 1500", _MATRIX.format(n=1500), "np.linalg.qr(a)"),
    Kind("eigh, 1500", _SPECIAL.format(n=1500), "np.linalg.eigh(a)"),
    Kind("eigvalsh, 1500", _SPECIAL.format(n=1500), "np.linalg.eigvalsh(a)"),
    Kind("svd, 1500", _MATRIX.format(n=1500), "np.linalg.svd(a)"),
    Kind("svdvals, 1500", _MATRIX.format(n=1500), "np.linalg.svdvals(a)"),
    Kind("inv, 200,000 of 5", "a = np.random.random((200_000, 5, 5))", "np.linalg.inv(a)"),
    Kind("random normal, 20 M", "", "np.random.default_rng(1).normal(size=20_000_000)"),
]

_HEAD = """
import walle.np as np

def catch():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

def nothing():
    return None
"""


def source_of(kind: Kind) -> str:
    names = [f"\n    {statement.strip()}" for statement in kind.prepare.split(";") if statement.strip()]
    prepare = f"def prepare():\n    global a, b, x, re, time, itertools{''.join(names)}\n"
    return f"{_HEAD}\n{prepare}\ndef run():\n    {kind.run}\n"


async def measure(kind: Kind, points: int) -> dict[str, Any]:
    """Return a kind's row: milliseconds of its whole call, and latencies of its stops."""
    row: dict[str, Any] = {"kind": kind.name}
    late_ms: list[float] = []
    abandoned = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.py").write_text(source_of(kind))

        async def new_vm() -> VM:
            vm = VM(folder, limits=LIMITS)
            await vm.call("prepare")
            return vm

        vm = await new_vm()
        whole_s = 0.06
        if not kind.endless:
            for _ in range(2):  # the first also loads and plans
                begin = time.perf_counter()
                with contextlib.suppress(DeadlineExceeded):
                    await vm.call("run", deadline=LONGEST_S)
                whole_s = time.perf_counter() - begin
                if not vm.alive:
                    vm.close()
                    vm = await new_vm()
                if whole_s >= LONGEST_S:
                    break
            row["whole_ms"] = round(whole_s * 1e3) if whole_s < LONGEST_S else f"> {LONGEST_S * 1e3:.0f}"
        for point in range(points):
            deadline = whole_s * (point + 1) / (points + 1)
            begin = time.perf_counter()
            try:
                await vm.call("run", deadline=deadline)
                continue  # this call was faster
            except DeadlineExceeded:
                late_ms.append((time.perf_counter() - begin - deadline) * 1e3)
            if not vm.alive:
                abandoned += 1
                vm.close()
                vm = await new_vm()
            await vm.call("nothing")
        vm.close()
        await vm.wait_closed()
    late_ms.sort()
    row |= {"stops": len(late_ms), "abandoned": abandoned}
    if late_ms:
        row |= {"median_ms": round(late_ms[len(late_ms) // 2], 1), "most_ms": round(late_ms[-1], 1)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=9)
    parser.add_argument("--kinds", default="", help="parts of names, separated by commas; all by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = options.kinds.split(",")
    if not options.json:
        print(f"{'kind':32}{'whole ms':>10}{'stops':>7}{'median ms':>11}{'most ms':>9}{'abandoned':>11}")
    most_ms = {}
    for kind in KINDS:
        if not any(part in kind.name for part in parts):
            continue
        row = asyncio.run(measure(kind, options.points))
        if "most_ms" in row:
            most_ms[kind.name] = row["most_ms"]
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        shown = [row.get(key, "") for key in ("whole_ms", "stops", "median_ms", "most_ms", "abandoned")]
        print(
            f"{row['kind']:32}"
            + "".join(f"{value!s:>{width}}" for value, width in zip(shown, (10, 7, 11, 9, 11), strict=True)),
            flush=True,
        )
    if most_ms and not options.json:
        name = max(most_ms, key=most_ms.__getitem__)
        what = f"from a deadline to the stop, the latest of {len(most_ms)} kinds of loop ({name})"
        print_headline(what, unit="ms", better="lower", ours=most_ms[name])


if __name__ == "__main__":
    main()
