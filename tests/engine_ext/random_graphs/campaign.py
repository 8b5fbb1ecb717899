"""Random graphs through the engine and the reference, the failing ones shrunk.

python -m tests.engine_ext.random_graphs.campaign --graphs 7000 --seed 1 --out out/random_graphs
"""

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import walle
from tests.engine_ext.random_graphs.comparison import define, expect
from tests.engine_ext.random_graphs.flow import flow
from tests.engine_ext.random_graphs.maker import Array, GraphMaker, Unsuitable
from tests.engine_ext.random_graphs.movement import movement
from tests.engine_ext.random_graphs.numbers import numbers
from tests.engine_ext.random_graphs.quantised import quantised
from tests.engine_ext.random_graphs.reference import NoReference
from tests.engine_ext.random_graphs.shrinking import Sample, as_text, reproduction, shrink
from tests.engine_ext.random_graphs.transformer import transformer
from tests.engine_ext.random_graphs.vision import vision
from walle.engine_ext.conversion import convert_bytes
from walle.engine_ext.session import load
from walle.onnx_backend import from_engine, to_engine

type Family = Callable[[GraphMaker], list[str]]
FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    "vision": (vision, ("float32",)),
    "transformer": (transformer, ("float32",)),
    "movement": (movement, ("float32",)),
    "quantised": (quantised, ("float32",)),
    "numbers": (numbers, ("float32", "float32", "float64")),
    "halves": (lambda g: g.draw([vision, transformer, movement, numbers])(g), ("float16", "bfloat16")),
    "flow": (flow, ("float32",)),
}
_SHARES = {"vision": 28, "transformer": 20, "movement": 18, "quantised": 14, "numbers": 10, "halves": 7, "flow": 3}
# bfloat16 has most operators from 22 on.
_OPSETS = {"bfloat16": (22, 23, 24), "": (13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24)}


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a run of the engine. `open_shapes` leaves the sizes of the inputs open until the run."""

    backend: str
    threads: int
    open_shapes: bool


@dataclass(frozen=True, slots=True)
class Case:
    """A random graph with its arrays, and the settings to run it with."""

    name: str
    sample: Sample
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A setting in which the engine is wrong, and what is wrong."""

    setting: Setting
    what: str


def backends() -> list[str]:
    """Return the backends of this machine that compute in float32."""
    return [one.name for one in walle.backends() if one.available and one.exact]


def make_case(number: int, seed: int, family: str = "") -> Case:
    """Return the graph of this number; the same one for the same seed."""
    rng = np.random.default_rng([seed, number])
    while True:
        names = [name for name, share in _SHARES.items() for _ in range(share)]
        name = family or names[int(rng.integers(len(names)))]
        make, dtypes = FAMILIES[name]
        dtype = dtypes[int(rng.integers(len(dtypes)))]
        opsets = _OPSETS.get(dtype, _OPSETS[""])
        maker = GraphMaker(rng, opset=opsets[int(rng.integers(len(opsets)))], dtype=dtype)
        try:
            outputs = make(maker)
            model = maker.model(outputs)
        except (Unsuitable, IndexError):  # an input whose shape no step applies to
            continue
        feeds = {one.name: maker.feeds[one.name] for one in model.graph.input}
        return Case(f"{name}-{seed}-{number}", Sample(model, feeds), _settings(rng))


