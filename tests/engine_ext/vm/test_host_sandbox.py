"""The kernel's layers around a VM host: what its tasks cannot reach."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import write_task
from walle.vm import (
    VM,
    TaskError,
    VmHost,
)

ESCAPE = """
def classes():
    found, queue = {}, [object]
    while queue:
        for one in type.__subclasses__(queue.pop()):
            if one.__name__ not in found:
                found[one.__name__] = one
                queue.append(one)
    return found

def classes_found():
    return sorted(classes())

def read(path, mode="r"):
    return classes()["FileIO"](path, mode).read(1000)

def write(path):
    return classes()["FileIO"](path, "w").write(b"x")
"""


DESCRIPTORS = (
    ESCAPE
    + """
def use(number):
    found = []
    for attempt in (
        lambda: classes()["FileIO"](number, "w", closefd=False).write(b"x"),
        lambda: classes()["FileIO"](number, "r", closefd=False).read(1),
        lambda: classes()["FileIO"](number, "r", closefd=False).readinto(bytearray(1)),
        lambda: classes()["FileIO"](number, "r", closefd=True).close(),
    ):
        try:
            attempt()
            found.append("done")
        except OSError as error:
            found.append(type(error).__name__)
    return found
"""
)


def links_of(pid: int) -> dict[str, str]:
    return {link.name: str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


@pytest.mark.asyncio
async def test_a_task_cannot_use_the_descriptors_through_which_its_host_serves(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, DESCRIPTORS), host=host)
    host.wait_ready()
    if not host.report().layers["seccomp"]:
        pytest.skip("this kernel has no seccomp")
    pid = host.report().pid
    links = links_of(pid)
    while any(link.startswith("/") and link != "/dev/null" for link in links.values()):  # a module is being imported
        await asyncio.sleep(0.01)
        links = links_of(pid)
    used = [int(name) for name, link in links.items() if int(name) > 2 and ("socket" in link or "pidfd" in link)]
    assert len(used) == 5  # for the device, a crash's frames, two to wake up its thread, and the device's process
    answers = {number: await vm.call("use", number) for number in used}
    (frames,) = [number for number, found in answers.items() if found != ["PermissionError"] * 4]
    assert answers[frames] == ["done"] + ["PermissionError"] * 3
    serving = [number for number in used if number != frames]
    assert not any("eventfd" in link for link in links.values())
    for number in serving:
        assert await vm.call("use", number) == ["PermissionError"] * 4
    assert host.report().pid == pid
    assert links_of(pid) == links


@pytest.mark.asyncio
async def test_no_descriptor_of_a_host_can_be_opened_again(tmp_path: Path, host: VmHost) -> None:
    """Else a task reads what others printed, and the crash record: the kernel opens pipes and memory by such a path."""
    vm = VM(write_task(tmp_path, ESCAPE), host=host)
    host.wait_ready()
    pid = host.report().pid
    opened = {name: link for name, link in links_of(pid).items() if link != "/dev/null"}
    assert len(opened) == 7  # standard output twice, and those through which it serves
    assert not any("memfd" in link or "pipe" in link for link in opened.values())
    for number in opened:
        with pytest.raises(TaskError, match=r"No such device or address|Invalid argument"):
            await vm.call("read", f"/proc/self/fd/{number}")
    for number in ("1", "2"):
        assert await vm.call("read", int(number)) == b""  # the device's end says nothing
    assert host.report().pid == pid


@pytest.mark.asyncio
async def test_an_escape_through_the_objects_of_the_interpreter_finds_nothing(tmp_path: Path, host: VmHost) -> None:
    secret = tmp_path / "device" / "token"
    secret.parent.mkdir()
    secret.write_text("secret")
    vm = VM(write_task(tmp_path / "task", ESCAPE), host=host)
    host.wait_ready()
    layers = host.report().layers
    if not (layers["landlock"] and layers["seccomp"]):
        pytest.skip(f"this kernel has not all layers: {layers}")
    assert "FileIO" in await vm.call("classes_found")
    folders = [str(secret), "/etc/passwd", "/proc/self/environ", "/proc/self/mem", f"/proc/{os.getpid()}/environ"]
    for path in [*folders, str(tmp_path / "task" / "main.py"), "/dev/zero", "/proc/1/status"]:
        with pytest.raises(TaskError, match="PermissionError"):
            await vm.call("read", path)
    for path in [
        str(tmp_path / "new"),
        str(secret),
        "/dev/null",
        "/proc/self/mem",
        f"/proc/{os.getpid()}/oom_score_adj",
    ]:
        with pytest.raises(TaskError, match="PermissionError"):
            await vm.call("write", path)
    assert not (tmp_path / "new").exists()
    assert secret.read_text() == "secret"


SANDBOXED = """
import ctypes, errno, fcntl, json, os, resource, signal, socket, sys, threading
from walle.base import plain
from walle.engine_ext import _core
libc = ctypes.CDLL(None, use_errno=True)
read_end, write_end = os.pipe()
parent, folder = os.getppid(), sys.argv[1]
landlock = libc.syscall(444, None, 0, 1)  # its version
reserved, other = socket.socketpair()
os.write(write_end, b"x")
# A pipe: no path that Landlock knows.
layers = _core.enter_sandbox([folder + "/readable", f"/proc/self/fd/{read_end}"], [reserved.fileno()])

def raw(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "syscall")

