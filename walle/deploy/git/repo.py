"""Task repositories: a scenario is a bare git repository, a task a branch, a version a tag `TASK/vN` (§6).

The task's files are at the root of the tagged tree. A set of shared modules is a branch with tags `SET/vN` too, whose
root has `modules.toml`; all tags of one name are of the same kind. Readers take no lock. Writers hold
`TaskRepos.writing`: one at a time in each repository, across processes, by a lock that the kernel releases when its
holder dies; the next writer removes leftovers of a killed one.
"""

import contextlib
import dataclasses
import fcntl
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from dulwich.errors import FileFormatException
from dulwich.object_store import BaseObjectStore
from dulwich.objects import Blob, Commit, ObjectID, Tag, Tree
from dulwich.refs import Ref
from dulwich.repo import Repo

from walle.base.durable_file import make_folders, move_folder, sync_tree
from walle.base.names import NAME_RULE, is_name, is_version
from walle.deploy.git.large_file_store import LargeFileStore
from walle.deploy.git.quarantine import sweep_quarantines
from walle.errors import DeployError
from walle.task.format.bundle import CONFIG_FILE, TaskVersion
from walle.task.format.large_file import MAX_POINTER_BYTES, LargeFile, PointerError, parse_pointer
from walle.task.format.module_set import MODULES_FILE, FindModules, ModuleSet
from walle.task.format.tree import MAX_TREE_BYTES, MAX_TREE_FILES, TaskTree

MAX_TREE_DEPTH = 16
TAG_PREFIX = b"refs/tags/"
_LOCK_NAME = "walle.lock"  # for flock; `sweep` removes *.lock files, but not at the root


class RepoError(DeployError):
    """A scenario, task or version that does not exist, or a tree that is not a valid task. `what` names it."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


def parse_tag(tag: str) -> tuple[str, str] | None:
    """Return the task and version of a tag's name such as `ipv/v1`, or None for any other tag."""
    task, _, version = tag.partition("/")
    return (task, version) if is_name(task) and is_version(version) else None


@dataclasses.dataclass(frozen=True)
class Listing:
    """The tasks and the sets of shared modules of a scenario, by name, with their versions."""

    tasks: dict[str, list[str]]
    module_sets: dict[str, list[str]]


