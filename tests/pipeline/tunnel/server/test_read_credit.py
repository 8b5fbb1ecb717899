"""Credit to read: memory is never exceeded, every connection has its turn, and one that sends little has no delay."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.pipeline.tunnel.server.read_credit import ReadCredit
from walle.pipeline.tunnel.server.room_queue import RoomQueue

_READ_BYTES = 100
_SIZE_BYTES = 2000


class Time:
    """Seconds that only a test moves on."""

    now_s = 0.0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def __call__(self) -> float:
        return self.now_s


@dataclasses.dataclass(eq=False)
class Device:
    """A connection whose device has sent frames of `frame_bytes`; `process` ends the frames that are whole."""

    credit: ReadCredit["Device"]
    frame_bytes: int = 10
    unread: int = 0
    held: int = 0
    received_bytes: int = 0
    may_read: bool = True
    wants_to_read: bool = True

    @property
    def missing_bytes(self) -> int:
        return self.frame_bytes - self.held if 0 < self.held < self.frame_bytes else 0

    def unread_bytes(self) -> int:
        return self.unread

    def set_credit(self, *, may_read: bool) -> None:
        self.may_read = may_read

    def read(self) -> None:
        """Read as much as one read takes. Whole frames are held: the queue has no room for them."""
        size = min(self.unread, _READ_BYTES)
        self.unread -= size
        self.received_bytes += size
        self.held += size
        if self.held >= self.frame_bytes:
            self.wants_to_read = False  # held back
        self.credit.hold(self, self.held)
        self.credit.note_read(self)

    def read_little(self, size: int) -> None:
        """Read whole frames that are processed at once."""
        self.received_bytes += size
        self.credit.hold(self, 0)
        self.credit.note_read(self)

    def process(self) -> None:
        """Release the whole frames; what is left is an unfinished one."""
        self.held %= self.frame_bytes
        self.credit.hold(self, self.held)
        if not self.wants_to_read:
            self.wants_to_read = True
            if not self.may_read:
                self.credit.wait(self)


def _credit(devices: list[Device], clock: Time | None = None) -> ReadCredit[Device]:
    return ReadCredit[Device](
        _SIZE_BYTES,
        _READ_BYTES,
        lambda: any(not device.wants_to_read for device in devices),
        clock or Time(),
    )


def _devices(count: int, unread: int, frame_bytes: int = 10) -> list[Device]:
    devices: list[Device] = []
    credit = _credit(devices)
    devices += [Device(credit, frame_bytes, unread) for _ in range(count)]
    for device in devices:
        credit.add(device)
    return devices


@given(
    st.lists(st.tuples(st.integers(2, 300), st.integers(0, 10)), min_size=1, max_size=40),
    st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=40)
def test_memory_is_never_exceeded_and_all_is_read(loads: list[tuple[int, int]], seed: int) -> None:
    rng = random.Random(seed)
    devices: list[Device] = []
    clock = Time()
    credit = _credit(devices, clock)
    devices += [Device(credit, frame_bytes, frame_bytes * frames) for frame_bytes, frames in loads]
    for device in devices:
        credit.add(device)
    for _ in range(5_000):
        readable = [device for device in devices if device.may_read and device.wants_to_read and device.unread]
        waiting = [device for device in devices if not device.wants_to_read]
        if readable and (not waiting or rng.random() < 0.7):
            rng.choice(readable).read()
        elif waiting:
            rng.choice(waiting).process()
            credit.give_turns()
        elif any(device.unread for device in devices):
            clock.advance(2.0)  # a turn of one that reads nothing is over
            before = credit.waiting
            credit.give_turns()
            assert before  # else those would be readable
        else:
            break
        assert credit.held_bytes == sum(device.held for device in devices)
        # Reads may cross the bound of three quarters, and one unfinished frame goes on where nothing else would.
        assert credit.held_bytes <= _SIZE_BYTES + _READ_BYTES
    assert not any(device.unread for device in devices)


def test_every_connection_may_read_while_there_is_memory() -> None:
    devices = _devices(9, unread=100)
    for device in devices:
        device.read()
    assert all(device.may_read for device in devices)
    assert devices[0].credit.waiting == 0


def test_devices_with_waiting_bytes_lose_their_credit_and_light_ones_keep_it() -> None:
    devices = _devices(20, unread=100_000)
    light = Device(devices[0].credit)
    light.credit.add(light)
    for device in devices:
        if device.may_read:
            device.read()
    assert light.credit.held_bytes == 1100  # half of the memory, and the read that crossed it
    assert not any(device.may_read for device in devices)
    light.read_little(10)
    assert light.may_read


def test_turns_are_first_come_first_served() -> None:
    devices = _devices(20, unread=100_000)
    for device in devices:
        if device.may_read:
            device.read()
    order: list[Device] = []
    for _ in range(60):
        for held in [device for device in devices if not device.wants_to_read]:
            held.process()
        devices[0].credit.give_turns()
        for device in devices:
            if device.may_read and device.wants_to_read:
                device.read()
                order.append(device)
    counts = [order.count(device) for device in devices]
    assert max(counts) - min(counts) <= 1
    assert min(counts) > 10


def test_unfinished_frames_end_where_nothing_else_releases_memory() -> None:
    devices = _devices(15, unread=250, frame_bytes=250)
    for _ in range(20):
        for device in devices:
            if device.may_read and device.wants_to_read and device.unread:
                device.read()
        for held in [device for device in devices if not device.wants_to_read]:
            held.process()
        devices[0].credit.give_turns()
    assert not any(device.unread or device.held for device in devices)


def test_the_largest_frame_that_does_not_end_is_named_while_others_wait() -> None:
    clock, devices = Time(), list[Device]()
    credit = _credit(devices, clock)
    devices += [Device(credit, 1000, 84 + number) for number in range(17)]
    for device in devices:
        credit.add(device)
        assert device.may_read
        device.read()
    for _ in range(31):
        clock.advance(1.0)
        credit.give_turns()
        assert credit.stalled(30.0) is None  # nobody else waits
    credit.add(honest := Device(credit, 10, 10))
    assert credit.waiting
    for largest in (devices[-1], devices[-2]):
        assert not honest.may_read
        assert credit.stalled(30.0) is largest
        credit.remove(largest)
    assert honest.may_read
    assert credit.stalled(30.0) is None


def test_a_byte_now_and_then_does_not_extend_the_time_for_a_frame() -> None:
    clock, devices = Time(), list[Device]()
    credit = _credit(devices, clock)
    devices += [Device(credit, 1000, 90) for _ in range(17)]
    for device in devices:
        credit.add(device)
        device.read()
    credit.add(Device(credit, 10, 10))
    for _ in range(40):
        clock.advance(1.0)
        credit.give_turns()
        devices[0].unread = 1
        if devices[0].may_read:
            devices[0].read()
            credit.give_turns()
    assert credit.stalled(30.0) is devices[0]


def test_idle_connections_get_their_credit_back_without_a_turn() -> None:
    clock, devices = Time(), list[Device]()
    credit = _credit(devices, clock)
    devices += [Device(credit, 10, 100) for _ in range(12)]
    for device in devices:
        credit.add(device)
        device.read()
    assert not any(device.may_read for device in devices)
    for device in devices[:6]:
        device.process()
    clock.advance(2.0)
    credit.give_turns()
    assert all(device.may_read for device in devices[:6])


def test_a_removed_connection_releases_its_bytes() -> None:
    devices = _devices(12, unread=100)
    for device in devices:
        device.read()
    for device in devices[:6]:
        device.credit.remove(device)
        device.credit.remove(device)
    assert devices[0].credit.held_bytes == 600
    devices[0].credit.hold(devices[0], 50)  # no account any more
    assert devices[0].credit.held_bytes == 600


# --- room in the queue ------------------------------------------------------------------------------------------------


def test_new_ones_and_those_that_had_a_turn_alternate() -> None:
    queue = RoomQueue[str]()
    assert all(queue.add_again(name) for name in ("A", "B", "C"))
    assert all(queue.add(name) for name in ("a", "b"))
    assert not queue.add("A")
    assert not queue.add_again("a")
    assert len(queue) == 5
    assert [queue.pop() for _ in range(6)] == ["a", "A", "b", "B", "C", None]


def test_one_that_leaves_is_removed_from_either_kind() -> None:
    queue = RoomQueue[str]()
    queue.add("a")
    queue.add_again("b")
    for name in ("a", "b", "c"):
        queue.discard(name)
    assert (len(queue), queue.pop()) == (0, None)


@pytest.mark.parametrize("kind", ["add", "add_again"])
def test_each_kind_is_first_come_first_served(kind: str) -> None:
    queue = RoomQueue[int]()
    for number in range(5):
        getattr(queue, kind)(number)
    assert [queue.pop() for _ in range(5)] == list(range(5))
