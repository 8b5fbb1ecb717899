"""Inputs that a device escalates to the cloud through a real tunnel, and the errors where that fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.cloud.inference import InferenceError
from walle.cloud.nodes.inference import InferenceNode
from walle.engine_ext.vm.host import shared_host
from walle.engine_ext.vm.loop_calls import TaskError
from walle.pipeline.tunnel.client.client import RequestError
from walle.task.run.runner import PHASE_TOPIC, PhasePlaceError

MAIN = """\
def preprocess(ctx, trigger):
    return trigger["event"]["contents"]["n"]


def execute(ctx, x):
    if ctx.device["id"] == "d0" and isinstance(x, int):
        return ctx.escalate({"n": x, "by": ctx.device["performance"], "pair": (1, 2), "bytes": b"ab"})
    if x["n"] == 1:
        raise ValueError("the bigger model broke")
    if x["n"] == 2:
        return 1 << 70
    return {"answer": x["n"] * 10, "seen": [x["by"], x["pair"], x["bytes"], ctx.device["id"]]}
"""
AUTO = TASK_CONFIG + '[phases]\nexecute = "auto"\n'


READS = """\
def execute(ctx, x):
    if isinstance(x, dict) and "event" in x:
        return ctx.escalate({"n": 1})
    queue = [object]
    for one in queue:
        queue += type.__subclasses__(one)
        if one.__name__ == "FileIO":
            return one("/proc/self/environ").read(10_000)
"""


@contextlib.asynccontextmanager
async def escalating(folder: Path, config: str, main: str = MAIN) -> AsyncIterator[tuple[ShopCloud, User]]:
    """Give a cloud and a device that has a task which hands everything over."""
    async with shop_cloud(folder) as shop, shop.device(folder / "d0") as device:
        await shop.push("v1", main=main, config=config)
        await shop.release("v1", beta=["d0"])
        user = User(device)
        async with asyncio.timeout(10):
            while not device.tasks:
                await device.checkin()
                await asyncio.sleep(0.01)
        yield shop, user


def known_versions(inference: InferenceNode) -> list[tuple[str, str]]:
    assert inference._versions is not None
    return list(inference._versions._known)


def question(**changes: Any) -> bytes:
    body = {"task": "shop/count", "version": "v1", "phase": "execute", "payload": {"n": 3}, "device": {}}
    return plain.encode({**body, **changes})


@pytest.mark.asyncio
async def test_the_cloud_runs_a_phase_and_the_device_stores_its_result_or_counts_its_failure(tmp_path: Path) -> None:
    async with escalating(tmp_path, AUTO) as (shop, user):
        device = user.device
        await user.visit()
        summary = await device.summary()
        assert (summary.escalated, summary.runs_ok, summary.runs_failed) == (1, 1, 0), summary.last_error
        await device.settled()
        ((_, upload),) = await shop.cloud.gateway.uploads("shop/count", 0, 10)
        assert plain.decode(upload.payload) == {"answer": 0, "seen": ["low", [1, 2], b"ab", "d0"]}
        await user.visit()  # page 1
        assert "the bigger model broke" in (await device.summary()).last_error
        await user.visit()  # page 2
        assert "output is an int of more than 64 bits" in (await device.summary()).last_error
        await user.visit()
        summary = await device.summary()
        assert (summary.runs_ok, summary.runs_failed, summary.produced) == (2, 2, 2)

        for changes, message in (
            ({"version": "v9"}, "shop/count v9 is not a version that this device was given"),
            ({"task": "shop/other"}, "shop/other v1 is not a version that this device was given"),
            ({"phase": "preprocess"}, "does not allow 'preprocess' on the cloud"),
            ({"phase": "main"}, "does not allow 'main' on the cloud"),
            ({"device": 5}, "cannot be read"),
        ):
            with pytest.raises(RequestError, match=message):
                await device.tunnel.request(PHASE_TOPIC, question(**changes))
        with pytest.raises(RequestError, match=r"has 6000\d\d values, more than 524288; hand over arrays"):
            await device.tunnel.request(PHASE_TOPIC, question(payload=[[]] * 600_000))
        for garbage in (b"", b"\xc1", plain.encode([1]), plain.encode({"task": "shop/count"}), question()[:-3]):
            with pytest.raises(RequestError, match="the request of d0 cannot be read"):
                await device.tunnel.request(PHASE_TOPIC, garbage)
        with pytest.raises(RequestError, match="request 'weather' is unknown"):
            await device.tunnel.request("weather", b"")


@pytest.mark.asyncio
async def test_a_phase_that_stays_on_the_device_is_refused_and_fails_its_run(tmp_path: Path) -> None:
    async with escalating(tmp_path, TASK_CONFIG) as (_, user):
        await user.visit()
        summary = await user.device.summary()
        assert (summary.runs_ok, summary.runs_failed) == (0, 1)
        assert "does not allow 'execute' on the cloud" in summary.last_error


@pytest.mark.asyncio
async def test_errors_name_their_kind_and_several_callers_of_a_version_that_is_not_there_get_one_each(
    tmp_path: Path,
) -> None:
    async with escalating(tmp_path, AUTO) as (shop, _):
        inference = shop.cloud.inference
        wrong = question(version="v9")
        answers = await asyncio.gather(
            *(inference.answer(f"d{number}", PHASE_TOPIC, wrong) for number in range(4)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [InferenceError] * 4
        with pytest.raises(PhasePlaceError) as place:
            await inference.answer("d1", PHASE_TOPIC, question(phase="postprocess"))
        assert (place.value.task, place.value.version, place.value.phase) == ("shop/count", "v1", "postprocess")
        with pytest.raises(TaskError) as failed:
            await inference.answer("d1", PHASE_TOPIC, question(payload={"n": 1}))
        assert failed.value.type_name == "ValueError"
        assert known_versions(inference) == [("shop/count", "v1")]


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_caller_that_leaves_while_a_version_is_laid_out_leaves_nothing_wrong_behind(tmp_path: Path) -> None:
    async with escalating(tmp_path, AUTO) as (shop, _):
        inference = shop.cloud.inference
        payload = question(payload={"n": 4, "by": "x", "pair": [], "bytes": b""})
        impatient = asyncio.create_task(inference.answer("d1", PHASE_TOPIC, payload))
        await asyncio.sleep(0)  # the question waits for the version
        assert inference._versions is not None
        assert len(inference._versions._finding) == 1
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        assert impatient.cancelled()
        assert plain.decode(await inference.answer("d1", PHASE_TOPIC, payload))["answer"] == 40
        wrong = asyncio.create_task(inference.answer("d1", PHASE_TOPIC, question(version="v9")))
        await asyncio.sleep(0)
        assert list(inference._versions._finding) == [("shop/count", "v9")]
        wrong.cancel()
        await asyncio.gather(wrong, return_exceptions=True)
        finding = inference._versions._finding
        await until(lambda: not finding)
        assert known_versions(inference) == [("shop/count", "v1")]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_phase_reads_nothing_of_the_clouds_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALLE_TEST_SECRET", "the cloud's own")
    async with escalating(tmp_path, AUTO, READS) as (_, user):
        await user.visit()
        summary = await user.device.summary()
        if shared_host().report().layers["landlock"]:
            assert "PermissionError" in summary.last_error
            assert (summary.runs_ok, summary.runs_failed) == (0, 1)
        stored = await user.device.store.query("shop/count", 0, 10)
        assert "WALLE_TEST_SECRET" not in repr([feature.payload for feature in stored])
