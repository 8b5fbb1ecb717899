"""VM host: the child process of a device in which its task VMs live (§4.3), with nothing of the device in it.

The host is the same Python, started with an environment that is empty but for TZ, the folder `/`, and one socket to the
device. It has neither the device's files nor its memory, keys or connections. What it sends is checked by the device
(src/vm/host_client.h). A host that ends, for whatever reason, is started again when a VM is next created. The calls
that were running raise HostLost and can be made again. Who ended it is not certain: the VMs that ran are suspected, and
their tasks run alone, each in a separate process, until they have shown that they end no host (`VMPool`). The call
that ends a process in which no other VM ever was raises HostCrashed.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import functools
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import walle.engine_ext
from walle.engine_ext import _core, rates
from walle.engine_ext.vm import boot
from walle.errors import VMError
from walle.protocol import printable

_LOG = logging.getLogger(__name__)

MAX_FILES = 1_000  # resources of a task
LAYERS = ("landlock", "seccomp", "no_new_privileges", "not_dumpable")
_RESOURCES = "resources"
_SYSTEM_PATHS = (
    "/etc/ld.so.cache", "/etc/localtime", "/lib", "/lib64", "/sys/devices/system/cpu", "/usr/lib", "/usr/lib64",
    "/usr/share/zoneinfo",
)  # fmt: skip
_MAX_FAILED_STARTS = 3  # failures in a row, after which no start is tried for _PAUSE_S
_PAUSE_S = 5.0
_READY_S = 10.0
_EXIT_S = 1.0
_MAX_LINE = 1_000  # characters of a line of the host's output
_MAX_LINES = 200  # lines of the host's output kept in each _LINES_S
_LINES_S = 60.0
_DROPPED_BYTES = 1 << 16  # output beyond that is read in pieces of this size
_DROP_S = 0.01  # pause between two such pieces
_VARIABLES = ("TZ",)  # variables of the device's environment that the host has
_MAX_ALONE = 4  # processes at once for VMs that run alone; each takes about 15 MB and 20 ms of a processor
_TURN_S = 0.05  # pause between checks that a process that waits for its turn is still needed

# Runs in the host. It imports nothing of walle but the native core.
_START = """
import faulthandler
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

name, path = "walle.engine_ext._core", sys.argv[2]
loader = ExtensionFileLoader(name, path)
core = module_from_spec(spec_from_file_location(name, path, loader=loader))
loader.exec_module(core)
server = core.HostServer(int(sys.argv[1]))
config = server.receive_config()
if server.trace_fd >= 0:
    faulthandler.enable(server.trace_fd)  # the frames of a thread that crashes
if config["count_memory"]:
    core.vm_count_memory()
core.vm_set_empty_site(config["site"])
core.vm_set_boot(config["boot"], config["paths"])
core.vm_register_modules(config["modules"])
for backend, calibrated in config["rates"].items():
    core.set_rates(backend, calibrated)
for backend, model in config["models"].items():
    core.set_performance_model(backend, model)
