"""Task VMs: an interpreter with its own GIL and thread for each task (§4.3, Fig. 6), and a pool that bounds them."""

import asyncio
import atexit
import collections
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from walle.engine_ext import _core, rates
from walle.engine_ext.vm import boot
from walle.engine_ext.vm.loop_calls import (
    DeadlineExceeded,
    Desk,
    Host,
    LimitExceeded,
    TaskError,
    VMClosedError,
    forget_desks,
)
from walle.engine_ext.vm.sources import TaskFiles, TaskLike, read_sources, task_files
from walle.errors import ConfigError, VMError

__all__ = [
    "VM",
    "DeadlineExceeded",
    "Host",
    "LimitExceeded",
    "TaskError",
    "TaskQuarantined",
    "VMClosedError",
    "VMPool",
]

GRACE_S = 0.25  # from the wish to stop a call to giving its VM up
MAX_STRIKES = 3  # abandoned VMs of one task
MAX_LOST_MB = 64  # of memory, for one task's interpreters that could not be wiped
_RECORDS_KEPT = 1_000  # tasks
_LEFT_KEPT = 256  # VMs that a pool gave back and that may yet be abandoned; each is for less than a second
_EXIT_S = 1.0  # how long the exiting process waits for busy VMs


class VM:
    """One task's interpreter: own GIL, own thread. `task` is a folder with main.pyc or main.py, or a bundle.

    The constructor reads and checks the task's code and returns while the interpreter starts on its thread. Calls may
    come from any event loop and run in order, one at a time. Dropping the last reference closes the VM.

    `limits`, those of the task where they are not given, are keys of task.toml's [limits]: memory_mb, output_kb, log_kb
    and recursion; there is none for a key that is missing, and the deadline is each call's.

    Raises:
        BytecodeError: a file of the task does not compile, or is another Python's bytecode.
        VMError: too many abandoned VMs are still busy.
    """

    def __init__(
        self, task: TaskLike, *, name: str = "", limits: Mapping[str, int] | None = None, grace_s: float = GRACE_S
    ) -> None:
        files = task_files(task, name, anew=True)
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
        try:
            self._core = _core.VM(
                files.name,
                config,
                {file for _, file, _ in sources.values()},
                grace_s,
                self.limits.get("memory_mb", 0) << 20,
                self.limits.get("output_kb", 0) << 10,
            )
        except RuntimeError as error:
            raise VMError(f"task {files.name}: {error}") from error

    async def call(self, function: str, *args: Any, deadline: float | None = None, host: Host | None = None) -> Any:
        """Return the result of a function of the task's `main`, or of "walle.module:name".

        Arguments and result are plain data and arrays; arrays cross without a copy and arrive as `walle.np.ndarray`.
        `deadline` is in seconds from when the call begins to run. `host` maps names to functions, plain or async, that
        run in this event loop when the task calls `walle.engine_ext.vm.callbacks.call(name, *args)`. A caller that is
        cancelled stops its call; the VM goes on with the next.

        Raises:
            TaskError: the task raised, or its result is no plain data.
            DeadlineExceeded: the call was stopped. Where it did not stop in time, the VM is no longer alive.
            LimitExceeded: it was stopped, or its result refused, for another of the VM's limits.
            ForbiddenImport: the task imports what it may not.
            VMClosedError: the VM takes no calls.
            TypeError: an argument is no plain data.
        """
        desk = Desk.of(asyncio.get_running_loop())
        return await desk.call(self._core, self.name, self.limits, function, args, deadline, host)

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
    def abandoned(self) -> bool:
        """Whether a call or a finalizer did not stop when it had to, so that the VM was given up."""
        return self._core.abandoned

    @property
    def spoilt(self) -> str:
        """Why its interpreter was left as it is when the VM ended: what the task did could not be undone; else ""."""
        return self._core.spoilt

    @property
    def lost_bytes(self) -> int:
        """What that costs the process for good."""
        return self._core.lost_bytes

    @property
    def ended(self) -> bool:
        """Whether it is closed and its task has left the interpreter."""
        return self._core.join(0.0)

    @property
    def calls(self) -> int:
        """Calls that have run."""
        return self._core.calls

    @property
    def create_ms(self) -> float:
        """How long the interpreter took to start, in ms; 0 until it has."""
        return self._core.create_ms


