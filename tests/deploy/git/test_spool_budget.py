"""Shares of the disk for requests under way: bounded for each caller and in all, waited for, and given back."""

import asyncio

import pytest

from walle.deploy.git.spool_budget import SpoolBudget, SpoolFullError

pytestmark = pytest.mark.asyncio


async def test_a_share_waits_for_room_and_is_refused_after_a_while() -> None:
    budget = SpoolBudget(100, 40, wait_s=0.05)
    first = await budget.take("anna", 30)
    with pytest.raises(SpoolFullError, match=r"other requests of anna have 0 MiB") as caught:
        await budget.take("anna", 20)
    assert (caught.value.own, caught.value.used_bytes, caught.value.most_bytes) == (True, 30, 40)
    others = [await budget.take(name, 35) for name in ("bob", "carl")]
    with pytest.raises(SpoolFullError, match="requests under way have") as full:
        await budget.take("dora", 1)
    assert not full.value.own
    assert budget.used_bytes == 100
    for share in (first, *others):
        share.shrink(0)
    assert budget.used_bytes == 0


async def test_who_waits_gets_the_bytes_of_another_that_ends() -> None:
    budget = SpoolBudget(100, 40)
    with await budget.take("anna", 40):
        waiting = asyncio.create_task(budget.take("anna", 30))
        await asyncio.sleep(0)
        assert not waiting.done()
    share = await waiting
    assert budget.used_by("anna") == 30
    share.shrink(10)
    share.shrink(20)
    assert (budget.used_by("anna"), share.size_bytes) == (10, 10)
    cancelled = asyncio.create_task(budget.take("anna", 35))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    share.shrink(0)
    assert budget.used_bytes == 0


async def test_one_share_of_any_size_is_given_to_a_caller_without_one() -> None:
    budget = SpoolBudget(100, 40, wait_s=0.01)
    with await budget.take("anna", 90), pytest.raises(SpoolFullError):
        await budget.take("anna", 1)


async def test_a_share_grows_to_the_bounds() -> None:
    budget = SpoolBudget(100, 60)
    with await budget.take("anna", 0) as share, await budget.take("bob", 60):
        share.grow(40)
        share.grow(10)
        assert (share.size_bytes, budget.used_bytes) == (40, 100)
        with pytest.raises(SpoolFullError):
            share.grow(41)
        assert budget.used_bytes == 100
    assert budget.used_bytes == 0
