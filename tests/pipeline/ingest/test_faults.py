"""The fault campaign: a short run of it, and the wrong outcomes that its judgement must find."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.fault_processes import DEVICE, TOPIC, payload_of
from tests.sim.fault_world import World
from walle.base import plain
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.received import Received

_ROOT = Path(__file__).parents[3]


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(240)
def test_random_faults_lose_nothing_silently_and_stop_nothing() -> None:
    command = [sys.executable, "-m", "tests.sim.faults", "--faults=60", "--seed=12", "--json"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["faults_total"] == 60
    assert len(found["faults"]) >= 10  # kinds
    assert found["made"] == found["once"] + found["lost_named"] + found["twice_named"]
    assert found["once"] > found["made"] / 2
    assert found["reports"] > 0
    assert found["gentle_worlds"] == 1
    assert found["alarms_in_gentle_worlds"] == 0


async def judged(tmp_path: Path, features: list[int], losses: list[Loss], *, gentle: bool) -> World:
    """Return a world whose cloud has these features as uploads 1, 2, ... of epoch `e`, and these reports."""
    for side in ("device", "cloud"):
        (tmp_path / side).mkdir()
    rows = [
        Received(DEVICE, "e", seq, TOPIC, plain.encode(payload_of(feature)), 0, 0)
        for seq, feature in enumerate(features, 1)
    ]
    rows += [Received(DEVICE, "f", seq, LOSS_TOPIC, loss.encode(), 0, 0) for seq, loss in enumerate(losses, 1)]
    async with Ingest(tmp_path / "cloud" / "uploads.db") as ingest:
        await ingest.accept(rows)
    world = World(tmp_path, tmp_path, 1, gentle=gentle, can_mount=False)
    world._judge()
    return world


@pytest.mark.asyncio
async def test_features_that_are_missing_or_twice_without_a_report_are_found(tmp_path: Path) -> None:
    world = await judged(tmp_path, [0, 1, 1, 3], [], gentle=False)
    assert world.result.silent == [
        "feature 1: 2 in the cloud, was upload 2 of e, 3 of e",
        "feature 2: 0 in the cloud, was upload ",
    ]
    assert (world.result.made, world.result.once) == (4, 2)
    assert not world.result.is_right


@pytest.mark.asyncio
@pytest.mark.parametrize("gentle", [False, True])
async def test_what_a_report_names_is_right_unless_nothing_could_be_lost(tmp_path: Path, gentle: bool) -> None:
    world = await judged(tmp_path, [0, 1, 1, 2], [Loss("e", 3, None, LossCause.DEVICE_RESTORED)], gentle=gentle)
    result = world.result
    assert (result.once, result.lost_named, result.twice_named, result.silent) == (2, 0, 1, [])
    assert result.is_right != gentle


@pytest.mark.asyncio
async def test_a_world_in_order_is_right_and_one_that_is_stuck_is_not(tmp_path: Path) -> None:
    world = await judged(tmp_path, [0, 1, 2], [], gentle=True)
    result = world.result
    assert result.is_right
    assert not dataclasses.replace(result, own_ends=["device ended with 1"]).is_right
    assert not dataclasses.replace(result, stuck="the outbox is not empty").is_right
