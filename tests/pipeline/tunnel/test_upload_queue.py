"""The native queue of uploads and its receivers, without sockets: their reads mean what the decoder in Python says."""

import gc
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from walle.engine_ext import _core
from walle.pipeline.tunnel.frames import MAX_BODY_BYTES, Decoder, Encoder
from walle.pipeline.tunnel.received import Received
from walle.protocol import Ack, Frame, Ping, Upload, UploadBatch

_BUFFER_BYTES = 64 << 10


class Receiver(_core.UploadReceiver):
    """A receiver that records what is left to it."""

    def __init__(self, queue: _core.UploadQueue, *, device_id: str = "d", epoch: str = "e", acked: int = 0) -> None:
        super().__init__(queue)
        self.rest: list[tuple[bytes, bytes | None]] = []
        self.bounds = 0
        self.sent: list[bytes] = []
        self.write = self.sent.append
        self.open(device_id, epoch, acked, Decoder().decompressors, MAX_BODY_BYTES)

    def on_bytes(self, received: memoryview, unpacked: bytes | None) -> None:
        self.rest.append((bytes(received), unpacked))

    def on_bound(self) -> None:
        self.bounds += 1

    def read(self, data: bytes) -> None:
        self.get_buffer(-1)[: len(data)] = data
        self.buffer_updated(len(data))


def _queue(**bounds: Any) -> _core.UploadQueue:
    settings: dict[str, Any] = {
        "uploads": 1000,
        "size_bytes": 1 << 20,
        "receiver_bytes": 1 << 20,
        "window": 256,
        "read_uploads": 256,
        "read_bytes": 1 << 18,
        "least_uploads": 1000,
        "least_bytes": 1 << 20,
        "turn_bytes": 1 << 20,
    }
    clock = iter(range(100_000))
    return _core.UploadQueue(
        Received, bytearray(_BUFFER_BYTES), lambda: 1.5, lambda: float(next(clock)), **settings | bounds
    )


def _ack(seq: int) -> bytes:
    return Encoder().encode(Ack(seq))


def _frames(*seqs: int, size_bytes: int = 100, topic: str = "t") -> bytes:
    return b"".join(Encoder().encode(Upload(seq, topic, b"f" * size_bytes, 7)) for seq in seqs)


def test_a_read_of_uploads_in_turn_is_queued_whole_and_in_order() -> None:
    queue = _queue()
    first, second = Receiver(queue), Receiver(queue, device_id="other", acked=4)
    first.read(_frames(1, 2, size_bytes=10))
    second.read(_frames(5, size_bytes=600, topic="tö"))  # compressed
    assert (len(queue), queue.uploads, queue.oldest_s) == (3, 3, 0.0)
    assert queue.held_bytes == first.upload_bytes + second.upload_bytes == 2 * 11 + 600 + len("tö".encode())
    assert (first.due, second.due, first.has_sent, first.rest) == (3, 6, True, [])
    assert queue.take(2) == [Received("d", "e", seq, "t", b"f" * 10, 7, 1500) for seq in (1, 2)]
    assert queue.take(2) == [Received("other", "e", 5, "tö", b"f" * 600, 7, 1500)]
    assert (queue.take(2), len(queue), queue.held_bytes) == ([], 0, 22 + 603)
    queue.release()
    assert (queue.held_bytes, first.upload_bytes, second.upload_bytes, queue.oldest_s) == (0, 0, 0, None)


def test_uploads_of_a_receiver_share_their_topic_over_reads() -> None:
    queue = _queue()
    receiver = Receiver(queue)
    for seq, topic in ((1, "tö"), (2, "tö"), (3, "other"), (4, "tö")):
        receiver.read(_frames(seq, topic=topic))
    topics = [received.topic for received in queue.take(10)]
    assert topics == ["tö", "tö", "other", "tö"]
    assert topics[0] is topics[1]


def test_uploads_that_are_put_back_come_again_before_later_ones() -> None:
    queue = _queue()
    receiver = Receiver(queue)
    receiver.read(_frames(1, 2, 3))
    assert [received.seq for received in queue.take(2)] == [1, 2]
    receiver.read(_frames(4))
    queue.put_back()
    assert (len(queue), queue.oldest_s) == (4, 0.0)
    assert [received.seq for received in queue.take(10)] == [1, 2, 3, 4]
    queue.release()
    queue.put_back()  # nothing is left of what was released
    assert (len(queue), queue.held_bytes) == (0, 0)