class TaskQuarantined(VMError):  # noqa: N818 -- as DeadlineExceeded
    """What the task did cost the process so much that it is not run any more.

    Either `strikes` of its calls did not stop when they had to, or what it did in its interpreters could not be undone,
    which lost `lost_mb` of memory; `spoilt` says what was found the last time.
    """

    def __init__(self, task: str, strikes: int, lost_mb: int = 0, spoilt: str = "") -> None:
        why = f"{strikes} of its calls could not be stopped"
        if strikes < MAX_STRIKES:
            why = f"what it did in its interpreters could not be undone ({spoilt}), which lost {lost_mb} MB of memory"
        super().__init__(f"task {task} is not run any more: {why}")
        self.task = task
        self.strikes = strikes
        self.lost_mb = lost_mb
        self.spoilt = spoilt


class _Record:
    """What a task's VMs did that counts against it."""

    def __init__(self) -> None:
        self.strikes = 0
        self.lost_bytes = 0
        self.spoilt = ""

    def check(self, task: str) -> None:
        """Raise TaskQuarantined where it is too much."""
        if self.strikes >= MAX_STRIKES or self.lost_bytes >= MAX_LOST_MB << 20:
            raise TaskQuarantined(task, self.strikes, self.lost_bytes >> 20, self.spoilt)


class _Entry:
    """A task's place in the pool, and its VM once whoever came first has made it.

    Holds the task, because the key of one in memory is its address, which must not be given anew.
    """

    def __init__(self, files: TaskFiles) -> None:
        self.files = files
        self.vm: VM | None = None
        self.identity = ""  # of the task, with its VM
        self.users = 0
        self.is_counted = False  # what it did to the process is


class _Waiter:
    """A call that waits for its turn, in its event loop; `entry` is what it got."""

    def __init__(self, files: TaskFiles, loop: asyncio.AbstractEventLoop) -> None:
        self.files = files
        self.loop = loop
        self.turn: asyncio.Future[None] = loop.create_future()
        self.entry: _Entry | None = None


