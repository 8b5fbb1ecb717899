"""Waits: the first of several ends the others, and work that is not to be cut runs to its end."""

import asyncio

import pytest

from walle.base.waiting import first_of, to_the_end


@pytest.mark.asyncio
async def test_the_first_to_end_cancels_the_others_and_their_cleanup_is_awaited() -> None:
    cleaned = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    await first_of(endless(), asyncio.sleep(0))
    assert cleaned.is_set()


@pytest.mark.asyncio
async def test_the_error_of_the_first_to_end_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await first_of(asyncio.Event().wait(), fail())


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_work_of_a_caller_that_is_cancelled_ends_first(fails: bool, cancellations: int) -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await may_end.wait()
        ended.set()
        if fails:
            raise ValueError("nobody reads it")
        return "done"

    caller = asyncio.create_task(to_the_end(work()))
    await begun.wait()
    for _ in range(cancellations):
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
