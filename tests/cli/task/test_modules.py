"""`walle task check`, `simulate` and `sign` of a task with shared modules: from git's tags, and from folders."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walle.cli import app
from walle.cli.access.sign import _build
from walle.cli.task.modules import read_modules
from walle.task.format.config import TaskConfigError
from walle.task.format.module_set import ModuleSet

CONFIG = """\
[task]
name = "small"
[trigger]
sequence = ["page_exit"]
[modules]
common = "v1"
[simulation]
events = "simulation/events.jsonl"
"""
MAIN = "from boxes import twice\n\n\ndef execute(ctx, trigger):\n    return twice(len(list(ctx.events)))\n"
BOXES = "def twice(x):\n    return 2 * x\n"
EVENTS = """\
{"event_id": "page_enter", "page_id": "p", "ts_ms": 1, "contents": {}}
{"event_id": "page_exit", "page_id": "p", "ts_ms": 2, "contents": {}}
"""


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def write_set(folder: Path, boxes: str = BOXES) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "modules.toml").write_text('[modules]\nname = "common"\n')
    (folder / "boxes.py").write_text(boxes)
    return folder


def write_task(folder: Path) -> Path:
    (folder / "simulation").mkdir(parents=True)
    (folder / "task.toml").write_text(CONFIG)
    (folder / "main.py").write_text(MAIN)
    (folder / "simulation/events.jsonl").write_text(EVENTS)
    return folder


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository with the set as tag common/v1, and the task in a worktree beside it, as its tag small/v1."""
    repo = write_set(tmp_path / "shop")
    git(repo, "init", "--quiet", "-b", "common")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "modules")
    git(repo, "tag", "-a", "-m", "first", "common/v1")
    git(repo, "worktree", "add", "--quiet", "--detach", "../small")
    git(tmp_path / "small", "checkout", "--quiet", "--orphan", "small")
    git(tmp_path / "small", "rm", "-rfq", ".")
    write_task(tmp_path / "small")
    git(tmp_path / "small", "add", ".")
    git(tmp_path / "small", "commit", "--quiet", "-m", "task")
    git(tmp_path / "small", "tag", "small/v1")
    return repo


def run(*arguments: object) -> tuple[int, Any]:
    """Return the exit status and the JSON that a command prints; its errors are raised."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout) if result.stdout else None


def test_the_tag_of_the_tasks_repository_gives_the_modules(clone: Path) -> None:
    (clone / "boxes.py").write_text("def twice(x): ...\n")  # other code than the tag has
    status, report = run("task", "check", clone.parent / "small")
    assert (status, report["modules"], sorted(report["files"])) == (
        0, {"common": "v1"}, ["boxes.pyc", "main.pyc", "smoke.jsonl"]
    )  # fmt: skip
    status, report = run("task", "simulate", clone.parent / "small")
    assert (status, report["results"][0]["output"]) == (0, 4)


def test_an_author_signs_the_manifest_with_the_modules_of_the_checkout(clone: Path) -> None:
    manifest = _build(clone.parent / "small", "shop", "small", "v1", ())
    commit = git(clone, "rev-parse", "common/v1^{commit}").strip()
    assert [(one.name, one.version, one.commit) for one in manifest.modules] == [("common", "v1", commit)]
    assert "boxes.pyc" in {entry.path for entry in manifest.files}
    git(clone, "tag", "-d", "common/v1")
    with pytest.raises(TaskConfigError, match=r"task.toml:6: \[modules\] common = 'v1' cannot be used"):
        _build(clone.parent / "small", "shop", "small", "v1", ())


def test_a_folder_is_taken_for_modules_in_progress(clone: Path, tmp_path: Path) -> None:
    changed = write_set(tmp_path / "changed", "def twice(x):\n    return 3 * x\n")
    status, report = run("task", "simulate", tmp_path / "small", "--modules", f"common={changed}")
    assert (status, report["results"][0]["output"]) == (0, 6)
    (changed / "boxes.py").write_text("def twice(x):\n    return 1 / 0\n")
    status, report = run("task", "simulate", tmp_path / "small", "--modules", f"common={changed}")
    fault = report["faults"][0]
    assert (status, fault["place"], fault["source"]) == (1, "local/common/v1/boxes.py:2 in twice", "return 1 / 0")
    assert 'File "local/common/v1/boxes.py", line 2, in twice\n    return 1 / 0' in fault["traceback"]


def test_modules_that_are_nowhere_are_a_finding_at_their_line(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "small")
    status, report = run("task", "check", folder)
    (finding,) = report["findings"]
    assert (status, finding["file"], finding["line"], finding["code"]) == (1, "task.toml", 6, "config")
    assert "is in no git repository that has the tag common/v1; use --modules common=FOLDER" in finding["message"]
    git(folder, "init", "--quiet")
    (finding,) = run("task", "check", folder)[1]["findings"]
    assert "has no tag common/v1; fetch it with: git fetch --tags, or use --modules common=FOLDER" in finding["message"]
    with pytest.raises(TaskConfigError, match=r"task.toml:6: \[modules\] common = 'v1' cannot be used"):
        run("task", "simulate", folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [("common", "is not NAME=FOLDER"), ("other=.", "'other' is not a set under"), ("=x", "is not NAME=FOLDER")],
)
def test_a_wrong_option_is_refused(clone: Path, given: str, message: str) -> None:
    for command in ("check", "simulate"):
        done = CliRunner().invoke(app, ["task", command, str(clone.parent / "small"), "--modules", given])
        assert (done.exit_code, message in done.output) == (2, True), done.output


def test_a_folder_of_modules_is_checked_as_its_push_is(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "common")
    assert run("task", "check", folder)[1] == {
        "ok": True, "findings": [], "modules": "common", "files": {"boxes.py": len(BOXES)}
    }  # fmt: skip
    (folder / "boxes.py").write_text("import os\n")
    status, report = run("task", "check", folder)
    (finding,) = report["findings"]
    assert (status, finding["file"], finding["line"], finding["code"]) == (1, "boxes.py", 1, "bundle")


def test_a_check_finds_each_set_once(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def read(folder: Path, name: str, version: str = "v1") -> ModuleSet:
        found.append(name)
        return read_modules(folder, name, version)

    monkeypatch.setattr("walle.cli.task.modules.read_modules", read)
    status, report = run("task", "check", clone.parent / "small", "--modules", f"common={clone}")
    assert (status, report["modules"], found) == (0, {"common": "v1"}, ["common"])
