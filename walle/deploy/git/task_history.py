"""History of tasks: their versions as git has them, and what changed between two of them, in bounded size."""

import dataclasses
import difflib
import hashlib
from collections.abc import Iterator, Mapping

from dulwich.diff_tree import tree_changes
from dulwich.object_store import BaseObjectStore
from dulwich.objects import Blob, Commit, ObjectID, Tree
from dulwich.refs import Ref
from dulwich.repo import Repo

from walle.deploy.git.repo import TAG_PREFIX, Listing, RepoError, TaskRepos, peel
from walle.task.format.bundle import CONFIG_FILE
from walle.task.format.config import TaskConfig, TaskConfigError
from walle.task.format.tree import MAX_TREE_FILES

MAX_VERSIONS = 200  # newest versions of a task that are shown
MAX_TEXT_BYTES = 200_000  # limit of a file that is compared by lines
MAX_FILE_LINES = 2_000  # lines of a file: a comparison of hostile lines takes their square
MAX_LINES = 4_000  # lines of one comparison, over all its files
_MAX_MESSAGE = 2_000
_CONTEXT = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskCommit:
    """A version of a task: its commit, who made it and when (by their clock), and its message."""

    version: str
    commit: str
    author: str
    at_s: float
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSide:
    """A file before or after a change. `sha256` is in hex."""

    size_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileChange:
    """A file that differs: `what` is added, removed or changed. `lines` are those of a unified diff.

    Without `lines`, `why` says why there are none.
    """

    path: str
    what: str
    before: FileSide | None
    after: FileSide | None
    lines: tuple[str, ...] = ()
    why: str = ""


class TaskHistory:
    """Versions and differences of the tasks in `repos`. Every method blocks, and raises RepoError as `repos` does."""

    def __init__(self, repos: TaskRepos) -> None:
        self._repos = repos

    def scenarios(self) -> list[str]:
        return self._repos.scenarios()

    def listing(self, scenario: str) -> Listing:
        """Return the tasks and the sets of shared modules of a scenario; versions are newest first."""
        found = self._repos.listing(scenario)
        return Listing(_newest_first(found.tasks), _newest_first(found.module_sets))

    def versions(self, scenario: str, task: str) -> list[TaskCommit]:
        """Return the latest versions, newest first."""
        names = self._repos.versions(scenario, task)[::-1][:MAX_VERSIONS]
        with self._repos.open(scenario) as repo:
            found = []
            for name in names:
                commit = _commit(repo.object_store, repo.refs[Ref(_tag(task, name))], scenario, task, name)
                found.append(
                    TaskCommit(
                        version=name,
                        commit=commit.id.decode(),
                        author=commit.author.decode("utf-8", "replace")[:200],
                        at_s=float(commit.commit_time),
                        message=commit.message.decode("utf-8", "replace")[:_MAX_MESSAGE].strip(),
                    )
                )
        return found

    def changes(self, scenario: str, task: str, old: str, new: str) -> list[FileChange]:
        """Return the files that differ between two versions, by path; of `old` "", all files of `new`.

        Those of sets of shared modules whose version differs are among them, as `shared modules SET/PATH`.
        """
        for version in filter(None, (old, new)):
            self._repos.check_version(scenario, task, version)
        with self._repos.open(scenario) as repo:
            store = repo.object_store
            trees = [_tree(repo, scenario, task, version) for version in (old, new)]
            compared = [("", trees)]
            before, after = (_sets_of(store, tree) for tree in trees)
            for name in sorted(before.keys() | after.keys()):
                if before.get(name) != after.get(name):
                    trees = [_tree(repo, scenario, name, one.get(name, "")) for one in (before, after)]
                    compared.append((f"shared modules {name}/", trees))
            found: list[FileChange] = []
            left = MAX_LINES
            for prefix, (first, second) in compared:
                for change in tree_changes(store, first, second):
                    if len(found) >= MAX_TREE_FILES:
                        break
                    sides = [_blob(store, side.sha if side is not None else None) for side in (change.old, change.new)]
                    path = next(side.path for side in (change.new, change.old) if side is not None and side.path)
                    made = _change(prefix + path.decode("utf-8", "replace"), sides[0], sides[1], left)
                    left -= len(made.lines)
                    found.append(made)
        return sorted(found, key=lambda one: one.path)


def _newest_first(versions: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: oldest_first[::-1] for name, oldest_first in versions.items()}


def _tree(repo: Repo, scenario: str, name: str, version: str) -> ObjectID | None:
    """Return the tree of a version of a task or of a set of modules, None for "" and for one that does not exist."""
    sha = repo.refs.read_ref(Ref(_tag(name, version))) if version else None
    return None if sha is None else _commit(repo.object_store, ObjectID(sha), scenario, name, version).tree


def _sets_of(store: BaseObjectStore, tree: ObjectID | None) -> Mapping[str, str]:
    """Return the sets of shared modules that a task's tree names, with their versions."""
    found = None if tree is None else store[tree]
    try:
        text = _blob(store, found[CONFIG_FILE.encode()][1]) if isinstance(found, Tree) else None
        return TaskConfig.parse(text or b"", CONFIG_FILE).modules
    except (KeyError, TaskConfigError):
        return {}


def _change(path: str, before: bytes | None, after: bytes | None, left: int) -> FileChange:
    what = "added" if before is None else "removed" if after is None else "changed"
    lines: list[str] = []
    why = ""
    texts = [_text(side) for side in (before, after)]
    if any(text is None for text in texts):
        why = "not a text, or too long to compare"
    elif left <= 0:
        why = f"more than {MAX_LINES} lines differ in all"
    else:
        lines = list(_differing(texts[0] or "", texts[1] or ""))
        if len(lines) > left:
            lines, why = lines[:left], f"and {len(lines) - left} more lines"
    return FileChange(path=path, what=what, before=_side(before), after=_side(after), lines=tuple(lines), why=why)


def _differing(before: str, after: str) -> Iterator[str]:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=_CONTEXT, lineterm="")
    for number, line in enumerate(diff):
        if number >= 2:  # the first two lines name the files
            yield line


def _text(data: bytes | None) -> str | None:
    """Return a file's text, "" of one that is absent; None of what is not compared by lines."""
    if data is None:
        return ""
    if len(data) > MAX_TEXT_BYTES or b"\0" in data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.count("\n") <= MAX_FILE_LINES else None


def _side(data: bytes | None) -> FileSide | None:
    return None if data is None else FileSide(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _blob(store: BaseObjectStore, sha: ObjectID | None) -> bytes | None:
    if sha is None:
        return None
    found = store[sha]
    return found.data if isinstance(found, Blob) else b""


def _commit(store: BaseObjectStore, sha: ObjectID, scenario: str, task: str, version: str) -> Commit:
    what = f"version {scenario}/{task}/{version}"
    try:
        return peel(store, sha, what)
    except KeyError as error:
        raise RepoError(what, "its commit is missing") from error


def _tag(task: str, version: str) -> bytes:
    return TAG_PREFIX + f"{task}/{version}".encode()
