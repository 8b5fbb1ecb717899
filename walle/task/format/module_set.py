"""Sets of shared modules: code that several tasks of a scenario import, as its author commits it.

A set is a branch of the scenario's repository beside those of the tasks. At its root are `modules.toml` and modules:

```
[modules]
name = "common"
```

A version is a tag `SET/vN`. A task names it in task.toml (`[modules] common = "v3"`), and its bundle gets those modules
of the set that it imports. A module that is not in a package, or a package with all its modules, is one unit of a set.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from keyword import iskeyword
from typing import Self

from walle.base.names import NAME_RULE, is_name
from walle.engine_ext.vm.bytecode import BytecodeError
from walle.engine_ext.vm.imports import is_allowed
from walle.task.format.bundle_error import BundleError
from walle.task.format.compilers import Compile, compile_here
from walle.task.format.config import load_config
from walle.task.format.imports import module_names, refusal
from walle.task.format.source_facts import Import, SourceFacts
from walle.task.format.tree import TaskTree

MODULES_FILE = "modules.toml"
MAX_SET_FILES = 200
MAX_SET_BYTES = 1024 * 1024  # all modules together: each task that names the set compiles them
_RESERVED = frozenset({"__init__", "main", "resources", "simulation", "walle"})  # names at a task's root, or of walle


type FindModules = Callable[[str, str], "ModuleSet"]
"""A function from the name and the version of a set to the set. It raises WalleError where there is none."""


@dataclasses.dataclass(frozen=True)
class ModuleSet:
    """A version of a set as committed: its modules by their paths, without `modules.toml`."""

    name: str
    version: str
    commit: str  # sha1 in hex
    files: Mapping[str, bytes]

    @classmethod
    def parse(cls, tree: TaskTree) -> Self:
        """Return the set in a tree, whose `task` is the set's name.

        Raises:
            BundleError: it is a task, has files beside its modules, too many or too much, a name that no task can
                import, or modules.toml is wrong.
            TaskConfigError: modules.toml is not TOML.
        """
        if MODULES_FILE not in tree.files:
            what = f"is missing: {tree.task} is not a set of shared modules, which has this file at its root"
            raise BundleError(MODULES_FILE, what)
        if not is_name(tree.task):
            raise BundleError(MODULES_FILE, f"[modules] name must be {NAME_RULE}; is {tree.task[:80]!r}")
        document = load_config(tree.files[MODULES_FILE], MODULES_FILE)
        if document != {"modules": {"name": tree.task}}:
            what = f'must be [modules] with name = "{tree.task}" alone, as the branch and the tag name the set'
            raise BundleError(MODULES_FILE, what)
        files = {path: data for path, data in tree.files.items() if path != MODULES_FILE}
        for path in tree.large:
            raise BundleError(path, "is a Git LFS pointer; a set has its modules in git")
        for path in files:
            _check_path(path)
        if len(files) > MAX_SET_FILES or sum(map(len, files.values())) > MAX_SET_BYTES:
            what = f"the set has more than {MAX_SET_FILES} modules, or {MAX_SET_BYTES} bytes; split it into two sets"
            raise BundleError(MODULES_FILE, what)
        return cls(tree.task, tree.version, tree.commit, files)

    @property
    def label(self) -> str:
        """The set with its version, which the paths of its modules in messages begin with."""
        return f"{self.name}/{self.version}"

    @property
    def units(self) -> frozenset[str]:
        """The names at the set's root: its modules and packages."""
        return root_names(self.files)


def root_names(paths: Iterable[str]) -> frozenset[str]:
    """Return the names by which source files are imported from a root: of modules, and of packages."""
    return frozenset(path.partition("/")[0].removesuffix(".py") for path in paths)


def no_modules(name: str, version: str) -> ModuleSet:
    """Raise BundleError: the finder of a caller that has no repository, so tasks with shared modules are refused."""
    raise BundleError(f"{name}/{version}", "shared modules cannot be read here: there is no repository")


def check_module_set(modules: ModuleSet, compile_sources: Compile = compile_here) -> None:
    """Check the code of a set before it becomes a version.

    Raises:
        BundleError: a module does not compile, hides one that every task may import, or imports what a task may not.
    """
    for name in sorted(modules.units):
        if is_allowed(name):
            path = next(path for path in modules.files if root_names([path]) == {name})
            raise BundleError(path, f"hides the module {name}, which every task may import; give it another name")
    own = module_names(modules.files)
    try:
        facts = compile_sources({f"{modules.label}/{path}": data for path, data in modules.files.items()})
    except BytecodeError as error:
        raise BundleError(error.file.removeprefix(f"{modules.label}/"), error.problem, error.line) from error
    for file, found in facts.items():
        for one in found.imports:
            if reason := refusal(one.module, own, "the set"):
                raise BundleError(file.removeprefix(f"{modules.label}/"), reason, one.line)


def reached_units(imports: Iterable[Import], units: Mapping[str, Iterable[SourceFacts]]) -> set[str]:
    """Return the units that imports lead to, directly or through other units; `units` has the facts of their files."""
    reached: set[str] = set()
    waiting = list(imports)
    while waiting:
        name = waiting.pop().module.partition(".")[0]
        if name in units and name not in reached:
            reached.add(name)
            waiting += (one for found in units[name] for one in found.imports)
    return reached


def _check_path(path: str) -> None:
    """Refuse a file of a set that is not a module, or that no task can import."""
    if not path.endswith(".py"):
        raise BundleError(path, f"is not a module: a set has {MODULES_FILE} and .py files only")
    parts = path.removesuffix(".py").split("/")
    if not all(part.isascii() and part.isidentifier() and not iskeyword(part) for part in parts):
        raise BundleError(path, "cannot be imported by this name; use letters, digits and _, and no keyword of Python")
    if parts[0] in _RESERVED:
        raise BundleError(path, f"{parts[0]} is a name at the root of a task or of walle; use another one")
