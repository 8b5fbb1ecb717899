"""The VM host: what ends it, what its end costs, and what a host that was taken over can do to its device."""

import asyncio
import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import DEEP_SLEEP, write_task
from walle import plain
from walle.engine_ext import _core
from walle.engine_ext.vm.pool import MAX_STRIKES
from walle.vm import (
    VM,
    DeadlineExceeded,
    HostCrashed,
    HostLost,
    HostStartError,
    LimitExceeded,
    TaskError,
    TaskQuarantined,
    VMClosedError,
    VmHost,
    VMPool,
)

HONEST = DEEP_SLEEP + "\ndef add(a, b): return a + b\ndef wait(seconds): sleep(seconds); return seconds\n"

# Bytecode that takes an object from an empty stack's place, which is not one.
CRASHES = """
def run():
    code = run.__code__
    wild = code.replace(co_code=bytes([0x53, 200] * 64), co_stacksize=1)
    type(run)(wild, {})()
"""

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


@pytest.fixture
def host() -> Iterator[VmHost]:
    host = VmHost()
    yield host
    host.close()


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def inspect(pid: int) -> tuple[bytes, str, list[str]]:
    """Return the environment, the folder and the descriptors of a process."""
    process = Path(f"/proc/{pid}")
    descriptors = [str(link.readlink()) for link in (process / "fd").iterdir()]
    return (process / "environ").read_bytes(), str((process / "cwd").readlink()), descriptors


