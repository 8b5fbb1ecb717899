"""The Python end of a VM: finds the function of each call, and turns an exception into plain data.

Runs inside a VM, started by the boot code (`walle.engine_ext.vm.boot`). It imports little: every VM pays for it.
"""

from __future__ import annotations

import gc
import sys

from walle.engine_ext import _core, lazy
from walle.engine_ext._core import Stopped
from walle.engine_ext.vm import reset, sandbox
from walle.engine_ext.vm.imports import ForbiddenImport, TaskModules
from walle.engine_ext.vm.reset import load_shared

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

_MESSAGE_CHARS = 2_000
_TRACEBACK_FRAMES = 40
_CHAIN = 4
_FRAMES_BELOW = 20  # of the runtime, below a task's own


class Task:
    """The task that this VM runs. `folder` is empty where the task's files are only in memory, in `files`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name: str = config["name"]
        self.folder: str = config["folder"]
        self.files: Mapping[str, bytes] = config["files"]
        self._modules = TaskModules(config["modules"])

    def main(self) -> ModuleType:
        """Return the module `main`, loaded at its first use."""
        return self._modules.load("main")

    def clear(self) -> None:
        """Forget the task's modules and what they hold."""
        self._modules.clear()


_tasks: list[Task] = []  # the VM's one task, while it has one


def task() -> Task:
    """Return this VM's task."""
    return _tasks[0]


class Output:
    """What a VM has for sys.stdout and sys.stderr: text goes to the process's own, or where the running call wants it.

    All that a call writes or logs counts; beyond the task's log_kb the call is stopped. Where no task is in, or one is
    being wiped, text goes nowhere.
    """

    encoding = "utf-8"

    def __init__(self) -> None:
        self.is_mute = True
        self.most_chars = 0  # 0: no limit
        self.spent_chars = 0
        self.line: Callable[[str], None] | None = None  # takes what is printed, line by line
        self._begun = ""

    def spend(self, chars: int) -> None:
        """Count text of the running call.

        Raises:
            Stopped: it was too much.
        """
        self.spent_chars += chars
        if 0 < self.most_chars < self.spent_chars:
            _break_limit("log_kb")

    def write(self, text: str) -> int:
        if type(text) is not str:  # a subclass could say what it likes of itself
            text = str.__str__(text)
        if self.is_mute:
            return len(text)
        self.spend(len(text))
        if self.line is None:
            _stdout.write(text)
            _stdout.flush()  # nobody else does when the process ends
            return len(text)
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self.line(line)
        return len(text)

    def end_line(self) -> None:
        """Hand over the line that was begun and not ended."""
        begun, self._begun = self._begun, ""
        if begun and self.line is not None:
            self.line(begun)

    def flush(self) -> None:
        """Do nothing: a write leaves nothing behind."""

    def isatty(self) -> bool:
        return False

    def open(self, most_chars: int) -> None:
        """Take what a task writes, so much of it in a call."""
        self.is_mute, self.most_chars = False, most_chars

    def clear(self) -> None:
        """Forget the task that leaves; whatever its finalizers write goes nowhere."""
        self.is_mute = True
        self.line, self._begun, self.spent_chars, self.most_chars = None, "", 0, 0


_break_limit = _core.vm_break_limit
_stdout: Any = sys.stdout
output = Output()

_functions: dict[str, Callable[..., Any]] = {}  # what calls have named so far


def dispatch(name: str, args: tuple[Any, ...]) -> Any:
    """Run one call."""
    output.spent_chars = 0
    function = _functions.get(name)
    if function is None:
        function = _functions[name] = find(name)
    return function(*args)


def find(name: str) -> Callable[..., Any]:
    """Return the function of `main` by its name, or that of a walle module as "walle.module:name"."""
    module_name, _, function_name = name.rpartition(":")
    if module_name and not module_name.startswith("walle."):
        raise AttributeError(f"{name!r} is neither a function of main nor of a walle module")
    module = load_shared(module_name) if module_name else task().main()
    function = getattr(module, function_name, None)
    if not callable(function):
        raise AttributeError(f"{module.__name__} has no function {function_name!r}")  # noqa: TRY004 -- as for any name
    return function  # type: ignore[no-any-return]


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARS]
    except Stopped:
        raise
    except BaseException as other:  # noqa: BLE001 -- a task's __str__ may raise anything
        return f"(its text cannot be had: {type(other).__name__})"


def _traceback(error: BaseException) -> str:
    """Return the error's traceback as Python prints it, without source lines: `traceback` costs a VM a megabyte."""
    lines: list[str] = []
    shown: BaseException | None = error
    for _ in range(_CHAIN):
        if shown is None:
            break
        frames = []
        step = shown.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename not in _OWN_FILES:
                code = step.tb_frame.f_code
                frames.append(f'  File "{code.co_filename}", line {step.tb_lineno}, in {code.co_name}')
            step = step.tb_next
        if len(frames) > _TRACEBACK_FRAMES:
            half = _TRACEBACK_FRAMES // 2
            frames[half:-half] = [f"  [{len(frames) - 2 * half} more frames]"]
        text = ["Traceback (most recent call last):", *frames, f"{type(shown).__name__}: {_message(shown)}"]
        lines[:0] = [*text, "", "which led to:", ""] if lines else text
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return "\n".join(lines)


def describe(error: BaseException) -> dict[str, Any]:
    """Return the error as plain data for the caller's side."""
    description: dict[str, Any] = {
        "type": type(error).__name__,
        "message": _message(error),
        "traceback": _traceback(error),
    }
    if type(error) is ForbiddenImport:
        description["forbidden"] = (error.module, error.file, error.line)
    return description


def start(config: Mapping[str, Any]) -> None:
    """Take a task in, the VM's only one until it is wiped."""
    limits = config["limits"]
    sys.setrecursionlimit(limits.get("recursion", sys.getrecursionlimit()) + _FRAMES_BELOW)
    output.open(limits.get("log_kb", 0) << 10)
    _tasks.append(Task(config))


def wipe() -> None:
    """Let go of all that is the task's; its finalizers run here, and may be stopped. C++ puts the rest back."""
    output.clear()
    reset.reset()  # before the rest, as it takes the task's hooks off what follows
    _functions.clear()
    for one in _tasks:
        one.clear()
    _tasks.clear()
    gc.collect()


def settle() -> None:
    """Make this interpreter a home for tasks, once."""
    sys.unraisablehook = _core.vm_unraisable
    sys.stdout = sys.stderr = output
    vars(sys).update(__stdout__=None, __stderr__=None)  # where an interpreter that ends would write
    sys.stdin = None
    gc.callbacks.append(_core.vm_rest)
    lazy.load = load_shared
    sandbox.put_up()


def ready() -> None:
    """Do nothing: a call that shows that the VM is there."""


freeze = gc.freeze
_OWN_FILES = frozenset({__file__, TaskModules.load.__code__.co_filename})
