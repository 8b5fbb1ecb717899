"""Requests of devices as fallback inference reads and queues them."""

import asyncio
import dataclasses
import math
import random
from array import array
from typing import Any

import pytest

from tests.sim.inference_versions import request
from walle.base import plain
from walle.cloud.inference import InferenceError
from walle.cloud.inference.request import MAX_PART_BYTES, MAX_VALUES, PhaseRequest
from walle.cloud.inference.request_queue import MAX_BATCH_BYTES, RequestQueue, Waiting


def question(**changes: Any) -> bytes:
    body = {"task": "shop/rank", "version": "v1", "phase": "execute", "payload": {"n": [1, 2.5]}, "device": {"os": "x"}}
    return plain.encode({**body, **changes})


def test_a_request_is_read_and_its_payload_stays_encoded() -> None:
    payload: Any
    for payload in ({"n": [1, 2.5]}, None, [], b"\x00" * 70_000, {"image": array("f", bytes(12))}):
        read = PhaseRequest.parse("d1", question(payload=payload, later=[1]), 5.0)
        assert (read.task, read.version, read.phase, read.due_s) == ("shop/rank", "v1", "execute", 5.0)
        assert read.device == {"os": "x", "id": "d1"}
        assert bytes(read.payload) == plain.encode(payload)
    assert read.value()["image"].tolist() == [0.0] * 3
    assert PhaseRequest.parse("d1", question(device={"id": "forged"})).device == {"id": "d1"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        plain.encode([1]),
        plain.encode({"task": "shop/rank"}),
        question()[:-3],
        question() + b"\xc0",
        question(device=5),
        question(device={"os": [1]}),
        question(device={"os": "x" * 17_000}),
        question(later=[1] * 17_000),
        question(device={}).replace(b"device\x80", b"device\x81\xa2os\xc7\x01\x63\x00"),
        question(device={"os": "a" * MAX_PART_BYTES}),
        question(device={}).replace(b"device\x80", b"device\x81\xc4\x02os\xa1x"),
        question(task=5),
        question(version=b"v1"),
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xc0\xc0",
    ],
)
def test_bytes_that_are_not_a_request_are_refused(data: bytes) -> None:
    with pytest.raises(InferenceError, match="the request of d0 cannot be read"):
        PhaseRequest.parse("d0", data)


def test_a_payload_that_is_not_plain_data_fails_where_it_is_decoded() -> None:
    extension = b"\xc7\x01\x63\x00"  # MessagePack extension of an unknown type
    data = question(payload=None).replace(b"payload\xc0", b"payload" + extension)
    with pytest.raises(InferenceError, match="unknown extension type 99"):
        PhaseRequest.parse("d0", data).value()
    with pytest.raises(InferenceError, match=f"more than {MAX_VALUES}; hand over arrays"):
        PhaseRequest.parse("d0", question(payload=[[]] * 600_000))


def waiting(number: int, due_s: float, rank: int = 0, **changes: Any) -> Waiting:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    one = dataclasses.replace(request(number), **changes)
    return Waiting(one, number, rank, due_s, 0.0, answer)


@pytest.mark.asyncio
async def test_the_queue_gives_the_lowest_rank_the_earliest_deadline_and_what_was_added_first() -> None:
    generator = random.Random(7)
    queue, entries = RequestQueue(), []
    for number in range(300):
        entry = waiting(number, generator.choice([1.0, 2.0, 3.0, math.inf]), generator.randrange(3))
        entries.append(entry)
        expected = sum((other.rank, other.due_s) <= (entry.rank, entry.due_s) for other in entries[:-1])
        assert queue.count_before(entry.due_s, entry.rank) == expected
        queue.add(entry)
        assert queue.oldest is entries[0]
        assert queue.earliest.due_s == min(other.due_s for other in entries)
    removed = generator.sample(entries, 100)
    for entry in removed:
        assert queue.remove(entry)
        assert not queue.remove(entry)
    left = sorted(
        (entry for entry in entries if entry not in removed), key=lambda entry: (entry.rank, entry.due_s, entry.number)
    )
    assert (queue.first, queue.last) == (left[0], left[-1])
    assert queue.earliest is min(left, key=lambda entry: (entry.due_s, entry.number))
    assert [queue.take(1)[0] for _ in range(len(queue))] == left
    assert not queue


@pytest.mark.asyncio
async def test_a_batch_has_one_phase_and_a_bounded_size() -> None:
    queue = RequestQueue()
    for number, phase in enumerate(["execute", "execute", "postprocess", "postprocess", "execute"]):
        queue.add(waiting(number, 1.0 + number, phase=phase))
    assert [len(queue.take(8)) for _ in range(4)] == [2, 1, 1, 1]
    large = memoryview(bytes(MAX_BATCH_BYTES // 3))
    for number in range(4):
        queue.add(waiting(number, 1.0, payload=large))
    assert [len(queue.take(8)) for _ in range(2)] == [3, 1]
    for number in range(3):
        queue.add(waiting(number, 1.0, values=MAX_VALUES // 2))
    assert [len(queue.take(8)) for _ in range(2)] == [2, 1]
