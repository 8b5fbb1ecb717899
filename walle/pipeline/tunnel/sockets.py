"""TCP options of the tunnel's connections, for small messages on links that lose packets.

A lone upload or acknowledgement that is lost has no packet behind it whose acknowledgement shows the loss, so that TCP
waits for its timer: the round trip plus at least 200 ms. The variance of the round trip, which is in the timer too, is
the better bound. Every option is left out where the system does not have it (docs/adr/0022).
"""

import contextlib
import fcntl
import re
import socket
import struct
import sys
import termios
from typing import Protocol

_RTO_MIN_US = 40_000  # the delay of acknowledgements of a peer without the options; the variance comes on top
_DELACK_MAX_US = 20_000  # the least that a kernel with 100 ticks a second takes
# Linux's numbers, since 6.15; Python has no names for them.
_TCP_RTO_MIN_US = 45
_TCP_DELACK_MAX_US = 46
_SIOCOUTQNSD = 0x894B
_INT = struct.Struct("i")
_MIN_RTT_AT, _MIN_RTT_US = 148, struct.Struct("I")  # tcpi_min_rtt of struct tcp_info, since Linux 4.6
_UNKNOWN_RTT_US = 0xFFFFFFFF
_HOST = re.compile(r"(?=.{1,253}$)[0-9A-Za-z_:-]{1,63}(\.[0-9A-Za-z_-]{1,63})*")  # a name, or an IP address
_CONGESTION_CONTROL = b"bbr"  # BBR does not take each loss for congestion


def is_address(host: str, port: int) -> bool:
    """Return whether a device may be sent there; an empty host is the address that it has."""
    return not host or (_HOST.fullmatch(host) is not None and 0 < port < 1 << 16)


class SupportsOptions(Protocol):
    """A socket, or what an event loop gives in its place."""

    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None: ...
    def getsockopt(self, level: int, option: int, size_bytes: int, /) -> bytes: ...
    def fileno(self) -> int: ...


def recover_fast(connection: SupportsOptions | None) -> None:
    """Shorten the timers of a connection, or of a listener's future ones."""
    if sys.platform == "linux":
        _set(connection, _TCP_RTO_MIN_US, _RTO_MIN_US)
        _set(connection, _TCP_DELACK_MAX_US, _DELACK_MAX_US)


def send_past_losses(connection: SupportsOptions | None) -> None:
    """Let a sender keep its rate at a loss, if this user may choose that."""
    if sys.platform == "linux":
        _set(connection, socket.TCP_CONGESTION, _CONGESTION_CONTROL)


def bound_unsent(connection: SupportsOptions | None, size_bytes: int) -> None:
    """Bound the bytes that wait in the kernel before their first transmission, so that later ones can go first."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        _set(connection, option, size_bytes)


def unread_bytes(connection: SupportsOptions | None) -> int:
    """Return the bytes that the kernel has received and that were not read, 1 where the system does not tell."""
    if connection is None or sys.platform != "linux":
        return 1
    return _ask(connection, termios.FIONREAD)


def unsent_bytes(connection: SupportsOptions | None) -> int:
    """Return the bytes that wait in the kernel before their first transmission, 0 where the system does not tell.

    TCP_NOTSENT_LOWAT alone does not keep them few: Linux checks it for each new buffer, of up to 64 KiB.
    """
    if connection is None or sys.platform != "linux":
        return 0
    return _ask(connection, _SIOCOUTQNSD)


def _ask(connection: SupportsOptions, request: int) -> int:
    try:
        answer = fcntl.ioctl(connection.fileno(), request, bytes(_INT.size))
    except (OSError, ValueError):  # closed meanwhile
        return 0
    (size_bytes,) = _INT.unpack(answer)
    return int(size_bytes)


def least_round_trip_s(connection: SupportsOptions | None) -> float | None:
    """Return the least round trip that the kernel has measured lately, None where the system does not tell."""
    if connection is None or sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT_US.size)
        (round_trip_us,) = _MIN_RTT_US.unpack_from(info, _MIN_RTT_AT)
    except (OSError, struct.error):  # closed meanwhile, or an older kernel
        return None
    return None if round_trip_us == _UNKNOWN_RTT_US else round_trip_us / 1e6


def _set(connection: SupportsOptions | None, option: int, value: int | bytes) -> None:
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
