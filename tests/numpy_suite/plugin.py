"""Plugin of pytest that classifies the outcomes of NumPy's tests (run.py says how), with the reason of each."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.numpy_suite import stand_in
from walle.engine_ext.errors import DTypeError, UnsupportedError

_outcomes: list[dict[str, str]] = []

# Errors that say clearly what is not there.
_REFUSALS = re.compile(
    r"walle\.np has no|object has no attribute|has no argument|unexpected keyword argument|positional arguments?"
    r"|expected an array, a number or nested lists|not an acceptable base type|is not supported|are not supported"
    r"|not callable|unsupported operand|cannot be interpreted as an integer|operators do not compute in"
    r"|is not an array of numbers|must be an ndarray|does not support|; use astype"
)
# NumPy's tests of linalg put an error into the text of an AssertionError, with its traceback.
_IN_CASE = re.compile(r"In test case: .*\n(?:[\w.]+\.)?(\w+): ([^\n]*)\s*$", re.S)


def pytest_collection_finish() -> None:
    stand_in.is_collecting = False


def _classify(error: BaseException) -> tuple[str, str]:
    text = str(error).strip().split("\n")[0][:160]
    if isinstance(error, stand_in.NotPresent):
        return "refused", f"no {text}"
    if isinstance(error, UnsupportedError) or (isinstance(error, DTypeError) and "unknown dtype" in text):
        return "refused", text
    if isinstance(error, AttributeError | TypeError | DTypeError) and _REFUSALS.search(text):
        return "refused", text
    in_case = _IN_CASE.search(str(error)) if isinstance(error, AssertionError) else None
    if in_case and (
        in_case[1] in ("NotPresent", "UnsupportedError", "AttributeError", "TypeError", "DTypeError")
        and (in_case[1] == "NotPresent" or _REFUSALS.search(in_case[2]))
    ):
        return "refused", f"no {in_case[2]}" if in_case[1] == "NotPresent" else in_case[2]
    if in_case:
        return "failed", f"{in_case[1]}: {in_case[2]}"
    if isinstance(error, AssertionError) and re.search(r"does not match|Regex pattern did not match", str(error)):
        return "worded", text
    if isinstance(error, AssertionError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = next(
            (line for line in lines if line not in ("Not equal to tolerance", "Arrays are not equal")), "assert"
        )
    return "failed", f"{type(error).__name__}: {text[:160]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.skipped or (call.when != "call" and call.excinfo is None):
        return report
    kind, why = ("passed", "") if call.excinfo is None else _classify(call.excinfo.value)
    _outcomes.append({"test": item.nodeid.split("::", 1)[1], "kind": kind, "why": why})
    return report


def pytest_sessionfinish() -> None:
    Path(os.environ["NUMPY_SUITE_OUT"]).write_text(json.dumps(_outcomes))
