"""The Python end of wiping a VM: modules that stay for later tasks, and what a task changes in C where no walk sees it.

Runs inside a VM. The library modules that tasks import are loaded once in a VM and shared by the tasks that follow one
another there. `_core` keeps them as they were when they were loaded (src/vm/pristine.h) and puts them back when a task
leaves; the state that they hold in C is reset here.
"""

from __future__ import annotations

import gc
import sys

from walle.engine_ext import _core

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_resets: dict[str, Callable[[], object]] = {}  # module name → what makes its state in C fresh

_at_work: list[str] = []  # the one module that is being loaded; what it loads in turn is part of it

_TOOLS = range(6)  # sys.monitoring's


def load_shared(name: str) -> ModuleType:
    """Return the module of this full name, loaded in such a way that it may stay when the present task leaves.

    Raises:
        ImportError: there is no such module, or it fails to load.
    """
    if name not in sys.modules and _at_work:
        __import__(name)
    elif name not in sys.modules:
        try:
            _at_work.append(name)
            _load(name)
        finally:
            _at_work.clear()
    return sys.modules[name]


def _prepare_resets() -> None:
    """Part of each load: see to what the new modules hold in C."""
    for loaded, make in _MAKERS.items():
        if loaded in sys.modules and loaded not in _resets:
            _resets[loaded] = make(sys.modules[loaded])


def reset() -> None:
    """Make fresh what the interpreter and its modules hold in C."""
    sys.settrace(None)
    sys.setprofile(None)
    for tool in _TOOLS:
        if sys.monitoring.get_tool(tool) is not None:
            _free(tool)
    sys.set_asyncgen_hooks(None, None)
    sys.set_coroutine_origin_tracking_depth(0)
    sys.setrecursionlimit(_recursion_limit)
    sys.set_int_max_str_digits(_int_digits)
    sys.setswitchinterval(_switch_s)
    gc.enable()
    gc.set_debug(0)
    gc.set_threshold(*_THRESHOLDS)
    atexit = sys.modules.get("atexit")
    if atexit is not None:
        atexit._clear()
    for make_fresh in _resets.values():
        make_fresh()


def _free(tool: int) -> None:
    monitoring = sys.monitoring
    monitoring.set_events(tool, 0)
    for name in dir(monitoring.events):
        event = getattr(monitoring.events, name)
        if isinstance(event, int) and event.bit_count() == 1:
            monitoring.register_callback(tool, event, None)
    monitoring.free_tool_id(tool)


def _random(random: Any) -> Callable[[], object]:
    return random.seed  # type: ignore[no-any-return]


def _struct(struct: Any) -> Callable[[], object]:
    return struct._clearcache  # type: ignore[no-any-return]


def _decimal(decimal: Any) -> Callable[[], object]:
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    kept = [
        (context, [(name, getattr(context, name)) for name in names], dict(context.traps), dict(context.flags))
        for context in (decimal.DefaultContext, decimal.BasicContext, decimal.ExtendedContext)
    ]

    def make_fresh() -> None:
        for context, fields, traps, flags in kept:
            for name, value in fields:
                setattr(context, name, value)
            context.traps, context.flags = traps, flags

    return make_fresh


def _typing(typing: Any) -> Callable[[], object]:
    lazy = getattr(
        typing, "_lazy_annotationlib", None
    )  # Python 3.14 and later put the module in its place at first use
    if lazy is not None:
        lazy.Format  # noqa: B018 -- the first use
    return _nothing


def _nothing() -> None:
    """Do nothing: the module holds nothing in C."""


_MAKERS = {"random": _random, "_struct": _struct, "decimal": _decimal, "typing": _typing}

_recursion_limit = sys.getrecursionlimit()
_int_digits = sys.get_int_max_str_digits()
_switch_s = sys.getswitchinterval()
_load = _core.vm_loader(_prepare_resets)
# The second one is always exceeded, so that a collection that `_core` asks for in a C function takes place (see
# src/vm/stop.cpp). Each then takes the first two generations, which costs nothing where the second one stays empty.
_THRESHOLDS = (2000, -1, 100)
