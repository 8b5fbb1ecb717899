"""Turns of devices in the queue of uploads: deficit round robin by bytes, and what one device may have in the queue."""

import collections
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.engine_ext import _core
from walle.pipeline.tunnel.received import Received

_TURN_BYTES = 1000
_ROW_BYTES = 100  # size of each upload beside topic and payload


class Receiver(_core.UploadReceiver):
    """A connection of a device, whose uploads a test makes."""

    def __init__(self, queue: _core.UploadQueue, device_id: str) -> None:
        super().__init__(queue)
        self.bounds = 0
        self.seqs = itertools.count(1)
        self.open(device_id, "e", 0, {}, 1 << 20)

    def on_bytes(self, received: memoryview, unpacked: bytes | None) -> None:
        raise AssertionError(received, unpacked)

    def on_bound(self) -> None:
        self.bounds += 1

    def upload(self, *sizes: int) -> None:
        for size in sizes:
            self.push([Received(self.device_id, "e", next(self.seqs), "t", bytes(size), 0, 0)])


def _queue(**bounds: int) -> _core.UploadQueue:
    settings: dict[str, Any] = {
        "uploads": 100_000,
        "size_bytes": 1 << 30,
        "receiver_bytes": 1 << 30,
        "window": 256,
        "read_uploads": 256,
        "read_bytes": 1 << 18,
        "least_uploads": 100_000,
        "least_bytes": 1 << 30,
        "turn_bytes": _TURN_BYTES,
    }
    return _core.UploadQueue(Received, bytearray(100), float, float, **settings | bounds)


def _cost(received: Received) -> int:
    return len(received.topic) + len(received.payload) + _ROW_BYTES


class ReferenceTurns:
    """Deficit round robin in the fewest lines: the order in which uploads are due."""

    def __init__(self) -> None:
        self.flows: dict[str, collections.deque[Received]] = {}
        self.ring: collections.deque[str] = collections.deque()
        self.deficits: dict[str, int] = {}
        self.is_in_turn = False

    def push(self, received: Received) -> None:
        flow = self.flows.setdefault(received.device_id, collections.deque())
        if not flow:
            self.ring.append(received.device_id)
            self.deficits[received.device_id] = 0
        flow.append(received)

    def pop(self) -> Received:
        while True:
            device_id = self.ring[0]
            flow = self.flows[device_id]
            if not self.is_in_turn:
                self.deficits[device_id] += _TURN_BYTES
                self.is_in_turn = True
            if _cost(flow[0]) > self.deficits[device_id]:
                self.ring.rotate(-1)
                self.is_in_turn = False
                continue
            received = flow.popleft()
            self.deficits[device_id] -= _cost(received)
            if not flow:
                self.ring.popleft()
                self.is_in_turn = False
            return received


_SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=8)
_STEPS = st.lists(
    st.one_of(st.tuples(st.integers(0, 4), _SIZES), st.integers(0, 20)),  # uploads of a device; uploads to be taken
    max_size=60,
)


@given(_STEPS)
@settings(deadline=None)
def test_uploads_are_taken_in_the_order_of_deficit_round_robin_without_a_pause(steps: list[Any]) -> None:
    queue, reference = _queue(), ReferenceTurns()
    receivers = [Receiver(queue, str(number)) for number in range(5)]
    waiting = 0
    for step in [*steps, 1000]:
        if isinstance(step, tuple):
            number, sizes = step
            first = next(receivers[number].seqs)
            receivers[number].seqs = itertools.count(first)
            receivers[number].upload(*sizes)
            for seq, size in enumerate(sizes, first):
                reference.push(Received(str(number), "e", seq, "t", bytes(size), 0, 0))
            waiting += len(sizes)
        else:
            taken = queue.take(step)
            assert len(taken) == min(step, waiting)  # work conserving
            assert taken == [reference.pop() for _ in taken]
            waiting -= len(taken)
            queue.release()
        assert (len(queue), queue.devices) == (waiting, len(reference.ring))
    assert (waiting, queue.held_bytes, queue.devices) == (0, 0, 0)


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=6), st.integers(1, 300))
@settings(deadline=None)
def test_devices_that_always_have_more_get_equal_bytes_within_a_turn_and_an_upload(
    sizes: list[int], count: int
) -> None:
    queue = _queue()
    for number, size in enumerate(sizes):
        Receiver(queue, str(number)).upload(*[size] * (count + 1))
    got = collections.Counter[str]()
    for received in queue.take(count):
        got[received.device_id] += _cost(received)
    largest = max(sizes) + 1 + _ROW_BYTES
    shares = [got[str(number)] for number in range(len(sizes))]
    assert max(shares) - min(shares) <= _TURN_BYTES + largest


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), min_size=1, max_size=50), st.integers(0, 50))
@settings(deadline=None)
def test_uploads_that_are_put_back_come_again_in_each_devices_order(pushed: list[tuple[int, int]], count: int) -> None:
    queue = _queue()
    receivers = [Receiver(queue, str(number)) for number in range(4)]
    for number, size in pushed:
        receivers[number].upload(size)
    held_bytes = queue.held_bytes
    queue.take(count)
    queue.put_back()
    assert (len(queue), queue.held_bytes) == (len(pushed), held_bytes)
    seqs = collections.defaultdict[str, list[int]](list)
    for received in queue.take(len(pushed)):
        seqs[received.device_id].append(received.seq)
    for number, receiver in enumerate(receivers):
        assert seqs[str(number)] == list(range(1, next(receiver.seqs)))


