"""Messages of a VM host that was taken over, and what a device has no room for: they cost calls, and not the device."""

import asyncio
import contextlib
import fcntl
import gc
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.fake_host import (
    ANSWER,
    ARRAY,
    BOOL,
    BUFFER,
    CALLBACK,
    CHANGE,
    DROP_BUFFER,
    ENCODED,
    F32,
    HEAD,
    HELLO,
    IN_BUFFER,
    KEEP_BUFFER,
    NONE,
    ONE_CALLBACK,
    PING,
    PONG,
    REPLY,
    SHARED,
    SUBMIT,
    TUPLE,
    FakeHost,
    array,
    call_of,
    change,
    message,
    reply,
    text,
)
from tests.sim.vm_hosts import HONEST, descriptors
from tests.sim.vm_task import write_task
from walle.base import plain
from walle.engine_ext import _core
from walle.errors import VMError
from walle.vm import (
    VM,
    DeadlineExceeded,
    HostCrashed,
    HostLost,
    LimitExceeded,
    TaskError,
    VMClosedError,
    VmHost,
    shared_empty,
    shared_memory_counts,
)

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
    "an unknown tag": lambda id_: message(REPLY, reply(b"\x0f", call=id_)),
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
    "an array in a buffer": lambda id_: message(
        REPLY, reply(array(IN_BUFFER, F32, (9,), struct.pack("<QQ", 1, 0)), call=id_)
    ),
    "a buffer of its own": lambda _: message(BUFFER, struct.pack("<QQ", 1, 1 << 16)),
    "the end of a buffer": lambda _: message(DROP_BUFFER, struct.pack("<Q", 1)),
    "a kept buffer without its number": lambda _: message(KEEP_BUFFER, b"\1"),
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
async def test_a_host_can_have_only_its_own_buffers_not_used_again(tmp_path: Path) -> None:
    fake = FakeHost()
    vm = VM(write_task(tmp_path, HONEST), host=fake)
    fake.socket.sendall(message(CHANGE, change(0)))
    size = (1 << 20) + (13 << 16)  # size that no other test has
    other = shared_empty(size, "uint8")  # a buffer that this host does not have
    other_id = shared_memory_counts()["created"]
    ids: list[int] = []
    for keeps in (False, True, True):
        call = asyncio.create_task(vm.call("add", shared_empty(3 << 20, "uint8"), 2))
        await asyncio.sleep(0)
        if not ids or keeps:  # a buffer is sent once
            ids.append(struct.unpack_from("<Q", fake.receive(BUFFER))[0] if len(ids) != 1 else ids[0])
        call_id = struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
        for number in (other_id, ids[-1]) if keeps else (2**64 - 1,):
            fake.socket.sendall(message(KEEP_BUFFER, struct.pack("<Q", number)))
        fake.socket.sendall(message(REPLY, reply(b"\3" + struct.pack("<q", 3), call=call_id)))
        assert await asyncio.wait_for(call, 10) == 3
    assert ids[0] == ids[1] != ids[2]
    created = shared_memory_counts()["created"]
    del other
    assert shared_empty(size, "uint8").size == size
    assert shared_memory_counts()["created"] == created  # used again
    fake.close()


