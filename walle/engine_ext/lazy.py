"""Loader of a package's parts when one of their names is first used (`walle.np`, `walle.cv`).

In a VM such a part belongs to no task: it stays when the task that first used it ends. A VM therefore sets `load` to
`walle.engine_ext.vm.reset.load_shared`, once, before its first task.
"""

from __future__ import annotations

import importlib

from walle.engine_ext import _core

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType
    from typing import Any

load: Callable[[str], ModuleType] = importlib.import_module  # the full name of a module → that module


def attributes(
    namespace: dict[str, Any], public: str, modules: Mapping[str, str], submodules: Iterable[str] = (), hidden: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, whose globals are `namespace`.

    `modules` has the names that each of its modules defines, separated by spaces. `public` is the package's name in
    errors. Modules in `hidden` are found, and not listed.
    """
    package = namespace["__name__"]
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    listed, found_whole = sorted((*module_of, *submodules)), {*submodules, *hidden.split()}

    def find(name: str) -> object:
        if name in module_of:
            found = namespace[name] = getattr(load(f"{package}.{module_of[name]}"), name)
            return found
        if name in found_whole:
            return load(f"{package}.{name}")
        raise AttributeError(f"{public} has no {name!r}")

    return find, lambda: list(listed)


def in_vm() -> bool:
    """Return whether this is a task's VM, which has no files and starts no processes."""
    return not hasattr(_core, "set_rates")
