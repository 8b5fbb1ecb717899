"""The livestream app's figures: what is computed of decisions and counts, and the baseline beside the app itself."""

import asyncio
import dataclasses
import json
import os
import random
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.livestream.media import Frame, Item, Sound
from apps.livestream.player import Decision
from apps.livestream.quality.labels import LABELS, Clip, read_labels
from apps.livestream.seconds import SecondCounts
from apps.livestream.studio import SETTINGS
from apps.livestream.task_files import tasks_of, write_task
from benchmarks import livestream
from benchmarks.highlights import collaboration, engines, many_streams, processes, report
from benchmarks.highlights.clip_loop import LATE_S, ClipLoop, present
from benchmarks.highlights.cloud_process import CloudUse, received_bytes
from benchmarks.highlights.stream_client import StreamClient
from benchmarks.highlights.stream_server import HEAD, Kind, StreamServer
from tests.sim import long_stream
from walle.model_files import ModelFolder

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared/data"
needs_data = pytest.mark.skipif(not (DATA / "models").is_dir(), reason="the real clips and models are not beside this")


def clip_of(name: str, seconds: int, *highlights: int) -> Clip:
    labels = {"highlight": frozenset(highlights), "face": frozenset[int]()}
    return Clip(
        name=name, file=f"{name}.mp4", seconds=seconds, set="tuning", sha256="", source="", passes=(labels, labels)
    )


def row(second: int, highlight: bool, decided: str = "device") -> dict[str, Any]:
    return {"second": second, "highlight": highlight, "decided": decided, "score": 0.5, "label": ""}


CLIPS = [clip_of("a", 4, 1, 2), clip_of("b", 2, 0)]


def made_pass(cpu_s: float, sent: int) -> collaboration.Pass:
    decided: collaboration.Decided = {
        "a": [row(0, False), row(1, True, "cloud"), row(2, True), row(3, False, "cloud")],
        "b": [row(0, False), row(1, True)],
    }
    return collaboration.Pass(decided, CloudUse(cpu_s, sent, 1.0))


# --- the comparison ---------------------------------------------------------------------------------------------------


