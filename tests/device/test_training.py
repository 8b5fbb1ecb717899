"""Training of a task in the background of its device: when it runs, what a step stores, and what a kill loses."""

import asyncio
import functools
import pickle
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.training_task import STEPS, TRAINING_CONFIG, TRAINING_MAIN
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.device import Device
from walle.device.task_runs import RunOutcome
from walle.errors import ConfigError
from walle.pipeline.features.checkpoints import Checkpoints
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore, OutboxFullError
from walle.task.run.run_result import TrainedStep


def checkpoint_of(device: Device) -> Any:
    return Checkpoints(device.store).read("shop/count")[1]


async def install(shop: ShopCloud, *users: User, main: str = TRAINING_MAIN, more: str = "") -> None:
    await shop.push("v1", main=main, config=TASK_CONFIG + TRAINING_CONFIG + more)
    await shop.release("v1", beta=[user.device.config.device_id for user in users])
    for user in users:
        await user.until(functools.partial(user.has, "v1"))


@pytest.mark.asyncio
async def test_a_task_trains_while_its_device_charges_and_infers_with_what_it_learned(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0", vms=2) as device:
            user = User(device)
            await install(shop, user)
            assert not any(one.has_vm for one in device._training._schedules.values())
            assert (device.counts.training_steps, checkpoint_of(device)) == (0, None)
            device.set_attributes(charging=True)
            await until(lambda: device.counts.training_steps >= 5)
            device.set_attributes(charging=False)
            done = device.counts.training_steps
            await until(lambda: not any(one.has_vm for one in device._training._schedules.values()))
            assert device.counts.training_steps <= done + 1
            stored = checkpoint_of(device)
            assert stored["done"] == device.counts.training_steps
            with device.results("shop/count") as results:
                await user.visit()
                assert (await anext(results)).output == {"done": stored["done"]}
            losses = await device.store.query("shop/count/loss", 0, 100, 0)
            assert len(losses) == stored["done"]
            assert (device.counts.runs_failed, device.counts.last_error) == (0, "")
        async with shop.device(tmp_path / "d0", vms=2, attributes={"performance": "low", "charging": True}) as device:
            await until(lambda: checkpoint_of(device)["done"] == STEPS)
            await until(lambda: not any(one.has_vm for one in device._training._schedules.values()))
            assert device.counts.training_steps == STEPS - stored["done"]
            assert (await device.summary()).training_steps == device.counts.training_steps
            await device._versions.remove("shop/count")
            assert checkpoint_of(device) is None


@pytest.mark.asyncio
async def test_a_step_that_fails_counts_against_its_version_and_stores_nothing(tmp_path: Path) -> None:
    main = TRAINING_MAIN.replace(f"return done + 1 < {STEPS}", "return done == 0 or ['no data'][done]")
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", vms=2) as device:
        user = User(device)
        await install(shop, user, main=main)
        device.set_attributes(charging=True)
        await until(lambda: device.counts.runs_failed == 1)
        assert "IndexError: list index out of range" in device.counts.last_error
        assert (device.counts.training_steps, checkpoint_of(device)["done"]) == (1, 1)
        (schedule,) = device._training._schedules.values()
        await until(lambda: schedule.due_s > device._clock.monotonic() + 3_000)  # rest_s


@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [1, *at_night(10)])
async def test_a_kill_loses_one_step_at_most_and_the_weights_end_as_without(tmp_path: Path, kills: int) -> None:
    rng = random.Random(1)
    async with (
        shop_cloud(tmp_path) as shop,
        shop.device(tmp_path / "d0", vms=2) as device,
        shop.device(tmp_path / "d1", vms=2) as other,  # never killed
    ):
        await install(shop, User(device), User(other))
        other.set_attributes(charging=True)
        await until(lambda: other.counts.training_steps == STEPS)
        wanted = checkpoint_of(other)
    config_file = tmp_path / "config"
    config_file.write_bytes(pickle.dumps(device.config))
    done = 0
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.sim.training_task", str(config_file)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        begun = 0
        last = rng.randint(2, 4)  # far fewer than STEPS in all: a training that rests begins no step
        while begun < last and await process.stdout.readline():
            begun += 1
        await asyncio.sleep(rng.uniform(0, 0.02))
        process.kill()
        begun += len((await process.stdout.read()).splitlines())
        await process.wait()
        async with FeatureStore(device.config.folder / "features.db") as store:
            stored = Checkpoints(store).read("shop/count")[1]
        assert done + begun - 1 <= stored["done"] <= done + begun
        done = stored["done"]
    async with Device(device.config) as device:
        device.set_attributes(charging=True)
        await until(lambda: checkpoint_of(device)["done"] == STEPS)
        ended = checkpoint_of(device)
    assert plain.encode(ended) == plain.encode(wanted)