def _settings(rng: np.random.Generator) -> tuple[Setting, ...]:
    """Return two settings: the default one with one or two threads, and a backend by name."""
    names = backends()
    first = Setting("auto", 1 if rng.random() < 0.75 else 2, bool(rng.random() < 0.2))
    other = Setting(names[int(rng.integers(len(names)))], 1 if rng.random() < 0.75 else 2, bool(rng.random() < 0.25))
    return first, other


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first failure of a graph, and whether float64 decided on a setting."""

    failure: Failure | None
    by_definition: bool


def judge(sample: Sample, settings: tuple[Setting, ...], seed: int = 0) -> Verdict:
    """Return what is wrong with the engine's results. Where they differ from the reference, float64 decides.

    Raises:
        NoReference: neither reference runs the graph.
    """
    expected, defined = expect(sample.model, sample.feeds, seed), None
    for setting in settings:
        try:
            found = run(sample, setting)
        except Exception as error:  # whatever the engine raises for a valid graph is a failure
            return Verdict(Failure(setting, f"{type(error).__name__}: {error}"[:400]), defined is not None)
        if (said := expected.difference(found)) is None:
            continue
        with contextlib.suppress(NoReference):
            defined = defined or define(sample.model, sample.feeds, expected, seed)
        if defined is None or defined.difference(found) is not None:
            return Verdict(Failure(setting, said), defined is not None)
    return Verdict(None, defined is not None)


def check(sample: Sample, settings: tuple[Setting, ...], seed: int = 0) -> Failure | None:
    """Return the first failure of a graph; raises NoReference like judge()."""
    return judge(sample, settings, seed).failure


def run(sample: Sample, setting: Setting) -> dict[str, Array]:
    """Return the engine's results by name; a second run of the same session must repeat them.

    Raises:
        AssertionError: it does not.
    """
    model = opened(sample.model) if setting.open_shapes else sample.model
    session = load(convert_bytes(model), backend=setting.backend, threads=setting.threads)
    feeds = {name: to_engine(array) for name, array in sample.feeds.items()}
    first = {name: from_engine(value) for name, value in session.run(feeds).items()}
    second = {name: from_engine(value) for name, value in session.run(feeds).items()}
    for name, array in first.items():
        if array.tobytes() != second[name].tobytes():
            raise AssertionError(f"output {name!r} of a second run differs from the first one's")
    return first


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the sizes of its inputs and outputs; the numbers of axes stay."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for one in (*made.graph.input, *made.graph.output):
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            dim.dim_param = f"{one.name}_{axis}"
    return made


@dataclass(slots=True)
class Report:
    """Counts of a campaign, by family, and its failures."""

    graphs: Counter[str]
    without_reference: Counter[str]
    by_definition: list[str]  # names of graphs that float64 decided
    failures: list[tuple[Case, Failure]]


def campaign(cases: Iterator[Case] | list[Case]) -> Report:
    """Return the outcome of all cases."""
    report = Report(Counter(), Counter(), [], [])
    for case in cases:
        family = case.name.partition("-")[0]
        report.graphs[family] += 1
        try:
            verdict = judge(case.sample, case.settings)
        except NoReference:
            report.without_reference[family] += 1
            continue
        if verdict.by_definition:
            report.by_definition.append(case.name)
        if verdict.failure is not None:
            report.failures.append((case, verdict.failure))
    return report


def shrunk(case: Case, failure: Failure) -> tuple[Sample, str]:
    """Return the smallest sample found that fails in the same way, and what is wrong with it."""
    kind = failure.what.partition(":")[0] if "Error" in failure.what.partition(":")[0] else "output"

    def fails(sample: Sample) -> bool:
        try:
            found = check(sample, (failure.setting,))
        except Exception:  # no reference, or no longer a graph
            return False
        return found is not None and found.what.startswith(kind)

    small = shrink(case.sample, fails)
    again = check(small, (failure.setting,))
    return small, again.what if again is not None else failure.what


def save(folder: Path, name: str, sample: Sample, what: str) -> str:
    """Write the graph and a program that shows its failure; return both as text for a message."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(sample.model, folder / f"{name}.onnx")
    (folder / f"{name}.py").write_text(reproduction(sample, what.replace('"""', "'''"), f"{name}.onnx"))
    return f"{name}: {what}\n{as_text(sample)}\n({folder / name}.onnx)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", default="", choices=["", *FAMILIES])
    parser.add_argument("--out", type=Path, default=Path("out/random_graphs"))
    parser.add_argument("--shrink", type=int, default=20, help="number of failures to shrink")
    args = parser.parse_args()
    began = time.process_time()
    report = campaign(make_case(n, args.seed, args.family) for n in range(args.first, args.first + args.graphs))
    spent = time.process_time() - began
    for case, failure in report.failures[: args.shrink]:
        text = save(args.out, case.name, *shrunk(case, failure))
        sys.stdout.write(f"{case.name} {failure}\n{text}\n\n")
    sys.stdout.write(
        f"{report.graphs.total()} graphs in {spent:.1f} s of CPU: {len(report.failures)} fail,"
        f" {report.without_reference.total()} without a reference; {dict(report.graphs)}\n"
        f"decided in float64: {', '.join(report.by_definition) or 'none'}\n"
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
