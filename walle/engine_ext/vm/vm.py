"""Task VM: an interpreter with its own GIL and thread for one task (§4.3, Fig. 6)."""

import asyncio
import atexit
import os
from collections.abc import Mapping
from typing import Any

from walle.engine_ext import _core, rates
from walle.engine_ext.vm import boot
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.host import NextHost, VmHost, VmSettings
from walle.engine_ext.vm.loop_calls import LoopCalls, forget_loop_calls
from walle.engine_ext.vm.memory_tracing import check_untraced, guard_tracemalloc
from walle.engine_ext.vm.sources import TaskLike, read_sources, task_files
from walle.errors import ConfigError, VMError

GRACE_S = 0.25  # time from the request to stop a call until its VM is abandoned
_EXIT_S = 1.0  # how long the exiting process waits for busy VMs


class VM:
    """One task's interpreter: own GIL, own thread. `task` is a folder with main.pyc or main.py, or a bundle.

    The constructor reads and checks the task's code and returns while the interpreter starts on its thread. Calls may
    come from any event loop and run in order, one at a time. Dropping the last reference closes the VM.

    `limits`, those of the task where they are not given, are keys of task.toml's [limits]: memory_mb, output_kb, log_kb
    and recursion. A missing key means no limit. The deadline belongs to each call.

    Without a `host` the interpreter is in this process, and a task that breaks out of Python (by bytecode, or through
    the objects of the interpreter) reaches all that the process has, and can crash it. In a host it reaches neither.
    With `alone` it has a separate process there, for a task that may have ended the host.

    Raises:
        BytecodeError: a file of the task does not compile, or is bytecode of another Python.
        VMError: too many abandoned VMs are still busy, a resource cannot be opened for the host, or `host` is None
            while tracemalloc traces this process.
    """

    def __init__(
        self,
        task: TaskLike,
        *,
        name: str = "",
        limits: Mapping[str, int] | None = None,
        grace_s: float = GRACE_S,
        host: VmHost | NextHost | None = None,
        alone: bool = False,
    ) -> None:
        if alone and host is None:
            raise ConfigError("a VM runs alone in a VM host only; give `host` too")
        if host is None:
            check_untraced()
        files = task_files(task, name, fresh=True)
        self.name = files.name
        self.limits = dict(getattr(task, "limits", {}) if limits is None else limits)
        sources = read_sources(files)
        rates.use_saved()
        config = {
            "name": files.name,
            "folder": str(files.folder or ""),
            "files": {path: bytes(data) for path, data in files.files.items() if not path.endswith((".py", ".pyc"))},
            "modules": sources,
            "limits": self.limits,
        }
        settings = VmSettings(
            files.name,
            config,
            {file for _, file, _ in sources.values()},
            grace_s,
            self.limits.get("memory_mb", 0) << 20,
            self.limits.get("output_kb", 0) << 10,
        )
        try:
            self._core = _core.VM(*settings) if host is None else host.start_vm(settings, alone=alone)
        except RuntimeError as error:
            raise VMError(f"task {files.name}: {error}") from error

    async def call(
        self, function: str, *args: Any, deadline: float | None = None, callbacks: Callbacks | None = None
    ) -> Any:
        """Return the result of a function of the task's `main`, or of "walle.module:name".

        Arguments and result are plain data and arrays; arrays cross without a copy and arrive as `walle.np.ndarray`.
        `deadline` is in seconds from when the call begins to run. `callbacks` maps names to functions, plain or async,
        that run in this event loop when the task calls `walle.engine_ext.vm.callbacks.call(name, *args)`. Cancelling
        the caller stops its call; the VM continues with the next.

        Raises:
            TaskError: the task raised, or its result is not plain data.
            DeadlineExceeded: the call was stopped. If it did not stop in time, the VM is no longer alive.
            LimitExceeded: it was stopped, or its result rejected, for another of the VM's limits.
            ForbiddenImport: the task imports a module that is not allowed.
            VMClosedError: the VM accepts no calls.
            HostCrashed: the call ended the VM host, in which no other VM was.
            HostLost: the VM host ended while the call waited or ran; any of those that ran may be the cause.
            VMError: this process has no memory or no descriptor for the result.
            TypeError: an argument is not plain data.
        """
        calls = LoopCalls.of(asyncio.get_running_loop())
        return await calls.call(self._core, self.name, self.limits, function, args, deadline, callbacks)

    def close(self) -> None:
        """Stop the running call, reject queued ones, and release the interpreter; does not block."""
        self._core.close()

    async def wait_closed(self, timeout: float = 5.0) -> bool:  # noqa: ASYNC109 -- waits on a thread, not in the loop
        """Return whether the VM, which was closed, has ended within `timeout` seconds."""
        return await asyncio.to_thread(self._core.join, timeout)

    @property
    def alive(self) -> bool:
        return self._core.alive

    @property
    def abandoned(self) -> bool:
        """Return whether the VM was abandoned because a call or a finalizer did not stop in time."""
        return self._core.abandoned

    @property
    def crashed(self) -> bool:
        """Return whether this VM ended its VM host: no other VM was ever in it."""
        return self._core.crashed

    @property
    def suspected(self) -> bool:
        """Return whether its VM host ended while this VM ran, which may have been the cause."""
        return self._core.suspected

    @property
    def last_place(self) -> tuple[str, str]:
        """Return (phase, place) of what its task did as the VM host ended, where it is suspected; else ("", "").

        The phase is the task's, or the function that was called; the place is "file:line in function", the innermost
        frame of the task's code where its own thread crashed, else the beginning of what it entered last.
        """
        return self._core.last_place

    @property
    def reset_failure(self) -> str:
        """Why its interpreter was discarded when the VM ended: what the task did could not be undone; else ""."""
        return self._core.reset_failure

    @property
    def leaked_bytes(self) -> int:
        """Bytes leaked by that until the process exits."""
        return self._core.leaked_bytes

    @property
    def ended(self) -> bool:
        """Return whether the VM is closed and has released its interpreter."""
        return self._core.join(0.0)

    @property
    def calls(self) -> int:
        """Number of calls that have run."""
        return self._core.calls

    @property
    def create_ms(self) -> float:
        """Time that the VM took to start, in ms; 0 until it has."""
        return self._core.create_ms


boot.set_up()
guard_tracemalloc()
if boot.counts_memory():
    _core.vm_count_memory()
os.register_at_fork(after_in_child=forget_loop_calls)
atexit.register(_core.vm_shut_down, _EXIT_S)
