"""scripts/setup.sh, ended in mid-installation: no process of it is left."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/setup.sh"
# Has pip, and records its process id instead of installing anything.
PYTHON = """\
#!/bin/sh
case "$*" in *install*) echo $$ > "$PIDS/pip"; sleep 60 & echo $! > "$PIDS/compiler"; wait ;; esac
"""


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_pip_and_what_pip_started(tmp_path: Path, number: signal.Signals, status: int) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = {**os.environ, "PIDS": str(tmp_path), "CXX": "true"}
    with subprocess.Popen(["/bin/sh", SCRIPT, "venv"], cwd=tmp_path, env=environment) as script:
        files = [tmp_path / "pip", tmp_path / "compiler"]
        try:
            while not all(file.is_file() and file.read_text().endswith("\n") for file in files):
                assert script.poll() is None
                time.sleep(0.01)
            script.send_signal(number)
            assert script.wait(20) == status
            ended_s = time.monotonic() + 5  # they have got their signals; a busy machine takes its time
            while any(_is_running(int(file.read_text())) for file in files):
                assert time.monotonic() < ended_s
                time.sleep(0.01)
        finally:
            script.kill()
            for file in files:
                if file.is_file() and _is_running(int(file.read_text())):
                    os.kill(int(file.read_text()), signal.SIGKILL)