limit, record = config["max_memory_bytes"], [server.trace_fd] if server.trace_fd >= 0 else []
layers = core.enter_sandbox(config["readable"], server.descriptors, limit, record) if config["readable"] else {}
server.send_hello({"layers": layers})
server.serve()
"""


class HostStartError(VMError):
    """The VM host could not be started. The message says why, and what to do where no host can be."""


@dataclasses.dataclass(frozen=True)
class HostReport:
    """State of a VM host: its process's id (0 for none), and how many hosts were started in its place before.

    `layers` are the kernel's layers around it, by name: the version of `landlock` (0: the kernel has none), and whether
    `seccomp`, `no_new_privileges` and `not_dumpable` are active. Empty until the host has started.
    """

    pid: int
    restarts: int
    layers: Mapping[str, int]


class VmSettings(NamedTuple):
    """Settings with which a VM is started, in this process (`_core.VM`) or in a host.

    `config` has the task's folder, files, modules and limits, `task_files` the names of its own modules' files.
    """

    name: str
    config: dict[str, Any]
    task_files: set[str]
    grace_s: float
    memory_bytes: int  # 0: no limit
    output_bytes: int  # 0: no limit


class VmHost:
    """The VM host of a process; `VM(host=)` and `VMPool(host=)` run their tasks in it. One is enough for many devices.

    Its process starts with the first VM, and again after it has ended. A VM may also run alone: in a process of its
    own, which ends with it; there are at most four at once, and further ones wait for their turn. May be used from any
    thread. With `max_memory_bytes` the kernel bounds the memory that each process writes (RLIMIT_DATA), beside the
    tasks' own limits.

    Raises:
        HostStartError: `python` is not given, and this program is not started by a Python, but frozen.
    """

    def __init__(self, *, python: str = "", max_memory_bytes: int = 0) -> None:
        self._python = python or this_python()
        self._max_memory_bytes = max_memory_bytes
        self._init_state()
        self._starts = 0
        self._failed_starts = 0
        self._failed_at_s = 0.0
        self._is_closed = False
        _hosts.add(self)

    def _init_state(self) -> None:
        """Start without a process. Also for the child of a fork, where processes and held locks are the parent's."""
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._next: _Process | None = None  # process that takes over from `_process`
        self._alone: weakref.WeakSet[_Process] = weakref.WeakSet()
        self._turns = threading.BoundedSemaphore(_MAX_ALONE)

    def start_vm(self, settings: VmSettings, *, alone: bool = False) -> _core.VM:
        """Return a new VM in the host, as `_core.VM` makes one in this process. Does not wait for it.

        With `alone` it has a separate process.

        Raises:
            HostStartError: the host cannot be started, or is closed.
            VMError: the task has more than MAX_FILES resources.
            RuntimeError: a resource cannot be opened.
        """
        process = self._start_alone() if alone else self._usable()
        try:
            return process.start_vm(settings, alone=alone)
        except BaseException:
            if alone:
                process.client.kill("was closed")
            raise

    def _start_alone(self) -> "_Process":
        with self._lock:
            self._check_open()
            process = _Process(self._python, self._max_memory_bytes, self._turns)
            self._alone.add(process)
            return process

    def _check_open(self) -> None:
        if self._is_closed:
            raise HostStartError("the VM host is closed")

    def _usable(self) -> "_Process":
        """Return the present process, or a new one."""
        with self._lock:
            self._check_open()
            process = self._process
            if process is not None and process.client.usable:
                process.send_new_modules()
                return process
            if process is not None:
                self._note_end(process)
            spare, self._next = self._next, None
            if spare is not None and spare.client.usable:
                spare.send_new_modules()
            else:
                spare = _Process(self._python, self._max_memory_bytes)
            self._process = spare
            self._starts += 1
            return spare

    def prepare_next(self) -> None:
        """Start the process that takes over when the present one ends, so that no VM waits for its start."""
        with self._lock:
            if not self._is_closed and (self._next is None or not self._next.client.usable):
                self._next = _Process(self._python, self._max_memory_bytes)

    def in_next(self) -> "NextHost":
        """Return the prepared process as a place for VMs, which takes over with the interpreters that these leave."""
        return NextHost(self)

    def drop_next(self) -> None:
        """End the process that `prepare_next` started, unless it has taken over."""
        with self._lock:
            spare, self._next = self._next, None
        if spare is not None:
            spare.client.kill("was closed")

    def _note_end(self, process: "_Process") -> None:
        """Raise where hosts keep ending before they have started."""
        if process.client.hello is not None:
            self._failed_starts = 0
            return
        now_s = time.monotonic()
        if self._failed_starts < _MAX_FAILED_STARTS:
            self._failed_starts += 1
            self._failed_at_s = now_s
        elif now_s - self._failed_at_s < _PAUSE_S:
            raise HostStartError(
                f"{process.client.end_reason or 'the VM host does not start'}; started by {self._python}"
            )
        else:
            self._failed_at_s = now_s

    def wait_ready(self, timeout_s: float = _READY_S) -> bool:
        """Start the host where none runs; return whether it has started within the time. Blocks."""
        client = self._usable().client
        client.wait_ready(timeout_s)
        return client.hello is not None

    def report(self) -> HostReport:
        """Return the host's state."""
        process = self._process
        if process is None or not process.client.usable:
            return HostReport(0, max(0, self._starts - 1), {})
        hello = process.client.hello
        return HostReport(process.pid, max(0, self._starts - 1), _layers(hello))

    def close(self) -> None:
        """End the host's process and its VMs; waits until it has ended."""
        self.drop_next()
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
            processes = [*self._alone, *([process] if process is not None else [])]
        for one in processes:
            one.kill()
        for one in processes:
            one.join()