async def wait_until_gone(pid: int, timeout_s: float = 10.0) -> None:
    until = time.monotonic() + timeout_s
    while is_running(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_many_vms_share_one_process_that_has_an_empty_environment(tmp_path: Path, host: VmHost) -> None:
    vms = [VM(write_task(tmp_path / str(n), HONEST), host=host) for n in range(3)]
    assert await asyncio.gather(*[vm.call("add", 1, n) for n, vm in enumerate(vms)]) == [1, 2, 3]
    pid = host.report().pid
    assert pid not in {0, os.getpid()}
    environment, folder, kinds = inspect(pid)
    assert (environment, folder) == (b"", "/")
    assert sum(kind.startswith("socket:") for kind in kinds) == 1
    assert not any(kind.startswith(("/home", "/root", "/tmp", "/work")) for kind in kinds), kinds
    assert host.report().restarts == 0


@pytest.mark.asyncio
async def test_a_call_that_crashes_the_host_is_named_and_others_can_be_repeated(tmp_path: Path, host: VmHost) -> None:
    hostile = VM(write_task(tmp_path / "hostile", CRASHES), name="hostile", host=host)
    honest = VM(write_task(tmp_path / "honest", HONEST), host=host)
    assert await honest.call("add", 1, 2) == 3
    running = asyncio.ensure_future(honest.call("wait", 5.0))
    queued = asyncio.ensure_future(honest.call("add", 2, 2))
    await asyncio.sleep(0.1)
    pid = host.report().pid
    with pytest.raises(HostCrashed, match="task hostile ended its VM host") as caught:
        await hostile.call("run")
    assert caught.value.signal in {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL"}
    for call in (running, queued):
        with pytest.raises(HostLost, match=caught.value.signal):
            await call
    assert (hostile.crashed, honest.crashed) == (True, False)
    assert not honest.alive
    with pytest.raises(HostLost):
        await honest.call("add", 1, 2)
    again = VM(tmp_path / "honest", host=host)
    assert await again.call("add", 1, 2) == 3
    assert host.report().pid != pid
    assert host.report().restarts == 1


@pytest.mark.asyncio
async def test_a_task_that_crashes_the_host_repeatedly_is_quarantined(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(2, host=host)
    hostile, honest = write_task(tmp_path / "hostile", CRASHES), write_task(tmp_path / "honest", HONEST)
    for _ in range(MAX_STRIKES):
        with pytest.raises(HostCrashed):
            await pool.call(hostile, "run")
        began_s = time.monotonic()
        assert await pool.call(honest, "add", 1, 2) == 3
        assert time.monotonic() - began_s < 5
    with pytest.raises(TaskQuarantined):
        await pool.call(hostile, "run")
    assert await pool.call(honest, "add", 1, 2) == 3
    pool.close()


@pytest.mark.asyncio
async def test_nobody_is_blamed_for_a_host_that_was_killed(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(1, host=host)
    honest = write_task(tmp_path, HONEST)
    for _ in range(MAX_STRIKES + 1):
        running = asyncio.ensure_future(pool.call(honest, "wait", 30.0))
        while not host.report().pid:  # noqa: ASYNC110 -- a thread starts the process
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        os.kill(host.report().pid, signal.SIGKILL)
        with pytest.raises(HostLost, match="SIGKILL"):
            await running
    assert await pool.call(honest, "add", 1, 2) == 3
    pool.close()


@pytest.mark.asyncio
async def test_a_call_that_cannot_be_stopped_costs_the_host_a_restart(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(2, host=host)
    stuck = write_task(tmp_path / "stuck", "import itertools\ndef run(): return any(itertools.repeat(0))\n")
    honest = write_task(tmp_path / "honest", HONEST)
    assert await pool.call(honest, "add", 1, 2) == 3
    pid = host.report().pid
    long = asyncio.ensure_future(pool.call(honest, "wait", 2.5))  # runs on, and ends, in the host that is replaced
    with pytest.raises(DeadlineExceeded):
        await pool.call(stuck, "run", deadline=0.1)
    until = time.monotonic() + 10
    while host.report().pid == pid:
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    assert list(await asyncio.gather(pool.call(honest, "add", 1, 2), long)) == [3, 2.5]
    await wait_until_gone(pid)
    assert host.report().pid not in {0, pid}
    pool.close()


@pytest.mark.asyncio
async def test_a_stopped_host_is_killed_when_a_reply_is_overdue(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, HONEST), host=host, grace_s=0.1)
    assert await vm.call("add", 1, 2) == 3
    pid = host.report().pid
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(HostCrashed, match="did not answer"):
        await vm.call("add", 1, 2, deadline=0.1)
    assert 5 <= time.monotonic() - began_s < 15
    await wait_until_gone(pid)


@pytest.mark.vm_host
def test_the_host_ends_with_its_device(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio, os, signal
    from walle.vm import VM, VmHost
    async def main():
        host = VmHost()
        vm = VM({str(tmp_path)!r}, host=host)
        await vm.call("add", 1, 2)
        if os.fork() == 0:  # this child holds the device's end of the socket
            signal.pause()
        print(host.report().pid, flush=True)
        asyncio.ensure_future(vm.call("wait", 60.0))
        await asyncio.sleep(60)
    asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as device:
        assert device.stdout is not None
        pid = int(device.stdout.readline())
        assert is_running(pid)
        os.kill(device.pid, signal.SIGKILL)
        device.wait()
        asyncio.run(wait_until_gone(pid))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(device.pid, signal.SIGKILL)  # the fork


@pytest.mark.vm_host
def test_the_child_of_a_fork_starts_a_host_of_its_own(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio, os, sys
    from walle.vm import VM, VmHost
    host = VmHost()
    async def add(vm):
        return await vm.call("add", 1, 2)
    vm = VM({str(tmp_path)!r}, host=host)
    assert asyncio.run(add(vm)) == 3
    pid = host.report().pid
    child = os.fork()
    if child == 0:
        assert not vm.alive and vm.ended
        assert asyncio.run(add(VM({str(tmp_path)!r}, host=host))) == 3
        assert host.report().pid not in (0, pid)
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert asyncio.run(add(vm)) == 3
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.vm_host
def test_a_device_that_exits_ends_its_host(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio
    from walle.vm import VM, VmHost
    async def main():
        host = VmHost()
        print(await VM({str(tmp_path)!r}, host=host).call("add", 1, 2), host.report().pid, flush=True)
    asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    result, pid = done.stdout.split()
    assert result == "3"
    assert done.stderr == ""
    assert not is_running(int(pid))


def test_a_host_that_cannot_start_is_reported(tmp_path: Path) -> None:
    folder = write_task(tmp_path, HONEST)

    async def main(python: str, error: str) -> None:
        host = VmHost(python=python)
        for _ in range(3):
            with pytest.raises(HostLost, match=error):
                await VM(folder, host=host).call("add", 1, 2)
        with pytest.raises(HostLost, match=error):
            await VM(folder, host=host).call("add", 1, 2)
        with pytest.raises(HostStartError, match=error):  # without another process
            VM(folder, host=host)
        host.close()

    asyncio.run(main("/nonexistent/python", "could not be started"))


@pytest.mark.asyncio
async def test_what_a_task_prints_reaches_the_devices_log(
    tmp_path: Path, host: VmHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "walle.engine_ext.vm.host")
    vm = VM(write_task(tmp_path, "def run():\n    print('from the task\\x1b[2J')\n"), host=host)
    await vm.call("run")
    until = time.monotonic() + 10
    while "from the task?[2J" not in caplog.text:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_closed_host_refuses_vms(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, HONEST), host=host)
    assert await vm.call("add", 1, 2) == 3
    running = asyncio.ensure_future(vm.call("wait", 30.0))
    await asyncio.sleep(0.05)
    pid = host.report().pid
    await asyncio.to_thread(host.close)
    with pytest.raises(VMClosedError, match="was closed"):
        await running
    assert not is_running(pid)
    with pytest.raises(HostStartError, match="closed"):
        VM(tmp_path, host=host)


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.asyncio
async def test_vms_and_hosts_come_and_go_without_a_leak(tmp_path: Path, host: VmHost) -> None:
    import walle.np as np

    folder = write_task(tmp_path, HONEST + "def same(x): return x\n")
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "file").write_bytes(b"contents")
    array = np.zeros(200_000)

    async def some(count: int) -> None:
        for _ in range(count):
            vm = VM(folder, host=host)
            assert (await vm.call("same", array)).shape == (200_000,)
            vm.close()
            assert await vm.wait_closed()

    await some(3)
    pid = host.report().pid
    before, of_host = descriptors(), descriptors(pid)
    await some(300)
    assert (descriptors(), descriptors(pid)) == (before, of_host)
    for _ in range(10):
        os.kill(host.report().pid, signal.SIGKILL)
        await wait_until_gone(host.report().pid)
        until = time.monotonic() + 10
        while host.report().pid:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await some(1)
    until = time.monotonic() + 10
    while descriptors() > before:
        assert time.monotonic() < until, f"{before} descriptors before, {descriptors()} after"
        await asyncio.sleep(0.05)
    assert host.report().restarts == 10


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
from walle import plain
from walle.engine_ext import _core
libc = ctypes.CDLL(None, use_errno=True)
read_end, write_end = os.pipe()
parent, folder = os.getppid(), sys.argv[1]
layers = _core.enter_sandbox([folder + "/readable"])

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
found["memfd"] = os.write(os.memfd_create("x"), b"x")
found["layers"] = layers
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
        "memfd_secret": 447, "kexec_load": 246, "setuid": 105, "capset": 126, "accept4": 288, "listen": 50,
    },
    "aarch64": {
        "prctl": 167, "exit_group": 94, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40,
        "unshare": 97, "setns": 268, "bpf": 280, "keyctl": 219, "io_uring_setup": 425, "userfaultfd": 282,
        "perf_event_open": 241, "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "init_module": 105,
        "chroot": 51, "execveat": 281, "rt_sigqueueinfo": 138, "seccomp": 277, "setuid": 146, "capset": 91,
    },
}  # fmt: skip


@pytest.mark.vm_host
def test_the_layers_refuse_what_a_host_never_needs(tmp_path: Path) -> None:
    (tmp_path / "readable").mkdir()
    (tmp_path / "readable" / "file").write_text("contents")
    (tmp_path / "secret").write_text("secret")
    numbers: dict[str, Any] = dict(NUMBERS[os.uname().machine])
    numbers["refused"] = [name for name in numbers if name not in {"prctl", "exit_group"}]
    command = [sys.executable, "-c", SANDBOXED, str(tmp_path), json.dumps(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT, done.stderr
    found = json.loads(done.stdout)
    layers = found.pop("layers")
    assert layers["no_new_privileges"]
    assert layers["not_dumpable"]
    if not (layers["landlock"] and layers["seccomp"]):
        pytest.skip(f"this kernel has not all layers: {layers}")
    assert [found.pop(name) for name in ("thread", "readable", "memfd")] == ["runs", "contents", 1]
    expected = dict.fromkeys(found, "EPERM") | {"read": "EACCES", "list": "EACCES"}
    assert found == expected


@pytest.mark.asyncio
async def test_arrays_cross_unchanged_whatever_their_size_and_strides(tmp_path: Path, host: VmHost) -> None:
    import walle.np as np

    main = "def same(x): return x\ndef change(x):\n    x[0] = 1\ndef double(x): return {'a': [x * 2, x[::-1]]}\n"
    vm = VM(write_task(tmp_path, main), host=host)
    for shape in [(0,), (1,), (3,), (5, 7), (700, 701)]:
        for dtype in ("float32", "float64", "int64", "bool", "uint8"):
            array = np.asarray(np.arange(np.ones(shape).size).reshape(shape), dtype=dtype)
            for one in (array, array.T):
                back = await vm.call("same", one)
                assert (back.shape, back.dtype) == (one.shape, one.dtype)
                assert back.tolist() == one.tolist()
    big = np.arange(500_000, dtype="float64")
    with pytest.raises(TaskError, match="read-only"):
        await vm.call("change", big)
    result = await vm.call("double", big)
    assert result["a"][0].tolist() == (big * 2).tolist()
    assert result["a"][1].tolist() == big.tolist()[::-1]
    result["a"][0][0] = 7.0  # its receiver's own
    assert float(big[0]) == 0.0


# --- A host that was taken over

HEAD = struct.Struct("<IBBH")
PING, HELLO, REPLY, CHANGE, PONG = 8, 9, 10, 11, 12
OK, CALLBACK = 0, 7
ARRAY, SHARED, ENCODED = 11, 12, b"\x0d"
F32, BOOL = 0, 12


def message(kind: int, body: bytes, descriptors: int = 0) -> bytes:
    return HEAD.pack(len(body), kind, descriptors, 0) + body


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def reply(value: bytes, *, vm: int = 1, call: int, outcome: int = OK) -> bytes:
    return struct.pack("<QQBQ", vm, call, outcome, 1) + text(b"") + value


def change(kind: int, vm: int = 1) -> bytes:
    return struct.pack("<QB", vm, kind) + text(b"") + text(b"") + struct.pack("<qd", 0, 0.0)


def array(tag: int, dtype: int, shape: tuple[int, ...], contents: bytes = b"") -> bytes:
    return struct.pack(f"<BBB{len(shape)}q", tag, dtype, len(shape), *shape) + contents


NONE, TUPLE = b"\0", 9
ONE_CALLBACK = struct.pack("<BI", TUPLE, 2) + b"\6" + text(b"double") + struct.pack("<BI", TUPLE, 1) + b"\3" + bytes(8)

# What a hostile host sends when it has got a call; `id` is the call's.
HOSTILE: dict[str, Any] = {
    "garbage": lambda _: b"\xff" * 100,
    "an unknown type": lambda _: message(77, b""),
    "a device's message": lambda _: message(4, b""),
    "an endless message": lambda _: HEAD.pack(2**32 - 1, REPLY, 0, 0),
    "a short message": lambda _: message(REPLY, b"\0" * 9),
    "an unknown VM": lambda id_: message(REPLY, reply(NONE, vm=2, call=id_)),
    "an unknown call": lambda id_: message(REPLY, reply(NONE, call=id_ + 1)),
    "an outcome of the device's": lambda id_: message(REPLY, reply(NONE, call=id_, outcome=8)),
    "two callbacks at once": lambda id_: message(REPLY, reply(ONE_CALLBACK, call=id_, outcome=CALLBACK)) * 2,
    "an unknown tag": lambda id_: message(REPLY, reply(b"\x0e", call=id_)),
    "bytes after the value": lambda id_: message(REPLY, reply(NONE + NONE, call=id_)),
    "a count beyond the bytes": lambda id_: message(REPLY, reply(struct.pack("<BI", 8, 2**31), call=id_)),
    "a text beyond the bytes": lambda id_: message(REPLY, reply(struct.pack("<BI", 6, 2**31), call=id_)),
    "deep nesting": lambda id_: message(REPLY, reply(struct.pack("<BI", 8, 1) * 5_000 + NONE, call=id_)),
    "too many items": lambda id_: message(REPLY, reply(struct.pack("<BI", 8, 9_000) + NONE * 9_000, call=id_)),
    "an integer that is not one": lambda id_: message(REPLY, reply(b"\4" + text(b"0xfg"), call=id_)),
    "an array of no type": lambda id_: message(REPLY, reply(array(ARRAY, 99, (1,), b"x"), call=id_)),
    "an array without its bytes": lambda id_: message(REPLY, reply(array(ARRAY, F32, (9,), b"x"), call=id_)),
    "an array of a negative size": lambda id_: message(REPLY, reply(array(ARRAY, F32, (-1,)), call=id_)),
    "an array of an endless size": lambda id_: message(REPLY, reply(array(ARRAY, F32, (2**40, 2**40)), call=id_)),
    "a truth that is neither": lambda id_: message(REPLY, reply(array(ARRAY, BOOL, (1,), b"\7"), call=id_)),
    "shared memory that is missing": lambda id_: message(REPLY, reply(array(SHARED, F32, (9,)), call=id_)),
    "a descriptor that is missing": lambda id_: message(REPLY, reply(NONE, call=id_), 1),
    "an encoded value that is damaged": lambda id_: message(REPLY, reply(ENCODED + text(b"\xa3ab"), call=id_)),
    "an encoded value that is empty": lambda id_: message(REPLY, reply(ENCODED + text(b""), call=id_)),
    "an encoded text that is none": lambda id_: message(REPLY, reply(ENCODED + text(b"\xa1\xff"), call=id_)),
    "an encoded key that is none": lambda id_: message(REPLY, reply(ENCODED + text(b"\x81\1\1"), call=id_)),
    "an encoded value and more": lambda id_: message(REPLY, reply(ENCODED + text(b"\1\1"), call=id_)),
    "deep nesting of an encoded value": lambda id_: message(
        REPLY, reply(ENCODED + text(b"\x91" * 5_000 + b"\xc0"), call=id_)
    ),
    "an encoded value beyond the limit": lambda id_: message(
        REPLY, reply(ENCODED + text(b"\xc6" + struct.pack(">I", 200_000) + bytes(200_000)), call=id_)
    ),
    "a pong without a ping": lambda _: message(PONG, b""),
    "two hellos": lambda _: message(HELLO, NONE) * 2,
    "a change of an unknown VM": lambda _: message(CHANGE, change(0, vm=5)),
    "a change twice": lambda _: message(CHANGE, change(0)) * 2,
    "an unknown change": lambda _: message(CHANGE, change(4)),
    "the end of its stream": lambda _: b"",
}


class FakeHost(VmHost):
    """A host whose other end is this test."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.client = _core.HostClient(ours.detach())

    def start_vm(self, name: str, config: Any, files: set[str], grace_s: float, memory: int, output: int) -> _core.VM:
        return self.client.start_vm(name, dict(config), files, grace_s, memory, output, [])

    def receive(self, kind: int) -> bytes:
        """Return the body of the next message of this type."""
        while True:
            size, found, _, _ = HEAD.unpack(self.socket.recv(HEAD.size, socket.MSG_WAITALL))
            body = self.socket.recv(size, socket.MSG_WAITALL) if size else b""
            if found == kind:
                return body

    def close(self) -> None:
        self.socket.close()
        assert self.client.wait_ended(10)


async def call_of(fake: FakeHost, folder: Path) -> tuple[asyncio.Task[Any], int]:
    """Return a call that the fake host has received, and its id."""
    vm = VM(folder, host=fake, limits={"output_kb": 64})
    call = asyncio.create_task(vm.call("add", 1, 2, callbacks={"double": lambda x: 2 * x}))
    await asyncio.sleep(0)
    return call, struct.unpack_from("<QQ", fake.receive(4))[1]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_message_ends_the_host_and_nothing_else(tmp_path: Path, name: str) -> None:
    fake = FakeHost()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    fake.socket.sendall(HOSTILE[name](call_id))
    if not HOSTILE[name](call_id):
        fake.socket.shutdown(socket.SHUT_WR)
    with pytest.raises((HostLost, HostCrashed), match=r"protocol|socket"):
        await asyncio.wait_for(call, 10)
    assert not fake.client.usable
    fake.close()


@pytest.mark.asyncio
async def test_an_encoded_value_is_read_by_the_device_before_it_is_taken(tmp_path: Path) -> None:
    fake = FakeHost()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    value = {"item": "i1", "prices": [1.5, -3, None], "of": {"deep": True}}
    fake.socket.sendall(message(REPLY, reply(ENCODED + text(plain.encode(value)), call=call_id)))
    result = await asyncio.wait_for(call, 10)
    assert type(result) is _core.Encoded
    assert result.data == plain.encode(value)
    assert result.decode() == value
    fake.close()


@pytest.mark.asyncio
async def test_a_host_that_runs_has_the_time_to_load(tmp_path: Path) -> None:
    """A reply may be overdue while the host loads a model: it is asked whether it runs, and goes on."""
    fake = FakeHost()
    vm = VM(write_task(tmp_path, HONEST), host=fake, grace_s=0.1)
    fake.socket.sendall(message(CHANGE, change(0)))  # the VM has started
    call = asyncio.create_task(vm.call("add", 1, 2, deadline=0.1))
    await asyncio.sleep(0)
    call_id = struct.unpack_from("<QQ", fake.receive(4))[1]
    await asyncio.to_thread(fake.receive, PING)
    fake.socket.sendall(message(PONG, b""))
    await asyncio.sleep(5.5)  # longer than a host may leave a ping without an answer
    fake.socket.sendall(message(REPLY, reply(b"\3" + struct.pack("<q", 3), call=call_id)))
    assert await asyncio.wait_for(call, 10) == 3
    fake.close()


MALFORMED = {
    "a callback that is none": (CALLBACK, NONE),
    "a callback of one part": (CALLBACK, struct.pack("<BI", TUPLE, 1) + b"\6" + text(b"double")),
    "a failure that is a number": (1, b"\3" + bytes(8)),
    "a limit that is a list": (4, struct.pack("<BI", 8, 0)),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_value_fails_its_call_and_no_other(tmp_path: Path, name: str) -> None:
    fake = FakeHost()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    vm = VM(tmp_path, host=fake)
    other = asyncio.create_task(vm.call("add", 1, 2))
    await asyncio.sleep(0)
    other_id = struct.unpack_from("<QQ", fake.receive(4))[1]
    outcome, value = MALFORMED[name]
    good = message(REPLY, reply(b"\3" + struct.pack("<q", 3), vm=2, call=other_id))
    fake.socket.sendall(message(REPLY, reply(value, call=call_id, outcome=outcome)) + good)
    assert await asyncio.wait_for(other, 10) == 3
    with pytest.raises((TaskError, LimitExceeded)):
        await asyncio.wait_for(call, 10)
    fake.close()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_task_that_prints_without_end_does_not_delay_the_device(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, "def run():\n    while True:\n        print('\\n' * 60_000)\n"), host=host)
    call = asyncio.create_task(vm.call("run", deadline=2.0))
    began_s, turns = time.monotonic(), 0
    while not call.done() and time.monotonic() - began_s < 10:
        await asyncio.sleep(0.001)
        turns += 1
    with pytest.raises(DeadlineExceeded):
        await call
    assert turns > 200  # 29 while each line was read


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_signal_that_no_code_caused_is_nobodys_fault(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, HONEST), host=host)
    assert await vm.call("add", 1, 2) == 3
    call = asyncio.create_task(vm.call("wait", 30.0))
    await asyncio.sleep(0.2)
    os.kill(host.report().pid, signal.SIGHUP)
    with pytest.raises(HostLost) as lost:
        await call
    assert not isinstance(lost.value, HostCrashed)


def shared_memory(size: int, seals: int) -> int:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory


ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("size", "seals", "is_good"),
    [
        (400, ALL_SEALS, True),
        (400, fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE, False),  # could shrink, and end the device by SIGBUS
        (400, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK, False),  # could change after it was checked
        (4, ALL_SEALS, False),
        (0, ALL_SEALS, False),
    ],
)
async def test_only_sealed_memory_of_the_right_size_is_an_array(
    tmp_path: Path, size: int, seals: int, is_good: bool
) -> None:
    fake = FakeHost()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    memory = shared_memory(size, seals)
    socket.send_fds(fake.socket, [message(REPLY, reply(array(SHARED, F32, (100,)), call=call_id), 1)], [memory])
    os.close(memory)
    if is_good:
        assert (await call).tolist() == [0.0] * 100
    else:
        with pytest.raises((HostLost, HostCrashed), match="shared memory"):
            await asyncio.wait_for(call, 10)
    fake.close()


@pytest.mark.asyncio
async def test_descriptors_that_belong_to_no_message_end_the_host(tmp_path: Path) -> None:
    before = descriptors()
    fake = FakeHost()
    call, _ = await call_of(fake, write_task(tmp_path, HONEST))
    file = os.open("/dev/null", os.O_RDONLY)
    with contextlib.suppress(OSError):
        for _ in range(200):
            socket.send_fds(fake.socket, [HEAD.pack(1000, REPLY, 0, 0)[:1]], [file] * 200)
    os.close(file)
    with pytest.raises((HostLost, HostCrashed), match="protocol"):
        await asyncio.wait_for(call, 10)
    fake.close()
    del fake, call
    until = time.monotonic() + 10
    while descriptors() > before + 3:  # those of this loop's replies
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_mutated_replies_never_harm_the_device(tmp_path: Path) -> None:
    source = random.Random(13)
    folder = write_task(tmp_path, HONEST)
    value = struct.pack("<BI", 10, 2) + b"\6" + text(b"key") + array(ARRAY, F32, (2, 2), bytes(16))
    value += b"\4" + text(b"0xffffffffffffffffff") + struct.pack("<BI", 8, 2) + b"\2" + b"\5" + bytes(8)
    outcomes = set()
    for _ in range(400):
        fake = FakeHost()
        call, call_id = await call_of(fake, folder)
        good = message(REPLY, reply(value, call=call_id))
        bad = bytearray(good)
        for _ in range(source.randrange(1, 4)):
            bad[source.randrange(len(bad))] = source.choice([0, 1, 7, 8, 11, 12, 127, 128, 255])
        fake.socket.sendall(bad)
        fake.socket.shutdown(socket.SHUT_WR)
        try:
            await asyncio.wait_for(call, 10)
            outcomes.add("ok")
        except (VMClosedError, HostCrashed, TaskError, LimitExceeded) as error:
            outcomes.add(type(error).__name__)
        fake.close()
    assert {"ok", "HostLost"} & outcomes
    assert {"HostCrashed", "HostLost"} & outcomes