def test_frames_other_than_due_uploads_are_left_to_the_subclass() -> None:
    queue = _queue(window=3)
    receiver = Receiver(queue)
    ping = Encoder().encode(Ping(1))
    receiver.read(_frames(1) + ping)
    assert receiver.rest.pop() == (ping, None)
    receiver.read(_frames(1))  # a duplicate
    assert receiver.rest.pop() == (_frames(1), None)
    late = _frames(9, size_bytes=600)
    receiver.read(late)  # a gap: it was decompressed before that was known
    rest, unpacked = receiver.rest.pop()
    assert rest == late
    assert unpacked is not None
    assert unpacked.endswith(b"f" * 600)
    receiver.read(_frames(2, 3, 4))  # the last frame is beyond the window
    assert receiver.rest.pop() == (_frames(4), None)
    receiver.read(_frames(4)[:20])
    assert receiver.rest.pop() == (_frames(4)[:20], None)
    assert [received.seq for received in queue.take(10)] == [1, 2, 3]


@pytest.mark.parametrize("reason", ["closed", "paused", "buffered", "full"])
def test_a_receiver_that_must_wait_queues_nothing(reason: str) -> None:
    queue = _queue(uploads=1)
    receiver = Receiver(queue)
    if reason == "closed":
        receiver.is_open = False
    elif reason == "paused":
        receiver.pauses = 1
    elif reason == "buffered":
        receiver.buffered_bytes = 1
    else:
        Receiver(queue).read(_frames(1))
    waiting = len(queue)
    receiver.read(_frames(1))
    assert (len(queue), receiver.rest, receiver.due) == (waiting, [(_frames(1), None)], 1)
    assert queue.bytes_in == (1 + waiting) * len(_frames(1))


def test_a_receiver_that_was_not_opened_leaves_all_to_the_subclass() -> None:
    queue = _queue()
    receiver = _core.UploadReceiver.__new__(Receiver)
    _core.UploadReceiver.__init__(receiver, queue)
    receiver.rest, receiver.is_open = [], True
    receiver.read(_frames(1))
    assert (len(queue), receiver.rest) == (0, [(_frames(1), None)])


def test_the_bounds_are_reported_once_they_are_reached() -> None:
    queue = _queue(uploads=4, receiver_bytes=250)
    receiver, other = Receiver(queue), Receiver(queue)
    receiver.read(_frames(1, 2))
    assert (receiver.bounds, queue.is_full) == (0, False)
    receiver.read(_frames(3))
    assert (receiver.bounds, queue.is_full) == (1, False)  # 303 bytes of this receiver
    other.read(_frames(1))
    assert (other.bounds, queue.is_full) == (1, True)
    queue.take(1)
    assert not queue.is_full
    by_bytes = _queue(size_bytes=303)
    receiver = Receiver(by_bytes)
    receiver.read(_frames(1, 2))
    by_bytes.take(2)
    receiver.read(_frames(3))
    full = [by_bytes.is_full]
    by_bytes.release()
    assert [*full, by_bytes.is_full] == [True, False]  # full until they are stored
    of_one_read = _queue(read_uploads=2)
    receiver = Receiver(of_one_read)
    receiver.read(_frames(1, 2, 3))
    assert receiver.rest == [(_frames(3), None)]


def test_an_arrival_is_reported_once() -> None:
    queue = _queue()
    arrivals: list[int] = []
    receiver = Receiver(queue)
    queue.on_arrival = lambda: arrivals.append(len(queue))
    receiver.read(Encoder().encode(Ping(1)))
    assert arrivals == []
    receiver.read(_frames(1, 2))
    receiver.read(_frames(3))
    assert arrivals == [2]
    assert queue.on_arrival is None