class NextHost:
    """The prepared process of a VM host, for VMs that load in it before it takes over.

    An interpreter whose VM was closed keeps the library modules that this one has loaded, and takes about 1 ms for the
    next VM of the same modules, where a new one takes 20.
    """

    def __init__(self, host: VmHost) -> None:
        self._host = host

    def start_vm(self, settings: VmSettings, *, alone: bool = False) -> _core.VM:
        """Return a new VM, as `VmHost.start_vm`.

        Raises:
            HostStartError: no process is prepared, or it has ended or taken over.
            VMError, RuntimeError: as `VmHost.start_vm`.
        """
        with self._host._lock:
            process = self._host._next
        if process is None or alone:
            raise HostStartError("no VM host is prepared")
        return process.start_vm(settings, alone=False)


@functools.cache
def shared_host() -> VmHost:
    """Return the VM host that the devices of this process share. It ends with the process."""
    return VmHost()


class _Process:
    """One process of a host, and the thread that starts it, passes on its output, and takes its exit status.

    That thread lives as long as the process, because the system ends the process with the thread that started it.
    """

    def __init__(self, python: str, max_memory_bytes: int, turns: threading.BoundedSemaphore | None = None) -> None:
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                theirs = _above_standard(theirs)
            self.client = _core.HostClient(ours.detach())
        except (OSError, RuntimeError) as error:
            raise HostStartError(f"no socket for the VM host: {error}; this process has too many open files") from error
        self.pid = 0
        self._python = python
        self._turns = turns
        self._sent_modules = boot.module_count()
        self.client.send_config({**_config(), "max_memory_bytes": max_memory_bytes})
        self._thread = threading.Thread(target=self._run, args=(theirs,), name="walle-vm-host", daemon=True)
        self._thread.start()

    def start_vm(self, settings: VmSettings, *, alone: bool) -> _core.VM:
        files = _resources(settings.config["folder"], settings.name)
        sent = settings._replace(config={**settings.config, "folder": ""})
        return self.client.start_vm(*sent, files, alone=alone)

    def send_new_modules(self) -> None:
        """Send what was registered since the start."""
        if self._sent_modules < boot.module_count():
            self.client.send_modules(boot.modules(after=self._sent_modules))
            self._sent_modules = boot.module_count()

    def kill(self) -> None:
        self.client.kill("was closed")

    def join(self) -> None:
        self._thread.join(_EXIT_S)

    def _run(self, theirs: socket.socket) -> None:
        if self._turns is None:
            return self._run_process(theirs)
        while not self._turns.acquire(timeout=_TURN_S):
            if not self.client.usable:
                return theirs.close()
        try:
            self._run_process(theirs)
        finally:
            self._turns.release()

    def _run_process(self, theirs: socket.socket) -> None:
        # Isolated, without site and without bytecode files; the core's path, because walle is on no path there.
        command = [self._python, "-I", "-S", "-B", "-c", _START, str(theirs.fileno()), _core.__file__]
        with contextlib.ExitStack() as undo:
            undo.enter_context(theirs)
            try:
                # A socket too: a pipe can be opened again by its path, and a task would read the lines of others.
                output, printed = map(undo.enter_context, socket.socketpair())
                output.shutdown(socket.SHUT_WR)
                lines = undo.enter_context(output.makefile("rb"))
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=printed.fileno(),
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    cwd="/",
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    start_new_session=True,  # signals of the device's terminal are not the host's
                )
            except (OSError, ValueError) as error:
                self.client.kill(f"could not be started by {self._python!r}: {error}")
                return
            theirs.close()
            printed.close()
            self.pid = process.pid
            self.client.set_process(process.pid)
            undo.enter_context(process)
            _log_output(lines, process.pid)
            self.client.wait_ended(_READY_S)  # the client reads the exit status, which is gone once it is taken here
        level = logging.DEBUG if "was closed" in self.client.end_reason else logging.WARNING
        running = "; these tasks ran: " + ", ".join(map(printable, ran)) if (ran := self.client.ran_at_end) else ""
        _LOG.log(level, "%s (process %d)%s", self.client.end_reason, process.pid, running)


