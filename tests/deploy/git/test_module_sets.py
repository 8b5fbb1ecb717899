"""Versions of sets of shared modules: pushed, checked and found as those of tasks are."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from tests.sim.git_host import address, git, served
from tests.sim.tasks import CONFIG, FILES
from walle.access.access import Access, Role
from walle.deploy.git import git_push
from walle.deploy.git.git_http import git_app
from walle.deploy.git.repo import Listing, RepoError, TaskRepos
from walle.deploy.git.task_history import TaskHistory
from walle.task.format.bundle import build_unsigned
from walle.task.format.compilers import Compile
from walle.task.format.config import TaskConfigError
from walle.task.format.large_file import LargeFile
from walle.task.format.module_set import ModuleSet, check_module_set

SET = {"modules.toml": b'[modules]\nname = "common"\n', "boxes.py": b"import cells\n", "cells.py": b"SIZE = 1\n"}
TASK = {"task.toml": CONFIG + b'[modules]\ncommon = "v1"\n', "main.py": b"import boxes\n\n\ndef execute(ctx, x): ...\n"}


class Author:
    """A working copy of the scenario shop, and the cloud's repositories."""

    def __init__(self, folder: Path) -> None:
        self.repos = TaskRepos(folder / "repos")
        self.repos.create("shop")
        access = Access()
        self.app = git_app(self.repos, access)
        self.tokens = {role: access.issue(role.name, {"shop": role}) for role in (Role.RELEASER, Role.AUTHOR)}
        self.url, self.branches = "", 0
        self.copy = folder / "work"
        self.copy.mkdir()
        git(self.copy, "init", "-q", "-b", "main")

    def tag(self, version: str, files: dict[str, bytes]) -> str:
        """Commit the files on a new branch without history, tag it NAME/vN, and return the commit."""
        self.branches += 1
        git(self.copy, "checkout", "-q", "--orphan", f"branch-{self.branches}")
        git(self.copy, "rm", "-rfq", "--ignore-unmatch", ".")
        for path, data in files.items():
            (self.copy / path).parent.mkdir(parents=True, exist_ok=True)
            (self.copy / path).write_bytes(data)
        git(self.copy, "add", "-A")
        git(self.copy, "commit", "-qm", version)
        git(self.copy, "tag", "-f", version)
        return git(self.copy, "rev-parse", "HEAD").stdout.strip()

    def push(self, *refs: str, role: Role = Role.RELEASER) -> subprocess.CompletedProcess[str]:
        """Push refs and return what git says."""
        remote = address(self.url, self.tokens[role], "shop")
        return git(self.copy, "push", remote, *refs, check=False)


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    author = Author(tmp_path)
    with served(author.app) as author.url:
        yield author


def test_a_set_is_pushed_listed_and_used_by_the_tasks_of_its_scenario(author: Author) -> None:
    commit = author.tag("common/v1", SET)
    assert author.push("common/v1").returncode == 0
    author.tag("ipv/v1", TASK)
    assert author.push("ipv/v1").returncode == 0
    assert author.repos.listing("shop") == Listing({"ipv": ["v1"]}, {"common": ["v1"]})
    manifest = build_unsigned(author.repos.read_version("shop", "ipv", "v1")).manifest
    assert [entry.path for entry in manifest.files] == ["boxes.pyc", "cells.pyc", "main.pyc"]
    assert [(one.name, one.version, one.commit) for one in manifest.modules] == [("common", "v1", commit)]
    with pytest.raises(RepoError, match=r"shop/common: is a set of shared modules, .* it is not released"):
        author.repos.check_version("shop", "common", "v1")
    assert TaskHistory(author.repos).listing("shop").tasks == {"ipv": ["v1"]}


def test_a_set_and_the_task_that_names_it_may_come_in_one_push(author: Author) -> None:
    author.tag("ipv/v1", TASK)
    author.tag("zed/v1", SET | {"modules.toml": b'[modules]\nname = "zed"\n'})
    author.tag("common/v1", SET)
    assert author.push("ipv/v1", "common/v1", "zed/v1").returncode == 0
    assert author.repos.listing("shop").module_sets == {"common": ["v1"], "zed": ["v1"]}
    author.tag("more/v1", SET | {"modules.toml": b'[modules]\nname = "more"\n', "boxes.py": b"import os\n"})
    author.tag("ipv/v2", TASK | {"task.toml": CONFIG + b'[modules]\nmore = "v1"\n'})
    said = author.push("ipv/v2", "more/v1").stderr
    assert "boxes.py:1: imports os, which a task may not" in said
    assert "task.toml:6: [modules] more = 'v1' cannot be used: version shop/more/v1: does not exist" in said
    assert author.repos.versions("shop", "ipv") == ["v1"]


