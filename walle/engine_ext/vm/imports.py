"""Imports of a task: the allow-list, copies of library modules, and the loader of its own modules in a VM (§4.3).

A task's modules are kept in a separate registry, not in `sys.modules`, so that a task with a `random.py` does not
change what the standard library imports. Their `__builtins__` have an `__import__` that checks, and lack what opens
files or compiles code. Of a library module a task gets a copy of the public names, without the modules that the library
itself uses (`random._os`); an assignment there is visible to the task only. The copy of a module that loads its parts
at first use (`walle.np` and the like, `_LAZY`) takes each name when the task first uses it. Walle's own modules and the
standard library import freely.

This prevents mistakes and makes a task's needs explicit. It does not stop an author who wants to break out of CPython:
signatures decide who may ship a task at all.
"""

from __future__ import annotations

import builtins
import sys
from types import CodeType, ModuleType

from walle.engine_ext import _core
from walle.engine_ext.vm.bytecode import load_code
from walle.engine_ext.vm.reset import load_shared
from walle.errors import VMError

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

# A name also allows its submodules: `collections` allows `collections.abc`.
ALLOWED_IMPORTS = frozenset(
    {
        "abc", "array", "base64", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal",
        "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers", "operator",
        "random", "re", "statistics", "string", "struct", "textwrap", "time", "types", "typing", "unicodedata", "zlib",
        "__future__", "walle.np", "walle.cv", "walle.nn", "walle.optim",
    }
)  # fmt: skip

# The names that a task gets of modules that could otherwise open files.
_PARTS = {
    "io": ("BytesIO", "StringIO", "SEEK_CUR", "SEEK_END", "SEEK_SET"),
    # Without scrypt and pbkdf2_hmac, whose memory and time no limit covers.
    "hashlib": (
        "blake2b", "blake2s", "md5", "new", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_224", "sha3_256",
        "sha3_384", "sha3_512", "shake_128", "shake_256", "algorithms_available", "algorithms_guaranteed",
    ),
}  # fmt: skip

# Functions that a task gets in place of a module's own.
_REPLACED = {"time": {"sleep": _core.vm_sleep}}  # the library's cannot be stopped

# Modules whose public names a task gets in place of a module's own.
_REPLACEMENTS = {"json": "walle.engine_ext.vm.json_encoder"}

# Modules that C code imports on behalf of a task, when a function that the task may use first needs them.
_INDIRECT = frozenset({"_strptime", "walle.engine_ext._core", "walle.engine_ext.errors", "walle.engine_ext.np"})

# Modules that load their parts at first use, by the name that a task imports.
_LAZY = {f"walle.{name}": f"walle.engine_ext.{name}" for name in ("np", "cv", "nn", "optim")}

# Modules that load while a module's names are copied. They stay for later tasks, as if the module itself loaded them.
_ALONGSIDE = {"typing": ("contextlib", "re"), "json": (_REPLACEMENTS["json"],)}

_NO_CODE = "a task runs the code of its version alone; json.loads reads data"
_NO_TERMINAL = "a task has no terminal: ctx.log(text) writes to its log"
_RETURN = "a run ends when its last phase returns"
REMOVED_BUILTINS = ("open", "exec", "eval", "compile", "input", "breakpoint", "help", "exit", "quit")
INSTEAD_OF_BUILTINS = {  # hints in errors about names that are missing
    "open": "a task has no files: ctx.resource(name) reads those of resources/, and ctx.state is kept between runs",
    "exec": _NO_CODE, "eval": _NO_CODE, "compile": _NO_CODE,
    "input": _NO_TERMINAL, "breakpoint": _NO_TERMINAL, "help": _NO_TERMINAL,
    "exit": _RETURN, "quit": _RETURN,
}  # fmt: skip


class ForbiddenImport(VMError, ImportError):  # noqa: N818 -- the public name of the design
    """A task imports a module that is neither its own nor on the allow-list; `file` and `line` say where.

    `place` is "file:line in function" where the function is known.
    """

    def __init__(self, module: str, file: str, line: int) -> None:
        super().__init__(
            f"{file}:{line} imports {module!r}; a task may import its own modules, walle.np, walle.cv, walle.nn,"
            " walle.optim and what docs/vm.md lists; walle task check says what to use in its place"
        )
        self.module = module
        self.file = file
        self.line = line
        self.place = f"{file}:{line}"