def test_acknowledgements_never_go_back_and_wait_until_they_can_be_written() -> None:
    queue = _queue()
    receiver, other = Receiver(queue), Receiver(queue, device_id="other")
    receivers = {"d": receiver, "other": other}
    queue.acknowledge(receivers, {("d", "e"): 5, ("other", "former"): 7, ("gone", "e"): 1})
    assert (receiver.sent, other.sent) == ([_ack(5)], [])
    assert (receiver.acked, receiver.due, receiver.written) == (5, 6, 1)  # those of the device's earlier connection
    queue.acknowledge(receivers, {("d", "e"): 4})
    assert len(receiver.sent) == 1
    receiver.is_writable = False
    receiver.acknowledge(8)
    assert (receiver.sent[1:], receiver.owes_ack, receiver.acked) == ([], True, 8)
    receiver.is_writable = True
    receiver.send_ack()
    assert (receiver.sent[1:], receiver.owes_ack) == ([_ack(8)], False)
    receiver.is_open = False
    receiver.acknowledge(9)
    receiver.write = None
    receiver.send(b"dropped")
    assert receiver.sent == [_ack(5), _ack(8)]
    assert queue.bytes_out == 2 * 16 + len(b"dropped")
    assert _ack(2**63 - 1) == _sent_ack(2**63 - 1)


def _sent_ack(seq: int) -> bytes:
    receiver = Receiver(_queue())
    receiver.acknowledge(seq)
    return receiver.sent[0]


def test_receivers_and_the_decoder_agree_on_random_reads() -> None:
    rng = random.Random(3)
    queued = left = 0
    for _ in range(500):
        queue = _queue()
        receiver, seq, frames = Receiver(queue), 1, list[Frame]()
        for _ in range(rng.randrange(1, 8)):
            payload = rng.randbytes(5) * rng.choice([1, 90])
            uploads = [Upload(seq + n, rng.choice(["a", "ö"]), payload, n) for n in (0, 1)]
            kinds: list[Frame] = [UploadBatch(tuple(uploads)), uploads[0], uploads[0], Ping(seq)]
            frames.append(rng.choice(kinds))
            seq += {UploadBatch: 2, Upload: 1, Ping: 0}[type(frames[-1])] + (rng.random() < 0.1)
        data = bytearray(b"".join(map(Encoder().encode, frames)))
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        receiver.read(bytes(data))
        decoder = Decoder()
        decoder.add(bytes(data))
        expected = decoder.records(Received, ("d", "e", 1500), (1, 256), 256, 1 << 18)
        rest = bytes(data[len(data) - decoder.buffered_bytes :])
        assert (queue.take(1000), queue.held_bytes) == expected
        assert [part for part, _ in receiver.rest] == ([rest] if rest else [])
        queued += len(expected[0])
        left += bool(rest)
    assert queued > 500
    assert left > 100


def test_a_queue_and_its_receivers_are_collected_with_what_they_hold() -> None:
    queue = _queue()
    receiver = Receiver(queue)
    receiver.read(_frames(1, 2))
    queue.take(1)
    queue.on_arrival = receiver.on_bound
    gone = weakref.ref(receiver)
    del receiver
    gc.collect()
    assert gone() is not None  # uploads in the queue keep it
    del queue
    gc.collect()
    assert gone() is None


def test_references_balance() -> None:
    queue = _queue()
    receiver = Receiver(queue)
    payloads = [_frames(seq, size_bytes=600) for seq in range(1, 201)]
    gc.collect()
    before = sys.getrefcount(receiver)
    for number, payload in enumerate(payloads, 1):
        receiver.read(payload)
        assert sys.getrefcount(receiver) == before + 1
        taken = queue.take(10)
        held = sys.getrefcount(taken[0])
        queue.release()
        assert (held, sys.getrefcount(taken[0])) == (3, 2)  # the queue's reference, too, until its release
        queue.acknowledge({"d": receiver}, {("d", "e"): number})
        assert sys.getrefcount(receiver) == before
    assert len(receiver.sent) == 200


@pytest.mark.parametrize("call", ["time", "arrival", "bound", "write"])
def test_an_error_of_a_call_is_raised(call: str) -> None:
    def fail(*_: object) -> Any:
        raise KeyboardInterrupt

    queue = _queue(uploads=1) if call == "bound" else _queue()
    if call == "time":
        queue = _core.UploadQueue(
            Received, bytearray(4096), fail, fail, uploads=1, size_bytes=1, receiver_bytes=1, window=1, read_uploads=1,
            read_bytes=1, least_uploads=1, least_bytes=1, turn_bytes=1,
        )  # fmt: skip
    receiver = Receiver(queue)
    if call == "arrival":
        queue.on_arrival = fail
    elif call == "bound":
        receiver.on_bound = fail  # type: ignore[method-assign]
    elif call == "write":
        receiver.write = fail
        with pytest.raises(KeyboardInterrupt):
            queue.acknowledge({"d": receiver}, {("d", "e"): 1})
        return
    with pytest.raises(KeyboardInterrupt):
        receiver.read(_frames(1))


