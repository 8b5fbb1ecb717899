"""The ring of a cloud's tunnel servers: which of them serves a device, and how one that reached another is sent on.

A device belongs to the server with the highest hash of (server, device): rendezvous hashing. A server that joins takes
its share from all others alike, and only the devices of one that leaves move. Whether uploads are counted once does
not depend on the ring: the store of uploads decides by (device, epoch, number), whichever server they came to.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from walle.base.clock import Clock
from walle.errors import PipelineError
from walle.pipeline.tunnel.sockets import is_address

SENT_ON_S = 30.0  # a device that comes back within this time after it was sent on did not reach its server
_KEPT = 100_000  # devices that were sent on lately; without the oldest of them, some are sent on twice


class RingError(PipelineError):
    """A ring that cannot be: two servers of one name, or one without an address."""


@dataclasses.dataclass(frozen=True, order=True)
class RingMember:
    """A tunnel server, and the address at which devices reach it."""

    name: str
    host: str
    port: int


class Ring:
    """Tunnel servers that take devices now. Of two rings the one of the higher `generation` is later.

    Raises:
        RingError: two members have one name, or a member has no name or no address.
    """

    def __init__(self, generation: int = 0, members: Iterable[RingMember] = ()) -> None:
        self.generation = generation
        self.members = tuple(sorted(members))
        for member in self.members:
            if not member.name or not member.host or not is_address(member.host, member.port):
                raise RingError(f"tunnel server {member.name!r} has no address: {member.host!r}, port {member.port}")
        # A hash that is keyed by the member's name, to be copied for each device.
        self._hashes = {m: hashlib.blake2b(m.name.encode(), digest_size=8, person=b"walle-ring") for m in self.members}
        if len({member.name for member in self.members}) < len(self.members):
            raise RingError(f"two tunnel servers have one name: {', '.join(member.name for member in self.members)}")

    def owner(self, device_id: str) -> RingMember | None:
        """Return the server of a device, the same in every process; None if the ring is empty."""
        best, highest = None, b""
        data = b"\0" + device_id.encode()
        for member, keyed in self._hashes.items():
            weight = keyed.copy()
            weight.update(data)
            if (digest := weight.digest()) > highest or best is None:
                best, highest = member, digest
        return best

    def to_plain(self) -> dict[str, Any]:
        """Return the ring as plain data, for another process."""
        return {"generation": self.generation, "members": [list(dataclasses.astuple(one)) for one in self.members]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the ring of plain data. Raises RingError if it is none."""
        try:
            members = [RingMember(str(name), str(host), int(port)) for name, host, port in plain["members"]]
            return cls(int(plain["generation"]), members)
        except (KeyError, TypeError, ValueError) as error:
            raise RingError(f"a ring of tunnel servers cannot be read: {error!r}") from error


class RingPlace:
    """The ring as the server called `name` sees it; a server that is not in the ring sends every device on.

    With an empty ring it takes every device.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.ring = Ring()
        self.sent_on = 0  # hellos that were answered with another server's address
        self._name = name
        self._clock = clock
        self._sent: collections.OrderedDict[str, float] = collections.OrderedDict()  # device → when it was sent on

    def take(self, ring: Ring) -> bool:
        """Follow a ring from now on, if it is later than the present one; return whether it is."""
        if ring.generation <= self.ring.generation:
            return False
        self.ring = ring
        self._sent.clear()  # those were by the ring before
        return True

    def leave(self) -> None:
        """Leave the ring: from now on every device belongs to another server, if there is one."""
        self.ring = Ring(self.ring.generation, [one for one in self.ring.members if one.name != self._name])

    def other(self, device_id: str) -> RingMember | None:
        """Return the server to which a device belongs, None if that is this one or the ring is empty."""
        owner = self.ring.owner(device_id)
        return None if owner is None or owner.name == self._name else owner

    def send_on(self, device_id: str) -> RingMember | None:
        """Return the server to which a device that has come is sent; None if it is to be taken here.

        A device that was sent on lately and comes again is taken: its server does not answer, or sends it back by
        another ring. So each server sends it on once, and it goes round no further.
        """
        owner = self.other(device_id)
        if owner is None or self._was_sent(device_id):
            return None
        self.sent_on += 1
        self._sent[device_id] = self._clock.monotonic()
        self._sent.move_to_end(device_id)
        if len(self._sent) > _KEPT:
            self._sent.popitem(last=False)
        return owner

    def _was_sent(self, device_id: str) -> bool:
        sent_s = self._sent.get(device_id)
        return sent_s is not None and self._clock.monotonic() - sent_s < SENT_ON_S
