"""Task parts that a gateway knows by their digests, in bounded memory.

Nothing is kept for a device. A part comes from a device that was asked for it, under the digest of what it sent, so
that nobody can put another part in its place. A part that a second device names is kept before those of one device
only: a device that makes up parts removes no other's.
"""

import sys
from collections import OrderedDict

from walle.protocol import TaskPart, part_digest

_ENTRY_BYTES = 700
_TASK_BYTES = 100


class _Known:
    __slots__ = ("part", "sender", "size_bytes")

    def __init__(self, part: TaskPart, sender: str) -> None:
        self.part = part
        self.sender = sender
        texts = [text for entries in vars(part).values() for pair in entries.items() for text in pair]
        # The texts themselves too: 300 deflated bytes can be a name of 200,000 characters.
        self.size_bytes = _ENTRY_BYTES + _TASK_BYTES * (len(texts) // 2) + sum(map(sys.getsizeof, texts))


class KnownParts:
    """Parts by digest; each of the two kinds has half of `max_bytes`, and the one used least recently goes first."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes // 2
        self._of_one: OrderedDict[str, _Known] = OrderedDict()  # parts that one device has named
        self._of_many: OrderedDict[str, _Known] = OrderedDict()
        self._sizes = {id(self._of_one): 0, id(self._of_many): 0}

    def __len__(self) -> int:
        return len(self._of_one) + len(self._of_many)

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def add(self, data: bytes, sender: str) -> None:
        """Add a part as its device sent it. Raises ProtocolError."""
        digest = part_digest(data)
        if digest in self._of_one or digest in self._of_many:
            return
        part = TaskPart.from_bytes(data)
        # Names and versions are the same in many parts.
        part = TaskPart(
            *({sys.intern(key): sys.intern(one) for key, one in two.items()} for two in vars(part).values())
        )
        self._put(self._of_one, digest, _Known(part, sender))

    def peek(self, digest: str) -> TaskPart | None:
        """Return the part of this digest, None where it is not known; it does not count as used."""
        known = self._of_many.get(digest) or self._of_one.get(digest)
        return None if known is None else known.part

    def get(self, digest: str, sender: str) -> TaskPart | None:
        """Return the part of this digest, None where it is not known."""
        known = self._of_many.get(digest)
        if known is not None:
            self._of_many.move_to_end(digest)
            return known.part
        known = self._of_one.get(digest)
        if known is None:
            return None
        if known.sender != sender:
            del self._of_one[digest]
            self._sizes[id(self._of_one)] -= known.size_bytes
            self._put(self._of_many, digest, known)
        return known.part

    def _put(self, kind: OrderedDict[str, _Known], digest: str, known: _Known) -> None:
        kind[digest] = known
        self._sizes[id(kind)] += known.size_bytes
        while self._sizes[id(kind)] > self._max_bytes and len(kind) > 1:
            self._sizes[id(kind)] -= kind.popitem(last=False)[1].size_bytes  # `dict` would scan all that went
