"""Credit to read from connections, never given beyond the memory for bytes that are received and not processed.

While there is memory, every connection may read. Once half of it is used, or while others wait, a connection that has
unprocessed bytes loses its credit, and waits for a turn: a turn begins when there is memory for what the connection may
read, and ends when it has read, or has completed its unfinished frame. A connection without credit is not read, so that
TCP slows its device down. One whose bytes are all processed at once keeps its credit: a device that sends a little is
not delayed by those that send much. At three quarters of the memory every credit ends.

Turns are first come, first served. Three quarters of the memory are for the ends of unfinished frames, which release
their bytes; they come first where nothing else would release any. A connection that waits and has nothing to read gets
its credit back without a turn after a second.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable
from typing import Protocol

_TURN_S = 1.0  # after which a turn reserves no memory any more, if the connection has read nothing
_LITTLE_BYTES = 16 << 10  # unread, of a connection that keeps its credit when half of the memory is used
_LOOKS = 64  # waiting connections that one call checks


class Reader(Protocol):
    """A connection, as `ReadCredit` sees it."""

    @property
    def received_bytes(self) -> int:
        """Bytes that were received since its beginning."""

    @property
    def missing_bytes(self) -> int:
        """Bytes that its unfinished frame lacks; 0 if it has none, or has whole frames before it."""

    @property
    def wants_to_read(self) -> bool:
        """False while it is not read for another reason."""

    def unread_bytes(self) -> int:
        """Return how many bytes of it the kernel has."""

    def set_credit(self, *, may_read: bool) -> None:
        """Read, or do not read."""


@dataclasses.dataclass(slots=True)
class _State:
    """A reader's account: bytes that it holds, and its unfinished frame by the place of its first byte."""

    held_bytes: int = 0
    frame_at: int = -1
    readable_s: float = 0.0  # time from the frame's begin to `since_s`, without waits with bytes to read
    since_s: float = 0.0


@dataclasses.dataclass(slots=True)
class _Wait:
    number: int  # ascending in the order of turns
    since_s: float


@dataclasses.dataclass(slots=True)
class _Turn:
    reserved_bytes: int
    ends_at: int  # count of the reader's received bytes at which its turn ends
    began_s: float