def _free_descriptor(pid: int) -> int:
    """Return the number that the next descriptor of a process has."""
    used = {int(link.name) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return min(set(range(len(used) + 1)) - used)


FIRST = "def first(array): return int(array[0]) * 0\n"


@pytest.mark.asyncio
async def test_a_host_that_keeps_more_buffers_than_it_got_is_ended(tmp_path: Path) -> None:
    """Else it could occupy the device's thread with such messages without end."""
    fake = FakeHost()
    call, _ = await call_of(fake, write_task(tmp_path, HONEST))
    fake.socket.sendall(message(KEEP_BUFFER, struct.pack("<Q", 1)) * 3)
    with pytest.raises((HostLost, HostCrashed), match=r"protocol.*kept"):
        await asyncio.wait_for(call, 10)
    fake.close()


@pytest.mark.asyncio
async def test_a_buffer_that_the_host_cannot_map_is_not_used_again(tmp_path: Path, host: VmHost) -> None:
    """A host without a descriptor for a moment would fail every later call whose arguments are in that buffer."""
    vm = VM(write_task(tmp_path, FIRST), host=host)
    assert await vm.call("first", [1]) == 0
    limit = resource.prlimit(pid := host.report().pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_free_descriptor(pid), limit[1]))
    size = (1 << 20) + (17 << 16)  # size that no other test has
    with pytest.raises(VMError, match=r"mapped|descriptor|received"):
        await vm.call("first", shared_empty(size, "uint8"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    gc.collect()  # what `raises` keeps: the buffer is free
    for _ in range(3):
        assert await vm.call("first", shared_empty(size, "uint8")) == 0


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
    fake = FakeHost(reply_s=2.0)
    vm = VM(write_task(tmp_path, HONEST), host=fake, grace_s=0.1)
    fake.socket.sendall(message(CHANGE, change(0)))  # the VM has started
    call = asyncio.create_task(vm.call("add", 1, 2, deadline=0.1))
    await asyncio.sleep(0)
    call_id = struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
    await asyncio.to_thread(fake.receive, PING)
    fake.socket.sendall(message(PONG, b""))
    await asyncio.sleep(2.2)  # longer than a host may leave a ping without an answer
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
    other_id = struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
    outcome, value = MALFORMED[name]
    good = message(REPLY, reply(b"\3" + struct.pack("<q", 3), vm=2, call=other_id))
    fake.socket.sendall(message(REPLY, reply(value, call=call_id, outcome=outcome)) + good)
    assert await asyncio.wait_for(other, 10) == 3
    with pytest.raises((TaskError, LimitExceeded)):
        await asyncio.wait_for(call, 10)
    fake.close()


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
        (400, fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE, False),  # the file could shrink, and end the device by SIGBUS
        (400, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK, False),  # the file could change after it was checked
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


# --- Results that are legal but odd


ODD = """
import walle.np as np

def many_arrays():
    one = np.zeros((1,) * 8, dtype="uint8")
    return [one] * 60_000

def raise_from_a_long_name():
    def fail(): raise ValueError("x" * 10_000)
    code = fail.__code__.replace(co_filename="f" * 3_000_000, co_name="n" * 3_000_000)
    type(fail)(code, {"ValueError": ValueError})()

def loop_in_a_long_name():
    def loop():
        while True: pass
    type(loop)(loop.__code__.replace(co_filename="f" * 3_000_000), {})()

def import_a_long_name(): __import__("m" * 3_000_000)

def fine(): return 1
"""


@pytest.mark.asyncio
async def test_results_that_are_odd_fail_their_call_only(tmp_path: Path, host: VmHost) -> None:
    task = write_task(tmp_path, ODD)
    vm = VM(task, host=host, limits={"output_kb": 1024, "memory_mb": 64})
    with pytest.raises(LimitExceeded, match="output_kb"):  # 4.1 MB of descriptions
        await vm.call("many_arrays")
    with pytest.raises(TaskError, match="ValueError"):
        await vm.call("raise_from_a_long_name")
    with pytest.raises(TaskError):
        await vm.call("import_a_long_name")
    with pytest.raises(DeadlineExceeded):
        await vm.call("loop_in_a_long_name", deadline=0.2)
    with pytest.raises(TaskError, match="name"):
        await vm.call("walle.engine_ext.vm.callbacks:call", "n" * 3_000_000, callbacks={"f": print})
    assert await vm.call("fine") == 1
    assert host.report().restarts == 0


@pytest.mark.asyncio
async def test_a_result_without_a_limit_that_is_too_large_fails_its_call_only(tmp_path: Path, host: VmHost) -> None:
    main = "def run(n):\n    return [b'x' * (1 << 20)] * n\ndef fine(): return 1\n"
    main += "import walle.np as np\ndef arrays():\n    one = np.zeros(900_000, dtype='uint8')\n    return [one] * 600\n"
    vm = VM(write_task(tmp_path, main), host=host)
    with pytest.raises(TaskError, match=r"could not be sent.*bytes"):  # 540 MB of arrays that are small each
        await vm.call("arrays")
    assert await vm.call("fine") == 1
    assert host.report().restarts == 0


# --- What the device has no room for


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    held: list[int] = []
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 20, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.mark.exhausts
@pytest.mark.asyncio
async def test_a_result_for_which_the_device_has_no_descriptor_fails_its_call_only(tmp_path: Path) -> None:
    fake = FakeHost()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    memory = shared_memory(400, ALL_SEALS)
    with no_descriptors_left():
        shared = message(REPLY, reply(array(SHARED, F32, (100,)), call=call_id), 1)
        socket.send_fds(fake.socket, [shared], [memory])
        with pytest.raises(VMError, match=r"could not be received: .*open files"):
            await asyncio.wait_for(call, 10)
    assert fake.client.usable
    vm = VM(tmp_path, host=fake)
    again = asyncio.create_task(vm.call("add", 1, 2))
    await asyncio.sleep(0)
    again_id = struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
    socket.send_fds(fake.socket, [message(REPLY, reply(array(SHARED, F32, (100,)), vm=2, call=again_id), 1)], [memory])
    assert (await again).tolist() == [0.0] * 100
    os.close(memory)
    fake.close()


@pytest.mark.exhausts
@pytest.mark.asyncio
async def test_a_callback_for_which_the_device_has_no_descriptor_is_answered_by_an_error(tmp_path: Path) -> None:
    fake = FakeHost()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    memory = shared_memory(400, ALL_SEALS)
    pair = struct.pack("<BI", TUPLE, 2) + b"\6" + text(b"double") + struct.pack("<BI", TUPLE, 1)
    asked = pair + array(SHARED, F32, (100,))
    with no_descriptors_left():
        asking = message(REPLY, reply(asked, call=call_id, outcome=CALLBACK), 1)
        socket.send_fds(fake.socket, [asking], [memory])
        answer = await asyncio.to_thread(fake.receive, ANSWER)
    assert struct.unpack_from("<QQB", answer) == (1, call_id, 1)
    assert b"MemoryError" in answer
    fake.socket.sendall(message(REPLY, reply(b"\3" + struct.pack("<q", 3), call=call_id)))
    assert await asyncio.wait_for(call, 10) == 3
    os.close(memory)
    fake.close()


LITTLE_MEMORY = """
import asyncio, os, resource, struct, sys, threading
from pathlib import Path
from tests.sim.fake_host import ARRAY, REPLY, SHARED, SUBMIT, FakeHost, array, message, reply
from walle.errors import VMError
from walle.vm import VM

async def main(folder):
    fake = FakeHost()
    vm = VM(Path(folder), host=fake)
    async def call():
        made = asyncio.create_task(vm.call("add", 1, 2))
        await asyncio.sleep(0)
        return made, struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
    for size in (300 << 20, 90 << 20):  # for which there is no memory; there is, but not for two copies
        made, call_id = await call()
        sent = message(REPLY, reply(array(ARRAY, 0, (size // 4,), bytes(size)), call=call_id))
        sending = threading.Thread(target=fake.socket.sendall, args=(sent,))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (160 << 20), resource.RLIM_INFINITY))
        sending.start()
        try:
            await made
            raise AssertionError("there was memory")
        except VMError as error:
            assert type(error) is VMError and "could not be received" in str(error), repr(error)
        sending.join()
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        del sent
    made, call_id = await call()
    fake.socket.sendall(message(REPLY, reply(b"\\3" + struct.pack("<q", 3), call=call_id)))
    assert await made == 3
    fake.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.night
@pytest.mark.exhausts
def test_a_result_for_which_the_device_has_no_memory_fails_its_call_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LITTLE_MEMORY, str(write_task(tmp_path, HONEST))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[3]
    )
    assert (done.returncode, done.stderr) == (0, "")


STARVED = """
import asyncio, ctypes, platform, struct, sys, threading, time
from pathlib import Path
from tests.sim.fake_host import FakeHost
from walle.vm import VM

class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

def starve():  # sendmsg fails with ENOBUFS from now on, in all threads
    number = {"x86_64": 46, "aarch64": 211}[platform.machine()]
    code = (Filter * 4)((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 105), (0x06, 0, 0, 0x7FFF0000))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    seccomp = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    assert libc.syscall(seccomp, 1, 1, ctypes.byref(Program(4, code))) == 0

async def main(folder):
    fake = FakeHost()
    vm = VM(Path(folder), host=fake)
    starve()
    call = asyncio.create_task(vm.call("add", 1, 2))
    await asyncio.sleep(0.1)
    before_s = time.process_time()
    await asyncio.sleep(1.0)
    print(time.process_time() - before_s)
    call.cancel()

asyncio.run(main(sys.argv[1]))
"""


def test_a_device_waits_where_the_system_has_no_memory_to_send(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARVED, str(write_task(tmp_path, HONEST))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parents[3]
    )
    assert float(done.stdout) < 0.1  # seconds of a processor within one; 0.3 and more while it tried at once


@pytest.mark.asyncio
async def test_a_host_that_keeps_its_socket_open_is_seen_to_end(tmp_path: Path) -> None:
    """As where it has sent its own end of the socket to the device: no stream ends, and no call has a deadline."""
    fake = FakeHost()
    process = fake.start_process()
    call, _ = await call_of(fake, write_task(tmp_path, HONEST))
    process.kill()
    with pytest.raises((HostLost, HostCrashed), match="SIGKILL"):
        await asyncio.wait_for(call, 5)
    process.wait()
    fake.close()


@pytest.mark.asyncio
async def test_a_reply_that_a_host_sent_before_it_ended_is_read(tmp_path: Path) -> None:
    fake = FakeHost()
    process = fake.start_process()
    call, call_id = await call_of(fake, write_task(tmp_path, HONEST))
    fake.socket.sendall(message(REPLY, reply(b"\3" + struct.pack("<q", 3), call=call_id)))
    process.kill()
    assert await asyncio.wait_for(call, 5) == 3
    process.wait()
    fake.close()
