"""The whole node suite of the `onnx` package: a case passes, or stands in conformance.toml with its reason."""

import tomllib

import onnx
import pytest

from tests.sim.onnx_suite import TABLE, read_table, run_suite

VERSION, LEFT_OUT = read_table()
UPDATE = "write the table anew: python -m tests.sim.onnx_suite"


@pytest.mark.skipif(onnx.__version__ != VERSION, reason=f"the table is for onnx {VERSION}, this is {onnx.__version__}")
def test_every_case_passes_or_is_left_out_for_a_reason() -> None:
    found = run_suite()
    broken = {
        name: f"{outcome.status}: {outcome.reason}"
        for name, outcome in found.items()
        if outcome.status != "pass" and (name not in LEFT_OUT or LEFT_OUT[name].status != outcome.status)
    }
    assert not broken, f"{len(broken)} cases broke:\n" + "\n".join(f"  {name}: {why}" for name, why in broken.items())
    better = [name for name in LEFT_OUT if name in found and found[name].status == "pass"]
    assert not better, f"{len(better)} cases pass now ({', '.join(better[:5])}); {UPDATE}"
    gone = [name for name in LEFT_OUT if name not in found]
    assert not gone, f"{len(gone)} cases of the table are not in onnx {VERSION} ({', '.join(gone[:5])}); {UPDATE}"
    counts = tomllib.loads(TABLE.read_text())
    assert counts["cases"] == len(found), UPDATE
    assert counts["passed"] == len(found) - len(LEFT_OUT), UPDATE


def test_every_reason_says_something() -> None:
    assert all(len(outcome.reason) > 10 for outcome in LEFT_OUT.values())
