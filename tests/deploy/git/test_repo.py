import re
import stat
import threading
from pathlib import Path

import pytest
from dulwich.objects import Blob, Commit, ObjectID, Tag, Tree
from dulwich.refs import Ref
from hypothesis import given
from hypothesis import strategies as st

from walle.base.names import is_version
from walle.deploy.git import repo as repo_module
from walle.deploy.git.repo import MAX_TREE_DEPTH, RepoError, TaskRepos, parse_tag


@pytest.fixture
def repos(tmp_path: Path) -> TaskRepos:
    repos = TaskRepos(tmp_path / "repos")
    repos.create("shop")
    return repos


def put(repos: TaskRepos, tag: str, entries: dict[bytes, tuple[int, ObjectID]] | None = None, *, deep: int = 0) -> str:
    """Tag a commit of a tree with `entries`, or with one file; return the commit."""
    with repos.writing("shop") as repo:
        store = repo.object_store
        blob = Blob.from_string(b"data of " + tag.encode())
        store.add_object(blob)
        tree = Tree()
        for name, (mode, sha) in (entries or {b"main.py": (stat.S_IFREG | 0o644, blob.id)}).items():
            tree.add(name, mode, sha)
        store.add_object(tree)
        for _ in range(deep):
            outer = Tree()
            outer.add(b"d", stat.S_IFDIR, tree.id)
            store.add_object(outer)
            tree = outer
        commit = Commit()
        commit.tree = tree.id
        commit.author = commit.committer = b"a <a@b>"
        commit.author_time = commit.commit_time = 0
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = b"m"
        store.add_object(commit)
        repo.refs[Ref(b"refs/tags/" + tag.encode())] = commit.id
        return commit.id.decode()


def test_create_makes_a_scenario_once(repos: TaskRepos, tmp_path: Path) -> None:
    assert (repos.create("news"), repos.create("news"), repos.create("shop")) == (True, False, False)
    assert repos.scenarios() == ["news", "shop"]
    assert sorted(path.name for path in (tmp_path / "repos").iterdir()) == ["news.git", "shop.git"]


@pytest.mark.parametrize("name", ["", ".", "..", "Shop", "a/b", "a.git", "-a", "a" * 65, "é", "a\n"])
def test_name_that_is_none_is_refused(repos: TaskRepos, tmp_path: Path, name: str) -> None:
    with pytest.raises(RepoError, match="a scenario's name is lower-case letters"):
        repos.create(name)
    with pytest.raises(RepoError, match="does not exist; the cloud"):
        repos.open(name)
    assert [path.name for path in (tmp_path / "repos").iterdir()] == ["shop.git"]


def test_versions_are_in_the_order_of_their_numbers(repos: TaskRepos) -> None:
    for version in (2, 10, 1):
        put(repos, f"ipv/v{version}")
    put(repos, "cart/v1")
    put(repos, "latest")
    assert repos.versions("shop", "ipv") == ["v1", "v2", "v10"]
    assert repos.tasks("shop") == ["cart", "ipv"]


def test_what_is_missing_is_named_with_what_there_is(repos: TaskRepos) -> None:
    with pytest.raises(RepoError, match="task shop/ipv: has no version; tasks here: none yet"):
        repos.versions("shop", "ipv")
    put(repos, "ipv/v1")
    put(repos, "ipv/v2")
    with pytest.raises(RepoError, match="version shop/ipv/v3: does not exist; versions of ipv: v1, v2"):
        repos.read("shop", "ipv", "v3")
    with pytest.raises(RepoError, match="task shop/ipw: has no version; tasks here: ipv"):
        repos.read("shop", "ipw", "v1")
    with pytest.raises(RepoError, match="scenario 'shoe': does not exist; the cloud"):
        repos.read("shoe", "ipv", "v1")


def test_read_gives_the_tagged_files(repos: TaskRepos) -> None:
    commit = put(repos, "ipv/v1", deep=2)
    tree = repos.read("shop", "ipv", "v1")
    assert (tree.scenario, tree.task, tree.version, tree.commit) == ("shop", "ipv", "v1", commit)
    assert tree.files == {"d/d/main.py": b"data of ipv/v1"}


