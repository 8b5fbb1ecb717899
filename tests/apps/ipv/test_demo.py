"""The end of a demo that cannot continue."""

import asyncio
from pathlib import Path
from typing import Any, Never

import pytest
from rich.console import Console

from apps.ipv.demo import run
from apps.task_repo import TaskRepo
from walle.actors.node import NodeLostError


@pytest.fixture
def demo(tmp_path: Path) -> run._Demo:
    options = run.Options(
        devices=4, events=None, mapping=None, seed=1, out=tmp_path, address="", root=tmp_path, as_json=True
    )
    return run._Demo(options, tmp_path, Console())


@pytest.mark.asyncio
async def test_a_fleet_that_is_lost_ends_the_demo_at_once(
    demo: run._Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def lost() -> Never:
        raise NodeLostError("summaries", "its process died twice")

    monkeypatch.setattr(demo, "_sample", lost)
    monkeypatch.setattr(demo, "_tell", lambda _: asyncio.Event().wait())
    async with asyncio.timeout(5):
        with pytest.raises(NodeLostError, match="died twice"):
            await demo._play(TaskRepo(tmp_path / "work", "http://127.0.0.1:1", "shop", ""))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_a_release_that_does_not_get_on_is_named(demo: run._Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_RELEASE_LIMIT_S", 0.0)
    release: dict[str, Any] = {"id": "ipv-v1-1", "stage": "gray 0.25", "totals": {"ok": 7, "failed": 1}}
    demo._release = release
    with pytest.raises(
        run.DemoStalledError, match=r"v1 on every device .* ipv-v1-1 is at gray 0\.25, 7 runs ok, 1 fail"
    ):
        await demo._until_all_on("v1")
