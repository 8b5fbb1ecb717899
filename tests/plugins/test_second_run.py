"""The second run of failed tests: one that passes alone is named, one that fails again fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.test_cpu_seconds import BUSY, clean

ROOT = Path(__file__).parents[2]
# A second run does not get pytest's own environment, of which this variable is one.
BESIDE = "'PYTEST_BESIDE' not in os.environ"
FLAKY = f"import os\ndef test_flaky(): assert {BESIDE}\n"
SET_UP = f"import os, pytest\n@pytest.fixture\ndef one(): assert {BESIDE}\ndef test_set_up(one): pass\n"
CRASHES = f"import os\ndef test_crashes(): {BESIDE} or os.abort()\n"
FAILS = "def test_fails(): assert False\n"


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
        "tests.plugins.second_run",
        "-c",
        "/dev/null",
        *options,
    ]
    environment = clean() | {"PYTEST_BESIDE": "1"}
    return subprocess.run([*command, str(file)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
@pytest.mark.parametrize("text", [FLAKY, SET_UP], ids=["test", "fixture"])
def test_one_that_passes_alone_is_named_with_its_first_failure(
    tmp_path: Path, text: str, workers: tuple[str, ...]
) -> None:
    done = run(tmp_path, text, "--second-run=1", *workers)
    assert done.returncode == 0, done.stdout
    assert "FLAKY" in done.stdout
    assert f"assert {BESIDE}" in done.stdout


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (FAILS, ["--second-run=1"]),
        (FLAKY + FAILS, ["--second-run=2"]),
        (FLAKY, []),
        (FLAKY + SET_UP, ["--second-run=1"]),
        (CRASHES, ["--second-run=1", "-n", "1"]),
    ],
    ids=["it fails again", "another fails again", "without the option", "more than allowed", "crash"],
)
def test_otherwise_the_run_fails(tmp_path: Path, text: str, options: list[str]) -> None:
    assert run(tmp_path, text, *options).returncode == 1


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_a_test_above_the_limit_of_cpu_seconds_fails_the_run_of_a_flaky_one(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    limit = ["-p", "tests.plugins.cpu_seconds", "--cpu-limit=0.1", "--cpu-alone"]
    done = run(tmp_path, FLAKY + BUSY, *limit, "--second-run=1", *workers)
    assert "FLAKY" in done.stdout
    assert done.returncode == 1, done.stdout


def test_one_that_is_skipped_alone_has_not_passed(tmp_path: Path) -> None:
    skipped = f"import os, pytest\ndef test_skipped():\n    if {BESIDE}: pytest.skip()\n    assert False\n"
    assert run(tmp_path, skipped, "--second-run=1").returncode == 1


def test_a_file_that_cannot_be_collected_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, f"import os\nassert {BESIDE}\n", "--second-run=1").returncode != 0
