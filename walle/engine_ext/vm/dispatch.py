"""Dispatch of calls inside a VM: the function of each call, output, and exceptions as plain data.

Runs inside a VM, started by the boot code (`walle.engine_ext.vm.boot`). It imports little: every VM pays for it.
"""

from __future__ import annotations

import gc
import sys

from walle.engine_ext import _core, lazy
from walle.engine_ext._core import Stopped
from walle.engine_ext.vm import sandbox
from walle.engine_ext.vm.imports import INSTEAD_OF_BUILTINS, ForbiddenImport, TaskModules
from walle.engine_ext.vm.reset import load_shared, reset_c_state

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

_MESSAGE_CHARS = 2_000
_NAME_CHARS = 200
_TRACEBACK_FRAMES = 40
_CHAINED_ERRORS = 4
_RUNTIME_FRAMES = 20  # below a task's own


class Task:
    """The task that this VM runs. `folder` is empty where the task's files are only in memory, in `files`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name: str = config["name"]
        self.folder: str = config["folder"]
        self.files: Mapping[str, bytes] = config["files"]
        self._modules = TaskModules(config["modules"])

    def main(self) -> ModuleType:
        """Return the module `main`; the first use loads it."""
        return self._modules.load("main")

    def load_named_parts(self) -> None:
        """Load what the code of the loaded modules would load at its first use, as far as names tell."""
        self._modules.load_named_parts()

    def mentions(self, text: str) -> bool:
        """Return whether the code of the loaded modules has this text as a constant."""
        return self._modules.mentions(text)

    def has_file(self, file: str) -> bool:
        """Return whether a module of the task is from this file, as tracebacks name it."""
        return self._modules.has_file(file)

    def clear(self) -> None:
        """Remove the task's modules and what they refer to."""
        self._modules.clear()


_tasks: list[Task] = []  # the VM's one task; empty while the interpreter is idle


def task() -> Task:
    """Return this VM's task."""
    return _tasks[0]


class Output:
    """sys.stdout and sys.stderr of a VM: text goes to the process's own, or to the running call's `line`.

    All that a call writes or logs counts; beyond the task's log_kb the call is stopped. Text is dropped while the VM
    has no task, or is being reset.
    """

    encoding = "utf-8"

    def __init__(self) -> None:
        self.is_mute = True
        self.max_chars = 0  # 0: no limit
        self.spent_chars = 0
        self.line: Callable[[str], None] | None = None  # receives what is printed, line by line
        self._partial_line = ""

    def spend(self, chars: int) -> None:
        """Count text of the running call.

        Raises:
            Stopped: the call exceeded log_kb.
        """
        self.spent_chars += chars
        if 0 < self.max_chars < self.spent_chars:
            _exceed_limit("log_kb")

    def write(self, text: str) -> int:
        if type(text) is not str:  # a subclass's methods could return anything
            text = str.__str__(text)
        if self.is_mute:
            return len(text)
        self.spend(len(text))
        if self.line is None:
            _stdout.write(text)
            _stdout.flush()  # the process ends without flushing it
            return len(text)
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self.line(line)
        return len(text)

    def end_line(self) -> None:
        """Pass on the partial line."""
        partial, self._partial_line = self._partial_line, ""
        if partial and self.line is not None:
            self.line(partial)

    def flush(self) -> None:
        """Do nothing: a write is never buffered."""

    def isatty(self) -> bool:
        return False

    def open(self, max_chars: int) -> None:
        """Accept what a task writes, up to `max_chars` in a call."""
        self.is_mute, self.max_chars = False, max_chars

    def clear(self) -> None:
        """Drop the task's settings and, from now on, all text: that of its finalizers."""
        self.is_mute = True
        self.line, self._partial_line, self.spent_chars, self.max_chars = None, "", 0, 0


def _stdout_state() -> tuple[object, ...]:
    """Return what a task could change of the process's output, which is an object in C."""
    stream = _stdout
    if stream is None or getattr(stream, "closed", False):
        return ()
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        descriptor = None  # outside VMs a program may have another one, such as a notebook's
    names = ("encoding", "errors", "newlines", "line_buffering", "write_through")
    return descriptor, *(getattr(stream, name, None) for name in names)


_exceed_limit = _core.vm_exceed_limit
enter_phase = _core.vm_enter_phase  # (phase, code): what the device reads where the VM's process ends
_stdout: Any = sys.stdout
_stdout_at_boot = _stdout_state()
output = Output()

_functions: dict[str, Callable[..., Any]] = {}  # functions that calls have named so far


def dispatch(name: str, args: tuple[Any, ...]) -> Any:
    """Run one call."""
    output.spent_chars = 0
    function = _functions.get(name)
    if function is None:
        function = _functions[name] = find(name)
    return function(*args)