def test_a_summary_is_of_medians_and_of_the_first_passs_decisions() -> None:
    found = collaboration.summary([made_pass(0.6, 6000), made_pass(60.0, 60_000), made_pass(1.2, 12_000)], CLIPS)
    assert (found["seconds"], found["highlights"]) == (6, 2)
    assert found["cloud_cpu_ms_per_stream_s"] == pytest.approx(200)
    assert found["cloud_cpu_ms_range"] == pytest.approx([100, 10_000])
    assert found["cloud_cpu_ms_per_highlight"] == pytest.approx(600)
    assert found["streams_per_cloud_core"] == pytest.approx(5)
    assert found["uploaded_kb_per_stream_minute"] == pytest.approx(120)
    assert (found["looked_closer_share"], found["pass_rate"]) == (pytest.approx(2 / 6), 0.5)
    assert (found["precision"], found["recall"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found["deterministic"]


def test_savings_are_counted_as_the_paper_does() -> None:
    cheap, dear = (collaboration.summary([made_pass(cpu_s, 6000)], CLIPS) for cpu_s in (0.13, 1.0))
    saved = collaboration.saved(cheap, dear)
    assert saved["cloud_cpu_per_highlight"] == pytest.approx(0.87)
    assert saved["more_streams_per_core"] == pytest.approx(1 / 0.13 - 1)
    assert saved["uploaded_bytes"] == 0


def test_decisions_that_differ_are_counted_and_a_missing_second_is_refused() -> None:
    one, other = made_pass(1, 1).decided, made_pass(1, 1).decided
    other["a"][0] = row(0, True)
    assert collaboration.differing(one, other) == {"a": 1}
    assert report.differing({"a": 1}) == "1 seconds decided differently (1 of a)"
    decisions = [Decision(second=0, output=row(0, True)), Decision(second=1, output=None, why="it failed")]
    with pytest.raises(RuntimeError, match="b: 1 of 2 seconds were decided it failed"):
        collaboration.outputs(CLIPS[1], decisions)


def test_another_engines_time_is_that_of_the_same_runs() -> None:
    each_ms = {"detector": {"walle": 5.0, "onnxruntime": 7.0}, "voice": {"walle": 0.1, "onnxruntime": 0.05}}
    assert engines.with_onnxruntime(50, {"detector": 4, "voice": 31, "unchanged": 9}, each_ms) == pytest.approx(56.45)


def test_the_clips_with_most_highlights_keep_their_order() -> None:
    clips = [clip_of("a", 4, 1), clip_of("b", 4), clip_of("c", 4, 0, 1, 2), clip_of("d", 8, 0, 1, 2, 3)]
    assert [clip.name for clip in livestream.with_most_highlights(clips, 2)] == ["c", "d"]
    assert [clip.name for clip in livestream.with_most_highlights(clips, 1)] == ["c"]
    assert livestream.with_most_highlights(clips, 0) == clips
    assert livestream.with_most_highlights(clips, 9) == clips


# --- streams side by side ---------------------------------------------------------------------------------------------


class PlayedLoop:
    """A loop of clips that was played: the stream's seconds are those of clip a, then of b."""

    def where(self, second: int) -> tuple[str, int]:
        return ("a", second) if second < 4 else ("b", second - 4)


def test_lost_and_added_highlights_are_those_that_differ_from_a_stream_at_leisure() -> None:
    at_leisure = collaboration.answers(made_pass(1, 1).decided)
    loops: Any = [PlayedLoop()]
    outputs = [row(0, True), row(1, False, "device alone"), None, row(3, False), row(0, False), row(1, True, "cloud")]
    decisions = [Decision(second=k, output=output) for k, output in enumerate(outputs)]
    found = many_streams.compared(loops, [decisions], at_leisure)
    assert found == {
        "highlights_at_leisure": 3,
        "highlights_lost": 2,  # one decided otherwise, one not decided
        "highlights_added": 1,
        "undecided": 1,
        "device": 3,
        "cloud": 1,
        "device_alone": 1,
    }


def test_percentiles_are_by_the_nearest_rank() -> None:
    assert many_streams.percentiles([float(k) for k in range(1, 201)]) == {
        "p50": 100,
        "p95": 190,
        "p99": 198,
        "max": 200,
    }
    assert many_streams.percentiles([3.0]) == {"p50": 3, "p95": 3, "p99": 3, "max": 3}
    assert many_streams.percentiles([]) == {}


def test_drops_are_summed_over_streams_and_shown_as_shares() -> None:
    counts = [SecondCounts(answered={"item": 6}, dropped={"item": 2}), SecondCounts(failed={"item": 2})]
    tasks = many_streams.dropped(counts)
    assert tasks["item"] == {"answered": 6, "dropped": 2, "failed": 2}
    assert report.dropped_share({"tasks": tasks}, "item") == pytest.approx(0.2)
    assert report.dropped_share({"tasks": tasks}, "voice") == 0
    assert report.dropped_share({}, "item") is None
    assert report.late_share({"frames": 3, "late_frames": 1}) == 0.25


def test_streams_begin_with_the_clip_of_most_highlights_and_are_not_alike() -> None:
    clips = [clip_of("a", 4), clip_of("b", 4, 1), clip_of("c", 4, 0, 1), clip_of("d", 4)]
    orders = many_streams.orders(clips, 3)
    assert [[next(order).name for _ in range(5)] for order in orders] == [list("cdabc"), list("bcdab"), list("abcda")]


# --- sources and processes --------------------------------------------------------------------------------------------


class LateClock:
    """A clock that stands still but for sleeps, and jumps ahead by `late_s` at the `at`-th look."""

    def __init__(self, at: int = -1, late_s: float = 0.0) -> None:
        self.now_s = 100.0
        self._looks = 0
        self._at = at
        self._late_s = late_s

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        self._looks += 1
        if self._looks == self._at:
            self.now_s += self._late_s
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


async def items_of(loop: ClipLoop) -> list[Item]:
    return [item async for item in loop]


def test_streams_are_of_the_first_eight_clips_as_a_whole(tmp_path: Path) -> None:
    """Not of pictures and crops, which are labelled too: a crop's labels are not those of its file."""
    labelled = read_labels(LABELS)
    for clip in labelled:
        (tmp_path / clip.file).touch()
    assert len(labelled) > len(found := present(labelled, tmp_path)) == 8
    assert sum(clip.seconds for clip in found) == 194


@needs_data
def test_clips_follow_one_another_at_whole_seconds_with_sound_all_the_time() -> None:
    clips = {clip.name: clip for clip in present(read_labels(LABELS), DATA / "video")}
    silent, sounding = clips["asl_thanks"], clips["product_advert_chromecast"]
    loop = ClipLoop(DATA / "video", [silent, sounding], seconds=5, pace=None)
    items = asyncio.run(items_of(loop))
    frames = [item.pts_ms for item in items if isinstance(item, Frame)]
    sounds = [item for item in items if isinstance(item, Sound)]
    assert loop.frames == len(frames)
    assert max(frames) < 5000
    assert [sum(1 for at in frames if at // 1000 == second) for second in range(2, 5)] == [4, 4, 4]
    assert [sound.pts_ms for sound in sounds] == list(range(0, 5000, 100))
    assert {loop.where(second) for second in (0, 1)} == {("asl_thanks", 0), ("asl_thanks", 1)}
    assert loop.where(4) == ("product_advert_chromecast", 2)
    assert not np.any(np.asarray(sounds[0].samples))


@needs_data
def test_a_frame_that_comes_too_late_is_dropped_and_counted() -> None:
    clips = [clip for clip in read_labels(LABELS) if clip.name == "asl_thanks"]
    paced = ClipLoop(DATA / "video", clips, seconds=2, pace=1.0, clock=LateClock())
    kept = asyncio.run(items_of(paced))
    late = ClipLoop(DATA / "video", clips, seconds=2, pace=1.0, clock=LateClock(6, LATE_S + 0.6))
    fewer = asyncio.run(items_of(late))
    assert paced.late_frames == 0
    assert late.late_frames > 0
    assert late.frames + late.late_frames == paced.frames
    assert len(kept) - len(fewer) == late.late_frames  # no sound is dropped


def test_cpu_time_and_memory_of_a_process_and_its_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(3 * 10**7)); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        while processes.cpu_s(process.pid) < 0.1:
            assert process.poll() is None
        found = processes.descendants(process.pid)
        assert found[0] == process.pid
        assert process.pid in processes.descendants(os.getpid())
        assert processes.resident_bytes(process.pid) > 1 << 20
        assert processes.cpu_s(process.pid) >= processes.one_cpu_s(process.pid)
        process.communicate(b"\n")
    assert processes.resident_bytes(process.pid) == 0
    assert processes.one_cpu_s(process.pid) == 0


def test_received_bytes_are_read_from_the_metrics() -> None:
    text = "# HELP walle_tunnel_received_bytes_total x\nwalle_tunnel_received_bytes_total 1.2345e+07\n"
    assert received_bytes(text) == 12_345_000
    with pytest.raises(ValueError, match="walle_tunnel_received_bytes_total"):
        received_bytes("other 1\n")


def test_growth_of_memory_is_by_quarters() -> None:
    values = [100.0] * 10 + [200.0] * 10 + [210.0] * 10 + [220.0] * 10
    readings = [long_stream.Reading(k, (value, 1.0, 1.0, 1.0)) for k, value in enumerate(values)]
    found = long_stream.growth(readings)["device"]
    assert (found["quarter_1"], found["quarter_4"]) == (100, 220)
    assert (found["growth"], found["first_to_last"]) == (1.1, 2.2)
    order = long_stream.shuffled(CLIPS, random.Random(1))
    assert sorted(next(order).name for _ in range(4)) == ["a", "a", "b", "b"]


# --- the baseline -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Given:
    """A stream of given items."""

    items: Sequence[Item]

    async def __aiter__(self) -> AsyncIterator[Item]:
        for item in self.items:
            yield item


@pytest.mark.night
@needs_data
@pytest.mark.asyncio
async def test_the_baseline_decides_every_second_by_the_apps_own_tasks(tmp_path: Path) -> None:
    models = ModelFolder(DATA / "models")
    settings = {**SETTINGS, "highlight": {"sure": [-1.0, 2.0]}}
    folders = {
        name: write_task(name, tmp_path / name, models, settings=settings.get(name)) for name in tasks_of(models)
    }
    server = StreamServer(tmp_path / "authority", folders, 6)
    port, _ = await server.start()
    try:
        rng = np.random.default_rng(1)
        items: list[Item] = []
        for at in range(0, 2000, 500):
            items += [Sound(at, np.zeros(8000, np.float32))]
            items += [Frame(at, rng.integers(0, 255, (90, 160, 3), dtype=np.uint8))]
        client = StreamClient(port, tmp_path / "authority" / "ca.pem", paced=True)
        decisions = await client.play(Given([*items, Frame(2000, items[-1].image)]))  # type: ignore[union-attr]
        outputs = [each.output for each in decisions if each.output is not None]
        assert [output["second"] for output in outputs] == [0, 1, 2]
        assert {output["decided"] for output in outputs} == {"cloud"}
        assert all(each.delay_s is not None for each in decisions)
        pcm = 2 * 32_000 + 5 * HEAD.size
        assert client.sent_bytes > pcm + 4 * 1000
        runs = await server.runs()
        assert (runs["faces"], runs["unchanged"], runs["closer"]) == (4, 1, 3)
        assert runs["detector"] == 4 + 6 * 5  # looked at once each, and two frames of each second more closely
        assert runs["voice"] == 2 * 16_000 // 512
        no_jpeg, same = HEAD.pack(Kind.FRAME, 3, 0) + b"abc", HEAD.pack(Kind.SAME, 0, 0)
        for message in (HEAD.pack(Kind.FRAME, 1 << 30, 0), HEAD.pack(9, 0, 0), no_jpeg, same):
            await _end_at_once(port, tmp_path / "authority" / "ca.pem", message)
    finally:
        await server.close()


async def _end_at_once(port: int, ca_path: Path, message: bytes) -> None:
    """A client that sends what is not a stream is disconnected."""
    context = ssl.create_default_context(cafile=str(ca_path))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(message)
    assert await reader.read() == b""
    writer.close()


# --- the report -------------------------------------------------------------------------------------------------------


def test_a_report_has_the_tables_the_plot_and_the_page(tmp_path: Path) -> None:
    summary = collaboration.summary([made_pass(1.0, 6000)], CLIPS)
    stream = {
        "streams": 2,
        "delay_s": {"p50": 0.1, "p95": 0.2, "p99": 0.3, "max": 0.3},
        "frames": 9,
        "late_frames": 1,
        "tasks": many_streams.dropped([SecondCounts(answered={"item": 9}, dropped={"item": 1})]),
        "highlights_at_leisure": 3,
        "highlights_lost": 1,
        "highlights_added": 0,
        "device_cores": 0.5,
        "cloud_cores": 0.1,
    }
    result: dict[str, Any] = {
        "machine": "a machine",
        "date": "today",
        "load": [1.0, 2.0],
        "versions": {"ray": "2", "onnxruntime": "1"},
        "clips": ["a", "b"],
        "frames_per_second": 4,
        "rounds": 1,
        "seconds": 9.0,
        "paper": {
            "cloud_cpu_per_highlight": 0.87,
            "more_streams": 1.23,
            "looked_closer_share": 0.12,
            "pass_rate": 0.15,
        },
        "variants": {"together": summary, "cloud only": summary},
        "saved": {"cloud only": collaboration.saved(summary, summary)},
        "differing_seconds": {"cloud only": {}},
        "clips_kb_per_minute": 2500.0,
        "streams": [stream],
        "loss": {
            "seconds": 3,
            "lost_at": 1,
            "back_at": 2,
            "places": {"cloud": 2, "device alone": 1},
            "reasons": {"away": 1},
            "by_second": "cac",
            "recovered_s": None,
            "delay_s": {"p50": 0.1, "max": 3.0},
        },
    }
    text = report.table(result)
    assert (
        "3 of 3 seconds decided, 2 by the cloud, 1 by the device alone (1 away); the cloud decided again never" in text
    )
    assert "10.0%" in text
    assert "1/3" in text
    report.write(result, tmp_path / "out")
    assert json.loads((tmp_path / "out/livestream.json").read_text()) == result
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"livestream.{kind}" for kind in ("json", "png", "html")
    }
    assert "2 by the cloud" in (tmp_path / "out/livestream.html").read_text()


def test_wrong_options_are_refused_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["livestream", *arguments])
        with pytest.raises(SystemExit) as stop:
            livestream.main()
        return str(stop.value.code)

    assert "none of the clips of labels.json is in" in refusal("--clips", str(tmp_path))
    assert "at least 1" in refusal("--rounds", "0")
    assert refusal("--streams", "0") == refusal("--parts", "loss,other") == "2"  # argparse, which says why
