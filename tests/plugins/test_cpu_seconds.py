"""The limit of CPU seconds: a test that computes for longer fails the run, one that waits does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.alone import AUTOLOAD
from tests.plugins.cpu_seconds import verdict

ROOT = Path(__file__).parents[2]
BUSY = "import time\ndef test_busy():\n    end = time.thread_time() + 0.5\n    while time.thread_time() < end: pass\n"
WAITING = "import time\ndef test_waiting():\n    time.sleep(0.5)\n"
CHILD = "import subprocess, sys\ndef test_child():\n    subprocess.run([sys.executable, '-c', 'sum(range(3*10**7))'])\n"


def clean() -> dict[str, str]:
    """Return the environment without what the run around this test gave its worker, and without others' plugins."""
    # Loading all plugins that are installed takes longer than the small runs here.
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {AUTOLOAD: "1"}


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_one.py"
    file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist",
        "-p",
        "tests.plugins.cpu_seconds",
        "-c",
        "/dev/null",
        *options,
    ]
    return subprocess.run([*command, str(file)], cwd=ROOT, env=clean(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("text", "status"), [(BUSY, 1), (CHILD, 1), (WAITING, 0)], ids=["busy", "child", "waiting"])
def test_only_computing_counts(tmp_path: Path, text: str, status: int) -> None:
    done = run(tmp_path, text, "--cpu-limit=0.1", "--cpu-alone", f"--cpu-report={tmp_path}/report.json")
    assert done.returncode == status, done.stdout
    assert ("CPU seconds of 0.1 allowed" in done.stdout) is bool(status)
    assert (max(json.loads((tmp_path / "report.json").read_text()).values()) > 0.2) is bool(status)


@pytest.mark.parametrize(("spent_s", "expected"), [(2.9, ""), (3.1, "SLOW"), (5.9, "SLOW"), (6.1, "FAILED")])
def test_twice_the_limit_fails_and_less_above_it_is_named(spent_s: float, expected: str) -> None:
    assert verdict(spent_s, 3.0) == expected


def test_workers_report_to_the_one_that_prints(tmp_path: Path) -> None:
    assert run(tmp_path, BUSY, "--cpu-limit=0.1", "--cpu-alone", "-n", "1").returncode == 1


CHILD_OF_BEFORE = """
import subprocess, sys
child = None
def test_before():
    global child
    child = subprocess.Popen([sys.executable, "-c", "sum(range(3*10**7))"])
def test_after():
    if child:
        child.wait()
"""


def test_the_time_of_a_child_of_a_test_before_does_not_count(tmp_path: Path) -> None:
    done = run(tmp_path, CHILD_OF_BEFORE, "--cpu-limit=0.2")
    assert done.returncode == 0, done.stdout


def test_without_a_limit_nothing_fails(tmp_path: Path) -> None:
    assert run(tmp_path, BUSY).returncode == 0
