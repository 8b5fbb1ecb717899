"""The reaper of a local Ray: what it ends with its parent, and what it leaves alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.processes import alive
from walle.actors.reaper import MARKER, Reaper

LIMIT_S = 10.0
PARENT = """
import os, subprocess, sys, time
from pathlib import Path
from walle.actors.reaper import MARKER, Reaper
marker, folder = sys.argv[1:]
reaper = Reaper.start(marker, Path(folder))
held = os.dup(reaper._process.stdin.fileno())
os.set_inheritable(held, True)
other = subprocess.Popen(["sleep", "60"], close_fds=False)  # keeps the pipe open after its parent's end
child = 'import subprocess, time; print(subprocess.Popen(["sleep", "60"], env={}).pid, flush=True); time.sleep(60)'
piped = {"stdout": subprocess.PIPE, "text": True}
marked = subprocess.Popen([sys.executable, "-c", child], env={**os.environ, MARKER: marker}, **piped)
print(marked.pid, marked.stdout.readline().strip(), other.pid, reaper._process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Processes that are killed at the end."""
    started: list[int] = []
    yield started
    for pid in started:
        if alive([pid]):
            os.kill(pid, signal.SIGKILL)


def until_ended(pids: list[int]) -> list[str]:
    deadline_s = time.monotonic() + LIMIT_S
    while (left := alive(pids)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def test_a_killed_parents_processes_end_with_their_children_and_no_other_does(tmp_path: Path, pids: list[int]) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / "file").touch()
    marker = f"reaper-{os.getpid()}"
    with (folder / "file").open() as watched:
        stranger = subprocess.Popen(["sleep", "60"], stdin=watched, env={MARKER: f"{marker}-of-another"})
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, marker, str(folder)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert parent.stdout is not None
        marked, child, other, reaper = map(int, parent.stdout.readline().split())
        pids += [marked, child, other, reaper, stranger.pid]
        assert len(alive(pids)) == 5
        parent.kill()
        parent.wait()  # waits for the exit only: `other` holds the output open
        parent.stdout.close()
        assert until_ended([marked, child, reaper]) == []
        assert not folder.exists()
        assert len(alive([other, stranger.pid])) == 2
        stranger.kill()
        stranger.wait()


def test_a_reaper_that_is_closed_ends_what_is_left_and_not_its_parent(tmp_path: Path, pids: list[int]) -> None:
    marker = f"closed-{os.getpid()}"
    reaper = Reaper.start(marker, tmp_path / "ray")
    left = subprocess.Popen(["sleep", "60"], env={MARKER: marker})
    pids.append(left.pid)
    reaper.close()
    assert left.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.timeout(12)
def test_a_reaper_is_closed_while_a_child_has_its_pipe(tmp_path: Path, pids: list[int]) -> None:
    marker = f"inherited-{os.getpid()}"
    reaper = Reaper.start(marker, tmp_path / "ray")
    assert reaper._process.stdin is not None
    held = os.dup(reaper._process.stdin.fileno())
    left = subprocess.Popen(["sleep", "60"], env={MARKER: marker})
    pids.append(left.pid)
    reaper.close()
    os.close(held)
    assert reaper._process.returncode == 0
    assert left.wait(LIMIT_S) == -signal.SIGKILL


def test_a_reaper_that_was_killed_hinders_no_end(tmp_path: Path) -> None:
    reaper = Reaper.start(f"killed-{os.getpid()}", tmp_path / "ray")
    reaper._process.kill()
    reaper._process.wait()
    reaper.close()


def test_signals_of_a_terminal_do_not_end_it(tmp_path: Path) -> None:
    reaper = Reaper.start(f"signals-{os.getpid()}", tmp_path / "ray")
    time.sleep(0.5)  # the interpreter starts
    assert os.getsid(reaper._process.pid) == reaper._process.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(reaper._process.pid, number)
    time.sleep(0.2)
    assert alive([reaper._process.pid]) != []
    reaper.close()
    assert reaper._process.returncode == 0
