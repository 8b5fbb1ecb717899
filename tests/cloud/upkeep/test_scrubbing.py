"""Scrubbing in the background: a pass a week that goes on after a restart, releases that pause, state for gateways."""

import asyncio
from pathlib import Path

import pytest

from tests.sim.stored_cloud import StoredCloud, bundle_of
from walle.base.clock import ManualClock
from walle.cloud.upkeep import scrubbing
from walle.cloud.upkeep.scrub import Scrubber
from walle.cloud.upkeep.scrubbing import PASS_S, STATE_FILE, Scrubbing, ScrubState, ScrubWatch
from walle.deploy.releases.release import Release

MODEL = bytes(100_000)


class World(StoredCloud):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bundles = [bundle_of("ipv", number, MODEL + b"%d" % number) for number in range(1, 5)]
        for bundle in self.bundles:
            self.put(bundle)
            self.record(bundle)
        self.paused: list[tuple[str, str]] = []
        self.watch = ScrubWatch(folder)

    def scrubbing(self, *, mb_s: float = 0.0) -> Scrubbing:
        stores = {"files": self.files, "cloud-files": self.cloud_files}
        scrubber = Scrubber(stores, self.reachable, {}, self.folder / "quarantine", self.clock)

        async def pause(release: Release, reason: str) -> None:
            self.paused.append((release.id, reason))

        return Scrubbing(self.folder, scrubber, pause, self.clock, mb_s=mb_s)

    def model(self, number: int) -> str:
        files = self.bundles[number - 1].manifest.files
        return next(one.sha256 for one in files if one.path == "resources/model.bin")

    @property
    def gauges(self) -> dict[str, float]:
        return {metric.name: metric.samples[0].value for metric in self.watch.metrics()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def passed(clock: ManualClock, task: asyncio.Task[None], step_s: float, until_s: float = 3 * PASS_S) -> None:
    """Let time pass until the task is done."""
    end_s = clock.time() + until_s
    while not task.done() and clock.time() < end_s:
        await asyncio.sleep(0.001)
        await clock.advance(step_s)
    await task


@pytest.mark.asyncio
async def test_a_pass_takes_a_week_and_a_file_an_hour_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.watch.health() == {"ok": True, "faults": [], "last_pass_s": 0.0}
    began_s = world.clock.time()
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    monkeypatch.setattr(world.clock, "sleep", sleep)
    await world.scrubbing().run_pass()
    assert max(slept_s) == pytest.approx(3600)
    assert sum(slept_s) < PASS_S
    slept_s.clear()
    monkeypatch.setattr(scrubbing, "_MAX_FILE_S", PASS_S)  # each file takes less than this
    await world.scrubbing().run_pass()
    assert sum(slept_s) == pytest.approx(PASS_S)
    state = ScrubState.load(world.folder)
    assert state.checked_bytes == sum(f.size_bytes for s in (world.files, world.cloud_files) for f in s.files())
    assert (state.after, state.ended_s >= began_s) == ("", True)


@pytest.mark.asyncio
async def test_a_damaged_file_pauses_its_releases_and_is_shown_until_it_is_put_again(world: World) -> None:
    sha256 = world.model(2)
    world.files.path(sha256).write_bytes(b"damaged")
    passes = world.scrubbing(mb_s=1e6)
    await passed(world.clock, asyncio.ensure_future(passes.run_pass()), 1.0)
    ((release_id, reason),) = world.paused
    assert release_id == "r2"
    assert f"the cloud's own copy of files/{sha256} is damaged, and nothing could repair it" in reason
    health = world.watch.health()
    assert (health["ok"], len(health["faults"])) == (True, 1)
    assert world.gauges["walle_stored_file_faults"] == 1
    checking = asyncio.ensure_future(passes.check_faults())
    for _ in range(20):
        await asyncio.sleep(0.005)
        await world.clock.advance(100.0)
    assert world.gauges["walle_stored_file_faults"] == 1
    world.put(world.bundles[1])
    for _ in range(200):
        await asyncio.sleep(0.005)
        await world.clock.advance(100.0)
        if not world.gauges["walle_stored_file_faults"]:
            break
    checking.cancel()
    assert world.gauges["walle_stored_file_faults"] == 0


@pytest.mark.asyncio
async def test_a_pass_continues_after_a_restart_and_keeps_the_faults_that_it_found(world: World) -> None:
    files = [
        f"{name}/{f.sha256}"
        for name in ("cloud-files", "files")
        for f in getattr(world, name.replace("-", "_")).files()
    ]
    state = ScrubState(after=files[-3], checked_files=len(files) - 2, faults={files[0]: "found before"})
    state.save(world.folder)
    await passed(world.clock, asyncio.ensure_future(world.scrubbing(mb_s=1e6).run_pass()), 1.0)
    state = ScrubState.load(world.folder)
    assert (state.checked_files, state.after, state.faults) == (len(files), "", {files[0]: "found before"})
    await passed(world.clock, asyncio.ensure_future(world.scrubbing(mb_s=1e6).run_pass()), 1.0)
    assert ScrubState.load(world.folder).faults == {}


@pytest.mark.asyncio
async def test_a_damaged_state_begins_again(world: World) -> None:
    (world.folder / STATE_FILE).write_text("{")
    await passed(world.clock, asyncio.ensure_future(world.scrubbing(mb_s=1e6).run_pass()), 1.0)
    assert ScrubState.load(world.folder).ended_s > 0
