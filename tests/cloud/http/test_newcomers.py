"""Accepted connections wait for turns of their addresses."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from walle.cloud.http.accept_queue import Newcomers
from walle.cloud.http.fair_queue import Turns


@pytest.fixture
def accepted() -> Iterator[Callable[[], socket.socket]]:
    made = list[socket.socket]()

    def accept() -> socket.socket:
        made.extend(socket.socketpair())
        return made[-1]

    yield accept
    for one in made:
        one.close()


@pytest.mark.asyncio
async def test_one_of_another_address_begins_before_those_that_came_before_it(
    accepted: Callable[[], socket.socket],
) -> None:
    begun = list[str]()
    newcomers = Newcomers(Turns(asyncio.get_running_loop()), 100, lambda _, host: begun.append(host), Counter())
    for _ in range(50):
        newcomers.add(accepted(), "10.0.0.2", "10.0.0.2")
    newcomers.add(accepted(), "10.0.0.1", "10.0.0.1")
    assert begun == []
    await asyncio.sleep(0)
    assert begun[:3] == ["10.0.0.2", "10.0.0.1", "10.0.0.2"]
    while len(begun) < 51:  # noqa: ASYNC110 - each pass of the loop counts
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_requests_of_an_address_are_served_between_its_newcomers(accepted: Callable[[], socket.socket]) -> None:
    turns = Turns(asyncio.get_running_loop())
    seen = list[str]()
    newcomers = Newcomers(turns, 100, lambda *_: seen.append("newcomer"), Counter())
    for _ in range(50):
        newcomers.add(accepted(), "10.0.0.2", "10.0.0.2")
    turns.take("10.0.0.2", lambda: seen.append("request"))
    await asyncio.sleep(0)
    assert seen[:3] == ["newcomer", "request", "newcomer"]


@pytest.mark.asyncio
async def test_the_oldest_of_the_address_with_the_most_is_closed_and_counted(
    accepted: Callable[[], socket.socket],
) -> None:
    refused = Counter[str]()
    begun = list[socket.socket]()
    turns = Turns(asyncio.get_running_loop())
    newcomers = Newcomers(turns, 3, lambda one, _: begun.append(one), refused)
    honest, others = accepted(), [accepted() for _ in range(4)]
    newcomers.add(honest, "10.0.0.1", "10.0.0.1")
    for one in others:
        newcomers.add(one, "10.0.0.2", "10.0.0.2")
    assert [one.fileno() for one in others[:2]] == [-1, -1]
    assert refused == {"newcomer": 2}
    await asyncio.sleep(0)
    assert begun == [honest, *others[2:]]


@pytest.mark.asyncio
async def test_none_begins_after_the_end(accepted: Callable[[], socket.socket]) -> None:
    begun = list[socket.socket]()
    newcomers = Newcomers(Turns(asyncio.get_running_loop()), 9, lambda one, _: begun.append(one), Counter())
    one = accepted()
    newcomers.add(one, "10.0.0.1", "10.0.0.1")
    newcomers.close()
    await asyncio.sleep(0)
    assert begun == []
    assert one.fileno() == -1
