"""Addresses of the TCP sockets on which processes listen, from /proc."""

import contextlib
import ipaddress
import re
import struct
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"


def listeners(pids: Iterable[int]) -> dict[str, int]:
    """Return "address port" of each socket on which one of the processes listens, with that process."""
    found = {}
    for pid in pids:
        inodes = _socket_inodes(pid)
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and fields[9] in inodes:
                    found[_readable(fields[1])] = pid
    return found


def is_loopback(listener: str) -> bool:
    """Return whether a socket at "address port" is reached from this machine alone."""
    address = ipaddress.ip_address(listener.split(maxsplit=1)[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(found[1])
    return inodes


def _readable(field: str) -> str:
    """Return the address and port of a field of /proc/net/tcp: words of 32 bits in the machine's order."""
    address, port = field.split(":")
    words = bytes.fromhex(address)
    raw = b"".join(struct.pack(">I", *struct.unpack_from("=I", words, at)) for at in range(0, len(words), 4))
    return f"{ipaddress.ip_address(raw)} {int(port, 16)}"
