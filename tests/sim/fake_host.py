"""A VM host whose process is the test: the messages of a host, good and bad ones (src/vm/message.h)."""

import asyncio
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

from walle.engine_ext import _core
from walle.engine_ext.vm.host import VmSettings
from walle.vm import (
    VM,
    VmHost,
)

HEAD = struct.Struct("<IBBH")
SUBMIT, ANSWER, CLOSE, PING, HELLO, REPLY, CHANGE, PONG = 4, 6, 7, 8, 9, 10, 11, 12
KEEP_BUFFER, BUFFER, DROP_BUFFER = 13, 14, 15
OK, DEADLINE, CALLBACK = 0, 3, 7
OPENED, REJECTING, ABANDONED, ENDED = 0, 1, 2, 3
ARRAY, SHARED, ENCODED, IN_BUFFER = 11, 12, b"\x0d", 14
F32, BOOL = 0, 12


def message(kind: int, body: bytes, descriptors: int = 0) -> bytes:
    return HEAD.pack(len(body), kind, descriptors, 0) + body


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def reply(value: bytes, *, vm: int = 1, call: int, outcome: int = OK) -> bytes:
    return struct.pack("<QQBQ", vm, call, outcome, 1) + text(b"") + value


def change(kind: int, vm: int = 1, leaked_bytes: int = 0) -> bytes:
    return struct.pack("<QB", vm, kind) + text(b"") + text(b"") + struct.pack("<qd", leaked_bytes, 0.0)


def array(tag: int, dtype: int, shape: tuple[int, ...], contents: bytes = b"") -> bytes:
    return struct.pack(f"<BBB{len(shape)}q", tag, dtype, len(shape), *shape) + contents


NONE, TUPLE = b"\0", 9
ONE_CALLBACK = struct.pack("<BI", TUPLE, 2) + b"\6" + text(b"double") + struct.pack("<BI", TUPLE, 1) + b"\3" + bytes(8)


class FakeHost(VmHost):
    """A host whose other end is this test. What is to run alone runs in processes of a real one.

    `times` are close_s, reply_s and retire_s (`HostTimes` in src/vm/host_client.h).
    """

    def __init__(self, real: VmHost | None = None, **times: float) -> None:
        ours, self.socket = socket.socketpair()
        self.client = _core.HostClient(ours.detach(), **times)
        self.real = real
        self.alone = 0  # VMs in the real one

    def start_vm(self, settings: VmSettings, *, alone: bool = False) -> _core.VM:
        if alone:
            assert self.real is not None
            self.alone += 1
            return self.real.start_vm(settings, alone=True)
        return self.client.start_vm(*settings, [])

    def start_process(self) -> "subprocess.Popen[bytes]":
        """Return a process that stands for the host's."""
        process = subprocess.Popen(["sleep", "60"])
        self.client.set_process(process.pid)
        return process

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
    return call, struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
