"""Task VMs: an interpreter with its own GIL and thread for each task (§4.3, Fig. 6), and a pool that bounds them."""

import asyncio
import atexit
import collections
import marshal
import sysconfig
import threading
from pathlib import Path
from typing import Any

import walle
import walle.engine_ext
from walle.engine_ext import _core
from walle.engine_ext.desk import DeadlineExceeded, Desk, Host, TaskError, VMClosedError
from walle.engine_ext.sources import TaskFiles, TaskLike, read_sources, task_files
from walle.errors import ConfigError, VMError

__all__ = ["VM", "DeadlineExceeded", "Host", "TaskError", "VMClosedError", "VMPool"]

GRACE_S = 0.25  # from the wish to stop a call to giving its VM up
_EXIT_S = 1.0  # how long the exiting process waits for busy VMs

# Runs in each new interpreter with `paths` in its globals. The package's folder is on the path only while the package
# is found for the first time, so that what is installed beside walle stays out of reach.
_BOOT = """
import sys
sys.path[:] = paths["stdlib"] + paths["walle"]
sys.dont_write_bytecode = True
import walle.engine_ext
walle.engine_ext.__path__[:] = paths["engine_ext"]
from walle.engine_ext.dispatch import Stopped, describe, dispatch, freeze, start, thaw, wipe
sys.path[:] = paths["stdlib"]
"""


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
        }
        try:
            self._core = _core.VM(files.name, config, {file for _, file, _ in sources.values()}, grace_s)
        except RuntimeError as error:
            raise VMError(f"task {files.name}: {error}") from error

    async def call(self, function: str, *args: Any, deadline: float | None = None, host: Host | None = None) -> Any:
        """Return the result of a function of the task's `main`, or of "walle.module:name".

        Arguments and result are plain data and arrays; arrays cross without a copy and arrive as `walle.np.ndarray`.
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
        desk = Desk.of(asyncio.get_running_loop())
        return await desk.call(self._core, self.name, function, args, deadline, host)

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


class _Entry:
    """A task's VM. Holds the task, because the key of one in memory is its identity, which must not be given anew."""

    def __init__(self, vm: VM, task: TaskFiles) -> None:
        self.vm = vm
        self.task = task
        self.users = 0


type _Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class VMPool:
    """At most `size` VMs, each for one task; calls of one task share its VM and follow one another.

    May be used from any event loop and thread. A VM that was abandoned is replaced at its task's next call.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"a pool of {size} VMs runs nothing; give 1 or more")
        self._size = size
        self._lock = threading.Lock()
        self._entries: collections.OrderedDict[str | int, _Entry] = (
            collections.OrderedDict()
        )  # least recently used first
        self._waiters: collections.deque[_Waiter] = collections.deque()
        self._closed = False

    async def call(
        self, task: TaskLike, function: str, *args: Any, deadline: float | None = None, host: Host | None = None
    ) -> Any:
        """As `VM.call`, in the task's VM; waits for room while every VM is another task's and busy."""
        entry = await self._acquire(task_files(task), task)
        try:
            return await entry.vm.call(function, *args, deadline=deadline, host=host)
        finally:
            self._release(entry)

    def close(self) -> None:
        """Close every VM; later calls raise VMClosedError."""
        with self._lock:
            self._closed = True
            for entry in self._entries.values():
                entry.vm.close()
            self._entries.clear()
            while self._waiters:
                self._wake_one()

    def __len__(self) -> int:
        return len(self._entries)

    async def _acquire(self, files: TaskFiles, task: TaskLike) -> _Entry:
        while True:
            loop = asyncio.get_running_loop()
            with self._lock:
                try:
                    entry = self._take(files, task)
                except BaseException:
                    self._wake_one()  # the room that this one may have been woken for is another's
                    raise
                if entry is not None:
                    return entry
                waiter: _Waiter = (loop, loop.create_future())
                self._waiters.append(waiter)
            try:
                await waiter[1]
            except asyncio.CancelledError:
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
                    else:
                        self._wake_one()  # the room that this one was woken for is another's
                raise

    def _take(self, files: TaskFiles, task: TaskLike) -> _Entry | None:
        """Return the task's entry with one user more, or None where there is no room. Under the lock."""
        key = files.key
        if self._closed:
            raise VMClosedError(str(key), "the pool is closed")
        entry = self._entries.get(key)
        if entry is not None and not entry.vm.alive:
            del self._entries[key]
            entry = None
        if entry is None:
            if len(self._entries) >= self._size:
                idle = next((other for other, one in self._entries.items() if one.users == 0), None)
                if idle is None:
                    return None
                self._entries.pop(idle).vm.close()
            entry = self._entries[key] = _Entry(VM(task), files)
        self._entries.move_to_end(key)
        entry.users += 1
        return entry

    def _release(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            if entry.users == 0:
                self._wake_one()

    def _wake_one(self) -> None:
        """Under the lock."""
        while self._waiters:
            loop, future = self._waiters.popleft()
            try:
                loop.call_soon_threadsafe(_set_done, future)
            except RuntimeError:
                continue  # its loop is closed, and with it the one who waited
            return


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_PATHS = {
    "stdlib": _stdlib_paths(),
    "walle": [str(Path(path).parent) for path in walle.__path__],
    "engine_ext": list(dict.fromkeys([*walle.engine_ext.__path__, str(Path(_core.__file__).parent)])),
}

_core.vm_set_empty_site(marshal.dumps(compile("", "site", "exec")))
_core.vm_set_boot(marshal.dumps(compile(_BOOT, "<walle boot>", "exec")), _PATHS)
atexit.register(_core.vm_shut_down, _EXIT_S)
