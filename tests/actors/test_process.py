"""Processes of actors: what is started in the place of one that was ended."""

from typing import Any

import pytest
import ray

from walle.actors import process
from walle.actors.node import NodeLostError


@pytest.mark.asyncio
async def test_a_process_that_cannot_be_started_is_tried_again_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a service that was ended to be moved, or the keeper of nodes, would be started by nobody."""
    ends: list[Exception | str] = [
        ray.exceptions.RaySystemError("the head does not answer"),  # type: ignore[no-untyped-call]
        ValueError("the name is taken"),
        ray.exceptions.RaySystemError("the head does not answer"),  # type: ignore[no-untyped-call]
        "actor",
    ]

    def spawn(_: type, *__: Any, **___: Any) -> str:
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(process, "spawn", spawn)
    monkeypatch.setattr(process, "_AGAIN_S", 0.01)
    assert await process.spawn_in_place(object, name="monitor") == "actor"
    assert not ends


@pytest.mark.asyncio
async def test_a_name_that_another_actor_keeps_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(_: type, *__: Any, **___: Any) -> str:
        raise ValueError("the name is taken")

    monkeypatch.setattr(process, "spawn", spawn)
    monkeypatch.setattr(process, "_NAME_S", 0.1)
    with pytest.raises(NodeLostError, match="the name is taken"):
        await process.spawn_in_place(object, name="monitor")
