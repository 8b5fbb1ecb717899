"""`walle task new --repo`: several tasks of one scenario, each a branch in a folder of its own."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from walle.cli import app
from walle.cli.task.folder import TaskFolderError


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    origin = tmp_path / "origin.git"
    git(tmp_path, "init", "--bare", "--quiet", str(origin))
    git(tmp_path, "clone", "--quiet", str(origin), "shop")
    for key, value in (("user.name", "a"), ("user.email", "a@example.com")):
        git(tmp_path / "shop", "config", key, value)
    return tmp_path / "shop"


def new(name: str, clone: Path, folder: Path) -> dict[str, object]:
    done = CliRunner().invoke(app, ["task", "new", name, "--repo", str(clone), "--folder", str(folder), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_tasks_of_a_scenario_are_in_separate_folders_and_pushed_separately(clone: Path, tmp_path: Path) -> None:
    for name in ("visits", "dwell"):
        folder = tmp_path / name
        assert new(name, clone, folder)["branch"] == name
        assert (folder / "task.toml").is_file()
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", "v1")
        git(folder, "tag", f"{name}/v1")
        git(folder, "push", "--quiet", "origin", name, f"{name}/v1")
    branches = git(tmp_path / "origin.git", "branch", "--format=%(refname:short)").split()
    assert branches == ["dwell", "visits"]
    for name in branches:
        files = git(tmp_path / "origin.git", "ls-tree", "-r", "--name-only", f"{name}/v1").split()
        assert files == ["log.jsonl", "main.py", "simulation/events.jsonl", "task.toml"]
        assert name in git(tmp_path / "origin.git", "show", f"{name}/v1:task.toml")
    assert subprocess.run(["git", "merge-base", *branches], cwd=tmp_path / "origin.git", check=False).returncode == 1


@pytest.mark.parametrize("obstacle", ["no clone", "a branch", "a folder", "no identity"])
def test_an_obstacle_to_a_new_branch_is_named_and_nothing_is_left(
    clone: Path, tmp_path: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = tmp_path / "dwell", "is not a git repository; clone the scenario first"
    if obstacle == "no clone":
        clone = tmp_path / "nothing"
        clone.mkdir()
    elif obstacle == "a branch":
        git(clone, "commit", "--quiet", "--allow-empty", "-m", "first")
        git(clone, "branch", "dwell")
        said = f"has the branch dwell: git worktree add {folder} dwell"
    elif obstacle == "a folder":
        folder.mkdir()
        (folder / "mine").write_text("")
        said = "exists already"
    else:
        for key in ("user.name", "user.email"):
            git(clone, "config", "--unset", key)
        git(clone, "config", "user.useConfigOnly", "true")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
        said = "git commit-tree: "
    with pytest.raises(TaskFolderError, match=said):
        new("dwell", clone, folder)
    assert folder.exists() == (obstacle == "a folder")
    assert not list(tmp_path.glob(".*"))
    if obstacle in {"a folder", "no identity"}:
        assert git(clone, "branch", "--list", "dwell") == ""
