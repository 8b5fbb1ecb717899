"""Places for costly requests: who gets one when all are taken."""

import asyncio
import contextlib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from walle.access.access import Access, Role
from walle.deploy.git import slots as places
from walle.deploy.git.git_http import MAX_REQUESTS, MAX_REQUESTS_EACH, git_app
from walle.deploy.git.repo import TaskRepos
from walle.deploy.git.slots import Place, PlaceLostError, Places, PlacesTakenError


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def hold(taken: Places, caller: str, held: list[Place], *, is_waiting: bool = True) -> None:
    with taken.taken(caller) as place:
        held.append(place)
        async with place.waiting() if is_waiting else contextlib.nullcontext():
            await asyncio.Event().wait()


async def begin(tasks: list[asyncio.Task[None]], *works: Any) -> None:
    tasks += [asyncio.create_task(work) for work in works]
    await asyncio.sleep(0)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert [type(error).__name__ for task in tasks if not task.cancelled() and (error := task.exception())] in (
        [],
        ["PlaceLostError"],
    )


@pytest.mark.asyncio
async def test_a_caller_with_fewer_places_gets_the_slowest_of_who_has_the_most() -> None:
    clock = Clock()
    taken = Places(4, 3, now=clock)
    tasks: list[asyncio.Task[None]] = []
    held: list[Place] = []
    await begin(tasks, hold(taken, "a", held))
    clock.now_s = 1.0
    await begin(tasks, *(hold(taken, "a", held) for _ in range(2)), hold(taken, "b", held))
    clock.now_s = places.SLOW_S
    with pytest.raises(PlacesTakenError, match="a has 3 requests"), taken.taken("a"):
        pass
    with taken.taken("c"):
        await asyncio.sleep(0.01)
        assert isinstance(tasks[0].exception(), PlaceLostError)
        with pytest.raises(PlacesTakenError, match="4 requests"), taken.taken("d"):  # the others are not slow yet
            pass
    with taken.taken("d"):
        clock.now_s = 100.0
        with pytest.raises(PlacesTakenError, match="4 requests"), taken.taken("d"):  # nobody has more than it would
            pass
    await end(tasks)
    with taken.taken("a"):
        assert len(taken._places) == 1


@pytest.mark.asyncio
async def test_a_place_that_works_is_kept_however_long() -> None:
    clock = Clock()
    taken = Places(2, 2, now=clock)
    tasks: list[asyncio.Task[None]] = []
    await begin(tasks, *(hold(taken, "a", [], is_waiting=False) for _ in range(2)))
    clock.now_s = 1000.0
    with pytest.raises(PlacesTakenError, match="2 requests"), taken.taken("b"):
        pass
    await end(tasks)


def test_four_tokens_whose_requests_stall_do_not_keep_others_from_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SLOW_S", 0.0)
    repos = TaskRepos(tmp_path / "repos")
    repos.create("shop")
    access = Access()
    tokens = [access.issue(f"dev{number}", {"shop": Role.READER}) for number in range(5)]
    app = git_app(repos, access)

    async def ask(token: str, statuses: list[int], *, stalls: bool) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        if stalls:
            headers.append((b"content-type", b"application/x-git-upload-pack-request"))
        path = "git-upload-pack" if stalls else "info/refs"
        scope: dict[str, Any] = {"type": "http", "method": "POST" if stalls else "GET", "path": f"/git/shop.git/{path}"}
        scope |= {"query_string": b"service=git-upload-pack", "headers": headers}

        async def receive() -> MutableMapping[str, Any]:
            if stalls:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": b""}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app(scope, receive, send)

    async def scenario() -> None:
        assert MAX_REQUESTS == 4 * MAX_REQUESTS_EACH
        stalled: list[int] = []
        tasks: list[asyncio.Task[None]] = []
        await begin(
            tasks, *(ask(token, stalled, stalls=True) for token in tokens[:4] for _ in range(MAX_REQUESTS_EACH))
        )
        others: list[int] = []
        async with asyncio.timeout(20):
            await ask(tokens[4], others, stalls=False)
        await asyncio.sleep(0.01)
        assert (others, stalled) == ([200], [503])
        await ask(tokens[0], others, stalls=False)  # asked with the token that lost a place
        assert others == [200, 200]
        await end(tasks)

    asyncio.run(scenario())