@pytest.mark.asyncio
async def test_a_step_that_ends_after_its_task_was_removed_leaves_nothing(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", vms=2) as device:
        await install(shop, User(device))
        train = device._runner.train

        async def remove_first(*args: Any, **options: Any) -> TrainedStep:
            step = await train(*args, **options)
            await device._versions.remove("shop/count")
            return step

        device._runner.train = remove_first  # type: ignore[method-assign]
        device.set_attributes(charging=True)
        await until(lambda: device.tasks == {} or not device._training._schedules)
        await device.store.flush()
        assert (device.counts.training_steps, checkpoint_of(device)) == (0, None)
        assert await device.store.query("shop/count/loss", 0, 10, 0) == []


@pytest.mark.asyncio
async def test_metrics_of_a_training_come_with_the_outcome_of_its_rest(tmp_path: Path) -> None:
    main = TRAINING_MAIN.replace(f"return done + 1 < {STEPS}", "return done < 2")
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", vms=2) as device:
        await install(shop, User(device), main=main)
        counted: list[RunOutcome] = []
        count = device._count

        def note(task: str, outcome: RunOutcome) -> None:
            counted.append(outcome)
            count(task, outcome)

        device._count = note  # type: ignore[method-assign]
        device.set_attributes(charging=True)
        await until(lambda: device.counts.training_steps == 3)
        (outcome,) = counted
        assert outcome.failure is None
        assert outcome.metrics["loss"] > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("drops", [False, True])
async def test_a_full_outbox_postpones_a_step_or_keeps_what_it_puts_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops: bool
) -> None:
    main = TRAINING_MAIN.replace(", upload=False", "")
    policy = '[limits]\noutbox_full = "drop-newest"\n' if drops else ""
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", vms=2) as device:
        await install(shop, User(device), main=main, more=policy)
        put_outputs = device.store.put_outputs

        async def put_local(puts: Sequence[Put], **options: Any) -> None:
            if any(put.upload for put in puts):
                raise OutboxFullError(device.store.path, "its outbox is full")
            await put_outputs(puts, **options)

        monkeypatch.setattr(device.store, "put_outputs", put_local)
        monkeypatch.setattr(device.store, "outbox_has_room", lambda _: False)
        device.set_attributes(charging=True)
        if drops:
            await until(lambda: device.counts.training_steps > 1)
            assert device.stream.counts.uploads_dropped["shop/count"] > 1
        else:
            (schedule,) = device._training._schedules.values()
            await until(lambda: schedule.due_s > device._clock.monotonic() + 50)
            assert (device.counts.training_steps, checkpoint_of(device)) == (0, None)
        assert (device.counts.runs_failed, device.counts.last_error) == (0, "")


@pytest.mark.asyncio
async def test_attributes_that_change_are_checked(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        device = shop.device(tmp_path / "d0")
        with pytest.raises(ConfigError, match="the attribute id of a device cannot be set"):
            device.set_attributes(id="other")
        with pytest.raises(ConfigError, match=r"place of a device must be a text, .* is of type object"):
            device.set_attributes(place=object())  # type: ignore[arg-type]
        device.set_attributes(charging=True, performance="high")
        assert device.attributes == {"id": "d0", "app_version": "10.1", "performance": "high", "charging": True}
        device.set_attributes(charging=None, performance=None)
        assert device.attributes == {"id": "d0", "app_version": "10.1", "performance": "low"}
