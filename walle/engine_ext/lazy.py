"""How a package loads a part of itself when one of the part's names is first used (`walle.np`, `walle.cv`).

In a VM such a part is no task's: the task that happens to use it first leaves, and the part stays for those that
follow. A VM therefore sets `load` to `walle.engine_ext.vm.reset.load_shared`, once, before its first task.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

load: Callable[[str], ModuleType] = importlib.import_module  # the full name of a module → that module