class TaskRepos:
    """A folder of scenarios."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folders(folder)

    @property
    def spool(self) -> Path:
        """The folder for requests and answers under way: files without a name, which end with their process."""
        return self._folder

    def create(self, scenario: str) -> bool:
        """Create an empty scenario unless it exists; return whether it is new.

        Raises:
            RepoError: the name cannot be a scenario's.
        """
        if not is_name(scenario):
            raise RepoError(f"scenario {scenario[:80]!r}", f"a scenario's name is {NAME_RULE}")
        path = self._path(scenario)
        if path.exists():
            return False
        staging = Path(tempfile.mkdtemp(dir=self._folder, prefix=".new."))
        try:
            Repo.init_bare(staging, default_branch=b"main").close()
            staging.chmod(0o755)
            sync_tree(staging)
            move_folder(staging, path)
        except BaseException as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, OSError) and path.exists():  # another process created it meanwhile
                return False
            raise
        return True

    def scenarios(self) -> list[str]:
        names = (path.name.removesuffix(".git") for path in self._folder.glob("*.git"))
        return sorted(name for name in names if is_name(name))

    def listing(self, scenario: str) -> Listing:
        """Return the tasks and the sets of `scenario` that have a version; versions are oldest first."""
        found = Listing({}, {})
        with self.open(scenario) as repo:
            tags = repo.refs.as_dict(Ref(TAG_PREFIX))
            for name, versions in sorted(_versions(tags).items()):
                sha = tags[Ref(f"{name}/{versions[0]}".encode())]
                kind = found.module_sets if is_module_set(repo.object_store, sha) else found.tasks
                kind[name] = versions
        return found

    def tasks(self, scenario: str) -> list[str]:
        """Return the tasks of `scenario` that have a version."""
        return list(self.listing(scenario).tasks)

    def versions(self, scenario: str, task: str) -> list[str]:
        """Return the versions of a task, oldest number first.

        Raises:
            RepoError: the scenario or task does not exist; others are not named, as who asks may not see them.
        """
        with self.open(scenario) as repo:
            versions = _versions(repo.refs.as_dict(Ref(TAG_PREFIX)))
            if task in versions and has_modules(repo, task, versions[task][0]):
                what = "is a set of shared modules, which tasks name under [modules] of task.toml; it is not released"
                raise RepoError(f"{scenario}/{task}", what)
        if task not in versions:
            known = _listed(self.tasks(scenario))
            raise RepoError(f"task {scenario}/{task[:80]}", f"has no version; tasks here: {known}")
        return versions[task]

    def check_version(self, scenario: str, task: str, version: str) -> None:
        """Check that a version exists, without reading its tree.

        Raises:
            RepoError: the scenario, task or version does not exist; others are not named, as who asks may not see them.
        """
        versions = self.versions(scenario, task)
        if version not in versions:
            what = f"version {scenario}/{task}/{version[:80]}"
            raise RepoError(what, f"does not exist; versions of {task}: {_listed(versions)}")

    def read(self, scenario: str, task: str, version: str) -> TaskTree:
        """Return the files of a version.

        Raises:
            RepoError: the scenario, task or version does not exist (the message lists those that do), or its tree is
                not that of a task.
        """
        self.check_version(scenario, task, version)
        with self.open(scenario) as repo:
            sha = repo.refs[Ref(TAG_PREFIX + f"{task}/{version}".encode())]
            return read_tree(repo.object_store, sha, scenario, task, version, self.large_files(scenario))

    def read_version(self, scenario: str, task: str, version: str) -> TaskVersion:
        """Return a version with the sets of shared modules that it names.

        Raises:
            RepoError: as `read`.
            TaskConfigError, BundleError: as `TaskVersion.parse`.
        """
        tree = self.read(scenario, task, version)
        with self.open(scenario) as repo:
            return TaskVersion.parse(tree, modules_in(repo, scenario))

    def read_file(self, scenario: str, task: str, version: str, name: str) -> bytes:
        """Return one file at the root of a version, without reading the others.

        Raises:
            RepoError: as `read`, or the version does not have the file.
        """
        self.check_version(scenario, task, version)
        what = f"version {scenario}/{task}/{version}"
        with self.open(scenario) as repo:
            store = repo.object_store
            commit = peel(store, repo.refs[Ref(TAG_PREFIX + f"{task}/{version}".encode())], what)
            try:
                tree = store[commit.tree]
                file = store[tree[name.encode()][1]] if isinstance(tree, Tree) else None
            except KeyError:
                file = None
            if not isinstance(file, Blob):
                raise RepoError(what, f"has no file {name}")
            return file.data

    def open(self, scenario: str) -> Repo:
        """Return the repository, for reading; close it.

        Raises:
            RepoError: the scenario does not exist; others are not named, as who asks may not see them.
        """
        if not is_name(scenario) or not self._path(scenario).is_dir():
            raise RepoError(
                f"scenario {scenario[:80]!r}", "does not exist; the cloud is started with --scenario for each"
            )
        return Repo(str(self._path(scenario)))

    @contextlib.contextmanager
    def writing(self, scenario: str) -> Iterator[Repo]:
        """Lock the repository for writing; blocks the calling thread until other writers have finished.

        Raises:
            RepoError: the scenario does not exist.
        """
        with self.open(scenario) as repo, (self._path(scenario) / _LOCK_NAME).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sweep(self._path(scenario))
            yield repo

    def large_files(self, scenario: str) -> LargeFileStore:
        """Return the files of a scenario that git has pointers to."""
        return LargeFileStore(self._path(scenario) / "lfs")

    def _path(self, scenario: str) -> Path:
        return self._folder / f"{scenario}.git"


def _versions(tags: Iterable[Ref]) -> dict[str, list[str]]:
    """Return the versions of each task and set of modules by their tags, oldest number first."""
    found: dict[str, list[str]] = {}
    for name in tags:
        parsed = parse_tag(name.decode("utf-8", "replace"))
        if parsed is not None:
            found.setdefault(parsed[0], []).append(parsed[1])
    for versions in found.values():
        versions.sort(key=lambda version: int(version[1:]))
    return found


def has_modules(repo: Repo, name: str, version: str) -> bool:
    """Return whether a version is one of a set of modules, not of a task."""
    sha = repo.refs.read_ref(Ref(TAG_PREFIX + f"{name}/{version}".encode()))
    return sha is not None and is_module_set(repo.object_store, ObjectID(sha))


def is_module_set(store: BaseObjectStore, sha: ObjectID) -> bool:
    """Return whether the tree of `sha`, a commit or a tag of one, is that of a set of modules; not if it is damaged."""
    try:
        tree = store[peel(store, sha, "").tree]
        return isinstance(tree, Tree) and MODULES_FILE.encode() in tree and CONFIG_FILE.encode() not in tree
    except (RepoError, KeyError, FileFormatException, AssertionError):
        return False


def modules_in(repo: Repo, scenario: str) -> FindModules:
    """Return a function that finds versions of sets of modules in a repository, which must stay open.

    It raises RepoError where the version does not exist, and as `ModuleSet.parse` does.
    """

    def find(name: str, version: str) -> ModuleSet:
        what = f"version {scenario}/{name}/{version}"
        sha = repo.refs.read_ref(Ref(TAG_PREFIX + f"{name}/{version}".encode()))
        if sha is None:
            raise RepoError(what, f"does not exist: there is no tag {name}/{version}")
        return ModuleSet.parse(read_tree(repo.object_store, ObjectID(sha), scenario, name, version))

    return find


def sweep(path: Path) -> None:
    """Remove a killed writer's leftovers in the repository at `path`; the caller holds the lock."""
    for pattern in (
        "refs/**/*.lock",
        "objects/info/*.lock",
        "objects/pack/*.lock",
        "objects/tmp_pack_*",
        "packed-refs.lock",
        "HEAD.lock",
    ):
        for leftover in path.glob(pattern):
            leftover.unlink(missing_ok=True)
    sweep_quarantines(path)
    LargeFileStore(path / "lfs").sweep()


