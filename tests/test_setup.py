"""scripts/setup.sh, ended or failing in mid-installation: no process of it is left, and the cause is shown."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/setup.sh"
# Has pip, and records its process id instead of installing anything.
WAITS = """\
#!/bin/sh
case "$*" in *install*) echo $$ > "$PIDS/pip"; sleep 60 & echo $! > "$PIDS/compiler"; wait ;; esac
"""
# The download fails while the core compiles.
NO_DOWNLOAD = """\
#!/bin/sh
case "$*" in
  *"install"*" -e ."*) echo $$ > "$PIDS/pip"; sleep 60 & echo $! > "$PIDS/compiler"; wait ;;
  *"install"*" -r "*) while ! [ -s "$PIDS/compiler" ]; do sleep 0.01; done; echo "ERROR: no such host"; exit 1 ;;
  -) echo packages ;;
esac
"""
# The compiler fails at once, and packages are downloaded for longer.
NO_CORE = """\
#!/bin/sh
case "$*" in
  *"install"*" -e ."*) echo "list.cpp:3:1: error: expected ';'"; touch "$PIDS/failed"; exit 1 ;;
  *"install"*" -r "*) while ! [ -e "$PIDS/failed" ]; do sleep 0.01; done; seq 1000 ;;
  -) echo packages ;;
esac
"""
# Installs at once, and records its arguments after what PYTHONDONTWRITEBYTECODE is.
WORKS = """\
#!/bin/sh
echo "[$PYTHONDONTWRITEBYTECODE] $*" >> "$PIDS/calls"
case "$*" in *find_spec*) echo /packages/ray ;; esac
"""


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _prepare(folder: Path, python_script: str) -> dict[str, str]:
    """Put a virtual environment with that Python into `folder`, and return the environment of setup.sh."""
    python = folder / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(python_script)
    python.chmod(0o755)
    return {**os.environ, "PIDS": str(folder), "CXX": "true"}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_pip_and_what_pip_started(tmp_path: Path, number: signal.Signals, status: int) -> None:
    environment = _prepare(tmp_path, WAITS)

    def reset_signal() -> None:
        signal.signal(number, signal.SIG_DFL)  # a shell cannot trap what is ignored from its start on, as under nohup

    command = ["/bin/sh", str(SCRIPT), "venv"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, preexec_fn=reset_signal) as script:
        files = [tmp_path / "pip", tmp_path / "compiler"]
        try:
            while not all(file.is_file() and file.read_text().endswith("\n") for file in files):
                assert script.poll() is None
                time.sleep(0.01)
            script.send_signal(number)
            assert script.wait(20) == status
            ended_s = time.monotonic() + 5  # the children have their signals; a busy machine takes its time
            while any(_is_running(int(file.read_text())) for file in files):
                assert time.monotonic() < ended_s
                time.sleep(0.01)
        finally:
            script.kill()
            for file in files:
                if file.is_file() and _is_running(int(file.read_text())):
                    os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_failed_download_is_shown_and_ends_the_compilation(tmp_path: Path) -> None:
    environment = _prepare(tmp_path, NO_DOWNLOAD)
    command = ["/bin/sh", str(SCRIPT), "venv"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "ERROR: no such host" in done.stderr
    pids = [int((tmp_path / name).read_text()) for name in ("pip", "compiler")]
    ended_s = time.monotonic() + 5
    while any(map(_is_running, pids)):
        assert time.monotonic() < ended_s
        time.sleep(0.01)


def test_an_error_of_the_compiler_is_shown(tmp_path: Path) -> None:
    environment = _prepare(tmp_path, NO_CORE)
    command = ["/bin/sh", str(SCRIPT), "venv"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "list.cpp:3:1: error" in done.stderr


def test_modules_of_ray_processes_are_compiled_once_even_without_bytecode_writing(
    tmp_path: Path,
) -> None:
    environment = {**_prepare(tmp_path, WORKS), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["sh", str(SCRIPT), str(tmp_path / "venv")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if call.startswith("[] -c import walle.actors.wiring")]
    assert [call for call in calls if "-m compileall" in call and call.endswith("/packages/ray/_private")]


def test_set_up_without_ray_compiles_nothing(tmp_path: Path) -> None:
    environment = _prepare(tmp_path, WORKS.replace("echo /packages/ray", "exit 1"))
    command = ["sh", str(SCRIPT), str(tmp_path / "venv")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "compileall" not in (tmp_path / "calls").read_text()
