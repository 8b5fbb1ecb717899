"""The demo as a person runs it, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.system


def start_demo(marker: str, out: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a demo whose every process bears `marker` in its environment."""
    command = [sys.executable, "-c", "from walle.cli import main; main()", "demo", "--out", str(out), *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "WALLE_TEST_MARKER": marker},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_with(marker: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"WALLE_TEST_MARKER={marker}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
        except OSError:
            continue
    return found


def wait_until_gone(marker: str, limit_s: float = 20.0) -> list[str]:
    deadline_s = time.monotonic() + limit_s
    while (left := processes_with(marker)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return left


@pytest.mark.timeout(240)
def test_the_main_job_holds_and_leaves_no_process(tmp_path: Path) -> None:
    marker = f"whole-{os.getpid()}"
    demo = start_demo(marker, tmp_path / "out", "--devices", "8", "--json")
    output, errors = demo.communicate(timeout=220)
    assert demo.returncode == 0, output[-3000:] + errors[-3000:]
    record = json.loads(output)
    assert record["all_hold"]
    assert len(record["claims"]) >= 7
    last = record["samples"][-1]
    assert last["active"] == {"v1": 8}
    assert last["produced"] == last["received"] > 100
    for name in ("report.json", "coverage.png", "report.html"):
        assert (tmp_path / "out" / name).stat().st_size > 1000
    assert wait_until_gone(marker) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("after_s", [3.0, 12.0], ids=["while-it-starts", "while-it-runs"])
def test_ctrl_c_leaves_no_process(tmp_path: Path, after_s: float) -> None:
    marker = f"interrupted-{after_s}-{os.getpid()}"
    demo = start_demo(marker, tmp_path / "out", "--devices", "4")
    with pytest.raises(subprocess.TimeoutExpired):
        demo.communicate(timeout=after_s)
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert wait_until_gone(marker) == []
