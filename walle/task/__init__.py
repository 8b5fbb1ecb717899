"""Types of what a task's phases get, for type checkers: `ctx`, `trigger` and the events.

    TYPE_CHECKING = False  # type checkers take it for true
    if TYPE_CHECKING:
        from walle.task import Context, Trigger

    def execute(ctx: "Context", trigger: "Trigger") -> dict[str, object]: ...

The classes are those that run in the VM, so their types cannot differ from them. A VM does not load this module:
import it under `TYPE_CHECKING` only. What a phase returns, and what `ctx.store.put` takes, is plain data: None, bool,
int, float, str, bytes, list, tuple, dict with str keys, and arrays.
"""

import importlib

TYPE_CHECKING = False  # the first import in a VM takes more time than the rest of this module
if TYPE_CHECKING:
    from walle.task.types import (
        Context,
        EscalationError,
        Event,
        Events,
        Groups,
        Log,
        Module,
        Plan,
        Session,
        Store,
        Trigger,
        TriggerEvent,
    )

__all__ = [
    "Context",
    "EscalationError",
    "Event",
    "Events",
    "Groups",
    "Log",
    "Module",
    "Plan",
    "Session",
    "Store",
    "Trigger",
    "TriggerEvent",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("walle.task.types"), name)
    raise AttributeError(f"module 'walle.task' has no attribute {name!r}")
