"""`walle task add-file`, and checks and simulations of tasks whose large files are kept by Git LFS."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim import git_host
from tests.sim.git_host import address, git
from walle.access.access import Access, Role
from walle.cli import app
from walle.client.cloud_client import CloudRefusedError
from walle.deploy.git.git_http import git_app
from walle.deploy.git.repo import TaskRepos
from walle.task.format.large_file import LargeFile, parse_pointer

CONFIG = '[task]\nname = "ipv"\n[trigger]\nsequence = ["page_exit"]\n[files]\n"resources/m.bin" = "shared"\n'
MAIN = 'def execute(ctx, trigger):\n    return len(ctx.resource("m.bin"))\n'


def run(*arguments: str, **environment: str) -> Any:
    result = CliRunner().invoke(app, ["task", *arguments, "--json"], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout) if result.stdout else result.stderr


def task(folder: Path) -> Path:
    (folder / "task").mkdir()
    git(folder / "task", "init", "-b", "ipv")
    (folder / "task/task.toml").write_text(CONFIG)
    (folder / "task/main.py").write_text(MAIN)
    return folder / "task"


def test_a_file_is_sent_and_its_pointer_makes_a_version(tmp_path: Path) -> None:
    repos, access = TaskRepos(tmp_path / "repos"), Access()
    repos.create("shop")
    token = access.issue("rita", {"shop": Role.RELEASER})
    reader = access.issue("rob", {"shop": Role.READER})
    model = tmp_path / "model.bin"
    model.write_bytes(os.urandom(2_500_000))
    folder = task(tmp_path)
    options = ["shop", str(model), f"--folder={folder}", "--as=resources/m.bin"]
    with git_host.served(git_app(repos, access)) as url:
        with pytest.raises(CloudRefusedError, match="rob needs the role author"):
            run("add-file", *options, WALLE_URL=url, WALLE_TOKEN=reader)
        assert not (folder / "resources").exists()
        said = run("add-file", *options, WALLE_URL=url, WALLE_TOKEN=token)
        large = LargeFile.of(model)
        assert said == {"path": "resources/m.bin", "sha256": large.sha256, "size_bytes": 2_500_000, "sent": True}
        assert parse_pointer((folder / "resources/m.bin").read_bytes()) == LargeFile(large.sha256, large.size_bytes)
        assert not run("add-file", *options, WALLE_URL=url, WALLE_TOKEN=token)["sent"]
        twice = run("add-file", "shop", str(folder / "resources/m.bin"), *options[2:], WALLE_URL=url, WALLE_TOKEN=token)
        assert "is the pointer to a large file" in " ".join(twice.replace("│", " ").split())
        text = CliRunner().invoke(app, ["task", "add-file", *options], env={"WALLE_URL": url, "WALLE_TOKEN": token})
        assert '[files] "resources/m.bin" = "shared"' in text.output
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "work")
        git(folder, "tag", "ipv/v1")
        git(folder, "push", address(url, token, "shop"), "ipv", "ipv/v1")
    assert repos.read("shop", "ipv", "v1").large["resources/m.bin"].sha256 == large.sha256

    checked = run("check", str(folder))
    assert (checked["ok"], checked["files"]["resources/m.bin"]) == (True, 2_500_000)
    events = tmp_path / "events.jsonl"
    event = {"event_id": "page_exit", "page_id": "a", "ts_ms": 1_700_000_000_000, "contents": {}}
    events.write_text(json.dumps({**event, "event_id": "page_enter"}) + "\n" + json.dumps(event) + "\n")
    simulated = run("simulate", str(folder), f"--events={events}")
    assert simulated["ok"], simulated


def test_a_checkout_of_git_lfs_is_checked_with_its_files_and_one_without_them_says_so(tmp_path: Path) -> None:
    folder = task(tmp_path)
    data = os.urandom(2_000_000)
    (folder / "resources").mkdir()
    (folder / "resources/m.bin").write_bytes(data)
    (folder / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    assert run("check", str(folder))["files"]["resources/m.bin"] == len(data)
    (folder / "resources/m.bin").write_bytes(LargeFile("a" * 64, 5).pointer)
    (finding,) = run("check", str(folder))["findings"]
    assert "a Git LFS pointer to 5 bytes that are not here" in finding["message"]


def test_a_place_outside_resources_and_a_folder_without_git_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(b"m")
    for wrong in (
        "../m.bin",
        "resources/../m",
        "resources/",
        "resources/.",
        "resources//m",
        ".",
        "/resources/m",
        "a\0",
    ):
        said = run("add-file", "shop", str(model), f"--folder={tmp_path}", f"--as={wrong}", WALLE_URL="http://x")
        assert "below resources/" in said, wrong
    (tmp_path / "resources/sub").mkdir(parents=True)
    said = run("add-file", "shop", str(model), f"--folder={tmp_path}", "--as=resources/sub", WALLE_URL="http://x")
    assert "is a folder" in said
    with pytest.raises(Exception, match="is not in a git repository"):
        run("add-file", "shop", str(model), f"--folder={tmp_path}", WALLE_URL="http://x")
