"""Sets of shared modules that a task's folder names: from the tags of its git repository, or from other folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walle.cli.task.folder import TaskFolderError, read_files, read_folder

if TYPE_CHECKING:
    from walle.task.format.bundle import TaskVersion
    from walle.task.format.module_set import ModuleSet

ModulesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--modules",
        metavar="NAME=FOLDER",
        help="Take the shared modules NAME from this folder, not from the tag in the task's git repository; once for"
        " each set.",
    ),
]


class LocalModules:
    """A finder of sets for the task in `folder`. `given` are those of --modules.

    Raises:
        BadParameter: one of these is not NAME=FOLDER.
    """

    def __init__(self, folder: Path, given: Sequence[str] | None) -> None:
        self._folder = folder
        self._folders: dict[str, Path] = {}
        for one in given or ():
            name, sign, place = one.partition("=")
            if not (name and sign and place):
                raise typer.BadParameter(
                    f"{one!r} is not NAME=FOLDER, such as common=../common", param_hint="--modules"
                )
            self._folders[name] = Path(place)
        self._unused = set(self._folders)
        self._found: dict[tuple[str, str], ModuleSet] = {}  # by name and version: a check asks several times

    def __call__(self, name: str, version: str) -> "ModuleSet":
        """Return the set. Raises TaskFolderError, and DeployError where a repository has another tree by its tag."""
        self._unused.discard(name)
        found = self._found.get((name, version))
        if found is None:
            found = self._found[name, version] = self._find(name, version)
        return found

    def _find(self, name: str, version: str) -> "ModuleSet":
        if name in self._folders:
            return read_modules(self._folders[name], name, version)
        try:
            from dulwich.errors import NotGitRepository
            from dulwich.refs import Ref
            from dulwich.repo import Repo

            from walle.deploy.git.repo import modules_in
        except ImportError as error:
            what = "the package dulwich of the extra cloud, which reads git repositories, is not installed"
            raise TaskFolderError(self._folder, f"{what}; or use --modules {name}=FOLDER") from error
        try:
            repo = Repo.discover(str(self._folder.absolute()))
        except NotGitRepository as error:
            what = f"is in no git repository that has the tag {name}/{version}"
            raise TaskFolderError(self._folder, f"{what}; use --modules {name}=FOLDER") from error
        with repo:
            if repo.refs.read_ref(Ref(f"refs/tags/{name}/{version}".encode())) is None:
                what = f"{repo.path}: has no tag {name}/{version}; fetch it with: git fetch --tags"
                raise TaskFolderError(self._folder, f"{what}, or use --modules {name}=FOLDER")
            return modules_in(repo, "local")(name, version)

    def check_used(self) -> None:
        """Raise BadParameter where --modules names a set that the task does not."""
        if self._unused:
            what = f"{min(self._unused)!r} is not a set under [modules] of {self._folder / 'task.toml'}"
            raise typer.BadParameter(what, param_hint="--modules")


def read_modules(folder: Path, name: str, version: str = "v1") -> "ModuleSet":
    """Return the set in a folder as `version`.

    Raises:
        TaskFolderError: as `read_files`.
        DeployError: it is not the set `name`, or not a set.
    """
    from walle.task.format.module_set import MODULES_FILE, ModuleSet
    from walle.task.format.tree import TaskTree

    files, large = read_files(folder, MODULES_FILE)
    tree = TaskTree(scenario="local", task=name, version=version, commit="0" * 40, files=files, large=large)
    return ModuleSet.parse(tree)


def read_version(folder: Path, modules: Sequence[str] | None) -> "TaskVersion":
    """Return the task in a folder as version v1, with the sets that it names; `modules` are those of --modules.

    Raises:
        TaskFolderError: as `read_folder`.
        BadParameter: one of `modules` is wrong, or not one that the task names.
        DeployError: as `TaskVersion.parse`.
    """
    from walle.task.format.bundle import TaskVersion

    find = LocalModules(folder, modules)
    version = TaskVersion.parse(read_folder(folder), find)
    find.check_used()
    return version
