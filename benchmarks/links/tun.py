"""A link between two network namespaces of this machine, made of two TUN devices and a forwarding process.

A namespace belongs to a thread: what that thread opens or starts is in it. Nothing of the machine's own network is
changed, and both namespaces vanish with their threads. It needs /dev/net/tun and either root or user namespaces.
"""

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.links.shape import LinkShape

_ROOT = Path(__file__).parents[2]
_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI, _IFF_UP = 0x0001, 0x1000, 0x1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
DEVICE_HOST, CLOUD_HOST = "10.99.0.1", "10.99.0.2"


class NoTunError(OSError):
    """The machine or the user cannot make TUN devices in namespaces of their own."""


class Side:
    """One end of the link: a thread in its namespace. `host` is its address."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"link {host}")
        self.tun = self.run(self._enter).result()

    def run[T](self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in the namespace: its sockets and the processes that it starts belong there."""
        return self._thread.submit(work)

    def close(self) -> None:
        os.close(self.tun)
        self._thread.shutdown()

    def _enter(self) -> int:
        try:
            os.unshare(os.CLONE_NEWNET)
            tun = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NoTunError(error.errno, f"no network namespace with a TUN device ({error})") from error
        try:
            fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", b"link0", _IFF_TUN | _IFF_NO_PI))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                for request, address in ((_SIOCSIFADDR, self.host), (_SIOCSIFNETMASK, "255.255.255.0")):
                    sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
                    fcntl.ioctl(control, request, struct.pack("16s16s8x", b"link0", sockaddr))
                for name in (b"link0", b"lo"):
                    flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s16x", name)))
                    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", name, flags[1] | _IFF_UP))
        except OSError as error:
            os.close(tun)
            raise NoTunError(error.errno, f"a TUN device cannot be set up ({error})") from error
        return tun


class TunLink:
    """An open link: its two sides, and the counts of packets once it is closed."""

    def __init__(self, shape: LinkShape, device: Side, cloud: Side) -> None:
        self.shape = shape
        self.device = device
        self.cloud = cloud
        self.counts: dict[str, dict[str, int]] = {}

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, shape: LinkShape, *, seed: int, each: bool = False, sysctls: Mapping[str, str] | None = None
    ) -> Iterator["TunLink"]:
        """Give a link within the block; `sysctls` (`net.ipv4...`) are set in both namespaces alone.

        `each` gives every TCP connection a link of its own.

        Raises:
            NoTunError: see there.
            OSError: a sysctl is unknown, or its value is refused.
        """
        _become_root_of_namespace()
        with contextlib.ExitStack() as undo:
            sides = []
            for host in (DEVICE_HOST, CLOUD_HOST):
                side = Side(host)
                undo.callback(side.close)
                sides.append(side)
                for name, value in (sysctls or {}).items():
                    setting = Path("/proc/sys", *name.split("."))
                    side.run(partial(setting.write_text, value)).result()
            link = cls(shape, *sides)
            undo.enter_context(link._forwarding(seed, each))
            yield link

    @contextlib.contextmanager
    def _forwarding(self, seed: int, each: bool) -> Iterator[None]:
        files = (self.device.tun, self.cloud.tun)
        command = [sys.executable, "-m", "benchmarks.links.forward", *map(str, files), str(seed)]
        command += [json.dumps(self.shape.to_dict()), *["each"] * each]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=files, cwd=_ROOT
        ) as process:
            try:
                yield
            finally:
                self.counts = json.loads(process.communicate()[0])


def _become_root_of_namespace() -> None:
    """Enter a user namespace in which this user may make network namespaces; do nothing for root.

    Raises:
        NoTunError: the system does not allow it, or this process has threads already.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        return
    try:
        os.unshare(os.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise NoTunError(error.errno, f"no user namespace ({error})") from error
