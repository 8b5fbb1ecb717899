"""Reset of a VM, the part in Python: modules that stay for later tasks, and state in C that no snapshot sees.

Runs inside a VM. The library modules that tasks import are loaded once in an interpreter and shared by the tasks that
follow one another there. `_core` takes a snapshot of them when they are loaded (src/vm/snapshot.h) and restores it when
a task ends; the state that they hold in C is reset here.
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

_resets: dict[str, Callable[[], object]] = {}  # module name → function that resets its state in C


def load_shared(name: str) -> ModuleType:
    """Return the module of this full name, loaded so that it stays when the present task ends.

    It is loaded whole or not at all: a stop of the call waits until it is loaded. The time does not count against the
    call's deadline.

    Raises:
        ImportError: the module does not exist, or fails to load.
        Stopped: the call was stopped before or meanwhile.
    """
    if name not in sys.modules:
        _load(name)
    return sys.modules[name]


def _prepare_resets() -> None:
    """Prepare to reset what newly loaded modules hold in C; part of each load."""
    for name, make_reset in _RESET_MAKERS.items():
        if name in sys.modules and name not in _resets:
            _resets[name] = make_reset(sys.modules[name])


def reset_c_state() -> None:
    """Reset what the interpreter and its modules hold in C."""
    sys.set_asyncgen_hooks(None, None)
    sys.set_coroutine_origin_tracking_depth(0)
    sys.setrecursionlimit(_recursion_limit)
    sys.set_int_max_str_digits(_int_digits)
    sys.setswitchinterval(_switch_s)
    sys.setdlopenflags(_dlopen_flags)
    gc.enable()
    gc.set_debug(0)
    gc.set_threshold(*_THRESHOLDS)
    atexit = sys.modules.get("atexit")
    if atexit is not None:
        atexit._clear()
    for reset_module in _resets.values():
        reset_module()


def _random(random: Any) -> Callable[[], object]:
    return random.seed  # type: ignore[no-any-return]


def _struct(struct: Any) -> Callable[[], object]:
    return struct._clearcache  # type: ignore[no-any-return]


def _re(re: Any) -> Callable[[], object]:
    re.sub("(.)", r"\1", "a")  # `_sre` keeps the function that it calls first, which no task may choose
    re.purge()
    return _nothing


def _array(array: Any) -> Callable[[], object]:
    array.array("b").__reduce_ex__(3)  # the module keeps the function that it calls first
    return _nothing


def _decimal(decimal: Any) -> Callable[[], object]:
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    saved = [
        (context, [(name, getattr(context, name)) for name in names], dict(context.traps), dict(context.flags))
        for context in (decimal.DefaultContext, decimal.BasicContext, decimal.ExtendedContext)
    ]

    def restore() -> None:
        for context, fields, traps, flags in saved:
            for name, value in fields:
                setattr(context, name, value)
            context.traps, context.flags = traps, flags

    return restore


def _typing(typing: Any) -> Callable[[], object]:
    lazy = getattr(typing, "_lazy_annotationlib", None)  # replaced by the module at first use, since Python 3.14
    if lazy is not None:
        lazy.Format  # noqa: B018 -- the first use
    return _nothing


def _nothing() -> None:
    """Do nothing: the module holds nothing in C that a task can change."""


_RESET_MAKERS = {
    "random": _random, "_struct": _struct, "decimal": _decimal, "typing": _typing, "re": _re, "array": _array,
}  # fmt: skip

_recursion_limit = sys.getrecursionlimit()
_int_digits = sys.get_int_max_str_digits()
_switch_s = sys.getswitchinterval()
_dlopen_flags = sys.getdlopenflags()
_load = _core.vm_module_loader(_prepare_resets)
# The second one is always exceeded, so that a collection that `_core` requests in a C function takes place (see
# src/vm/task_vm_stop.cpp). Each then covers the first two generations, which costs nothing where the second is empty.
_THRESHOLDS = (2000, -1, 100)