def find(name: str) -> Callable[..., Any]:
    """Return the function of `main` of this name, or of a walle module for "walle.module:name"."""
    module_name, _, function_name = name.rpartition(":")
    if module_name and not module_name.startswith("walle."):
        raise AttributeError(f"{name!r} is neither a function of main nor of a walle module")
    module = load_shared(module_name) if module_name else task().main()
    function = getattr(module, function_name, None)
    if not callable(function):
        raise AttributeError(f"{module.__name__} has no function {function_name!r}")  # noqa: TRY004 -- as for any name
    return function  # type: ignore[no-any-return]


def _printable(text: str) -> str:
    """Return a text without lone surrogates, which do not cross."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        hint = INSTEAD_OF_BUILTINS.get(str(error.name)) if type(error) is NameError else None
        return _printable(f"{error}; {hint}"[:_MESSAGE_CHARS] if hint else str(error)[:_MESSAGE_CHARS])
    except Stopped:
        raise
    except BaseException as other:  # noqa: BLE001 -- a task's __str__ may raise anything
        return f"(its text could not be read: {type(other).__name__})"


def _traceback(error: BaseException) -> str:
    """Return the error's traceback as Python prints it, from the task's first frame on, without source lines.

    The module `traceback` would cost a VM a megabyte.
    """
    lines: list[str] = []
    shown: BaseException | None = error
    for _ in range(_CHAINED_ERRORS):
        if shown is None:
            break
        frames = []
        is_runtime = _has_own_frame(shown)  # the frames between the call and the task's own code
        step = shown.__traceback__
        while step is not None:
            code = step.tb_frame.f_code
            is_runtime = is_runtime and not _is_own(code.co_filename)
            if not is_runtime and code.co_filename not in _OWN_FILES:
                file, name = code.co_filename[:_NAME_CHARS], code.co_name[:_NAME_CHARS]  # the task may have set both
                frames.append(f'  File "{file}", line {step.tb_lineno}, in {name}')
            step = step.tb_next
        if len(frames) > _TRACEBACK_FRAMES:
            half = _TRACEBACK_FRAMES // 2
            frames[half:-half] = [f"  [{len(frames) - 2 * half} more frames]"]
        text = ["Traceback (most recent call last):", *frames, f"{type(shown).__name__}: {_message(shown)}"]
        lines[:0] = [*text, "", "which led to:", ""] if lines else text
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return "\n".join(lines)


def _is_own(file: str) -> bool:
    return bool(_tasks) and task().has_file(file)


def _has_own_frame(error: BaseException) -> bool:
    step = error.__traceback__
    while step is not None:
        if _is_own(step.tb_frame.f_code.co_filename):
            return True
        step = step.tb_next
    return False


def _place(error: BaseException) -> str:
    """Return "file:line in function" of the innermost frame of the task's own code, "" where there is none."""
    found = ""
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if _is_own(code.co_filename):
            found = f"{code.co_filename[:_NAME_CHARS]}:{step.tb_lineno} in {code.co_name[:_NAME_CHARS]}"
        step = step.tb_next
    return found


def describe(error: BaseException) -> dict[str, Any]:
    """Return the error as plain data for the caller's side."""
    description: dict[str, Any] = {
        "type": _printable(type(error).__name__[:_NAME_CHARS]),
        "message": _message(error),
        "traceback": _printable(_traceback(error)),
        "place": _printable(_place(error)),
    }
    if type(error) is ForbiddenImport:
        description["forbidden"] = (_printable(error.module), _printable(error.file), error.line)
    return description


def start(config: Mapping[str, Any]) -> None:
    """Set the VM's task, the only one until the VM is reset."""
    limits = config["limits"]
    sys.setrecursionlimit(limits.get("recursion", sys.getrecursionlimit()) + _RUNTIME_FRAMES)
    output.open(limits.get("log_kb", 0) << 10)
    _tasks.append(Task(config))


def reset() -> None:
    """Release all that is the task's; its finalizers run here, and may be stopped. C++ restores the rest.

    Raises:
        RuntimeError: the task closed or changed the process's output.
        ValueError: it detached it.
    """
    output.clear()
    reset_c_state()  # first, because it removes the task's hooks from what follows
    _functions.clear()
    for one in _tasks:
        one.clear()
    _tasks.clear()
    gc.collect()
    reset_c_state()  # again, because finalizers ran
    if _stdout_state() != _stdout_at_boot:
        raise RuntimeError("the task closed or changed the output of its VM")


def prepare() -> None:
    """Prepare this interpreter for tasks, once."""
    sys.unraisablehook = _core.vm_report_unraisable
    sys.stdout = sys.stderr = output
    vars(sys).update(__stdout__=None, __stderr__=None)  # an interpreter that ends would write to them
    sys.stdin = None
    gc.callbacks.append(_core.vm_park_if_abandoned)
    lazy.load = load_shared
    sandbox.install()


def ready() -> None:
    """Do nothing: a call of this returns once the VM has started."""


freeze = gc.freeze
_OWN_FILES = frozenset({__file__, TaskModules.load.__code__.co_filename})
