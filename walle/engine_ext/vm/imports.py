"""What a task may import, and how its own modules load in a VM (§4.3).

A task's modules live in a registry of their own, not in `sys.modules`, so that a task with a `random.py` does not
change what the standard library imports; their `__builtins__` have a checking `__import__` and lack what reaches files
or compiles code. Of a library module a task gets a copy of the public names, without the modules that the library uses
itself (`random._os`); what it assigns there is seen by itself only. The copy of a module that loads its parts at first
use (`walle.np`, `walle.cv`) takes each name when the task first uses it. Walle's own modules and the standard library
import freely.

This guards against mistakes and makes a task's needs explicit. It is no wall against an author who wants to break out
of CPython: who may ship a task at all is settled by signatures.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType

from walle.engine_ext import _core
from walle.engine_ext.vm.bytecode import load_code
from walle.engine_ext.vm.reset import load_shared
from walle.errors import VMError

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

# A name allows what lies below it: `collections` allows `collections.abc`.
ALLOWED_IMPORTS = frozenset(
    {
        "abc", "array", "base64", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal",
        "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers", "operator",
        "random", "re", "statistics", "string", "struct", "textwrap", "time", "types", "typing", "unicodedata", "zlib",
        "__future__", "walle.np", "walle.cv",
    }
)  # fmt: skip

# What a task gets of a module that could otherwise reach files.
_PARTS = {
    "io": ("BytesIO", "StringIO", "SEEK_CUR", "SEEK_END", "SEEK_SET"),
    # Not scrypt and pbkdf2_hmac, whose memory and time no limit sees.
    "hashlib": (
        "blake2b", "blake2s", "md5", "new", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_224", "sha3_256",
        "sha3_384", "sha3_512", "shake_128", "shake_256", "algorithms_available", "algorithms_guaranteed",
    ),
}  # fmt: skip

# What a task gets in place of a module's own function.
_REPLACED = {"time": {"sleep": _core.vm_sleep}}  # the library's could not be stopped

# What C code imports in a task's name, when something that the task may use first needs it.
_BEHIND = frozenset({"_strptime", "walle.engine_ext._core", "walle.engine_ext.errors", "walle.engine_ext.np"})

# What loads while a module's names are copied: it stays for later tasks, as if the module itself loaded it.
_ALONGSIDE = {"typing": ("contextlib", "re")}

_WITHHELD = ("open", "exec", "eval", "compile", "input", "breakpoint", "help", "exit", "quit")


class ForbiddenImport(VMError, ImportError):  # noqa: N818 -- the public name of the design
    """A task's import of something that is neither its own nor on the list; `file` and `line` say where."""

    def __init__(self, module: str, file: str, line: int) -> None:
        super().__init__(
            f"{file}:{line} imports {module!r}; a task may import its own modules, walle.np, walle.cv and "
            f"walle.engine_ext.vm.imports.ALLOWED_IMPORTS"
        )
        self.module = module
        self.file = file
        self.line = line


def is_allowed(name: str) -> bool:
    """Whether a task may import the module of this full name."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in ALLOWED_IMPORTS for count in range(1, len(parts) + 1))


class TaskModules:
    """The modules of one task. `sources` maps dotted names to (is package, file, `.pyc` bytes)."""

    def __init__(self, sources: Mapping[str, tuple[bool, str, bytes]]) -> None:
        self._sources = sources
        self._modules: dict[str, ModuleType] = {}
        self._facades: dict[str, ModuleType] = {}  # what this task sees of library modules
        self._builtins: dict[str, Any] = {
            name: value for name, value in vars(builtins).items() if name not in _WITHHELD
        }
        self._builtins["__import__"] = self._import

    def load(self, name: str) -> ModuleType:
        """Return the task's module, run once; a module whose body fails is forgotten and may be tried again.

        Raises:
            KeyError: the task has no such module.
            BytecodeError: the module's bytecode cannot be loaded.
        """
        if name in self._modules:
            return self._modules[name]
        is_package, file, data = self._sources[name]
        parent, _, leaf = name.rpartition(".")
        if parent:
            self.load(parent)
        module = ModuleType(name)
        module.__file__ = file
        module.__package__ = name if is_package else parent
        module.__dict__["__builtins__"] = self._builtins
        if is_package:
            module.__path__ = []
        code = load_code(data, file)
        self._modules[name] = module
        try:
            _run(code, module.__dict__)
        except BaseException:
            del self._modules[name]
            raise
        if parent:
            setattr(self._modules[parent], leaf, module)
        return module

    def clear(self) -> None:
        """Empty the modules' namespaces, so that what they hold goes now: data first, while functions can still run."""
        namespaces = [module.__dict__ for module in self._modules.values()]
        for namespace in namespaces:
            for name, value in list(namespace.items()):
                if not callable(value) and type(value) is not ModuleType and not name.startswith("__"):
                    del namespace[name], value
        for namespace in namespaces:
            namespace.clear()
        self._modules.clear()
        self._facades.clear()

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
        if name in _BEHIND and type(fromlist) is list:  # C code's, which looks into sys.modules itself
            load_shared(name)
            return ModuleType(name)
        wanted = [f"walle.{item}" for item in fromlist or ()] if name == "walle" else [name]
        for full_name in wanted:
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
        """See to it that a module that `from package import name` names is there, if it is one."""
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
        """Return what this task sees of a loaded library module, made at its first import of it and kept up to date."""
        facade = self._facades.get(name)
        if facade is None:
            facade = self._make_facade(name, sys.modules[name])
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(self._facade(parent), leaf, facade)
        return facade

    def _make_facade(self, name: str, whole: ModuleType) -> ModuleType:
        """Return a module with the public names of a library module; packages above what is allowed come out empty."""
        facade = self._facades[name] = ModuleType(name, whole.__doc__)
        if not is_allowed(name):
            return facade
        if name.startswith("walle.") and hasattr(whole, "__getattr__"):
            self._make_lazy(facade, whole)
            return facade
        parts = _PARTS.get(name)
        listed = [] if parts else [item for item in getattr(whole, "__all__", ()) if _can_be_had(whole, item)]
        for item in parts or [*(item for item in vars(whole) if not item.startswith("_")), *listed]:
            value = getattr(whole, item)
            if type(value) is not ModuleType:
                facade.__dict__[item] = value
            elif item in listed or f"{name}.{item}" in sys.modules:  # a part of the package, not what it uses
                facade.__dict__[item] = self._facade_of_part(f"{name}.{item}", value)
        facade.__dict__.update(_REPLACED.get(name, {}))
        if listed:
            facade.__dict__["__all__"] = listed
        if hasattr(whole, "__getattr__"):
            facade.__dict__["__getattr__"] = whole.__getattr__
        return facade

    def _make_lazy(self, facade: ModuleType, whole: ModuleType) -> None:
        """Have the facade take names from the whole module when they are first used."""

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


_run = exec  # a task's code runs in its module's namespace


def _can_be_had(module: ModuleType, name: str) -> bool:
    """Tell whether the module has the name, and not only behind a module that a VM lacks (`types.CapsuleType`)."""
    try:
        return hasattr(module, name)
    except ImportError:
        return False
