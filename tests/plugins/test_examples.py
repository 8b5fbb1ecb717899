"""Share of the examples of properties: each kind of property gets fewer, and explicit examples run in any case."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.test_cpu_seconds import clean

ROOT = Path(__file__).parents[2]
PROPERTIES = """
from hypothesis import example, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
counts = {"plain": 0, "own": 0, "method": 0, "machine": 0}
@given(st.integers())
def test_plain(number): counts["plain"] += 1
@settings(max_examples=50)
@example(-7)
@given(st.integers(0))
def test_own(number):
    counts["own"] += 1
    counts["explicit"] = number == -7 or counts.get("explicit", False)
class TestMethod:
    @given(st.integers())
    def test_method(self, number): counts["method"] += 1
class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self): counts["machine"] += 1
    @rule()
    def act(self): pass
TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=2)
def test_counts():
    print(counts)
    assert counts == EXPECTED
"""
ALL = {"plain": 100, "own": 51, "method": 100, "machine": 40, "explicit": True}
SHARE = {"plain": 30, "own": 16, "method": 30, "machine": 12, "explicit": True}


@pytest.mark.parametrize(("options", "expected"), [((), ALL), (("--examples=0.3",), SHARE)], ids=["all", "a share"])
def test_each_property_tries_its_share(tmp_path: Path, options: tuple[str, ...], expected: dict[str, object]) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(PROPERTIES.replace("EXPECTED", repr(expected)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.plugins.examples", "-c", "/dev/null", *options]
    done = subprocess.run([*command, str(file)], cwd=ROOT, env=clean(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
