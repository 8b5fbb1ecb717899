"""When steps of training run: the share of a core, the attributes of the device, and versions that change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from walle.base.clock import ManualClock
from walle.device.task_versions import ActiveVersion
from walle.device.training import BackgroundTraining
from walle.errors import VMError
from walle.protocol import Attribute, Manifest, TrainingPolicy, TriggerCondition
from walle.task.run.run_result import TrainedStep


def version(task: str = "count", number: str = "v1", **training: Any) -> ActiveVersion:
    manifest = Manifest(
        scenario="shop",
        task=task,
        version=number,
        commit="c" * 40,
        bytecode=(),
        files=(),
        trigger=TriggerCondition.parse({"sequence": ["page_exit"]}),
        phases={},
        limits={},
        training=TrainingPolicy(**{"when": {"charging": True}, **training}),
    )
    return ActiveVersion(Path(), manifest)


class Bench:
    """A device whose steps take as much CPU and time as told, by task."""

    def __init__(self, *active: ActiveVersion) -> None:
        self.clock = ManualClock()
        self.active = {one.manifest.name: one for one in active}
        self.attributes: dict[str, Attribute] = {"charging": True}
        self.steps: list[str] = []
        self.released: list[str] = []
        self.cut = 0
        self.cpu_s = 0.1
        self.more: Callable[[str], bool] = lambda _: True
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.training = BackgroundTraining(self.clock, lambda: self.attributes, self.active, self.step, self.release)

    async def step(self, task: str, one: ActiveVersion) -> TrainedStep:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        self.steps.append(f"{task} {one.manifest.version}")
        if self.error is not None:
            raise self.error
        return TrainedStep(
            puts=(), checkpoint=(), more=self.more(task), cpu_s=self.cpu_s, run_ms=self.cpu_s * 1000, metrics={}
        )

    def release(self, one: ActiveVersion) -> None:
        self.released.append(f"{one.manifest.name} {one.manifest.version}")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.training.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def set(self, **attributes: Attribute) -> None:
        self.attributes |= attributes
        self.training.note_change()
        await self.clock.advance(0)


@pytest.mark.asyncio
async def test_steps_take_their_share_of_a_core() -> None:
    bench = Bench(version(cpu_percent=25))
    async with bench.running():
        await bench.clock.advance(0)
        assert len(bench.steps) == 1
        await bench.clock.advance(0.39)
        assert len(bench.steps) == 1
        await bench.clock.advance(10.1 - 0.39)
        assert len(bench.steps) == 26  # one in 0.4 s


@pytest.mark.asyncio
async def test_each_task_has_its_own_share() -> None:
    bench = Bench(version("a", cpu_percent=10), version("b", cpu_percent=50))
    async with bench.running():
        await bench.clock.advance(9.99)
        assert (bench.steps.count("shop/a v1"), bench.steps.count("shop/b v1")) == (10, 50)


@pytest.mark.asyncio
async def test_a_step_is_cut_short_when_the_device_leaves_the_charger() -> None:
    bench = Bench(version())
    bench.gate.clear()
    async with bench.running():
        await bench.set(idle=True)  # another attribute changes nothing
        assert (bench.cut, bench.released) == (0, [])
        await bench.set(charging=False)
        assert (bench.cut, bench.steps, bench.released) == (1, [], ["shop/count v1"])
        bench.gate.set()
        await bench.clock.advance(100)
        assert bench.steps == []
        await bench.set(charging=True)
        assert bench.steps == ["shop/count v1"]


@pytest.mark.asyncio
async def test_a_task_rests_after_a_step_that_wants_no_other_or_fails() -> None:
    bench = Bench(version(rest_s=60))
    bench.more = lambda _: False
    async with bench.running():
        await bench.clock.advance(59)
        assert (len(bench.steps), bench.released) == (1, ["shop/count v1"])
        bench.error = VMError("failed")
        await bench.clock.advance(1)
        assert (len(bench.steps), len(bench.released)) == (2, 2)
        bench.error = None
        await bench.clock.advance(60)
        assert len(bench.steps) == 3


@pytest.mark.asyncio
async def test_another_version_begins_at_once_and_a_removed_one_ends() -> None:
    bench = Bench(version(rest_s=3600))
    bench.more = lambda _: False
    async with bench.running():
        await bench.clock.advance(1)
        bench.active["shop/count"] = version(number="v2")
        await bench.set()
        assert bench.steps == ["shop/count v1", "shop/count v2"]
        bench.more = lambda _: True
        bench.gate.clear()
        bench.active["shop/count"] = version(number="v3")
        await bench.set()
        del bench.active["shop/count"]
        await bench.set()
        assert (bench.cut, bench.steps[2:], bench.released[-1]) == (1, [], "shop/count v3")


@pytest.mark.parametrize(
    ("attributes", "is_met"),
    [
        ({"charging": True, "network": "wifi"}, True),
        ({"charging": True, "network": "cell"}, False),
        ({"charging": True}, False),
        ({}, False),
    ],
)
def test_all_attributes_of_when_must_be_met(attributes: dict[str, Attribute], is_met: bool) -> None:
    assert TrainingPolicy(when={"charging": True, "network": "wifi"}).is_met(attributes) == is_met
    assert TrainingPolicy(when={}).is_met(attributes)
