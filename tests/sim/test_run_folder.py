"""The folder of a test run: shared by its processes, and removed with what they started when all have been killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.sim.run_folder import PREFIX

LIMIT_S = 60.0
MEMBER = """
import sys, time
from tests.sim.run_folder import locked, run_folder, start_detached
folder = run_folder()
with locked("sleeper"):
    if not (folder / "sleeper").exists():
        sleep = "import time; time.sleep(600)"
        pid = start_detached([sys.executable, "-c", sleep, str(folder / "sleeper")], log=folder / "log")
        (folder / "sleeper").write_text(str(pid))
print(folder, (folder / "sleeper").read_text(), flush=True)
time.sleep(600)
"""


def member(run: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTEST_XDIST_TESTRUNUID": run}
    return subprocess.Popen([sys.executable, "-c", MEMBER], env=environment, stdout=subprocess.PIPE, text=True)


def wait_until_gone(path: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while path.exists():
        assert time.monotonic() < deadline_s, f"{path} is left"
        time.sleep(0.02)


def test_the_last_of_a_run_that_is_killed_leaves_neither_folder_nor_processes() -> None:
    run = os.urandom(8).hex()
    with member(run) as first, member(run) as second, member(os.urandom(8).hex()) as other:
        try:
            lines = [one.stdout.readline().split() for one in (first, second, other) if one.stdout]
            folder, sleeper, of_other = Path(lines[0][0]), lines[0][1], Path(lines[2][0])
            assert lines[0] == lines[1]
            assert folder.name == f"{PREFIX}{run}"
            assert of_other != folder
            first.kill()
            first.wait()
            assert folder.exists()
            assert Path(f"/proc/{sleeper}").exists()
            second.kill()
            wait_until_gone(folder)
            wait_until_gone(Path(f"/proc/{sleeper}"))
            assert of_other.exists()
        finally:
            for one in (first, second, other):
                one.kill()
    wait_until_gone(of_other)
