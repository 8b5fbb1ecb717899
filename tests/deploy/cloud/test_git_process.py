from pathlib import Path

import pytest

from walle.deploy.cloud.git_process import GitLimits, GitProcessError, check_git, run_git
from walle.deploy.cloud.repo import TaskRepos
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
