"""Pool of task VMs: bounds their number, shares a task's VM among its calls, and quarantines harmful tasks."""

import asyncio
import collections
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from walle.engine_ext import rates
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.discards import Discarded, Discards
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.loop_calls import VMClosedError
from walle.engine_ext.vm.sources import TaskFiles, TaskLike, task_files
from walle.engine_ext.vm.vm import VM
from walle.errors import ConfigError, VMError

MAX_STRIKES = 3  # abandoned VMs of one task, and VM hosts that it ended, alone
MAX_LOST_ALONE = 3  # processes in a row that ended by a signal from outside while the task ran alone in them
MAX_LEAKED_MB = 64  # memory of one task's interpreters that could not be reset
RUNS_FOR_A_STRIKE = 1_000  # uses of VMs that end well before a strike is forgotten
_MAX_VERSIONS = 100  # quarantined ones of one task
_MAX_RECORDS = 1_000  # tasks
_MAX_ALONE_RUNS = 1_024
_MAX_CLOSING = 256  # closed VMs that may yet be abandoned; each is kept for less than a second


class TaskQuarantined(VMError):  # noqa: N818 -- as DeadlineExceeded
    """The pool no longer runs the version, because its task has cost the process too much.

    Either `strikes` of its calls did not stop in time or ended their VM host, or what it did in its interpreters could
    not be undone, which leaked `leaked_mb` of memory; `reset_failure` is the last reason. `place` is "file:line in
    function" of the last call that ended its VM host, "" where none did or it is not known.
    """

    def __init__(self, task: str, strikes: int, leaked_mb: int = 0, reset_failure: str = "", place: str = "") -> None:
        why = f"{strikes} of its calls could not be stopped, or ended their VM host"
        if strikes < MAX_STRIKES:
            why = f"what it did in its interpreters could not be undone ({reset_failure}), which leaked {leaked_mb} MB"
        at = f", the last at {place}" if place else ""
        super().__init__(
            f"task {task} is quarantined: {why}{at}; release a version that does not, or restart the process"
        )
        self.task = task
        self.strikes = strikes
        self.leaked_mb = leaked_mb
        self.reset_failure = reset_failure
        self.place = place


