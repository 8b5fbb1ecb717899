"""The test of a version's failure rate on a device: what it finds and how soon, and how seldom it is wrong."""

import json
import math
import random
from pathlib import Path

import pytest

from tests.sim.agent_device import TASK, Device, publish, start
from tests.sim.cloud_files import CloudFiles
from walle.deploy.agent import run_watch
from walle.deploy.agent.run_watch import ALLOWED, RunCounts, RunWatch
from walle.protocol import Failure

FAILURE = Failure(error_type="ValueError", error="ValueError: no price")


def runs_until_bad(rate: float, seed: int, *, watch: RunWatch | None = None, most: int = 2_000) -> int:
    """Return after how many runs a version that fails at `rate` is found, `most` if it is not."""
    rng = random.Random(seed)
    found = watch or RunWatch()
    for number in range(1, most):
        found = found.run(ok=rng.random() >= rate)
        if found.is_bad:
            return number
    return most


def after(runs: int, failed: int) -> RunWatch:
    return RunWatch(RunCounts(runs, failed)).next()


def test_a_version_that_always_fails_is_found_by_its_tenth_run() -> None:
    assert runs_until_bad(1.0, 0) == 10


@pytest.mark.parametrize(("rate", "half", "nearly_all"), [(0.5, 35, 90), (0.3, 125, 300)])
def test_a_version_that_fails_often_is_found_within_a_stated_number_of_runs(
    rate: float, half: int, nearly_all: int
) -> None:
    found = sorted(runs_until_bad(rate, seed) for seed in range(400))
    assert found[200] <= half
    assert found[395] <= nearly_all


def test_a_task_that_fails_rarely_by_design_keeps_its_versions() -> None:
    for seed, rate in enumerate((0.05, 0.05, 0.02, 0.0)):
        assert runs_until_bad(rate, seed, most=20_000) == 20_000


@pytest.mark.parametrize("allowed", [0.1, 0.4])
def test_the_probability_of_a_false_finding_is_bounded(monkeypatch: pytest.MonkeyPatch, allowed: float) -> None:
    monkeypatch.setattr(run_watch, "EVIDENCE", 50.0)
    runs, devices = 10, 4_000
    wrong = sum(
        runs_until_bad(allowed, seed, watch=RunWatch(allowed=allowed), most=runs + 1) <= runs for seed in range(devices)
    )
    bound = runs / 50.0
    assert 0 < wrong / devices <= bound + 3 * math.sqrt(bound * (1 - bound) / devices)


def test_a_version_that_goes_bad_late_is_found_as_soon_as_one_that_was_bad_at_once() -> None:
    watch = RunWatch()
    for _ in range(5_000):
        watch = watch.run(ok=True)
    assert runs_until_bad(1.0, 0, watch=watch) == 10


def test_a_version_may_fail_as_the_one_before_did_and_no_more() -> None:
    assert after(1_000, 10).allowed == ALLOWED
    assert after(5, 5).allowed == ALLOWED  # too few runs to say that the task fails by design
    lenient = after(1_000, 300)
    assert 0.3 < lenient.allowed < 0.37
    assert runs_until_bad(0.3, 1, watch=lenient, most=5_000) == 5_000
    assert runs_until_bad(0.8, 1, watch=lenient) < 150
    assert runs_until_bad(1.0, 1, watch=after(1_000, 1_000), most=5_000) == 5_000  # the version before was no better


def test_a_version_of_few_runs_passes_its_allowance_on() -> None:
    lenient = after(1_000, 300)
    hasty = RunWatch(RunCounts(3, 3), allowed=lenient.allowed).next()
    assert hasty.allowed == lenient.allowed


@pytest.mark.parametrize("seed", range(5))
def test_a_watch_continues_where_it_was_kept(seed: int) -> None:
    rng = random.Random(seed)
    watch = after(100, rng.randrange(100))
    for _ in range(rng.randrange(200)):
        watch = watch.run(ok=rng.random() < 0.7)
    assert RunWatch.from_plain(json.loads(json.dumps(watch.to_plain()))) == watch


# --- on an agent ------------------------------------------------------------------------------------------------------


def fail(device: Device, version: str, count: int) -> list[str]:
    return [device.agent.count_run(TASK, version, FAILURE) for _ in range(count)]


@pytest.mark.asyncio
async def test_a_bad_version_is_left_for_the_one_before_and_says_by_what(tmp_path: Path) -> None:
    device = await start(tmp_path / "agent", cloud := CloudFiles())
    await device.do(publish(cloud, "v1"))
    for _ in range(100):
        assert device.agent.count_run(TASK, "v1") == ""
    await device.do(publish(cloud, "v2"))
    assert device.agent.count_run(TASK, "v1", FAILURE) == ""  # a run of before that ends late
    device.take_outcomes()
    found = fail(device, "v2", 10)
    assert found[:9] == [""] * 9
    assert found[9] == "10 of its 10 runs here failed, where 0.1 of them may; the last: ValueError: no price"
    assert await device.agent.revert(TASK, found[9], version="v2")
    assert device.agent.tasks == {TASK: "v1"}
    (reverted,) = [outcome for outcome in device.outcomes() if outcome.kind == "reverted"]
    assert (reverted.version, reverted.error) == ("v2", found[9])
    assert fail(device, "v1", 9) == [""] * 9  # judged by its own runs from then on


@pytest.mark.asyncio
async def test_counts_are_kept_over_a_restart(tmp_path: Path) -> None:
    device = await start(tmp_path / "agent", cloud := CloudFiles())
    await device.do(publish(cloud, "v1"))
    fail(device, "v1", 6)
    await device.agent.close()
    device = await start(device.folder, cloud)
    found = fail(device, "v1", 4)
    assert found[:3] == [""] * 3
    assert found[3].startswith("10 of its 10 runs")


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format":1,"tasks":[],"sha256":""}', b"\xff" * 100])
async def test_damaged_counts_begin_again(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    device = await start(tmp_path / "agent", cloud := CloudFiles())
    await device.do(publish(cloud, "v1"))
    fail(device, "v1", 6)
    await device.agent.close()
    (device.folder / "runs.json").write_bytes(damage)
    device = await start(device.folder, cloud)
    assert "runs are counted from 0" in caplog.text
    assert device.agent.tasks == {TASK: "v1"}
    assert fail(device, "v1", 9) == [""] * 9


@pytest.mark.asyncio
async def test_counts_go_with_a_removed_task_and_only_installed_versions_have_any(tmp_path: Path) -> None:
    device = await start(tmp_path / "agent", cloud := CloudFiles())
    for version in ("v1", "v2", "v3"):
        await device.do(publish(cloud, version))
        device.agent.count_run(TASK, version)
    await device.agent.keep_runs()
    kept = json.loads((device.folder / "runs.json").read_bytes())["tasks"]
    assert len(kept[TASK]["watches"]) == 2
    await device.do(cloud.remove(TASK))
    await device.agent.keep_runs()
    assert json.loads((device.folder / "runs.json").read_bytes())["tasks"] == {}


@pytest.mark.asyncio
async def test_a_full_disk_loses_counts_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = await start(tmp_path / "agent", cloud := CloudFiles())
    await device.do(publish(cloud, "v1"))
    fail(device, "v1", 9)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("walle.deploy.agent.watched_runs.write_file", full)
    await device.agent.keep_runs()
    assert fail(device, "v1", 1) != [""]
