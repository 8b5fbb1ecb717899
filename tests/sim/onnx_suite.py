"""The node tests of the `onnx` package run on the engine in this process, and the table of those that it leaves out.

python -m tests.sim.onnx_suite          # run all and write the table again; reasons of cases that stay are kept
"""

import contextlib
import functools
import json
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from walle.errors import EngineError
from walle.onnx_backend import Backend

# From onnx 1.23 on, the suite's own runner allows bfloat16 two units in the last place.
_BFLOAT16_RTOL = 2**-6 if tuple(int(part) for part in onnx.__version__.split(".")[:2]) >= (1, 23) else 0.0

_FOLDER = Path(__file__).parents[1] / "engine_ext"
# A table for each version of onnx that the engine is held to.
TABLES = {tomllib.loads(path.read_text())["onnx"]: path for path in sorted(_FOLDER.glob("conformance*.toml"))}
TABLE = TABLES.get(onnx.__version__, _FOLDER / f"conformance-{onnx.__version__}.toml")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a case: "pass", "refused" (by the engine, with its reason) or "differs" (from the expected output)."""

    status: str
    reason: str = ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The generators of the tests divide by zero, and warn, on purpose."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def run_suite(filter_: str = "") -> dict[str, Outcome]:
    """Return the outcome of every node test whose name the pattern is found in."""
    with quiet():
        return {name: run_case(case) for name, case in all_cases().items() if re.search(filter_, name)}


@functools.cache
def all_cases() -> dict[str, Any]:
    """Return the node tests of the package by name."""
    return {case.name: case for case in load_model_tests(kind="node")}


def run_case(case: Any) -> Outcome:
    """Return the outcome of one case; nothing that it raises gets out."""
    try:
        model, data_sets = load_case(case)
        prepared = Backend.prepare(model)
        for inputs, expected in data_sets:
            found = prepared.run([to_value(one) for one in inputs])
            if (what := difference(to_value(expected), list(found), case.rtol, case.atol)) is not None:
                return Outcome("differs", what)
    except EngineError as error:
        return Outcome("refused", " ".join(str(error).split()))
    except Exception as error:  # whatever else comes out of a case is that case's result
        return Outcome("differs", f"{type(error).__name__}: {error}"[:200])
    return Outcome("pass")


def load_case(case: Any) -> tuple[onnx.ModelProto, list[Any]]:
    """Return a case's model, and the inputs and outputs of each data set; older packages keep them in files."""
    if case.model is not None:
        return case.model, case.data_sets
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    given = {one.name for one in model.graph.initializer}
    infos = {"input": [one for one in model.graph.input if one.name not in given], "output": list(model.graph.output)}
    return model, [
        [[read_value(data / f"{kind}_{i}.pb", info) for i, info in enumerate(infos[kind])] for kind in infos]
        for data in sorted(folder.glob("test_data_set_*"))
    ]


def read_value(path: Path, info: onnx.ValueInfoProto) -> Any:
    """Return the value in a file of the kind that the model's input or output has."""
    data, kind = path.read_bytes(), info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def to_value(value: Any) -> Any:
    """Return a test's value as an array, a list of values (a sequence) or None (an empty optional)."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list | tuple):
        return [to_value(one) for one in value]
    return None if value is None else np.asarray(value)


def difference(expected: Any, found: Any, rtol: float, atol: float) -> str | None:
    """Return what is wrong with a value, None where nothing is."""
    if isinstance(expected, list):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return f"a sequence of {len(expected)} was expected"
        differences = (difference(*pair, rtol, atol) for pair in zip(expected, found, strict=True))
        return next((one for one in differences if one is not None), None)
    if expected is None:
        return None if found is None else "an empty optional was expected"
    expected, found = np.asarray(expected), np.asarray(found)
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if expected.dtype.kind in "OSU":
        return None if [str(one) for one in expected.flat] == [str(one) for one in found.flat] else "texts differ"
    if found.dtype != expected.dtype:
        return f"{found.dtype}, expected {expected.dtype}"
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, _BFLOAT16_RTOL)
    if expected.dtype.kind not in "biufc":  # the types of ml_dtypes
        expected, found = expected.astype(np.float32), found.astype(np.float32)
    if np.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return "values differ"


def read_table(path: Path = TABLE) -> dict[str, Outcome]:
    """Return the cases that a table leaves out with their outcome; none where the table is not written yet."""
    table = tomllib.loads(path.read_text()) if path.exists() else {}
    return {
        name: Outcome(status, group["reason"])
        for status in ("refused", "differs")
        for group in table.get(status, [])
        for name in group["cases"]
    }


def write_table(found: dict[str, Outcome], reasons: dict[str, Outcome]) -> None:
    """Write the table of the cases that did not pass; `reasons` are those known so far."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, outcome in sorted(found.items()):
        known = reasons.get(name)
        if outcome.status != "pass":
            stays = known if known is not None and known.status == outcome.status else None
            reason = stays.reason if stays else _general(outcome.reason)
            groups.setdefault((outcome.status, reason), []).append(name)
    passed = sum(outcome.status == "pass" for outcome in found.values())
    lines = [
        "# The node tests of the `onnx` package that the engine leaves out, by outcome and reason; all others pass.",
        "# What is refused raises an error that says why. A case that differs contradicts the text of its operator:",
        "# tests/engine_ext/test_conformance.py computes that text, finds the engine with it and the case against it.",
        "# Written by: python -m tests.sim.onnx_suite",
        f'onnx = "{onnx.__version__}"',
        f"cases = {len(found)}",
        f"passed = {passed}",
    ]
    for (status, reason), names in sorted(groups.items()):
        lines += ["", f"[[{status}]]", f"reason = {json.dumps(reason, ensure_ascii=False)}", "cases = ["]
        lines += [f'    "{name}",' for name in names] + ["]"]
    TABLE.write_text("\n".join(lines) + "\n")


def _general(reason: str) -> str:
    """Return an engine's reason without what is one case's: the node's name, and what may be done instead."""
    reason = re.sub(r"^node '.*?' \((\S+?)(?:, opset.*?)?\)", r"\1", reason)
    reason = re.sub(r"^(input|output|constant) '.*?' is", r"a value is", reason)
    return reason.split("; ")[0]


if __name__ == "__main__":
    outcomes = run_suite()
    previous = read_table()
    write_table(outcomes, previous)
    for name, outcome in sorted(outcomes.items()):
        if (outcome.status == "pass") == (name in previous):
            sys.stdout.write(f"{name} {outcome.status} {outcome.reason[:120]}\n")
    count = sum(outcome.status == "pass" for outcome in outcomes.values())
    sys.stdout.write(f"{count} of {len(outcomes)} pass\n")
