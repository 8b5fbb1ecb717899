import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from walle.deploy.git.git_process import GitLimits, GitProcessError, check_git, run_git
from walle.deploy.git.repo import TaskRepos
from walle.errors import ConfigError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    TaskRepos(tmp_path).create("shop")
    return tmp_path / "shop.git"


def alias(body: str) -> tuple[str, ...]:
    """Return arguments by which git runs a shell command: whatever git does, the limits are the child's."""
    return ("-c", f"alias.run=!{body}", "run")


@pytest.mark.parametrize(
    ("body", "limits", "why"),
    [
        ("sleep 30", GitLimits(wall_s=0.2), "took more than 0.2 s"),
        ("exec sh -c 'while :; do :; done'", GitLimits(cpu_s=1), "took more than 1 s of CPU time"),
        ("exec head -c 100000 /dev/zero > large", GitLimits(file_bytes=1000), "wrote a file of more than 0 MiB"),
        ("echo fatal: no such thing >&2; exit 1", GitLimits(), "no such thing"),
        ("echo fatal: Out of memory, malloc failed >&2; exit 128", GitLimits(), "took more than 300 MiB of memory"),
    ],
)
def test_a_child_is_ended_at_its_limits(repository: Path, body: str, limits: GitLimits, why: str) -> None:
    with pytest.raises(GitProcessError) as caught:
        run_git(repository, *alias(body), limits=limits)
    assert caught.value.why.startswith(why)


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended: nobody may have reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def session_of(leader: int) -> list[int]:
    """Return the processes of a session that are running."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


_KILLED = """\
import sys
from pathlib import Path
from walle.deploy.git.git_process import GitLimits, run_git
with Path(sys.argv[1], "lock").open("wb") as lock:
    run_git(Path(sys.argv[1]), "-c", sys.argv[2], "run", limits=GitLimits(), keep_open=(lock.fileno(),))
"""


def test_git_and_its_children_end_with_a_process_that_is_killed(repository: Path) -> None:
    """upload-pack has a child too, and pack-objects of a large repository may take half an hour."""
    body = "alias.run=!echo $$ > first; sh -c 'sleep 600; :' & echo $! > second; mv second children; wait"
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(repository), body]) as process:
        try:
            until((repository / "children").exists)
            children = [int((repository / name).read_text()) for name in ("first", "children")]
            session = os.getsid(children[0])
            assert all(map(is_running, children))
            assert {*children, session} < {*session_of(session)}
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    until(lambda: not session_of(session))
    with (repository / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("body", "status"), [(":", 0), ("sleep 600 &", 0), ("exit 7", 7), ("kill -9 $$", -signal.SIGKILL)]
)
def test_nothing_of_git_is_left_when_it_has_ended(repository: Path, body: str, status: int, tmp_path: Path) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    found: int | None = 0
    with (tmp_path / "said").open("w+b") as said:
        try:
            run_git(repository, *alias(f"ps -o sid= -p $$; {body}"), limits=GitLimits(), stdout=said)
        except GitProcessError as error:
            found = error.status
        said.seek(0)
        leader = int(said.read())
    assert found == status
    until(lambda: not session_of(leader))
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_child_has_next_to_no_environment(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALLE_TOKEN", "secret")
    said = run_git(repository, *alias("env"), limits=GitLimits()).decode()
    assert "secret" not in said
    assert f"GIT_DIR={repository}" in said
    limits = run_git(repository, *alias("ulimit -v; ulimit -n; ulimit -c; nice"), limits=GitLimits()).split()
    assert limits == [b"307200", b"128", b"0", b"10"]


def test_a_cloud_without_git_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_git()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"a cloud needs git 2\.30 or newer on PATH, for task repositories"):
        check_git()
    (tmp_path / "git").write_text("#!/bin/sh\necho git version 1.9.5\n")
    (tmp_path / "git").chmod(0o755)
    with pytest.raises(ConfigError, match=r"2\.30 or newer, for task repositories; there is git version 1\.9\.5"):
        check_git()