class ReadCredit[R: Reader]:
    """The credit of all readers in `size_bytes` of memory, of which one read takes `read_bytes` at most.

    `can_release()` is whether held bytes will be processed without a further read. A call costs O(turns), of which
    there are size_bytes / read_bytes at most; one by which a bound is crossed costs O(readers).
    """

    def __init__(
        self, size_bytes: int, read_bytes: int, can_release: Callable[[], bool], monotonic: Callable[[], float]
    ) -> None:
        self.held_bytes = 0
        self._free_bytes = size_bytes // 2  # up to which every reader may read
        self._unfinished_bytes = size_bytes * 3 // 4
        self._read_bytes = read_bytes
        self._can_release = can_release
        self._monotonic = monotonic
        self._states: dict[R, _State] = {}
        self._credited: set[R] = set()
        self._turns: dict[R, _Turn] = {}
        self._unfinished = collections.OrderedDict[R, _Wait]()  # connections within a frame that wait for a turn
        self._fresh = collections.OrderedDict[R, _Wait]()
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """The number of readers that wait for a turn."""
        return len(self._unfinished) + len(self._fresh)

    def add(self, reader: R) -> None:
        """Register a reader, which may read, unless almost all memory is used."""
        self._states[reader] = _State()
        self._credited.add(reader)
        if self.held_bytes > self._unfinished_bytes:
            self._stop(reader)

    def remove(self, reader: R) -> None:
        """Remove a reader, with the bytes that it holds."""
        state = self._states.pop(reader, None)
        if state is not None:
            self.held_bytes -= state.held_bytes
            self._credited.discard(reader)
            self._turns.pop(reader, None)
            self._unfinished.pop(reader, None)
            self._fresh.pop(reader, None)
            self.give_turns()

    def wait(self, reader: R) -> None:
        """Append a reader without credit that wants to read to those that wait for a turn."""
        if reader in self._states and reader not in self._credited:
            if reader not in self._unfinished and reader not in self._fresh:
                self._append(reader)
            self.give_turns()

    def hold(self, reader: R, held_bytes: int) -> None:
        """Record what a reader holds, and end the credits for which memory is missing."""
        state = self._states.get(reader)
        if state is None:
            return
        before_bytes, grown_bytes = self.held_bytes, held_bytes - state.held_bytes
        self.held_bytes += grown_bytes
        state.held_bytes = held_bytes
        frame_at = reader.received_bytes - held_bytes if reader.missing_bytes else -1
        if frame_at != state.frame_at:
            state.frame_at, state.readable_s, state.since_s = frame_at, 0.0, self._monotonic()
        if grown_bytes <= 0 or reader in self._turns or reader not in self._credited:
            return
        if before_bytes <= self._unfinished_bytes < self.held_bytes:
            self._stop_all(lambda _: True)
        elif before_bytes <= self._free_bytes < self.held_bytes:
            self._stop_all(lambda other: self._states[other].held_bytes > 0 or other.unread_bytes() > _LITTLE_BYTES)
        elif self.waiting or self.held_bytes > self._free_bytes:
            self._stop(reader)

    def note_read(self, reader: R) -> None:
        """Begin the turns of others if that of `reader` has ended by what it has read."""
        turn = self._turns.get(reader)
        if turn is not None and reader.received_bytes >= turn.ends_at:
            self.give_turns()

    def give_turns(self) -> None:
        """End the turns that are over, and begin those for which there is memory."""
        if not self._turns and not self.waiting:
            return
        now_s = self._monotonic()
        self._end_turns(now_s)
        reserved_bytes = sum(turn.reserved_bytes for turn in self._turns.values())
        for _ in range(min(self.waiting, _LOOKS)):
            must_go_on = not self._turns and not self._can_release()
            kind = self._first_kind(must_go_on=must_go_on)
            if kind is None:
                return
            reader, wait = next(iter(kind.items()))
            # Beyond the memory goes only the end of one frame, or a lone read.
            may_exceed = must_go_on and (kind is self._unfinished or not self.held_bytes)
            limit_bytes = self._free_bytes if kind is self._fresh and not must_go_on else self._unfinished_bytes
            missing_bytes = reader.missing_bytes
            need_bytes = max(missing_bytes, self._read_bytes)
            if not reader.wants_to_read:
                del kind[reader]  # the connection waits again when it wants to read
            elif not reader.unread_bytes():
                fits = self.held_bytes <= limit_bytes or may_exceed
                if fits and (now_s - wait.since_s >= _TURN_S or self.held_bytes <= self._free_bytes // 2):
                    del kind[reader]
                    self._credit(reader)  # the time that it waited counts as its device's
                else:
                    kind.move_to_end(reader)
                    wait.number = next(self._numbers)
            elif self.held_bytes + reserved_bytes + need_bytes <= limit_bytes or may_exceed:
                del kind[reader]
                self._turns[reader] = _Turn(need_bytes, reader.received_bytes + max(1, missing_bytes), now_s)
                reserved_bytes += need_bytes
                self._states[reader].since_s = now_s
                self._credit(reader)
            else:
                return

    def _first_kind(self, *, must_go_on: bool) -> collections.OrderedDict[R, _Wait] | None:
        """Return the kind of the one that waits first; where no memory is released otherwise, an unfinished frame's."""
        kinds = [kind for kind in (self._unfinished, self._fresh) if kind]
        if must_go_on and kinds:
            return kinds[0]
        return min(kinds, key=lambda kind: next(iter(kind.values())).number, default=None)

    def stalled(self, longest_s: float) -> R | None:
        """Return the reader that holds most of those whose frame is not complete after `longest_s` with credit.

        None while no others wait.
        """
        if not self.waiting:
            return None
        now_s = self._monotonic()
        late = [
            (state.held_bytes, number, reader)
            for number, (reader, state) in enumerate(self._states.items())
            if state.frame_at >= 0
            and state.readable_s + (now_s - state.since_s if reader in self._credited else 0.0) >= longest_s
        ]
        return max(late)[2] if late else None

    def _end_turns(self, now_s: float) -> None:
        for reader, turn in list(self._turns.items()):
            if reader.received_bytes >= turn.ends_at:
                del self._turns[reader]
                if self._states[reader].held_bytes and (self.waiting or self.held_bytes > self._free_bytes):
                    self._stop(reader)
            elif now_s - turn.began_s >= _TURN_S:
                del self._turns[reader]

    def _credit(self, reader: R) -> None:
        self._credited.add(reader)
        reader.set_credit(may_read=True)

    def _stop_all(self, should_stop: Callable[[R], bool]) -> None:
        for reader in [one for one in self._credited if one not in self._turns and should_stop(one)]:
            self._stop(reader)
        self.give_turns()

    def _stop(self, reader: R) -> None:
        self._credited.discard(reader)
        state, now_s = self._states[reader], self._monotonic()
        state.readable_s += now_s - state.since_s
        state.since_s = now_s
        reader.set_credit(may_read=False)
        if reader.wants_to_read:
            self._append(reader)

    def _append(self, reader: R) -> None:
        (self._unfinished if reader.missing_bytes else self._fresh)[reader] = _Wait(
            next(self._numbers), self._monotonic()
        )