def test_one_file_of_a_version_is_read_without_the_others(repos: TaskRepos, monkeypatch: pytest.MonkeyPatch) -> None:
    put(repos, "ipv/v1")
    put(repos, "ipv/v2", deep=1)
    monkeypatch.delattr(repo_module, "read_tree")
    assert repos.read_file("shop", "ipv", "v1", "main.py") == b"data of ipv/v1"
    with pytest.raises(RepoError, match=r"version shop/ipv/v1: has no file task\.toml"):
        repos.read_file("shop", "ipv", "v1", "task.toml")
    with pytest.raises(RepoError, match="version shop/ipv/v2: has no file d"):
        repos.read_file("shop", "ipv", "v2", "d")
    with pytest.raises(RepoError, match="version shop/ipv/v3: does not exist"):
        repos.read_file("shop", "ipv", "v3", "main.py")


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        (b"link", stat.S_IFLNK, "link is a symbolic link"),
        (b"sub", 0o160000, "sub is a submodule"),
        (b"..", stat.S_IFREG, "cannot be a file's name"),
        (b"a\\b", stat.S_IFREG, "cannot be a file's name"),
        (b".git", stat.S_IFDIR, "cannot be a file's name"),
        (b"\xff", stat.S_IFREG, "is not UTF-8"),
        (b"dir", stat.S_IFDIR, "dir/ is not a folder"),
    ],
)
def test_tree_that_cannot_be_a_task_is_refused(repos: TaskRepos, name: bytes, mode: int, reason: str) -> None:
    with repos.writing("shop") as repo:
        blob = Blob.from_string(b"x")
        repo.object_store.add_object(blob)
    put(repos, "ipv/v1", {name: (mode, blob.id)})
    with pytest.raises(RepoError, match=re.escape(reason)):
        repos.read("shop", "ipv", "v1")


def test_missing_objects_and_depth_are_refused(repos: TaskRepos) -> None:
    put(repos, "ipv/v1", {b"main.py": (stat.S_IFREG, ObjectID(b"1" * 40))})
    put(repos, "ipv/v2", deep=MAX_TREE_DEPTH + 1)
    with pytest.raises(RepoError, match=r"version shop/ipv/v1: object .*1{40}.* is missing"):
        repos.read("shop", "ipv", "v1")
    with pytest.raises(RepoError, match="is deeper than 16 folders"):
        repos.read("shop", "ipv", "v2")


@pytest.mark.timeout(20)
def test_a_few_trees_that_stand_for_billions_of_folders_are_refused(repos: TaskRepos) -> None:
    with repos.writing("shop") as repo:
        tree = Tree()
        repo.object_store.add_object(tree)
        for _ in range(MAX_TREE_DEPTH - 2):
            outer = Tree()
            for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
                outer.add(name, stat.S_IFDIR, tree.id)
            repo.object_store.add_object(outer)
            tree = outer
    put(repos, "ipv/v1", {b"x": (stat.S_IFDIR, tree.id)})
    with pytest.raises(RepoError, match="has more than 2000 folders"):
        repos.read("shop", "ipv", "v1")


def test_tags_of_other_things_are_refused(repos: TaskRepos) -> None:
    with repos.writing("shop") as repo:
        target: Blob | Tag = Blob.from_string(b"x")
        repo.object_store.add_object(target)
        repo.refs[Ref(b"refs/tags/ipv/v1")] = target.id
        for _ in range(9):
            tag = Tag()
            tag.name, tag.message, tag.tagger = b"t", b"m", b"a <a@b>"
            tag.tag_time, tag.tag_timezone = 0, 0
            tag.object = (type(target), target.id)
            repo.object_store.add_object(tag)
            target = tag
        repo.refs[Ref(b"refs/tags/ipv/v2")] = target.id
    with pytest.raises(RepoError, match="points at a blob, not at a commit"):
        repos.read("shop", "ipv", "v1")
    with pytest.raises(RepoError, match="too deep to follow"):
        repos.read("shop", "ipv", "v2")


def test_one_writer_at_a_time_also_across_objects(repos: TaskRepos, tmp_path: Path) -> None:
    entered = threading.Event()

    def write() -> None:
        with TaskRepos(tmp_path / "repos").writing("shop"):
            entered.set()

    with repos.writing("shop"):
        thread = threading.Thread(target=write)
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(10)
    thread.join()


@given(st.text(max_size=12))
def test_tags_are_versions_or_not(tag: str) -> None:
    parsed = parse_tag(tag)
    if parsed is not None:
        assert "/".join(parsed) == tag
        assert is_version(parsed[1])


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,9}", fullmatch=True), st.integers(1, 999_999_999))
def test_each_task_and_number_makes_a_tag(task: str, number: int) -> None:
    assert parse_tag(f"{task}/v{number}") == (task, f"v{number}")
    assert parse_tag(f"{task}/v0{number}") is None
