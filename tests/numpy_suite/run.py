"""Run NumPy's own tests on walle.np, and write build/numpy-suite.md: their outcomes by file.

    python -m tests.numpy_suite.run [--only NAME] [--failures] [--write]

*refused*: walle.np says clearly that it does not have what the test uses: a name, an argument, a dtype.
*worded*: an error is raised as in NumPy, with another text.
*failed*: a result, or the class of an error, is another one than NumPy's.
"""
# ruff: noqa: T201 -- a command

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "build/numpy-suite.md"
FILES = (
    "_core/test_arrayprint", "_core/test_einsum", "_core/test_function_base", "_core/test_getlimits",
    "_core/test_indexerrors", "_core/test_indexing", "_core/test_item_selection", "_core/test_multiarray",
    "_core/test_numeric", "_core/test_shape_base", "_core/test_ufunc", "_core/test_umath", "lib/test_arraysetops",
    "lib/test_function_base", "lib/test_histograms", "lib/test_index_tricks", "lib/test_nanfunctions",
    "lib/test_shape_base", "lib/test_stride_tricks", "lib/test_twodim_base", "linalg/test_linalg",
)  # fmt: skip
STAND_IN, COMPARISON = "tests.numpy_suite.stand_in", "tests.numpy_suite.comparison"
# Statements that run while a file is imported, with a name or dtype that is not there.
OF_CLASSES = (
    (r"^UNARY_\w+\.remove\(.*$", ""),
    (r"\.newbyteorder\(\)", ""),
    (r"\.astype\(\"(?:datetime|timedelta)64[^\"]*\"\)", ""),
    (r"xi\.view\(np\.uint32\)\.fill\(0xdeadbeef\)|xi = xi\.view\(x\.__class__\)", "pass"),
    (r"^CASES \+= _make_strided_cases\(\)$", ""),
    (r"^    with assert_raises_regex\($", "    with (lambda *_: __import__('contextlib').suppress(Exception))("),
    (r"a = a\[1:\]\.view\(dtype='f8'\)", "a = np.empty(60)"),
    (r"^    (\w+) = (\w+)\.astype\((complex|object)\)$", r"    \1 = \2"),
)
# Modules that the tests take from NumPy itself: how results are compared, and the environment.
KEPT = ("numpy.testing", "numpy._core.tests", "numpy._utils")


KINDS = ("passed", "refused", "worded", "failed")


def on_walle(source: str) -> str:
    """Return the text of a test file with walle.np in NumPy's place."""
    kept = "|".join(re.escape(name) for name in KEPT)
    replacements = (
        *OF_CLASSES,
        (r"^(\s*)from numpy\.testing import", rf"\1from {COMPARISON} import"),
        (rf"^(\s*)from (?!{kept})numpy[\w.]* import", rf"\1from {STAND_IN} import"),
        (r"^(\s*)import numpy as np$", rf"\1from {STAND_IN} import np"),
        (rf"^(\s*)import (?!{kept})numpy[\w.]* as (\w+)$", rf"\1from {STAND_IN} import np as \2"),
    )
    for pattern, instead in replacements:
        source = re.sub(pattern, instead, source, flags=re.M)
    return source


def outcomes(name: str, seconds: int) -> tuple[list[dict[str, str]], str]:
    """Return the outcome of each test of a file, and why there is none where the run itself failed."""
    package, file = name.split("/")
    source = Path(numpy.__file__).parent / package / "tests" / f"{file}.py"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / source.name
        copy.write_text(on_walle(source.read_text()))
        result = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", str(copy), "-q", "-p", "tests.numpy_suite.plugin",
                   "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow", "--timeout=20", "--rootdir", folder,
                   "-c", os.devnull, "-W", "ignore", "--tb=no",
                   "--basetemp", f"{folder}/tmp", "--maxfail=100000"]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NUMPY_SUITE_OUT": str(result),
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds,
                                  check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return [], f"the file took longer than {seconds} s"
        found = json.loads(result.read_text()) if result.exists() else []
        return found, "" if found else "\n".join(done.stdout.splitlines()[-15:])


def groups(rows: list[dict[str, str]], kind: str, count: int) -> list[tuple[str, int]]:
    """Return the most frequent reasons of a kind, without the numbers and the lists of known names in them."""
    whys = (row["why"].partition("; known are ")[0] for row in rows if row["kind"] == kind)
    return collections.Counter(re.sub(r"\d+", "N", why) for why in whys).most_common(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only files whose name holds this text")
    parser.add_argument("--failures", action="store_true", help="print each failed test with its reason")
    parser.add_argument("--write", action="store_true", help="write the table to build/numpy-suite.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=int, default=300, help="limit of a file")
    options = parser.parse_args()
    table: list[tuple[str, list[int], str]] = []
    every = []
    names = [name for name in FILES if options.only in name]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(lambda name: outcomes(name, options.seconds), names)
        results = list(zip(names, found, strict=True))
    for name, (rows, problem) in results:
        every += rows
        count = collections.Counter(row["kind"] for row in rows)
        table.append((name, [count[kind] for kind in KINDS], problem))
        print(f"{name:32}" + "".join(f"{count[kind]:7}" for kind in KINDS), problem, flush=True)
        if options.failures:
            for row in rows:
                if row["kind"] == "failed":
                    print(f"    {row['test'][:70]:72}{row['why'][:120]}")
    if options.write:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(table, every))


def document(table: list[tuple[str, list[int], str]], rows: list[dict[str, str]]) -> str:
    total = [sum(counts[at] for _, counts, _ in table) for at in range(len(KINDS))]
    lines = [
        "# NumPy's own tests on `walle.np`",
        "",
        f"Written by `make numpy-suite`: test files of NumPy {numpy.__version__} with `walle.np` in NumPy's place",
        "(`tests/numpy_suite`). *Refused*: the test uses what `walle.np` says clearly that it does not have (a name,",
        "an argument, a dtype). *Worded*: the error is NumPy's, its text is not. *Failed*: another result or class of",
        "error than NumPy's. Arrays of Python floats and random numbers are float64 in these tests; the default is",
        "float32. Tests that NumPy marks as slow are left out. `--failures` prints every failed test.",
        "",
        f"| file | {' | '.join(KINDS)} |",
        "| --- |" + " --: |" * len(KINDS),
    ]
    lines += [
        f"| `{name}` | " + (f"{problem.splitlines()[0]} | | | |" if problem else " | ".join(map(str, counts)) + " |")
        for name, counts, problem in table
    ]
    lines += [f"| all | {' | '.join(map(str, total))} |", ""]
    for kind, title in (("failed", "Frequent reasons of failures"), ("refused", "What is refused most")):
        lines += [f"## {title}", "", "| tests | reason |", "| --: | --- |"]
        for why, count in groups(rows, kind, 20):
            text = why.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {count} | {text} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
