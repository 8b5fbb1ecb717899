"""Connections that wait for room in a full queue of uploads, in order of their turns."""

import collections


class RoomQueue[Waiting]:
    """Those that wait: new ones, and those that had their turn and have more. Each kind is first come, first served.

    The two kinds alternate, so that a device which sends a little now and then does not wait for all that always have
    more, and delays none of those by more than one turn.
    """

    def __init__(self) -> None:
        self._new = collections.OrderedDict[Waiting, None]()
        self._again = collections.OrderedDict[Waiting, None]()
        self._is_new_next = True

    def __len__(self) -> int:
        return len(self._new) + len(self._again)

    def add(self, waiting: Waiting) -> bool:
        """Append one that was not waiting before; return False if it waits already."""
        return self._append(self._new, waiting)

    def add_again(self, waiting: Waiting) -> bool:
        """Append one whose turn has ended; return False if it waits already."""
        return self._append(self._again, waiting)

    def pop(self) -> Waiting | None:
        """Remove and return the one whose turn it is, None if none waits."""
        kinds = (self._new, self._again) if self._is_new_next else (self._again, self._new)
        kind = kinds[0] or kinds[1]
        if not kind:
            return None
        self._is_new_next = kind is self._again
        return kind.popitem(last=False)[0]

    def discard(self, waiting: Waiting) -> None:
        """Remove one if it waits."""
        self._new.pop(waiting, None)
        self._again.pop(waiting, None)

    def _append(self, kind: collections.OrderedDict[Waiting, None], waiting: Waiting) -> bool:
        if waiting in self._new or waiting in self._again:
            return False
        kind[waiting] = None
        return True
