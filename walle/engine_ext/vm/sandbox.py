"""What an interpreter loses before tasks move in: the functions with which a task could end or change the process.

Every interpreter has its own `posix` module, so that names can be taken out of it here and nowhere else; the C modules
that act on the process (signals, fault handlers, foreign functions, sockets) cannot be made in a VM at all. A task has
no ordinary way to these modules; this is for code that walks there through frames and globals.
"""

from __future__ import annotations

import sys

from walle.engine_ext import _core

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from types import ModuleType

# What the library's own modules call when they find and read files, and for random seeds.
_POSIX_KEPT = frozenset(
    {"access", "cpu_count", "fspath", "fstat", "getcwd", "getpid", "listdir", "lstat", "readlink", "scandir", "stat",
     "strerror", "urandom", "get_terminal_size", "_have_functions"}
)  # fmt: skip

# Of the modules in C, those that may be made in a VM: what the allowed library modules need. Which of them are files,
# and which are part of the interpreter, is as a distribution builds it. Those that a VM begins with (`posix`,
# `_thread`, `_imp`, ...) are there already, and are not made anew as a whole.
_NATIVE_KEPT = frozenset(
    {"_ast", "_bisect", "_blake2", "_codecs", "_collections", "_contextvars", "_csv", "_datetime", "_decimal",
     "_functools", "_hashlib", "_heapq", "_json", "_md5", "_opcode", "_operator", "_pickle", "_random", "_sha1",
     "_sha2", "_sha3", "_sre", "_stat", "_statistics", "_string", "_struct", "_suggestions", "_tokenize", "_types",
     "_typing", "_zoneinfo", "array", "atexit", "binascii", "cmath", "errno", "itertools", "math", "time",
     "unicodedata", "zlib"}
)  # fmt: skip

# Of `_thread`, what reaches the main thread or outlives the task.
_THREAD_REFUSED = ("interrupt_main", "stack_size", "set_name")

# Of the native core, what makes and ends VMs, burns time or is the process's: rates of backends, counts.
_CORE_REFUSED = ("VM", "Mailbox", "live_storage_bytes", "measure_rates", "peak_gflops", "set_rates")
_CORE_KEPT = frozenset({"vm_sleep", "vm_pristine", "vm_used_bytes"})  # of what begins with vm_


def put_up() -> None:
    """Fence this interpreter in, once, before its first task."""
    _prune(sys.modules["posix"])
    for name in _THREAD_REFUSED:
        vars(sys.modules["_thread"]).pop(name, None)
    importer = sys.modules["_imp"]
    for maker in ("create_builtin", "create_dynamic"):
        setattr(importer, maker, _core.vm_guard(getattr(importer, maker), _NATIVE_KEPT))
    _core.vm_seal()
    for name in list(vars(_core)):
        if name in _CORE_REFUSED or (name.startswith("vm_") and name not in _CORE_KEPT):
            delattr(_core, name)


def _prune(posix: ModuleType) -> None:
    for name, value in list(vars(posix).items()):
        is_kept = name in _POSIX_KEPT or name.startswith(("_path_", "__"))
        if callable(value) and not isinstance(value, type) and not is_kept:
            delattr(posix, name)