def test_a_task_is_refused_where_another_push_brought_another_set_meanwhile(
    author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = author.tag("common/v1", SET | {"cells.py": b"SIZE = 2\n"})
    assert author.push("branch-1").returncode == 0
    author.tag("common/v1", SET)
    author.tag("ipv/v1", TASK)

    def check(modules: ModuleSet, compile_sources: Compile) -> None:
        check_module_set(modules, compile_sources)
        with author.repos.writing("shop") as repo:
            repo.refs[Ref(b"refs/tags/common/v1")] = ObjectID(other.encode())

    monkeypatch.setattr(git_push, "check_module_set", check)
    said = author.push("common/v1", "ipv/v1").stderr
    assert "the ref was moved by somebody else meanwhile" in said
    assert "it names modules of common/v1, which this push did not bring" in said
    assert author.repos.tasks("shop") == []


def test_a_version_of_a_set_never_moves_and_needs_the_role_of_a_releaser(author: Author) -> None:
    author.tag("common/v1", SET)
    assert "versions are made by the role release" in author.push("common/v1", role=Role.AUTHOR).stderr
    assert author.push("common/v1").returncode == 0
    author.tag("common/v1", SET | {"cells.py": b"SIZE = 2\n"})
    assert "a version is never moved; tag the next one" in author.push("-f", "common/v1").stderr
    assert "a version is never deleted" in author.push(":refs/tags/common/v1").stderr
    assert author.push("branch-1").returncode == 0
    assert author.push(":branch-1").returncode == 0  # a branch may be deleted: the tag stays
    author.tag("ipv/v1", TASK)
    assert author.push("ipv/v1").returncode == 0
    assert author.repos.read_version("shop", "ipv", "v1").modules[0].files["cells.py"] == b"SIZE = 1\n"


def test_one_name_is_not_a_task_and_a_set(author: Author) -> None:
    author.tag("common/v1", SET)
    author.tag("common/v2", FILES | {"task.toml": CONFIG.replace(b"ipv", b"common")})
    said = author.push("common/v1", "common/v2").stderr
    assert "common has versions as a set of shared modules, and one name is never both" in said
    assert author.push("common/v2").returncode != 0
    author.tag("ipv/v1", FILES)
    author.tag("ipv/v2", SET | {"modules.toml": b'[modules]\nname = "ipv"\n'})
    assert author.push("ipv/v1").returncode == 0
    assert "ipv has versions as a task, and one name is never both" in author.push("ipv/v2").stderr
    assert author.repos.listing("shop") == Listing({"ipv": ["v1"]}, {"common": ["v1"]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({f"a{number}.py": b"" for number in range(300)}, "the set has more than 200 modules"),
        ({f"a{number}.py": b"" for number in range(3000)}, "has more than 2000 files"),
        ({"json.py": b""}, "json.py: hides the module json"),
        ({"walle.py": b""}, "walle.py: walle is a name at the root"),
        ({"notes.md": b""}, "notes.md: is not a module"),
        ({"class.py": b""}, "class.py: cannot be imported by this name"),
        ({"modules.toml": b'[modules]\nname = "../x"\n'}, 'must be [modules] with name = "common" alone'),
        ({"b.py": LargeFile("0" * 64, 3).pointer}, "b.py: is a Git LFS pointer"),
    ],
)  # fmt: skip
def test_a_set_that_no_task_could_use_is_refused(author: Author, files: dict[str, bytes], message: str) -> None:
    author.tag("common/v1", SET | files)
    done = author.push("common/v1")
    assert message in done.stderr
    assert author.repos.listing("shop").module_sets == {}


def test_a_set_of_another_scenario_is_not_found(author: Author) -> None:
    author.repos.create("other")
    author.tag("common/v1", SET)
    git(author.copy, "push", str(author.repos.open("other").path), "common/v1")
    author.tag("ipv/v1", TASK)
    assert "version shop/common/v1: does not exist: there is no tag common/v1" in author.push("ipv/v1").stderr
    assert author.repos.tasks("shop") == []


def test_a_set_whose_tag_is_gone_is_an_error_that_names_it(author: Author) -> None:
    author.tag("common/v1", SET)
    author.tag("ipv/v1", TASK)
    assert author.push("common/v1", "ipv/v1").returncode == 0
    with author.repos.open("shop") as repo:  # a state that was restored by hand
        git(Path(repo.path), "tag", "-d", "common/v1")
    with pytest.raises(TaskConfigError, match=r"task.toml:6: \[modules\] common = 'v1' cannot be used: .* no tag"):
        author.repos.read_version("shop", "ipv", "v1")


def test_the_changes_of_a_version_have_those_of_its_shared_modules(author: Author) -> None:
    author.tag("common/v1", SET)
    author.tag("common/v2", SET | {"cells.py": b"SIZE = 2\n"})
    author.tag("ipv/v1", FILES)
    author.tag("ipv/v2", TASK)
    author.tag("ipv/v3", TASK | {"task.toml": TASK["task.toml"].replace(b"v1", b"v2")})
    assert author.push("common/v1", "common/v2", "ipv/v1", "ipv/v2", "ipv/v3").returncode == 0
    history = TaskHistory(author.repos)
    assert history.listing("shop").module_sets == {"common": ["v2", "v1"]}
    added = history.changes("shop", "ipv", "v1", "v2")
    shared = {f"shared modules common/{name}" for name in SET}
    assert {one.path: one.what for one in added} == {
        "main.py": "changed", "task.toml": "changed", **dict.fromkeys(shared, "added")
    }  # fmt: skip
    config, cells = sorted(history.changes("shop", "ipv", "v2", "v3"), key=lambda one: one.path, reverse=True)
    assert (config.path, cells.path) == ("task.toml", "shared modules common/cells.py")
    assert cells.lines[-2:] == ("-SIZE = 1", "+SIZE = 2")


def test_tasks_and_sets_are_listed_from_one_scan(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = []
    for name, files in {"common": SET, "ipv": TASK, "cart": FILES}.items():
        for version in ("v10", "v9"):
            author.tag(f"{name}/{version}", files)
            refs.append(f"{name}/{version}")
    git(author.copy, "push", "-q", str(author.repos._path("shop")), *refs)
    opened: list[str] = []
    open_one = TaskRepos.open

    def count(repos: TaskRepos, scenario: str) -> Repo:
        opened.append(scenario)
        return open_one(repos, scenario)

    monkeypatch.setattr(TaskRepos, "open", count)
    newest_first = ["v10", "v9"]
    listing = TaskHistory(author.repos).listing("shop")
    assert listing == Listing({"cart": newest_first, "ipv": newest_first}, {"common": newest_first})
    assert opened == ["shop"]
