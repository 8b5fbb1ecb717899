"""Task VMs: an interpreter with its own GIL and thread per task (§4.3, Fig. 6), called from asyncio."""

import asyncio
import atexit
import inspect
import itertools
import marshal
import sysconfig
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import walle
import walle.engine_ext
from walle.engine_ext import _core
from walle.engine_ext.imports import ForbiddenImport
from walle.engine_ext.sources import TaskLike, read_sources, task_files
from walle.errors import VMError

type Host = Mapping[str, Callable[..., Any]]

GRACE_S = 0.25  # from the wish to stop a call to giving its VM up
_EXIT_S = 1.0  # how long the exiting process waits for busy VMs

# Runs in the new interpreter with `config` in its globals. The package's folder is on the path only while the package
# is found for the first time, so that what is installed beside walle stays out of reach.
_BOOT = """
import sys
sys.path[:] = config["stdlib"] + config["walle"]
sys.dont_write_bytecode = True
import walle.engine_ext
walle.engine_ext.__path__[:] = config["engine_ext"]
from walle.engine_ext.dispatch import Stopped, describe, dispatch, start
sys.path[:] = config["stdlib"]
start(config)
"""


class TaskError(VMError):
    """The task raised, or its result is no plain data. `traceback_text` names the task's files and lines."""

    def __init__(self, task: str, type_name: str, message: str, traceback_text: str) -> None:
        super().__init__(f"task {task}: {type_name}: {message}")
        self.task = task
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text


class DeadlineExceeded(VMError):  # noqa: N818 -- the public name of the design
    """The call ran longer than `limit_s` and was stopped; `place` is file:line of the task's code at that moment."""

    def __init__(self, task: str, limit_s: float, place: str) -> None:
        super().__init__(f"task {task} ran longer than {limit_s:g} s and was stopped at {place or 'its end'}")
        self.task = task
        self.limit_s = limit_s
        self.place = place


class VMClosedError(VMError):
    """The VM takes no calls: it was closed, abandoned after a call that did not stop, or could not start."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"task {task}: {reason}")
        self.task = task
        self.reason = reason


class _Call:
    """One call as its loop sees it."""

    def __init__(self, vm: "VM", host: Host | None, limit_s: float | None, future: asyncio.Future[Any]) -> None:
        self.vm = vm
        self.host = host or {}
        self.limit_s = limit_s
        self.future = future
        self.answering: asyncio.Task[None] | None = None


class _Desk:
    """One event loop's calls to VMs and its mailbox. It watches the mailbox only while calls are open."""

    def __init__(self) -> None:
        self._mailbox = _core.Mailbox()
        self._calls: dict[int, _Call] = {}

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "_Desk":
        desk = _desks.get(loop)
        if desk is None:
            desk = _desks[loop] = cls()
            loop.add_reader(desk._mailbox.fd, desk._drain)
        return desk

    async def call(
        self, vm: "VM", function: str, args: tuple[Any, ...], limit_s: float | None, host: Host | None
    ) -> Any:
        call_id = next(_call_ids)
        call = _Call(vm, host, limit_s, asyncio.get_running_loop().create_future())
        self._calls[call_id] = call
        try:
            vm._core.submit(self._mailbox, call_id, function, args, limit_s)
            return await call.future
        except asyncio.CancelledError:
            vm._core.cancel(call_id)
            raise
        finally:
            self._calls.pop(call_id, None)
            if call.answering is not None:
                call.answering.cancel()

    def _drain(self) -> None:
        for call_id, outcome, value, text in self._mailbox.drain():
            call = self._calls.get(call_id)
            if call is None or call.future.done():
                continue
            if outcome == "ask":
                call.answering = asyncio.ensure_future(self._answer(call_id, call, *value))
            elif outcome == "ok":
                call.future.set_result(value)
            else:
                call.future.set_exception(_error(call, outcome, value, text))

    async def _answer(self, call_id: int, call: _Call, name: str, args: tuple[Any, ...]) -> None:
        try:
            if name not in call.host:
                raise LookupError(f"the caller offers {sorted(call.host)}")  # noqa: TRY301 -- answered as any other
            answer = call.host[name](*args)
            if inspect.isawaitable(answer):
                answer = await answer
            call.vm._core.answer(call_id, answer, False)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the task's to handle
            call.vm._core.answer(call_id, (type(error).__name__, str(error)[:2000]), True)