class _Record:
    """A task's strikes and leaked memory, over all of its versions, and how often it must still run alone in a VM host.

    The version that reaches a limit is quarantined as long as the record exists. A later or an earlier version of the
    task may run, with one strike left: a new version does not begin with all of them. A strike is forgotten after
    RUNS_FOR_A_STRIKE uses that end well; leaked memory is not.

    What happens in a host that several tasks share is nobody's for certain: a task that broke out of Python can end it
    while others run, and report what it likes of them. A task that may have been the cause therefore runs alone, where
    it is the only one that can be: twice after the first suspicion, twice as often after each further one.
    """

    def __init__(self) -> None:
        self.strikes = 0
        self.leaked_bytes = 0
        self.reset_failure = ""
        self.place = ""  # place in the last call that ended a host
        self.runs = 0  # runs that ended well since the last strike, or since one was forgotten
        # Version → as TaskQuarantined's.
        self.quarantined: collections.OrderedDict[str, tuple[int, int, str, str]] = collections.OrderedDict()
        self.suspicions = 0
        self.alone_runs = 0  # runs alone that are due
        self.lost_alone = 0  # processes lost in a row

    def check(self, task: str, version: str) -> None:
        """Raise TaskQuarantined if the version, called `task` in errors, is quarantined."""
        if version in self.quarantined:
            raise TaskQuarantined(task, *self.quarantined[version])
        if self.is_at_limit():  # another version may have reached it
            self.strikes = min(self.strikes, MAX_STRIKES - 1)
            self.leaked_bytes = min(self.leaked_bytes, (MAX_LEAKED_MB << 20) * (MAX_STRIKES - 1) // MAX_STRIKES)

    def is_at_limit(self) -> bool:
        return self.strikes >= MAX_STRIKES or self.leaked_bytes >= MAX_LEAKED_MB << 20

    def note_cost(self, version: str) -> None:
        """Take note that a strike or a leak of this version was counted."""
        self.runs = 0
        if self.is_at_limit():
            self.quarantined[version] = (self.strikes, self.leaked_bytes >> 20, self.reset_failure, self.place)
            if len(self.quarantined) > _MAX_VERSIONS:
                self.quarantined.popitem(last=False)

    def add_runs(self, count: int) -> None:
        """Count uses that ended well."""
        self.runs += count
        if self.strikes and self.runs >= RUNS_FOR_A_STRIKE:
            self.strikes -= 1
            self.runs = 0

    def suspect(self) -> None:
        self.suspicions += 1
        self.alone_runs = min(2**self.suspicions, _MAX_ALONE_RUNS)

    def lose_alone(self) -> None:
        """Count the end of a process by a signal that may have come from outside, as where memory runs out."""
        self.lost_alone += 1
        if self.lost_alone >= MAX_LOST_ALONE:
            self.strikes = MAX_STRIKES

    def run_alone(self) -> None:
        """Count a use of a process that has not ended."""
        self.lost_alone = 0
        self.alone_runs = max(0, self.alone_runs - 1)

    def count(self, vm: VM, version: str, *, is_alone: bool, is_hosted: bool, has_ended: bool) -> bool:
        """Count what a VM of a version cost, and return if it was anything; leaked memory once the VM has ended."""
        leaked_bytes = vm.leaked_bytes if has_ended else 0
        if vm.suspected and is_alone:
            self.place = vm.last_place[1] or self.place
        if vm.crashed or (vm.abandoned and (is_alone or not is_hosted)):
            self.strikes += 1
        elif is_alone and vm.suspected:
            self.lose_alone()
        elif leaked_bytes and not is_hosted:
            self.leaked_bytes += leaked_bytes
            self.reset_failure = vm.reset_failure
        elif not (leaked_bytes or vm.abandoned or vm.suspected):
            return False
        if is_hosted:
            self.suspect()
        self.note_cost(version)
        return True


class _Entry:
    """A task's place in the pool, and its VM once the first caller has created it.

    Refers to the task, because the key of a task in memory is its address, which must not be used again.
    """

    def __init__(self, files: TaskFiles) -> None:
        self.files = files
        self.vm: VM | None = None
        self.identity = ""  # identity of the task; set with the VM
        self.version = ""  # version of the task; set with the VM
        self.is_alone = False  # the VM, in a process of its own
        self.users = 0
        self.runs = 0  # uses that ended well and are not in the task's record yet
        self.is_counted = False  # what its VM cost is in the task's record


class _Waiter:
    """A call that waits for its turn, in its event loop; `entry` is set when it gets one."""

    def __init__(self, files: TaskFiles, loop: asyncio.AbstractEventLoop) -> None:
        self.files = files
        self.loop = loop
        self.turn: asyncio.Future[None] = loop.create_future()
        self.entry: _Entry | None = None


class VMPool:
    """At most `size` VMs, each for one task; calls of one task share its VM and run one after another.

    A task with an attribute `replica` has one VM for each value of it.

    May be used from any event loop and thread. Calls that find every VM busy take turns in order of arrival; while any
    wait, calls of a task that has a VM queue behind them. A VM that was abandoned is replaced at its task's next call.
    A task that had MAX_STRIKES of its VMs abandoned or crashed, or leaked MAX_LEAKED_MB of memory with interpreters
    that could not be reset, is quarantined, so that it does not use up the memory and threads of others. Versions of a
    task count together where they have an `owner`, the name of the task. The VMs are in `host`, or in this process (see
    `VM`).

    In a host, a task that was running as the host ended, or whose call did not stop, or that leaked memory, runs alone
    next: each use of its VM has a separate process. MAX_STRIKES of these that it ends or that do not stop, or
    MAX_LOST_ALONE in a row that are killed, quarantine it. Uses without that end its running alone.
    """

    def __init__(self, size: int, *, host: VmHost | None = None) -> None:
        if size < 1:
            raise ConfigError(f"a pool of {size} VMs cannot run a task; give 1 or more")
        rates.use_saved()  # a VM cannot read the file
        self._size = size
        self._host = host
        self._records: collections.OrderedDict[str, _Record] = collections.OrderedDict()  # by the task's identity
        self._discards = Discards()
        self._is_closed = False
        self._init_state()
        _pools.add(self)

    def _init_state(self) -> None:
        """Start without VMs or waiters. Also for the child of a fork, where the lock may be held by no thread."""
        self._lock = threading.Lock()
        # Least recently used first.
        self._entries: collections.OrderedDict[tuple[str | int, int], _Entry] = collections.OrderedDict()
        self._waiters: collections.deque[_Waiter] = collections.deque()
        self._closing: collections.deque[_Entry] = collections.deque(maxlen=_MAX_CLOSING)  # VMs are being reset
        self._finished: collections.deque[_Entry | _Waiter] = collections.deque()  # calls' ends: see _process_finished

    async def call(
        self,
        task: TaskLike,
        function: str,
        *args: Any,
        deadline: float | None = None,
        callbacks: Callbacks | None = None,
    ) -> Any:
        """Run `VM.call` in the task's VM; waits while every VM is busy with another task.

        Raises:
            TaskQuarantined: the task had too many VMs abandoned, or leaked too much memory.
        """
        async with self.hold(task) as vm:
            return await vm.call(function, *args, deadline=deadline, callbacks=callbacks)

    def hold(self, task: TaskLike) -> "HeldVM":
        """Return a context manager that enters with the task's VM, as `call` would use it, and keeps it in the pool.

        For calls that belong together: a VM that is abandoned meanwhile is not replaced for the later ones.
        """
        return HeldVM(self, task)

    def discard(self, task: TaskLike) -> None:
        """Close the task's VM unless a call uses it; the next call creates another.

        Raises:
            ConfigError: as `hold`.
        """
        files = task_files(task)
        with self._locked():
            entry = self._entries.get(files.key)
            if entry is not None and entry.users == 0:
                self._evict(files.key)
                self._admit_waiting()

    def is_suspect(self, identity: str) -> bool:
        """Return whether the task has strikes, or runs alone next: not enough uses ended well since."""
        record = self._records.get(identity)
        return record is not None and (record.strikes > 0 or record.alone_runs > 0)

    def vms(self) -> list[VM]:
        """Return the VMs of tasks, the last used one first."""
        with self._locked():
            return [entry.vm for entry in reversed(self._entries.values()) if entry.vm is not None]

    def lost_vms(self) -> list[VM]:
        """Return the VMs of tasks that ended with their host, or whose host is retired; the last used one first."""
        return [vm for vm in self.vms() if not vm.alive and not vm.abandoned and not vm.crashed]

    def discarded(self) -> dict[str, Discarded]:
        """Return the interpreters that were discarded after a task, by its version, of VMs that have ended."""
        with self._locked():
            self._count_closing()
            return self._discards.by_version()

    def close(self) -> None:
        """Close every VM; later calls raise VMClosedError."""
        with self._locked():
            self._is_closed = True
            for key in list(self._entries):
                self._evict(key)
            while self._waiters:
                self._wake(self._waiters.popleft())

    def __len__(self) -> int:
        return len(self._entries)

    async def _acquire(self, files: TaskFiles) -> _Entry:
        with self._locked():
            self._check_open(files)
            self._count_closing()
            entry = None if self._waiters else self._admit(files)
            if entry is not None:
                return entry
            waiter = _Waiter(files, asyncio.get_running_loop())
            self._waiters.append(waiter)
        try:
            await waiter.turn
        except BaseException:  # cancelled, or the loop was closed
            self._finished.append(waiter)
            self._process_finished()
            raise
        if waiter.entry is None:
            self._check_open(files)
        assert waiter.entry is not None  # the waiter is woken with an entry, or when the pool closes
        return waiter.entry

    def _check_open(self, files: TaskFiles) -> None:
        if self._is_closed:
            raise VMClosedError(files.name, "the pool is closed")

    def _admit(self, files: TaskFiles) -> _Entry | None:
        """Return the task's entry with one more user, or None while the pool is full. Under the lock."""
        entry = self._entries.get(files.key)
        if entry is not None and entry.vm is not None and not entry.vm.alive:
            self._closing.append(self._entries.pop(files.key))
            entry = None
        if entry is None:
            if len(self._entries) >= self._size:
                idle = next((other for other, one in self._entries.items() if one.users == 0), None)
                if idle is None:
                    return None
                self._evict(idle)
            entry = self._entries[files.key] = _Entry(files)
        elif entry.vm is None:
            return None  # another call is creating it
        self._entries.move_to_end(files.key)
        entry.users += 1
        return entry

    def _evict(self, key: tuple[str | int, int]) -> None:
        """Close an entry's VM; its calls fail. Under the lock."""
        evicted = self._entries.pop(key)
        if evicted.vm is not None:
            evicted.vm.close()
            self._closing.append(evicted)

    def _admit_waiting(self) -> None:
        """Give turns to waiters, in order, while the pool has room. Under the lock."""
        while self._waiters and not self._is_closed:
            waiter = self._waiters[0]
            waiter.entry = self._admit(waiter.files)
            if waiter.entry is None:
                return
            self._waiters.popleft()
            if not self._wake(waiter):
                self._remove_user(waiter.entry)
                waiter.entry = None

    def _wake(self, waiter: _Waiter) -> bool:
        try:
            waiter.loop.call_soon_threadsafe(_set_done, waiter.turn)
        except RuntimeError:
            return False  # the loop is closed: its caller no longer exists
        return True

    def _create_vm(self, entry: _Entry, task: TaskLike) -> VM:
        """Create the VM of an entry, as its first user; not under the lock, because this compiles."""
        owner = str(getattr(task, "owner", ""))
        entry.identity = owner or entry.files.identity()
        entry.version = entry.files.name if owner else entry.identity
        self._check_record(entry)
        with self._locked():
            record = self._records.get(entry.identity)
        entry.is_alone = self._host is not None and record is not None and record.alone_runs > 0
        vm = VM(task, host=self._host, alone=entry.is_alone)
        with self._locked():
            if self._is_closed:
                vm.close()
                self._check_open(entry.files)
            entry.vm = vm
            self._admit_waiting()  # waiting calls of this task may be among them
        return vm

    def _release(self, entry: _Entry) -> None:
        self._finished.append(entry)
        self._process_finished()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._process_finished()

    def _process_finished(self) -> None:
        """Process the calls that ended, or leave them to the lock's holder, which does so after it unlocks.

        Does not block on the lock: the garbage collector may close a coroutine on the very thread that holds it.
        """
        while self._finished and self._lock.acquire(blocking=False):
            try:
                while self._finished:
                    finished = self._finished.popleft()
                    if isinstance(finished, _Waiter) and finished in self._waiters:
                        self._waiters.remove(finished)
                        continue
                    entry = finished.entry if isinstance(finished, _Waiter) else finished
                    if entry is not None:
                        self._count_runs(entry)
                        self._count(entry)
                        self._remove_user(entry)
                self._count_closing()
                self._admit_waiting()
            finally:
                self._lock.release()

    def _count_closing(self) -> None:
        """Count what the VMs cost that were closed since. Under the lock."""
        for _ in range(len(self._closing)):
            entry = self._closing.popleft()
            has_ended = entry.vm is None or entry.vm.ended  # read first: from then on nothing changes
            if has_ended and entry.vm is not None and entry.vm.reset_failure:
                self._discards.add(entry.files.name, entry.vm.reset_failure, entry.vm.leaked_bytes)
            if not self._count(entry, has_ended=has_ended) and not has_ended:
                self._closing.append(entry)

    def _count(self, entry: _Entry, *, has_ended: bool = False) -> bool:
        """Count once what the entry's VM cost, and return whether it was anything. Under the lock."""
        if entry.vm is None or entry.is_counted:
            return entry.is_counted
        record = self._records.get(entry.identity, _Record())
        is_hosted = self._host is not None
        entry.is_counted = record.count(
            entry.vm, entry.version, is_alone=entry.is_alone, is_hosted=is_hosted, has_ended=has_ended
        )
        if entry.is_counted:
            self._keep(entry.identity, record)
        return entry.is_counted

    def _count_runs(self, entry: _Entry) -> None:
        """Count the uses of an entry that ended well. Under the lock."""
        runs, entry.runs = entry.runs, 0
        if runs and (record := self._records.get(entry.identity)) is not None:
            record.add_runs(runs)

    def _keep(self, identity: str, record: _Record) -> None:
        """Keep the record, as the latest of _MAX_RECORDS. Under the lock."""
        self._records[identity] = record
        self._records.move_to_end(identity)
        if len(self._records) > _MAX_RECORDS:
            self._records.popitem(last=False)

    def _check_record(self, entry: _Entry) -> None:
        record = self._records.get(entry.identity)
        if record is not None:
            record.check(entry.files.name, entry.version)

    def _remove_user(self, entry: _Entry) -> None:
        """Count one user less, and remove an entry that got no VM, or whose VM ran alone. Under the lock."""
        entry.users -= 1
        is_in_pool = self._entries.get(entry.files.key) is entry
        if entry.vm is None and is_in_pool:
            del self._entries[entry.files.key]
        if not entry.is_alone or entry.users > 0 or entry.vm is None:
            return
        if not entry.is_counted and (record := self._records.get(entry.identity)) is not None:
            record.run_alone()
        if is_in_pool:
            self._evict(entry.files.key)


class HeldVM:
    """A use of a task's VM in a pool, within one `async with`.

    Raises, on entering:
        TaskQuarantined: the task's VMs were lost too often.
        VMClosedError: the pool is closed.
        VMError: the VM could not be created, as by `VM()`.
    """

    def __init__(self, pool: VMPool, task: TaskLike) -> None:
        self._pool = pool
        self._task = task

    async def __aenter__(self) -> VM:
        pool = self._pool
        entry = self._entry = await pool._acquire(task_files(self._task))
        try:
            vm = entry.vm or pool._create_vm(entry, self._task)
            pool._check_record(entry)
        except BaseException:
            pool._release(entry)
            raise
        return vm

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._entry.runs += error is None
        self._pool._release(self._entry)


def _reset_in_child() -> None:
    for pool in list(_pools):
        pool._init_state()


_pools: "weakref.WeakSet[VMPool]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_reset_in_child)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
