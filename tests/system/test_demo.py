"""The demo as a person runs it, in its own processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.processes import MARKER, processes_with, wait_until_gone

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.system


@contextlib.contextmanager
def demo_of(marker: str, out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a demo whose every process has `marker` in its environment; one that still runs afterwards is killed."""
    command = [sys.executable, "-c", "from walle.cli import main; main()", "demo", "--out", str(out), *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, MARKER: marker, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        try:
            yield demo
        finally:
            if demo.poll() is None:
                os.killpg(demo.pid, signal.SIGKILL)


@pytest.mark.night
@pytest.mark.timeout(240)
def test_the_main_job_holds_and_leaves_no_process(tmp_path: Path) -> None:
    marker = f"whole-{os.getpid()}"
    with demo_of(marker, tmp_path / "out", "--devices", "8", "--json") as demo:
        output, errors = demo.communicate(timeout=220)
    assert demo.returncode == 0, output[-3000:] + errors[-3000:]
    record = json.loads(output)
    assert record["all_hold"]
    assert len(record["claims"]) >= 7
    last = record["samples"][-1]
    assert last["active"] == {"v1": 8}
    assert last["produced"] == last["received"] > 100
    assert len(record["recommendations"]) == 6
    assert all(len(user["items"]) == 5 for user in record["recommendations"])
    for name in ("report.json", "coverage.png", "report.html"):
        assert (tmp_path / "out" / name).stat().st_size > 1000
    assert wait_until_gone(marker) == []


@pytest.mark.night
@pytest.mark.timeout(180)
@pytest.mark.parametrize("said", ["", "git push of ipv/v1"], ids=["while-it-starts", "while-it-runs"])
def test_ctrl_c_leaves_no_process(tmp_path: Path, said: str) -> None:
    marker = f"interrupted-{len(said)}-{os.getpid()}"
    with demo_of(marker, tmp_path / "out", "--devices", "4") as demo:
        assert demo.stdout is not None
        if said:
            assert any(said in line for line in demo.stdout)
        else:
            while len(processes_with(marker)) < 3:  # Ray is on its way
                assert demo.poll() is None, demo.communicate()
                time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)  # a terminal does so: to every process of the group
        demo.communicate(timeout=90)
    assert demo.returncode == 130
    assert wait_until_gone(marker) == []