_desks: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk]" = weakref.WeakKeyDictionary()
_call_ids = itertools.count(1)


def _error(call: _Call, outcome: str, value: Any, text: str) -> Exception:
    """Return the exception that a notice other than ok stands for."""
    task = call.vm.name
    if outcome == "deadline":
        return DeadlineExceeded(task, call.limit_s or 0.0, text)
    if outcome == "not_plain":
        return TaskError(task, "TypeError", text, "")
    if outcome == "failed":
        if value is None:
            return TaskError(task, text.partition(":")[0], text, "")
        if "forbidden" in value:
            return ForbiddenImport(*value["forbidden"])
        return TaskError(task, value["type"], value["message"], value["traceback"])
    return VMClosedError(task, text or "the VM was closed")


def _stdlib_paths() -> list[str]:
    stdlib = sysconfig.get_path("stdlib")
    zipped = str(Path(stdlib).parent / f"python{sysconfig.get_config_var('py_version_nodot')}.zip")
    return [path for path in (zipped, stdlib, str(Path(stdlib) / "lib-dynload")) if Path(path).exists()]


class VM:
    """One task's interpreter: own GIL, own thread. `task` is a folder with main.pyc or main.py, or a bundle.

    The constructor reads and checks the task's code and returns while the interpreter starts on its thread. Calls may
    come from any event loop and run in order, one at a time. Dropping the last reference closes the VM.

    Raises:
        BytecodeError: a file of the task does not compile, or is another Python's bytecode.
        VMError: too many abandoned VMs are still busy.
    """

    def __init__(self, task: TaskLike, *, name: str = "", grace_s: float = GRACE_S) -> None:
        files = task_files(task, name)
        self.name = files.name
        sources = read_sources(files)
        config = {
            "name": files.name,
            "folder": str(files.folder or ""),
            "files": {path: bytes(data) for path, data in files.files.items() if not path.endswith((".py", ".pyc"))},
            "modules": sources,
            "stdlib": _stdlib_paths(),
            "walle": [str(Path(path).parent) for path in walle.__path__],
            "engine_ext": _ENGINE_PATHS,
        }
        try:
            self._core = _core.VM(files.name, _BOOT_CODE, config, {file for _, file, _ in sources.values()}, grace_s)
        except RuntimeError as error:
            raise VMError(f"task {files.name}: {error}") from error

    async def call(self, function: str, *args: Any, deadline: float | None = None, host: Host | None = None) -> Any:
        """Return the result of a function of the task's `main`, or of "walle.module:name".

        Arguments and result are plain data and arrays; arrays cross without a copy and arrive as `Tensor`.
        `deadline` is in seconds from when the call begins to run. `host` maps names to functions, plain or async, that
        run in this event loop when the task calls `walle.engine_ext.host.call(name, *args)`. A caller that is
        cancelled stops its call; the VM goes on with the next.

        Raises:
            TaskError: the task raised, or its result is no plain data.
            DeadlineExceeded: the call was stopped. Where it did not stop in time, the VM is no longer alive.
            ForbiddenImport: the task imports what it may not.
            VMClosedError: the VM takes no calls.
            TypeError: an argument is no plain data.
        """
        desk = _Desk.of(asyncio.get_running_loop())
        return await desk.call(self, function, args, deadline, host)

    def close(self) -> None:
        """Stop what runs, refuse what waits, and let the thread end; returns at once."""
        self._core.close()

    async def wait_closed(self, timeout: float = 5.0) -> bool:  # noqa: ASYNC109 -- waits on a thread, not in the loop
        """Return whether the VM's thread has ended within `timeout` seconds after `close`."""
        return await asyncio.to_thread(self._core.join, timeout)

    @property
    def alive(self) -> bool:
        return self._core.alive

    @property
    def calls(self) -> int:
        """Calls that have run."""
        return self._core.calls

    @property
    def create_ms(self) -> float:
        """How long the interpreter took to start, in ms; 0 until it has."""
        return self._core.create_ms


_BOOT_CODE = marshal.dumps(compile(_BOOT, "<walle boot>", "exec"))
_ENGINE_PATHS = list(dict.fromkeys([*walle.engine_ext.__path__, str(Path(_core.__file__).parent)]))

_core.vm_set_empty_site(marshal.dumps(compile("", "site", "exec")))
atexit.register(_core.vm_shut_down, _EXIT_S)
