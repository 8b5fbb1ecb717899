"""The check of topics at receipt: what is remembered, and that doubt never loses an upload."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.pipeline.ingest.upload_samples import received
from walle.base.clock import ManualClock
from walle.pipeline.ingest.store import topic_check
from walle.pipeline.ingest.store.topic_check import AGAIN_S, KNOWN_S, DeviceTask, TaskTopics


class Lookup:
    """The devices that never had a task, as a gateway knows them, and what was asked."""

    def __init__(self, *foreign: DeviceTask) -> None:
        self.foreign = set(foreign)
        self.asked: list[list[DeviceTask]] = []
        self.error: Exception | None = None

    async def __call__(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        self.asked.append(sorted(pairs))
        if self.error is not None:
            raise self.error
        return frozenset(self.foreign & set(pairs))


BATCH = [
    received(1, device="a", topic="shop/count"),
    received(2, device="a", topic="shop/count/clicks"),
    received(1, device="b", topic="shop/count/clicks"),
    received(2, device="b", topic="bank/fraud"),
    received(3, device="b", topic="load"),
]
FOREIGN = frozenset({("b", "bank/fraud")})


@pytest.mark.asyncio
async def test_a_topic_is_checked_once_and_a_refused_one_again_later() -> None:
    clock, lookup = ManualClock(), Lookup(("b", "bank/fraud"))
    topics = TaskTopics(lookup, clock)
    for _ in range(3):
        assert await topics.foreign(BATCH) == FOREIGN
    assert lookup.asked == [[("a", "shop/count"), ("b", "bank/fraud"), ("b", "shop/count")]]
    lookup.foreign.clear()  # a release gives it the task
    await clock.advance(AGAIN_S)
    assert await topics.foreign(BATCH) == frozenset()
    assert lookup.asked[1:] == [[("b", "bank/fraud")]]
    lookup.foreign.add(("a", "shop/count"))  # a task that had no release then
    assert await topics.foreign(BATCH) == frozenset()
    await clock.advance(KNOWN_S)
    assert await topics.foreign(BATCH) == {("a", "shop/count"), ("a", "shop/count/clicks")}


@pytest.mark.asyncio
async def test_uploads_are_accepted_while_the_releases_are_unknown() -> None:
    clock, lookup = ManualClock(), Lookup(("b", "bank/fraud"))
    topics = TaskTopics(lookup, clock)
    lookup.error = OSError("the gateway is away")
    assert await topics.foreign(BATCH) == frozenset()
    assert await topics.foreign(BATCH) == frozenset()
    assert len(lookup.asked) == 1  # each try may take seconds
    lookup.error = None
    await clock.advance(AGAIN_S)
    assert await topics.foreign(BATCH) == FOREIGN  # what was taken in doubt is not remembered


@pytest.mark.asyncio
async def test_a_lookup_that_does_not_answer_delays_a_batch_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        await asyncio.Event().wait()
        return frozenset(pairs)

    monkeypatch.setattr("walle.pipeline.ingest.store.topic_check.ASK_S", 0.01)
    assert await TaskTopics(never).foreign(BATCH) == frozenset()


@pytest.mark.asyncio
async def test_many_wrong_topics_make_no_other_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_check, "MAX_FOREIGN", 3)
    tasks = [f"bank/t{number}" for number in range(8)]
    clock, lookup = ManualClock(), Lookup(*(("b", task) for task in tasks))
    topics = TaskTopics(lookup, clock)
    uploads = [received(number, device="b", topic=task) for number, task in enumerate(tasks, 1)]
    wrong = frozenset(("b", task) for task in tasks)
    assert await topics.foreign(uploads[:3]) == {("b", task) for task in tasks[:3]}
    assert await topics.foreign(uploads) == wrong  # forgotten ones, whose places others take, are asked for again
    assert await topics.foreign(uploads) == wrong
