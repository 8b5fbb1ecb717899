"""The end of a demo that cannot continue."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, Never

import pytest
from rich.console import Console

from apps.ipv.demo import run
from apps.ipv.demo.record import Sample
from apps.task_repo import TaskRepo
from walle.actors.node import NodeLostError
from walle.errors import ConfigError


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
        run.DemoStalledError, match=r"v1 on every device .* ipv-v1-1 is at 25 % step, 7 runs ok, 1 fail"
    ):
        await demo._until_all_on("v1")


def _sample(began_s: float, active: dict[str, int]) -> Sample:
    return Sample(began_s=began_s, t_s=began_s + 0.5, active=active, produced=0, received=0, runs=0, failed=0)


@pytest.mark.asyncio
async def test_a_sample_that_began_before_the_verdict_says_nothing_of_its_end(demo: run._Demo) -> None:
    demo._record.samples.append(_sample(-0.1, {"v1": 4}))  # v2 reached a device after this one began
    waiting = asyncio.create_task(demo._until_all_on("v1"))
    for active in ({"v1": 3, "v2": 1}, {"v1": 4}):
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        demo._record.samples.append(_sample(1e6, active))
        demo._sampled.set()
    async with asyncio.timeout(5):
        await waiting


@pytest.mark.asyncio
async def test_the_latest_sample_of_the_record_is_the_one_that_began_last(
    demo: run._Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = list[asyncio.Event]()

    async def take() -> None:
        number, done = len(began), asyncio.Event()
        began.append(done)
        await done.wait()
        demo._record.samples.append(_sample(float(number), {}))

    monkeypatch.setattr(demo, "_take_sample", take)
    samples = [asyncio.create_task(demo._sample()) for _ in range(2)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(began) == 1  # the second one waits for the first
    began[0].set()
    await samples[0]
    for _ in range(3):
        await asyncio.sleep(0)
    began[1].set()
    await samples[1]
    assert [sample.began_s for sample in demo._record.samples] == [0.0, 1.0]


def test_a_log_that_gives_no_user_says_why_in_one_line(demo: run._Demo, tmp_path: Path) -> None:
    log, mapping = tmp_path / "log.csv", tmp_path / "m.toml"
    log.write_text("at,kind,page,user\n2026-01-01 00:00:00 UTC,view,1,u1\n")
    mapping.write_text('[fields]\nevent_id = "kind"\npage_id = "page"\ntime = "at"\nstream = "user"\n')
    demo._options = dataclasses.replace(demo._options, events=log, mapping=mapping)
    with pytest.raises(ConfigError, match=r"has 0 users; .* 1 skipped \(1 broken\); line 2: ts_ms: .* format 'ms'"):
        demo._driver_options()