class VMPool:
    """At most `size` VMs, each for one task; calls of one task share its VM and follow one another.

    May be used from any event loop and thread. Calls that find every VM busy take turns in the order they came in;
    while there are such, calls of a task that has a VM come after them. A VM that was abandoned is replaced at its
    task's next call; a task that had MAX_STRIKES of its VMs abandoned, or lost MAX_LOST_MB of memory with interpreters
    that could not be wiped, is not run any more, so that it does not use up what is others'.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"a pool of {size} VMs runs nothing; give 1 or more")
        self._size = size
        self._records: collections.OrderedDict[str, _Record] = collections.OrderedDict()  # by the task's identity
        self._is_closed = False
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        """Begin with no VM and nobody waiting, as in the child of a fork, where VMs are not and a lock may be held."""
        self._lock = threading.Lock()
        self._entries: collections.OrderedDict[str | int, _Entry] = (
            collections.OrderedDict()
        )  # least recently used first
        self._waiters: collections.deque[_Waiter] = collections.deque()
        self._left: collections.deque[_Entry] = collections.deque(maxlen=_LEFT_KEPT)  # whose VMs are being wiped
        self._done: collections.deque[_Entry | _Waiter] = collections.deque()  # of calls that ended: see _settle

    async def call(
        self, task: TaskLike, function: str, *args: Any, deadline: float | None = None, host: Host | None = None
    ) -> Any:
        """As `VM.call`, in the task's VM; waits for room while every VM is another task's and busy.

        Raises:
            TaskQuarantined: the task had too many VMs abandoned, or spoilt too many interpreters.
        """
        entry = await self._acquire(task_files(task))
        try:
            vm = entry.vm or self._furnish(entry, task)
            self._check_record(entry)
            return await vm.call(function, *args, deadline=deadline, host=host)
        finally:
            self._release(entry)

    def close(self) -> None:
        """Close every VM; later calls raise VMClosedError."""
        with self._locked():
            self._is_closed = True
            for entry in self._entries.values():
                if entry.vm is not None:
                    entry.vm.close()
            self._entries.clear()
            while self._waiters:
                self._wake(self._waiters.popleft())

    def __len__(self) -> int:
        return len(self._entries)

    async def _acquire(self, files: TaskFiles) -> _Entry:
        with self._locked():
            self._check_open(files)
            self._count_strikes()
            entry = None if self._waiters else self._admit(files)
            if entry is not None:
                return entry
            waiter = _Waiter(files, asyncio.get_running_loop())
            self._waiters.append(waiter)
        try:
            await waiter.turn
        except BaseException:  # cancelled, or closed with a loop that is gone
            self._done.append(waiter)
            self._settle()
            raise
        if waiter.entry is None:
            self._check_open(files)
        assert waiter.entry is not None  # it is woken with one, or as the pool closes
        return waiter.entry

    def _check_open(self, files: TaskFiles) -> None:
        if self._is_closed:
            raise VMClosedError(files.name, "the pool is closed")

    def _admit(self, files: TaskFiles) -> _Entry | None:
        """Return the task's entry with one user more, or None where there is no room yet. Under the lock."""
        entry = self._entries.get(files.key)
        if entry is not None and entry.vm is not None and not entry.vm.alive:
            self._left.append(self._entries.pop(files.key))
            entry = None
        if entry is None:
            if len(self._entries) >= self._size:
                idle = next((other for other, one in self._entries.items() if one.users == 0), None)
                if idle is None:
                    return None
                left = self._entries.pop(idle)
                if left.vm is not None:
                    left.vm.close()
                    self._left.append(left)
            entry = self._entries[files.key] = _Entry(files)
        elif entry.vm is None:
            return None  # someone is making it
        self._entries.move_to_end(files.key)
        entry.users += 1
        return entry

    def _admit_waiting(self) -> None:
        """Give turns to those who wait, in order, as far as there is room. Under the lock."""
        while self._waiters and not self._is_closed:
            waiter = self._waiters[0]
            waiter.entry = self._admit(waiter.files)
            if waiter.entry is None:
                return
            self._waiters.popleft()
            if not self._wake(waiter):
                self._leave(waiter.entry)
                waiter.entry = None

    def _wake(self, waiter: _Waiter) -> bool:
        try:
            waiter.loop.call_soon_threadsafe(_set_done, waiter.turn)
        except RuntimeError:
            return False  # its loop is closed, and with it the one who waited
        return True

    def _furnish(self, entry: _Entry, task: TaskLike) -> VM:
        """Make the VM of an entry, as its first user; not under the lock, since this compiles."""
        entry.identity = entry.files.identity()
        self._check_record(entry)
        vm = VM(task)
        with self._locked():
            if self._is_closed:
                vm.close()
                self._check_open(entry.files)
            entry.vm = vm
            self._admit_waiting()  # further calls of this task may be among them
        return vm

    def _release(self, entry: _Entry) -> None:
        self._done.append(entry)
        self._settle()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._settle()

    def _settle(self) -> None:
        """See to the calls that ended, or leave them to the lock's holder, who does so when it lets go.

        Not by waiting for the lock: the garbage collector may close a coroutine on the very thread that holds it.
        """
        while self._done and self._lock.acquire(blocking=False):
            try:
                while self._done:
                    one = self._done.popleft()
                    if isinstance(one, _Waiter) and one in self._waiters:
                        self._waiters.remove(one)
                        continue
                    entry = one.entry if isinstance(one, _Waiter) else one
                    if entry is not None:
                        self._count_strike(entry)
                        self._leave(entry)
                self._count_strikes()
                self._admit_waiting()
            finally:
                self._lock.release()

    def _count_strikes(self) -> None:
        """Look at the VMs that were given back: their tasks may have had them abandoned, or spoilt. Under the lock."""
        for _ in range(len(self._left)):
            entry = self._left.popleft()
            is_over = entry.vm is None or entry.vm.ended  # asked first: from then on nothing changes
            if not self._count_strike(entry) and not is_over:
                self._left.append(entry)
            elif entry.vm is not None and entry.vm.lost_bytes and not entry.is_counted:
                record = self._record(entry)
                record.lost_bytes += entry.vm.lost_bytes
                record.spoilt = entry.vm.spoilt
                entry.is_counted = True

    def _count_strike(self, entry: _Entry) -> bool:
        """Return whether the entry's VM was abandoned, and count that once. Under the lock."""
        if entry.vm is None or not entry.vm.abandoned:
            return False
        if not entry.is_counted:
            entry.is_counted = True
            self._record(entry).strikes += 1
        return True

    def _record(self, entry: _Entry) -> _Record:
        """Return what counts against the entry's task. Under the lock."""
        record = self._records[entry.identity] = self._records.pop(entry.identity, _Record())
        if len(self._records) > _RECORDS_KEPT:
            self._records.popitem(last=False)
        return record

    def _check_record(self, entry: _Entry) -> None:
        record = self._records.get(entry.identity)
        if record is not None:
            record.check(entry.files.name)

    def _leave(self, entry: _Entry) -> None:
        """Count one user less, and forget an entry that got no VM. Under the lock."""
        entry.users -= 1
        if entry.vm is None and self._entries.get(entry.files.key) is entry:
            del self._entries[entry.files.key]


def _begin_in_child() -> None:
    forget_desks()
    for pool in list(_pools):
        pool._begin()


_pools: "weakref.WeakSet[VMPool]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_begin_in_child)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


boot.set_up()
if not sys.flags.dev_mode and "PYTHONMALLOC" not in os.environ:  # those allocators' blocks cannot be measured
    _core.vm_watch_memory()
atexit.register(_core.vm_shut_down, _EXIT_S)