def test_a_device_whose_queue_empties_keeps_no_claim_on_bytes_that_it_did_not_use() -> None:
    queue = _queue()
    saver, other = Receiver(queue, "saver"), Receiver(queue, "other")
    other.upload(*[899] * 100)  # each upload costs a whole turn
    for _ in range(20):
        saver.upload(0)  # a tenth of its turn
        while queue.take(1)[0].device_id != "saver":
            pass
    saver.upload(*[899] * 10)
    devices = [received.device_id for received in queue.take(20)]
    assert abs(devices.count("saver") - 10) <= 1


def test_all_connections_of_a_device_share_its_turns() -> None:
    queue = _queue()
    greedy = [Receiver(queue, "greedy") for _ in range(9)]  # one after the other, say, of which the last is open
    other = Receiver(queue, "other")
    for receiver in [*greedy, other]:
        receiver.upload(*[899] * 10)
    assert {receiver.upload_bytes for receiver in greedy} == {90 * 900}
    devices = [received.device_id for received in queue.take(20)]
    assert devices.count("other") == 10


def test_a_large_upload_comes_once_the_others_have_had_as_many_bytes() -> None:
    queue = _queue()
    large, small = Receiver(queue, "large"), Receiver(queue, "small")
    large.upload(20_000)
    small.upload(*[899] * 100)
    before = [received.device_id for received in queue.take(101)].index("large")
    assert 19 <= before <= 21


def test_a_device_waits_for_one_turn_of_each_other_device() -> None:
    queue = _queue()
    for number in range(50):
        Receiver(queue, f"heavy-{number}").upload(*[99] * 200)
    queue.take(7)
    Receiver(queue, "light").upload(10)
    devices = [received.device_id for received in queue.take(1000)]
    assert devices.index("light") <= 50 * _TURN_BYTES // 200


# --- bounds of one device ---------------------------------------------------------------------------------------------


def test_devices_that_fill_the_queue_get_equal_parts_and_leave_room_for_others() -> None:
    queue = _queue(uploads=800, least_uploads=8)
    heavy = [Receiver(queue, str(number)) for number in range(6)]
    for _ in range(800):
        for receiver in heavy:
            if not receiver.bounds:
                receiver.upload(10)
    waiting = [receiver.upload_bytes // 11 for receiver in heavy]
    assert set(waiting) <= {100, 101}  # 700 are for all, of which a seventh device would get as many
    light = Receiver(queue, "light")
    light.upload(10)
    assert (light.bounds, queue.has_room, queue.is_full) == (0, True, False)


def test_the_last_eighth_is_kept_for_devices_that_send_little() -> None:
    queue = _queue(uploads=800, least_uploads=100)
    for number in range(7):
        Receiver(queue, str(number)).upload(*[10] * 100)
    assert (queue.has_room, queue.is_full) == (False, False)
    late = Receiver(queue, "late")
    assert late.room[0] == 1 + 100 // 64
    late.upload(10)
    assert late.bounds == 0
    late.upload(10)
    assert late.bounds == 1


def test_a_lone_device_may_fill_the_queue() -> None:
    queue = _queue(uploads=20, least_uploads=1)
    lone = Receiver(queue, "lone")
    lone.upload(*[10] * 19)
    assert lone.bounds == 0
    lone.upload(10)
    assert (lone.bounds, queue.is_full) == (1, True)


@pytest.mark.parametrize("call", ["take", "release"])
def test_a_bounded_receiver_is_notified_once_at_half_of_its_bound(call: str) -> None:
    by_uploads = {"uploads": 80, "least_uploads": 8}
    by_bytes = {"size_bytes": 80 * 11, "least_bytes": 8 * 11}
    queue = _queue(**(by_uploads if call == "take" else by_bytes))
    first, second = Receiver(queue, "first"), Receiver(queue, "second")
    for _ in range(80):
        for receiver in (first, second):
            if not receiver.bounds:
                receiver.upload(10)
    resumable = list[Any]()
    for _ in range(80):
        queue.take(1)
        resumable += queue.resumable()
        if call == "release":
            queue.release()
            resumable += queue.resumable()
    assert sorted(receiver.device_id for receiver in resumable) == ["first", "second"]
    assert queue.resumable() == []


def test_a_receiver_that_is_gone_is_not_resumed() -> None:
    queue = _queue(uploads=1)
    Receiver(queue, "gone").upload(10)
    queue.take(1)
    assert len(queue.resumable()) == 1  # the upload keeps the device's place
    queue.release()
    Receiver(queue, "other").upload(10)
    queue.take(1)
    queue.release()
    assert [receiver.device_id for receiver in queue.resumable()] == ["other"]


def test_waited_seconds_of_taken_uploads_are_summed() -> None:
    clock = iter([1.0, 2.0, 5.0, 9.0])
    queue = _core.UploadQueue(
        Received, bytearray(100), float, lambda: next(clock), uploads=10, size_bytes=100, receiver_bytes=100, window=1,
        read_uploads=1, read_bytes=1, least_uploads=1, least_bytes=1, turn_bytes=1000,
    )  # fmt: skip
    Receiver(queue, "a").upload(1)
    Receiver(queue, "b").upload(1)
    assert queue.oldest_s == 1.0
    queue.take(1)
    assert queue.waited_s == 4.0
    queue.take(1)
    assert queue.waited_s == 11.0


def test_turns_have_a_size() -> None:
    with pytest.raises(ValueError, match="turn_bytes is 0, at least 1 is needed"):
        _queue(turn_bytes=0)