def is_allowed(name: str) -> bool:
    """Return whether a task may import the module of this full name."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in ALLOWED_IMPORTS for count in range(1, len(parts) + 1))


class TaskModules:
    """The modules of one task. `sources` maps dotted names to (is package, file, `.pyc` bytes)."""

    def __init__(self, sources: Mapping[str, tuple[bool, str, bytes]]) -> None:
        self._sources = sources
        self._files = frozenset(file for _, file, _ in sources.values())
        self._modules: dict[str, ModuleType] = {}
        self._facades: dict[str, ModuleType] = {}  # this task's copies of library modules
        self._names: set[str] = set()  # names that the code of the loaded modules uses
        self._texts: set[str] = set()  # constants of this code that are text
        self._builtins: dict[str, Any] = {
            name: value for name, value in vars(builtins).items() if name not in REMOVED_BUILTINS
        }
        self._builtins["__import__"] = self._import

    def load(self, name: str) -> ModuleType:
        """Return the task's module, run once; a module whose body fails is removed and may be loaded again.

        A package that is loaded again gets the submodules that were loaded before it failed.

        Raises:
            KeyError: the task has no module of this name.
            BytecodeError: the module's bytecode cannot be loaded.
        """
        parent, _, leaf = name.rpartition(".")
        if parent:
            self.load(parent)
        loaded = self._modules.get(name)
        module = loaded or self._run(name)
        # As in CPython, a module that was run replaces what its package had by this name, and a loaded one does not.
        if parent and (loaded is None or leaf not in vars(self._modules[parent])):
            setattr(self._modules[parent], leaf, module)
        return module

    def _run(self, name: str) -> ModuleType:
        is_package, file, data = self._sources[name]
        parent, _, leaf = name.rpartition(".")
        module = ModuleType(name)
        module.__file__ = file
        module.__package__ = name if is_package else parent
        module.__dict__["__builtins__"] = self._builtins
        if is_package:
            module.__path__ = []
        code = load_code(data, file)
        self._collect(code)
        self._modules[name] = module
        _enter_phase("", code)
        try:
            _run_code(code, module.__dict__)
        except BaseException:
            del self._modules[name]
            if parent and vars(self._modules[parent]).get(leaf) is module:  # a circular import sets it
                delattr(self._modules[parent], leaf)
            raise
        return module

    def load_named_parts(self) -> None:
        """Load the parts of `walle.np` and the like that have a name which the task's code uses.

        Names that are builtins too (`sum`) are left to the first use: most tasks mean the builtin.
        """
        names = sorted(self._names - vars(builtins).keys())
        for facade, package in _LAZY.items():
            if facade in self._facades:
                whole = load_shared(package)
                for name in names:
                    getattr(whole, name, None)

    def mentions(self, text: str) -> bool:
        """Return whether the text is a constant of the loaded modules' code."""
        return text in self._texts

    def has_file(self, file: str) -> bool:
        """Return whether a module of the task is from this file, as tracebacks name it."""
        return file in self._files

    def clear(self) -> None:
        """Empty the modules' namespaces, which frees their contents now: data first, while functions can still run."""
        namespaces = [module.__dict__ for module in self._modules.values()]
        for namespace in namespaces:
            for name, value in list(namespace.items()):
                if not callable(value) and type(value) is not ModuleType and not name.startswith("__"):
                    del namespace[name], value
        for namespace in namespaces:
            namespace.clear()
        self._modules.clear()
        self._facades.clear()
        self._names.clear()
        self._texts.clear()

    def _collect(self, code: CodeType) -> None:
        """Add the names that the code uses, and its texts."""
        self._names.update(code.co_names)
        for constant in code.co_consts:
            for one in constant if type(constant) is tuple else (constant,):
                if type(one) is str:
                    self._texts.add(one)
            if type(constant) is CodeType:
                self._collect(constant)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 -- the signature of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002, ARG002 -- the signature of __import__
        fromlist: Collection[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level:
            name = self._absolute(name, globals or {}, level)
        if name.partition(".")[0] in self._sources:
            return self._import_own(name, fromlist or (), top=not level and not fromlist)
        if name in _INDIRECT and type(fromlist) is list:  # C code imports so, and reads sys.modules itself
            load_shared(name)
            return ModuleType(name)
        full_names = [f"walle.{item}" for item in fromlist or ()] if name == "walle" else [name]
        for full_name in full_names:
            if not is_allowed(full_name):
                raise self._forbidden(full_name)
            for loaded in (full_name, *_ALONGSIDE.get(full_name, ())):
                load_shared(loaded)
        facade = self._facade(name)
        for item in fromlist or ():
            self._load_below(f"{name}.{item}")
        return facade if fromlist else self._facades[name.partition(".")[0]]

    def _absolute(self, name: str, namespace: Mapping[str, Any], level: int) -> str:
        parts = str(namespace.get("__package__") or "").split(".")
        if level > len(parts) or not parts[0]:
            raise ImportError("relative import beyond the task's top level")
        base = ".".join(parts[: len(parts) - level + 1])
        return f"{base}.{name}" if name else base

    def _import_own(self, name: str, fromlist: Collection[str], *, top: bool) -> ModuleType:
        if name not in self._sources:
            raise ModuleNotFoundError(f"the task has no module {name!r}", name=name)
        module = self.load(name)
        for item in fromlist:
            if f"{name}.{item}" in self._sources:
                self.load(f"{name}.{item}")
        return self.load(name.partition(".")[0]) if top else module

    def _load_below(self, name: str) -> None:
        """Load the module that `from package import name` names, if it is a module."""
        package, _, leaf = name.rpartition(".")
        if not hasattr(sys.modules[package], "__path__") or hasattr(self._facades[package], leaf) or leaf == "*":
            return
        if not is_allowed(name):
            return
        try:
            load_shared(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            self._facade(name)

    def _facade(self, name: str) -> ModuleType:
        """Return the task's copy of a loaded library module; the first import creates it, later ones update it."""
        facade = self._facades.get(name)
        if facade is None:
            facade = self._make_facade(name, sys.modules[name])
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(self._facade(parent), leaf, facade)
        return facade

    def _make_facade(self, name: str, whole: ModuleType) -> ModuleType:
        """Return a module with the public names of a library module; parents of allowed packages come out empty.

        It is registered once it is filled, because the call may be stopped at any point.
        """
        facade = ModuleType(name, whole.__doc__)
        if is_allowed(name) and name.startswith("walle.") and hasattr(whole, "__getattr__"):
            self._make_lazy(facade, whole)
        elif is_allowed(name):
            self._fill(facade, name, whole)
        self._facades[name] = facade
        return facade

    def _fill(self, facade: ModuleType, name: str, whole: ModuleType) -> None:
        parts = _PARTS.get(name)
        listed = [] if parts else [item for item in getattr(whole, "__all__", ()) if _has(whole, item)]
        for item in parts or [*(item for item in vars(whole) if not item.startswith("_")), *listed]:
            value = getattr(whole, item)
            if type(value) is not ModuleType:
                facade.__dict__[item] = value
            elif (
                item in listed or f"{name}.{item}" in sys.modules
            ):  # a submodule of the package, not a module that it uses
                facade.__dict__[item] = self._facade_of_part(f"{name}.{item}", value)
        facade.__dict__.update(_REPLACED.get(name, {}))
        if name in _REPLACEMENTS:
            replacing = sys.modules[_REPLACEMENTS[name]]
            facade.__dict__.update({item: vars(replacing)[item] for item in replacing.__all__})
        if listed:
            facade.__dict__["__all__"] = listed
        if hasattr(whole, "__getattr__"):
            facade.__dict__["__getattr__"] = whole.__getattr__

    def _make_lazy(self, facade: ModuleType, whole: ModuleType) -> None:
        """Make the facade take names from the whole module when they are first used."""

        def take(item: str) -> object:
            if item.startswith("_"):
                raise AttributeError(f"module {facade.__name__!r} has no attribute {item!r}")
            value = getattr(whole, item)
            if type(value) is ModuleType:
                value = self._facade_of_part(f"{facade.__name__}.{item}", value)
            facade.__dict__[item] = value
            return value

        facade.__dict__["__getattr__"] = take
        facade.__dict__["__dir__"] = lambda: sorted({*dir(whole), *facade.__dict__})
        if hasattr(whole, "__all__"):
            facade.__dict__["__all__"] = list(whole.__all__)

    def _facade_of_part(self, name: str, whole: ModuleType) -> ModuleType:
        return self._facades.get(name) or self._make_facade(name, whole)

    def _forbidden(self, name: str) -> ForbiddenImport:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return ForbiddenImport(name, frame.f_code.co_filename, frame.f_lineno)


_enter_phase = _core.vm_enter_phase
_run_code = exec  # a task's code runs in its module's namespace


def _has(module: ModuleType, name: str) -> bool:
    """Return whether the module has the name, and it needs no module that a VM lacks (as `types.CapsuleType` does)."""
    try:
        return hasattr(module, name)
    except ImportError:
        return False
