"""Streams at real pace side by side: frames dropped, highlights missed, delays, and CPU of device and cloud."""

import asyncio
import collections
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.livestream.frame_choice import Choice
from apps.livestream.player import OPTIONAL, Decision, Player
from apps.livestream.quality.labels import Clip
from apps.livestream.seconds import SecondCounts
from benchmarks.highlights import processes
from benchmarks.highlights.baseline import Baseline
from benchmarks.highlights.clip_loop import ClipLoop
from benchmarks.highlights.cloud_process import CloudProcess
from walle.device import Device

TASKS = ("item", "face", "voice")
PERCENTILES = (50, 95, 99)
_COUNTS = (
    *("highlights_at_leisure", "highlights_lost", "highlights_added"),
    *("undecided", "device", "cloud", "device_alone"),
)

type Answers = Mapping[tuple[str, int], bool]


def rotated(clips: Sequence[Clip], first: int) -> Iterator[Clip]:
    """Yield the clips from one on, again and again."""
    while True:
        yield clips[first % len(clips)]
        first += 1


def orders(clips: Sequence[Clip], streams: int) -> list[Iterator[Clip]]:
    """Return the clips' order for each of the streams: the first begins with the clip that has the most highlights.

    The next ones begin three clips further each, so that streams side by side are not alike.
    """
    labels = [sum(clip.labels("highlight")) / clip.seconds for clip in clips]
    first = labels.index(max(labels))
    return [rotated(clips, first + 3 * number) for number in range(streams)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles by the nearest rank, and the largest; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    found = {f"p{p}": ordered[max(0, -(-len(ordered) * p // 100) - 1)] for p in PERCENTILES}
    return {**found, "max": ordered[-1]}


def compared(loops: Sequence[ClipLoop], decided: Sequence[Sequence[Decision]], at_leisure: Answers) -> dict[str, Any]:
    """Return how the decisions differ from those of one stream without a pace, second by second."""
    counts = collections.Counter[str]()
    for loop, decisions in zip(loops, decided, strict=True):
        for each in decisions:
            expected = at_leisure[loop.where(each.second)]
            counts["highlights_at_leisure"] += expected
            if each.output is None:
                counts["undecided"] += 1
                counts["highlights_lost"] += expected
                continue
            counts["highlights_lost"] += expected and not each.output["highlight"]
            counts["highlights_added"] += not expected and bool(each.output["highlight"])
            counts[each.output["decided"].replace(" ", "_")] += 1
    return {key: counts[key] for key in _COUNTS}


def dropped(counts: Sequence[SecondCounts]) -> dict[str, dict[str, int]]:
    """Return the answered, dropped and failed triggers of each task, over all streams."""
    return {
        task: {
            kind: sum(getattr(one, kind).get(task, 0) for one in counts) for kind in ("answered", "dropped", "failed")
        }
        for task in (*TASKS, *(name for name in OPTIONAL if any(name in one.answered for one in counts)))
    }


async def on_devices(
    devices: Sequence[Device],
    cloud: CloudProcess,
    clips: Sequence[Clip],
    folder: Path,
    *,
    seconds: int,
    at_leisure: Answers,
    device_pids: Collection[int],
) -> dict[str, Any]:
    """Play a stream on each of the devices for `seconds`, all in this process, and return the figures.

    `device_pids` are this process and its VM host.
    """
    loops = [ClipLoop(folder, order, seconds=seconds, pace=1.0) for order in orders(clips, len(devices))]
    sources: list[Any] = list(loops)
    players = [Player(device, source, paced=True) for device, source in zip(devices, sources, strict=True)]

    async def played(player: Player) -> list[Decision]:
        return [_without_image(each) async for each in player.decisions()]

    before, own_s, begin_s = await cloud.use(), _cpu_s(device_pids), time.monotonic()
    decided = await asyncio.gather(*map(played, players))
    used = (await cloud.use()).since(before)
    wall_s, device_cpu_s = time.monotonic() - begin_s, _cpu_s(device_pids) - own_s
    return {
        **_common(loops, decided, at_leisure, wall_s),
        "tasks": dropped([player.builder.counts for player in players]),
        "choices": {one.value: sum(player.chooser.counts[one] for player in players) for one in Choice},
        "refused": sum(player.refused for player in players),
        "device_cores": device_cpu_s / wall_s,
        "cloud_cores": used.cpu_s / wall_s,
    }


async def on_baseline(
    baseline: Baseline, clips: Sequence[Clip], folder: Path, *, streams: int, seconds: int, at_leisure: Answers
) -> dict[str, Any]:
    """Play streams to the baseline for `seconds`, and return the figures."""
    loops = [ClipLoop(folder, order, seconds=seconds, pace=1.0) for order in orders(clips, streams)]
    own = {os.getpid()}
    before, own_s, begin_s = await baseline.use(), _cpu_s(own), time.monotonic()
    decided = await asyncio.gather(*(baseline.client(paced=True).play(loop) for loop in loops))
    wall_s, device_cpu_s = time.monotonic() - begin_s, _cpu_s(own) - own_s
    used = (await baseline.use()).since(before)
    return {
        **_common(loops, decided, at_leisure, wall_s),
        "device_cores": device_cpu_s / wall_s,
        "cloud_cores": used.cpu_s / wall_s,
    }


def _common(
    loops: Sequence[ClipLoop], decided: Sequence[Sequence[Decision]], at_leisure: Answers, wall_s: float
) -> dict[str, Any]:
    return {
        "streams": len(loops),
        "decisions": sum(map(len, decided)),
        "wall_s": wall_s,
        "frames": sum(loop.frames for loop in loops),
        "late_frames": sum(loop.late_frames for loop in loops),  # dropped before the device
        "delay_s": percentiles([each.delay_s for found in decided for each in found if each.delay_s is not None]),
        "delay_by_place_s": {
            place: percentiles([
                each.delay_s
                for found in decided
                for each in found
                if each.delay_s is not None and each.output is not None and each.output["decided"] == place
            ])
            for place in ("device", "cloud")
        },
        **compared(loops, decided, at_leisure),
    }  # fmt: skip


async def through_a_loss(
    device: Device,
    cloud: CloudProcess,
    clips: Sequence[Clip],
    folder: Path,
    *,
    seconds: int,
    lost_at: int,
    back_at: int,
) -> dict[str, Any]:
    """Play one stream at real pace; kill the cloud once a second is decided, and start it again after another.

    Returns where each second was decided, and after how long the cloud decides again once it serves.

    Raises:
        RuntimeError: a second is missing, or was not decided.
    """
    source: Any = ClipLoop(folder, rotated(clips, 0), seconds=seconds, pace=1.0)
    places, reasons, delays_s = list[str](), collections.Counter[str](), list[float]()
    serving_s: float | None = None
    back_s: float | None = None
    restarting: asyncio.Task[float] | None = None
    async for decision in _numbered(Player(device, source, paced=True), seconds):
        output = decision.output
        if output is None:
            raise RuntimeError(f"second {decision.second} was not decided: {decision.why}")
        places.append(output["decided"])
        delays_s.append(decision.delay_s or 0.0)
        if output["decided"] == "device alone":
            reasons[output["why"]] += 1
        if decision.second == lost_at:
            cloud.kill()
            await cloud.wait_killed()
        elif decision.second == back_at:
            restarting = asyncio.create_task(_restart(cloud, time.monotonic))
        if restarting is not None and restarting.done():
            serving_s = restarting.result()
            if back_s is None and output["decided"] == "cloud":
                back_s = time.monotonic()
    if restarting is not None:
        serving_s = await restarting
    return {
        "seconds": seconds,
        "lost_at": lost_at,
        "back_at": back_at,
        "places": dict(collections.Counter(places)),
        "by_second": "".join({"cloud": "c", "device": "d", "device alone": "a"}[place] for place in places),
        "reasons": dict(reasons),
        "recovered_s": None if back_s is None or serving_s is None else max(0.0, back_s - serving_s),
        "delay_s": percentiles(delays_s),
        "delay_by_second_s": [round(delay_s, 2) for delay_s in delays_s],
    }


async def _numbered(player: Player, seconds: int) -> AsyncIterator[Decision]:
    """Yield the decisions of all seconds, in order.

    Raises:
        RuntimeError: one is missing.
    """
    expected = 0
    async for decision in player.decisions():
        if decision.second != expected:
            raise RuntimeError(f"second {expected} is missing")
        expected += 1
        yield decision
    if expected != seconds:
        raise RuntimeError(f"{expected} of {seconds} seconds came")


async def _restart(cloud: CloudProcess, now: Callable[[], float]) -> float:
    """Start the cloud again; return when it serves."""
    await cloud.start()
    return now()


def _cpu_s(pids: Collection[int]) -> float:
    return sum(map(processes.one_cpu_s, pids))


def _without_image(decision: Decision) -> Decision:
    return Decision(second=decision.second, output=decision.output, why=decision.why, delay_s=decision.delay_s)