def _log_output(output: io.BufferedReader, pid: int) -> None:
    """Log the host's output, line by line, until it ends; beyond _MAX_LINES in _LINES_S lines are counted."""
    window_s, lines, dropped = time.monotonic(), 0, 0
    while True:
        now_s = time.monotonic()
        if now_s - window_s > _LINES_S:
            if dropped:
                _LOG.warning("%d lines of the output of VM host %d were dropped", dropped, pid)
            window_s, lines, dropped = now_s, 0, 0
        if lines >= _MAX_LINES:
            chunk = output.read1(_DROPPED_BYTES)
            if not chunk:
                return
            dropped += chunk.count(b"\n")
            time.sleep(_DROP_S)  # a task that prints without end waits for this, and the device's event loop does not
            continue
        line = output.readline(_MAX_LINE)
        if not line:
            return
        lines += 1
        text = line.decode(errors="replace").rstrip()
        _LOG.info("VM host %d: %s", pid, "".join(char if char.isprintable() else "?" for char in text))


def _config() -> dict[str, Any]:
    rates.use_saved()
    available = [name for name, has, _ in _core.backends() if has]
    calibrated = [name for name in available if _core.rates_source(name) == "calibrated"]
    models = {name: model for name in available if (model := _core.performance_model(name)) is not None}
    return {
        **boot.contents(),
        "modules": boot.modules(),
        "count_memory": boot.counts_memory(),
        "readable": _readable(),
        "rates": {name: _core.rates(name) for name in calibrated},
        "models": models,
    }


def _layers(hello: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the layers of a host's hello, which may hold anything."""
    layers = hello.get("layers") if isinstance(hello, dict) else None
    if not isinstance(layers, dict):
        return {}
    return {name: layers[name] for name in LAYERS if isinstance(layers.get(name), int)}


def _readable() -> list[str]:
    """Return what a host's interpreters read: the library, shared libraries, time zones, and walle's native core."""
    core = str(Path(_core.__file__).parent)
    libraries = [folder] if (folder := sysconfig.get_config_var("LIBDIR")) else []  # a Python may have its own
    return [*boot.contents()["paths"], core, *walle.engine_ext.__path__, *libraries, *_SYSTEM_PATHS]


def _resources(folder: str, name: str) -> list[tuple[str, str]]:
    """Return path in the task and path of each of the task's resources. The host can open none of them.

    Raises:
        VMError: there are more than MAX_FILES.
    """
    if not folder:
        return []
    paths = sorted(path for path in Path(folder, _RESOURCES).rglob("*") if not path.is_dir() or path.is_symlink())
    if len(paths) > MAX_FILES:
        raise VMError(f"task {name} has more than {MAX_FILES} files in {_RESOURCES}/; put them into fewer")
    return [(path.relative_to(folder).as_posix(), str(path)) for path in paths]


def this_python() -> str:
    """Return the program that runs this Python.

    Raises:
        HostStartError: there is none: the program is frozen, and would start itself.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise HostStartError(
            f"a VM host is started by a Python, and this program ({sys.executable or 'an embedded Python'}) is none;"
            " give VmHost(python=) the path of the same Python, or keep task VMs in this process, without protection"
            " from tasks that break out of Python: DeviceConfig(vm_host=False), CloudConfig(vm_host=False)"
        )
    return sys.executable


def _above_standard(one: socket.socket) -> socket.socket:
    """Return the socket under a number that the started process does not use for its own streams."""
    return socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def signal_of(reason: str) -> str:
    """Return the name of the signal in a host's end reason, "" if there is none."""
    return next((word for word in reason.replace(",", " ").split() if word in _SIGNALS), "")


_SIGNALS = frozenset(one.name for one in signal.Signals)
_hosts: "weakref.WeakSet[VmHost]" = weakref.WeakSet()


def _close_all() -> None:
    for host in list(_hosts):
        host.close()


def _forget_processes() -> None:
    for host in list(_hosts):
        host._init_state()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_processes)
