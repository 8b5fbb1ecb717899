"""A bound on VMs: one for each task in use, the one idle longest replaced when another task needs the room."""

import asyncio
import collections
import threading
from typing import Any

from walle.engine_ext.sources import TaskLike, task_files
from walle.engine_ext.vm import VM, Host, VMClosedError
from walle.errors import ConfigError


class _Entry:
    def __init__(self, vm: VM) -> None:
        self.vm = vm
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
        key = task_files(task).key
        entry = await self._acquire(key, task)
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

    async def _acquire(self, key: str | int, task: TaskLike) -> _Entry:
        while True:
            loop = asyncio.get_running_loop()
            with self._lock:
                entry = self._take(key, task)
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

    def _take(self, key: str | int, task: TaskLike) -> _Entry | None:
        """Return the task's entry with one user more, or None where there is no room. Under the lock."""
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
            entry = self._entries[key] = _Entry(VM(task))
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
