"""Loader of a package's parts when one of their names is first used (`walle.np`, `walle.cv`).

In a VM such a part belongs to no task: it stays when the task that first used it ends. A VM therefore sets `load` to
`walle.engine_ext.vm.reset.load_shared`, once, before its first task.
"""

from __future__ import annotations

import importlib

from walle.engine_ext import _core

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

load: Callable[[str], ModuleType] = importlib.import_module  # the full name of a module → that module


def in_vm() -> bool:
    """Return whether this is a task's VM, which has no files and starts no processes."""
    return not hasattr(_core, "set_rates")