numbers = json.loads(sys.argv[2])
attempts = {
    "read": lambda: os.open(folder + "/secret", os.O_RDONLY),
    "list": lambda: os.listdir(folder),
    "write": lambda: os.open(folder + "/readable/file", os.O_WRONLY),
    "append": lambda: os.open(folder + "/readable/file", os.O_RDWR | os.O_APPEND),
    "create": lambda: os.open(folder + "/readable/new", os.O_RDONLY | os.O_CREAT),
    "unnamed": lambda: os.open(folder + "/readable", os.O_RDWR | os.O_TMPFILE),
    "truncate": lambda: os.truncate(folder + "/readable/file", 0),
    "unlink": lambda: os.unlink(folder + "/readable/file"),
    "rename": lambda: os.rename(folder + "/readable/file", folder + "/readable/other"),
    "link": lambda: os.link(folder + "/secret", folder + "/readable/link"),
    "mkdir": lambda: os.mkdir(folder + "/readable/folder"),
    "chmod": lambda: os.chmod(folder + "/readable/file", 0o777),
    "fork": os.fork,
    "vfork": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "inet": lambda: socket.socket(socket.AF_INET),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "netlink": lambda: socket.socket(socket.AF_NETLINK),
    "socketpair": socket.socketpair,
    "kill": lambda: os.kill(parent, 0),
    "kill own": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "killpg": lambda: os.killpg(0, 0),
    "nice others": lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
    "limits of others": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE),
    "raise limits": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
    "read reserved": lambda: os.read(reserved.fileno(), 1),
    "write reserved": lambda: os.write(reserved.fileno(), b"x"),
    "readv reserved": lambda: os.readv(reserved.fileno(), [bytearray(1)]),
    "writev reserved": lambda: os.writev(reserved.fileno(), [b"x"]),
    "close reserved": lambda: os.close(reserved.fileno()),
    "duplicate reserved": lambda: fcntl.fcntl(reserved.fileno(), fcntl.F_DUPFD_CLOEXEC, 3),
    "flags of reserved": lambda: fcntl.fcntl(reserved.fileno(), fcntl.F_GETFL),
    "high half of reserved": lambda: raw(numbers["close"], ctypes.c_long(reserved.fileno() | 1 << 32)),
    "own signals": lambda: fcntl.fcntl(read_end, 8, parent),
    "dumpable": lambda: raw(numbers["prctl"], 4, 1, 0, 0, 0),
    "dead parent": lambda: raw(numbers["prctl"], 1, 0, 0, 0, 0),
    "exit": lambda: raw(numbers["exit_group"], 0),
    **{name: (lambda name=name: raw(numbers[name], 0, 0, 0, 0, 0, 0)) for name in numbers["refused"]},
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "done"
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
    except ValueError:  # of setrlimit
        found[name] = "EPERM"
thread = threading.Thread(target=lambda: found.update(thread="runs"))
thread.start()
thread.join()
found["readable"] = os.read(os.open(folder + "/readable/file", os.O_RDONLY), 10).decode()
found["messages"] = [reserved.sendmsg([b"x"]), other.recvmsg(1)[0].decode(), os.read(read_end, 1).decode()]
found["memfd"] = os.write(os.memfd_create("x"), b"x")
found["layers"] = layers
found["landlock"] = max(landlock, 0)
os.write(1, json.dumps(found).encode())
os.abort()
"""

# By architecture: numbers of Linux system calls for which Python has no function.
NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "prctl": 157, "exit_group": 231, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165,
        "unshare": 272, "setns": 308, "bpf": 321, "keyctl": 250, "add_key": 248, "io_uring_setup": 425,
        "userfaultfd": 323, "perf_event_open": 298, "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424,
        "init_module": 175, "chroot": 161, "execveat": 322, "rt_sigqueueinfo": 129, "sched_setscheduler": 144,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "landlock_create_ruleset": 444, "seccomp": 317,
        "memfd_secret": 447, "close": 3, "kexec_load": 246, "setuid": 105, "capset": 126, "accept4": 288, "listen": 50,
    },
    "aarch64": {
        "prctl": 167, "exit_group": 94, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40,
        "unshare": 97, "setns": 268, "bpf": 280, "keyctl": 219, "io_uring_setup": 425, "userfaultfd": 282,
        "perf_event_open": 241, "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "init_module": 105,
        "chroot": 51, "execveat": 281, "rt_sigqueueinfo": 138, "close": 57, "seccomp": 277, "setuid": 146, "capset": 91,
    },
}  # fmt: skip


@pytest.mark.vm_host
def test_the_layers_refuse_what_a_host_never_needs(tmp_path: Path) -> None:
    (tmp_path / "readable").mkdir()
    (tmp_path / "readable" / "file").write_text("contents")
    (tmp_path / "secret").write_text("secret")
    numbers: dict[str, Any] = dict(NUMBERS[os.uname().machine])
    numbers["refused"] = [name for name in numbers if name not in {"close", "prctl", "exit_group"}]
    command = [sys.executable, "-c", SANDBOXED, str(tmp_path), json.dumps(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT, done.stderr
    found = json.loads(done.stdout)
    layers = found.pop("layers")
    assert layers["landlock"] == found.pop("landlock")  # equal, although one path could not be added
    assert layers["no_new_privileges"]
    assert layers["not_dumpable"]
    if not (layers["landlock"] and layers["seccomp"]):
        pytest.skip(f"this kernel has not all layers: {layers}")
    assert [found.pop(name) for name in ("thread", "readable", "memfd")] == ["runs", "contents", 1]
    assert found.pop("messages") == [1, "x", "x"]
    # The C library has substitutes for newer calls, which it uses where the kernel does not know them.
    newer = [name for name in numbers["refused"] if numbers[name] >= 424]
    expected = dict.fromkeys(found, "EPERM") | dict.fromkeys(newer, "ENOSYS") | {"read": "EACCES", "list": "EACCES"}
    assert found == expected