def peel(store: BaseObjectStore, sha: ObjectID, what: str) -> Commit:
    """Return the commit that `sha` is or, as a tag, leads to. Raises RepoError where there is none."""
    for _ in range(8):
        try:
            found = store[sha]
        except KeyError:
            raise RepoError(what, f"object {sha.decode()} is missing") from None
        if isinstance(found, Commit):
            return found
        if not isinstance(found, Tag):
            raise RepoError(what, f"points at a {found.type_name.decode()}, not at a commit")
        sha = found.object[1]
    raise RepoError(what, "is a tag of a tag of a tag, too deep to follow")


def read_tree(
    store: BaseObjectStore,
    sha: ObjectID,
    scenario: str,
    task: str,
    version: str,
    large_files: LargeFileStore | None = None,
) -> TaskTree:
    """Return the tree of `sha`, a commit or a tag of one, as `scenario/task/version`.

    Git LFS pointers in it lead to `large_files`; without, they have no path.

    Raises:
        RepoError: an object is missing, or the tree holds links, submodules, unusable names, or too much.
    """
    what = f"version {scenario}/{task}/{version}"
    commit = peel(store, sha, what)
    files: dict[str, bytes] = {}
    large: dict[str, LargeFile] = {}
    size_bytes = folders = 0
    pending = [(commit.tree, "")]
    try:
        while pending:
            tree_sha, prefix = pending.pop()
            tree = store[tree_sha]
            if not isinstance(tree, Tree):
                raise RepoError(what, f"{prefix or 'its root'} is not a folder")
            for entry in tree.iteritems():
                path = prefix + _entry_name(entry.path, prefix, what)
                if stat.S_ISDIR(entry.mode):
                    if path.count("/") >= MAX_TREE_DEPTH:
                        raise RepoError(what, f"{path} is deeper than {MAX_TREE_DEPTH} folders")
                    folders += 1
                    if (
                        folders > MAX_TREE_FILES
                    ):  # nested references to the same few trees can expand to billions of folders
                        raise RepoError(what, f"has more than {MAX_TREE_FILES} folders")
                    pending.append((entry.sha, f"{path}/"))
                    continue
                if not stat.S_ISREG(entry.mode):
                    kind = "symbolic link" if stat.S_ISLNK(entry.mode) else "submodule"
                    raise RepoError(what, f"{path} is a {kind}; a task holds plain files only")
                blob = store[entry.sha]
                if not isinstance(blob, Blob):
                    raise RepoError(what, f"{path} is not a file")
                if pointer := _pointer(blob.data, path, what):
                    large[path] = large_files.find(pointer.sha256, pointer.size_bytes) if large_files else pointer
                else:
                    files[path] = blob.data
                    size_bytes += len(blob.data)
                if len(files) + len(large) > MAX_TREE_FILES or size_bytes > MAX_TREE_BYTES:
                    raise RepoError(what, f"has more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES} bytes")
    except KeyError as error:
        raise RepoError(what, f"object {error.args[0]!r} is missing") from error
    return TaskTree(
        scenario=scenario,
        task=task,
        version=version,
        commit=commit.id.decode(),
        files=dict(sorted(files.items())),
        large=dict(sorted(large.items())),
    )


def _pointer(data: bytes, path: str, what: str) -> LargeFile | None:
    """Return the large file that a Git LFS pointer stands for, None for any other file."""
    if len(data) > MAX_POINTER_BYTES:
        return None
    try:
        return parse_pointer(data)
    except PointerError as error:
        raise RepoError(what, f"{path} {error}") from error


def _entry_name(name: bytes, prefix: str, what: str) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise RepoError(what, f"{prefix}{name!r} is not UTF-8") from None
    if text in ("", ".", "..", ".git") or any(letter in text for letter in "/\\\0"):
        raise RepoError(what, f"{prefix}{text!r} cannot be a file's name")
    return text


def _listed(names: list[str]) -> str:
    return ", ".join(names[-20:]) or "none yet"