def test_a_compressed_body_that_is_kept_counts_until_its_upload_is_stored() -> None:
    queue = _queue(size_bytes=1 << 20)
    receiver = Receiver(queue)
    text = random.Random(4).randbytes(10_000).hex().encode()
    receiver.read(frame := Encoder().encode(Upload(1, "t", text, 7)))
    assert queue.held_bytes == receiver.upload_bytes == 1 + len(text) + len(frame) - 8
    queue.take(1)
    queue.release()
    assert queue.held_bytes == receiver.upload_bytes == 0


class Unready(_core.UploadReceiver):
    def __init__(self) -> None:
        pass


def _open_unready() -> Unready:
    unready = Unready()
    unready.is_open = True
    return unready


_WRONG: list[Callable[[Receiver, _core.UploadQueue], object]] = [
    lambda receiver, _: receiver.buffer_updated(-1),
    lambda receiver, _: receiver.buffer_updated(_BUFFER_BYTES + 1),
    lambda receiver, _: receiver.buffer_updated("1"),  # type: ignore[arg-type]
    lambda receiver, _: receiver.push((1,)),  # type: ignore[arg-type]
    lambda receiver, _: receiver.push([("d", "e", 1, "t", b"", 0, 0)]),
    lambda receiver, _: receiver.push([Received("d", "e", 1, b"t", b"", 0, 0)]),  # type: ignore[arg-type]
    lambda receiver, _: receiver.push([Received("d", "e", 1, "t", b"", 0, 0, "text")]),  # type: ignore[arg-type]
    lambda receiver, _: receiver.push([tuple.__new__(Received, ("d", "e"))]),
    lambda receiver, _: receiver.send("text"),  # type: ignore[arg-type]
    lambda receiver, _: receiver.acknowledge(2**63),
    lambda receiver, _: receiver.open("d", "e", 0, [], 1),  # type: ignore[arg-type]
    lambda receiver, queue: receiver.__init__(queue),  # type: ignore[misc]
    lambda _, queue: queue.take("1"),  # type: ignore[arg-type]
    lambda _, queue: queue.acknowledge({"d": object()}, {("d", "e"): 1}),
    lambda receiver, queue: queue.acknowledge({"d": receiver}, {"d": 1}),  # type: ignore[dict-item]
    lambda receiver, queue: queue.acknowledge({"d": receiver}, {("d", 1): 1}),  # type: ignore[dict-item]
    lambda receiver, queue: queue.acknowledge({"d": receiver}, [1]),  # type: ignore[arg-type]
    lambda *_: _core.UploadReceiver(object()),  # type: ignore[arg-type]
    lambda *_: Unready().get_buffer(-1),
    lambda *_: Unready().buffer_updated(1),
    lambda *_: Unready().push([]),
    lambda *_: Unready().send_ack(),
    lambda *_: Unready().send(b""),
    lambda *_: Unready().open("d", "e", 0, {}, 1),
    lambda *_: _open_unready().acknowledge(1),
    lambda *_: _core.UploadQueue(list, bytearray(1), int, int, uploads=1, size_bytes=1, receiver_bytes=1, window=1, read_uploads=1, read_bytes=1, least_uploads=1, least_bytes=1, turn_bytes=1),  # type: ignore[arg-type]  # noqa: E501
    lambda *_: _core.UploadQueue(tuple, b"constant", int, int, uploads=1, size_bytes=1, receiver_bytes=1, window=1, read_uploads=1, read_bytes=1, least_uploads=1, least_bytes=1, turn_bytes=1),  # noqa: E501
    lambda *_: _core.UploadQueue(tuple, bytearray(1), int, int),  # type: ignore[call-arg]
]  # fmt: skip


@pytest.mark.parametrize("wrong", _WRONG)
def test_wrong_use_is_refused(wrong: Callable[[Receiver, _core.UploadQueue], object]) -> None:
    queue = _queue()
    receiver = Receiver(queue)
    with pytest.raises((TypeError, AttributeError, ValueError, OverflowError, BufferError)):
        wrong(receiver, queue)
    assert (len(queue), queue.held_bytes, receiver.upload_bytes, receiver.sent) == (0, 0, 0, [])
