"""The player, on a real device and cloud with the app's tasks: every second is decided once, whatever happens.

Unless a test says otherwise, a device here is never sure, so that each second with a picture goes to the cloud.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from apps.livestream.evaluate import play
from apps.livestream.frame_choice import Choice
from apps.livestream.media import ConnectionLostError, Frame, Item, MediaError, Sound, open_source
from apps.livestream.player import Decision, Player
from apps.livestream.studio import Studio
from tests.apps.livestream.conftest import DATA
from tests.apps.livestream.media_files import write_beginning
from walle.base.clock import ManualClock
from walle.device import Device
from walle.model_files import ModelFolder
from walle.vm import shared_empty

pytestmark = [pytest.mark.system, pytest.mark.vm_host]
in_this_loop = pytest.mark.asyncio(loop_scope="module")

THANKS = DATA / "video/asl_thanks.mkv"  # 2 s without sound
ADVERT = DATA / "video/product_advert_chromecast.mp4"  # 15 s with sound
SECOND = 16_000  # samples


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(models: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Studio]:
    """One cloud and device for all: the releases take seconds."""
    if not ADVERT.exists():
        pytest.skip("the real clips are not beside this checkout")
    unsure = {"highlight": {"sure": [-1.0, 2.0]}}
    async with Studio(tmp_path_factory.mktemp("studio"), models, settings=unsure) as studio:
        yield studio


@pytest.fixture(scope="module")
def advert(studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the first seconds of ADVERT, with a face and an item; the fifth has sound alone."""
    return write_beginning(ADVERT, tmp_path_factory.mktemp("advert") / "advert.mkv", video_s=4.0, sound_s=4.5)


@pytest.fixture
def device(studio: Studio) -> Device:
    return studio.devices[0]


@dataclasses.dataclass
class Script:
    """A source of given items, which may end in an error or never."""

    items: Iterable[Item]
    fault: MediaError | None = None
    ends: bool = True
    live: bool = False

    @property
    def info(self) -> Any:
        kinds = {type(item) for item in self.items}
        return type("Info", (), {"has_video": Frame in kinds, "has_sound": Sound in kinds, "live": self.live})

    async def __aiter__(self) -> AsyncIterator[Item]:
        for item in self.items:
            yield item
        if self.fault is not None:
            raise self.fault
        if not self.ends:
            await asyncio.Event().wait()


def frames(seconds: int) -> list[Item]:
    """Return two frames a second, of noise so that none is like the one before."""
    rng = np.random.default_rng(1)
    return [
        Frame(pts_ms, rng.integers(0, 255, (90, 160, 3), dtype=np.uint8)) for pts_ms in range(0, seconds * 1000, 500)
    ]


def scripted(device: Device, source: Script) -> Player:
    player: Any = Player
    made: Player = player(device, source, paced=False)
    return made


async def decided(player: Player, found: list[Decision] | None = None) -> list[Decision]:
    """Return all decisions; they are in `found` too, which has those before an error."""
    found = [] if found is None else found
    async for decision in player.decisions():
        found.append(decision)
    return found


def seconds(decisions: Iterable[Decision]) -> list[int]:
    return [decision.second for decision in decisions]


@in_this_loop
async def test_every_second_is_decided_once_and_in_order_and_two_runs_are_equal(device: Device, advert: Path) -> None:
    runs = [await play(device, advert, frames_per_second=2) for _ in range(2)]
    assert seconds(runs[0]) == list(range(5))
    assert [decision.output for decision in runs[0]] == [decision.output for decision in runs[1]]
    outputs = [decision.output for decision in runs[0] if decision.output is not None]
    assert len(outputs) == 5
    assert {output["decided"] for output in outputs[:4]} == {"cloud"}
    assert sum(output["highlight"] for output in outputs) > 0
    assert max(output["evidence"]["face"] for output in outputs) > 0.8
    assert all(decision.image is not None and decision.delay_s is None for decision in runs[0][:4])


@in_this_loop
async def test_a_file_without_sound(device: Device) -> None:
    decisions = await play(device, THANKS)
    assert seconds(decisions) == list(range(len(decisions)))
    assert len(decisions) in (2, 3)
    assert all(decision.output and decision.output["evidence"]["voice"] == 0 for decision in decisions)


@in_this_loop
async def test_sound_alone_is_decided_to_its_end(device: Device) -> None:
    """The voice task is the last to answer here, after the source has ended."""
    sounds: list[Item] = [Sound(1000 * n, np.zeros(SECOND, np.float32)) for n in range(20)]
    decisions = await decided(scripted(device, Script(sounds)))
    assert seconds(decisions) == list(range(20))
    assert {decision.output and decision.output["decided"] for decision in decisions} == {"device"}  # no picture came


@pytest.mark.night
@in_this_loop
async def test_a_pace_that_the_tasks_cannot_follow_drops_frames_and_counts_them(device: Device, advert: Path) -> None:
    pace = {"frames_per_second": Fraction(24), "pace": 60.0, "when_behind": "wait"}
    async with open_source(advert, allocate=shared_empty, **pace) as source:  # type: ignore[arg-type]
        player = Player(device, source, paced=True)
        decisions = await decided(player)
        delivered = source.report.frames.delivered
    assert seconds(decisions) == list(range(5))
    counts = player.builder.counts
    assert counts.dropped["item"] > 0
    assert player.frames == delivered > 80
    analysed = player.chooser.counts[Choice.ANALYSED]
    assert analysed + player.chooser.counts[Choice.UNCHANGED] == delivered
    for task in ("item", "face"):
        assert counts.answered[task] + counts.dropped.get(task, 0) + player.refused == analysed, task
    assert counts.answered["highlight"] == sum(decision.output is not None for decision in decisions)
    assert all(decision.delay_s is not None for decision in decisions)


