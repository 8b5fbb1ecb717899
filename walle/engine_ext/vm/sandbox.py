"""Sandbox of an interpreter: removes the functions with which a task could end or change the process.

Every interpreter has its own `posix` module, so that names can be removed from it here without effect elsewhere. The C
modules that act on the process (signals, fault handlers, foreign functions, sockets) cannot be loaded in a VM at all.
A task has no ordinary way to these modules; this is for code that reaches them through frames and globals.
"""

from __future__ import annotations

import sys

from walle.engine_ext import _core

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from types import ModuleType

# What the library's own modules call to find and read files, and for random seeds.
_POSIX_KEPT = frozenset(
    {"access", "cpu_count", "fspath", "fstat", "getcwd", "getpid", "listdir", "lstat", "readlink", "scandir", "stat",
     "strerror", "urandom", "get_terminal_size", "_have_functions"}
)  # fmt: skip

# Modules in C that may be loaded in a VM: those that the allowed library modules need. Whether one is a file or part of
# the interpreter depends on the distribution. Those that a VM begins with (`posix`, `_thread`, `_imp`, ...) are loaded
# already, and cannot be loaded a second time.
_LOADABLE = frozenset(
    {"_ast", "_bisect", "_blake2", "_codecs", "_collections", "_contextvars", "_csv", "_datetime", "_decimal",
     "_functools", "_hashlib", "_heapq", "_json", "_md5", "_opcode", "_operator", "_pickle", "_random", "_sha1",
     "_sha2", "_sha3", "_sre", "_stat", "_statistics", "_string", "_struct", "_suggestions", "_tokenize", "_types",
     "_typing", "_zoneinfo", "array", "atexit", "binascii", "cmath", "errno", "itertools", "math", "time",
     "unicodedata", "zlib"}
)  # fmt: skip

# Functions of `_thread` that act on the main thread or outlive the task.
_THREAD_REMOVED = ("interrupt_main", "stack_size", "set_name")

# Functions that change settings of the interpreter or the process which no reset could see or undo.
_SETTINGS_REMOVED = {
    "_imp": ("_override_frozen_modules_for_tests", "_override_multi_interp_extensions_check"),
    "sys": ("activate_stack_trampoline", "addaudithook", "deactivate_stack_trampoline"),
    "time": ("clock_settime", "clock_settime_ns"),
}

# Names of the native core that create or end VMs, take long, or belong to the process: rates of backends, counts.
_CORE_REMOVED = (
    "VM", "HostClient", "HostServer", "ReplyQueue", "enter_sandbox", "live_storage_bytes", "measure_rates",
    "peak_gflops", "performance_model", "predicted_times", "set_performance_model", "set_rates",
)  # fmt: skip
_CORE_KEPT = frozenset({"vm_sleep", "vm_snapshot_size", "vm_used_bytes"})  # kept, though they begin with vm_


def install() -> None:
    """Remove the functions from this interpreter, once, before its first task."""
    _prune(sys.modules["posix"])
    for name in _THREAD_REMOVED:
        vars(sys.modules["_thread"]).pop(name, None)
    for module, names in _SETTINGS_REMOVED.items():
        for name in names:
            vars(sys.modules[module]).pop(name, None)
    importer = sys.modules["_imp"]
    importer._fix_co_filename = _keep_file_name  # type: ignore[attr-defined]
    for loader in ("create_builtin", "create_dynamic"):
        setattr(importer, loader, _core.vm_restrict_loader(getattr(importer, loader), _LOADABLE))
    _core.vm_protect_types()
    for name in list(vars(_core)):
        if name in _CORE_REMOVED or (name.startswith("vm_") and name not in _CORE_KEPT):
            delattr(_core, name)


def _keep_file_name(code: object, path: str) -> None:
    """Do nothing: the library's code keeps the file that it was compiled from, and no task can give it another."""


def _prune(posix: ModuleType) -> None:
    for name, value in list(vars(posix).items()):
        is_kept = name in _POSIX_KEPT or name.startswith(("_path_", "__"))
        if callable(value) and not isinstance(value, type) and not is_kept:
            delattr(posix, name)
