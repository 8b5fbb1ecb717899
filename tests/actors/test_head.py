"""Questions to Ray's head while it does not answer, without Ray: a question is a function that waits."""

import asyncio
import threading

import pytest
import ray

from walle.actors import head
from walle.actors.head import HeadAwayError, SharedQuestion, ask_head


@pytest.mark.asyncio
async def test_a_call_returns_its_answer_and_raises_its_error() -> None:
    def divide(a: int, *, by: int) -> float:
        return a / by

    assert await ask_head(divide, 6, by=3) == 2
    with pytest.raises(ZeroDivisionError):
        await ask_head(divide, 1, by=0)


@pytest.mark.asyncio
async def test_an_error_of_rays_says_that_the_head_is_away() -> None:
    def question() -> None:
        raise ray.exceptions.GetTimeoutError("Deadline Exceeded")

    with pytest.raises(HeadAwayError, match="Deadline Exceeded"):
        await ask_head(question)


@pytest.mark.asyncio
async def test_questions_without_an_answer_block_no_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "ASK_S", 0.05)
    answering = threading.Event()
    try:
        asked = [asyncio.create_task(ask_head(answering.wait)) for _ in range(head.MAX_OPEN + 4)]
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(end, HeadAwayError) for end in ends)
        assert sum("already" in str(end) for end in ends) == 4
        assert await asyncio.to_thread(lambda: "free") == "free"
    finally:
        answering.set()
    async with asyncio.timeout(30):
        while True:  # each thread gives its place back
            try:
                assert await ask_head(lambda: "back") == "back"
                break
            except HeadAwayError:
                await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_callers_of_an_open_shared_question_get_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answering, calls = threading.Event(), 0

    def count() -> int:
        nonlocal calls
        calls += 1
        answering.wait()
        return calls

    shared = SharedQuestion(count)
    with monkeypatch.context() as short:
        short.setattr(head, "ASK_S", 0.05)
        for _ in range(3):
            with pytest.raises(HeadAwayError, match="no answer"):
                await shared.ask()
    waiting = [asyncio.create_task(shared.ask()) for _ in range(5)]
    await asyncio.sleep(0)
    answering.set()
    assert await asyncio.gather(*waiting) == [1] * 5
    assert await shared.ask() == 2