@in_this_loop
async def test_unchanged_frames_are_not_analysed_and_their_seconds_are_decided_alike(device: Device) -> None:
    image = np.full((90, 160, 3), 90, np.uint8)
    still: list[Item] = [Frame(pts_ms, image) for pts_ms in range(0, 3000, 500)]
    player = scripted(device, Script(still))
    decisions = await decided(player)
    assert seconds(decisions) == [0, 1, 2]
    assert player.builder.counts.answered == {"item": 1, "face": 1, "highlight": 3}
    assert {choice.value: count for choice, count in player.chooser.counts.items()} == {
        "analysed": 1, "unchanged": 5, "budget": 0,
    }  # fmt: skip
    evidence = [decision.output and {**decision.output["evidence"], "before": 0} for decision in decisions]
    assert evidence[0] == evidence[1] == evidence[2]
    assert all(cpu_s > 0 for cpu_s in player.chooser.cpu_s.values())
    assert player.chooser.cpu_s.keys() == {"item", "face", "highlight"}


@in_this_loop
async def test_a_budget_bounds_the_models_and_every_second_is_decided(device: Device) -> None:
    """It pays for next to nothing: a frame in two seconds is analysed, of four that differ."""
    player = Player(device, Script(frames(8)), paced=False, budget=0.000_1)  # type: ignore[arg-type]
    assert seconds(await decided(player)) == list(range(8))
    counts = player.chooser.counts
    assert 4 <= counts[Choice.ANALYSED] <= 8  # the first ones come before a cost is known
    assert counts[Choice.ANALYSED] + counts[Choice.BUDGET] == player.frames == 16
    assert player.builder.counts.answered["item"] == counts[Choice.ANALYSED]


@in_this_loop
async def test_a_task_that_fails_on_a_frame_is_counted_and_its_second_decided(device: Device) -> None:
    items = frames(3)
    items[2] = Frame(1000, np.zeros((1, 8193, 3), np.uint8))  # wider than the tasks take
    player = scripted(device, Script(items))
    decisions = await decided(player)
    assert seconds(decisions) == [0, 1, 2]
    assert {decision.output and decision.output["decided"] for decision in decisions} == {"cloud"}
    assert player.builder.counts.failed == {"item": 1, "face": 1}
    assert player.builder.counts.answered == {"item": 5, "face": 5, "highlight": 3}


@in_this_loop
async def test_frames_of_a_broken_source_are_decided_before_its_error(device: Device) -> None:
    lost = ConnectionLostError("rtsp://camera", "did not come back", 3500)
    player = scripted(device, Script(frames(4), fault=lost))
    found: list[Decision] = []
    with pytest.raises(ConnectionLostError):
        await decided(player, found)
    assert seconds(found) == [0, 1, 2, 3]
    assert all(decision.output is not None for decision in found)


@in_this_loop
async def test_a_stream_is_played_up_to_a_time(device: Device) -> None:
    player = Player(device, Script(frames(8)), paced=False, seconds=3)  # type: ignore[arg-type]
    assert seconds(await decided(player)) == [0, 1, 2]
    assert player.was_ended
    assert player.frames == 6


@in_this_loop
@pytest.mark.parametrize("by", ["stop", "time"])
async def test_a_live_stream_that_gives_nothing_more_can_be_ended(device: Device, by: str) -> None:
    """As a camera whose picture stands still: what came before that is decided."""
    clock = ManualClock()
    source = Script(frames(3), ends=False, live=True)
    player = Player(device, source, paced=False, seconds=60, clock=clock)  # type: ignore[arg-type]
    found = []
    async for decision in player.decisions():
        found.append(decision.second)
        if len(found) == 2:  # the third second cannot be complete
            if by == "stop":
                player.stop()
            else:
                await clock.advance(60)
    assert found == [0, 1, 2]
    assert player.was_ended


@in_this_loop
async def test_a_cancelled_player_leaves_no_task_behind(device: Device) -> None:
    before = asyncio.all_tasks()
    first = asyncio.Event()

    async def watch() -> None:
        async with contextlib.aclosing(scripted(device, Script(frames(3), ends=False)).decisions()) as decisions:
            async for _ in decisions:
                first.set()

    watching = asyncio.create_task(watch())
    await asyncio.wait_for(first.wait(), 30)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}  # type: ignore[union-attr]
    assert not {name for name in left if name.startswith(("Player", "Queue"))}, left


@pytest.mark.night
@in_this_loop
async def test_seconds_are_decided_by_the_device_alone_while_the_cloud_is_gone(studio: Studio) -> None:
    """This one is the last: the cloud's inference is closed in the middle of it."""
    async with open_source(ADVERT, frames_per_second=Fraction(4), allocate=shared_empty) as source:
        found = []
        async for decision in Player(studio.devices[0], source, paced=False).decisions():
            found.append(decision)
            if decision.second == 5:
                await studio.cloud.inference.close()
    assert seconds(found) == list(range(16))
    outputs = [decision.output for decision in found if decision.output is not None]
    assert len(outputs) == 16
    places = [output["decided"] for output in outputs]
    assert places[:5] == ["cloud"] * 5
    assert places[8:15] == ["device alone"] * 7
    assert {output["why"] for output in outputs if output["decided"] == "device alone"} <= {
        "away",
        "late",
        "full",
        "failed",
    }
