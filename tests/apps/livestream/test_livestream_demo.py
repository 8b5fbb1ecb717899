"""`walle demo livestream` as a person runs it: its results, its errors, and Ctrl-C in a terminal."""

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from unittest import mock

import av
import numpy as np
import pytest
from rich.table import Table
from typer.testing import CliRunner

from apps.livestream.demo.keys import quit_key
from apps.livestream.demo.results_folder import ResultsFolder
from apps.livestream.demo.run import Thumbnails
from apps.livestream.demo.view import summary
from apps.livestream.document import Stream, document, highlights
from apps.livestream.drawn_clip import SECONDS, shown_seconds
from apps.livestream.media import encode_jpeg
from apps.livestream.own_models import OwnModels
from apps.livestream.seconds import SecondCounts
from apps.livestream.studio import Studio, TasksNotInstalledError
from tests.apps.livestream.test_document import second
from walle.cli import app
from walle.errors import ConfigError, WalleError

ROOT = Path(__file__).parents[3]
LIMIT_S = 100
# With Ctrl-C as in a terminal, also where the tests run in the background, whose programs ignore it.
WALLE = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from walle.cli import main; main()",
    "demo",
    "livestream",
]


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have."""
    children = {
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    }
    return children.union(*map(descendants, children))


def nothing_fetched(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no public model is there, and the network is not reached."""
    away = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    here = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")  # the demo's cloud
    return {**os.environ, **away, **here, "WALLE_MODELS": str(tmp_path / "no models")}


@pytest.mark.night
@pytest.mark.system
def test_with_nothing_fetched_each_device_finds_the_highlights_of_the_apps_clip(tmp_path: Path) -> None:
    """In a folder with the results of an earlier run, which had more highlights and devices."""
    out = tmp_path / "out"
    earlier = ["highlight-97.jpg", "camera-3/highlights.json", "highlight-1.jpg"]
    (out / "camera-3").mkdir(parents=True)
    for name in [*earlier, "of-the-user.txt"]:
        (out / name).write_text("old")
    (out / "files.json").write_text(json.dumps({"files": earlier}))
    options = [
        "--out", str(out), "--fast", "--clips", "--json", "--frames-per-second", "2", "--devices", "2",
        "--seconds", str(SECONDS), "--budget", "1.5",
    ]  # fmt: skip
    done = subprocess.run(
        [*WALLE, *options],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=nothing_fetched(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "models: the app's own small models, because" in done.stderr
    devices = json.loads(done.stdout)["devices"]
    assert list(devices) == ["camera-1", "camera-2"]
    for name, found in devices.items():
        folder = out if name == "camera-1" else out / name
        assert found == json.loads((folder / "highlights.json").read_text())
        assert found["source"] == "drawn_clip.mp4"
        assert [each["second"] for each in found["seconds"]] == list(range(SECONDS))
        assert found["duration_s"] == SECONDS
        assert found["faults"] == []
        counts = found["counts"]
        assert counts["by_device"] + counts["by_cloud"] == SECONDS
        answered = {row["task"]: row["answered"] for row in counts["tasks"]}
        assert answered["item"] == answered["face"] == counts["analysed"]
        sampled = 2 * SECONDS + 1  # the last frame is the nearest to the end
        assert counts["analysed"] + counts["unchanged"] + counts["over_budget"] == counts["frames"] == sampled
        assert counts["budget"] == 1.5
        assert 0 < counts["cpu_s"] < 1.5 * SECONDS + 6
        decided = {each["second"] for each in found["seconds"] if each["highlight"]}
        assert len(decided & set(shown_seconds())) >= 7  # nine are shown
        assert len(decided - set(shown_seconds())) <= 2
        page = (folder / "index.html").read_text()
        assert 'src="stream.mp4"' in page
        assert (folder / "stream.mp4").stat().st_size > 0
        assert found["highlights"]
        for each in found["highlights"]:
            assert each["thumbnail"] in page
            assert (folder / each["thumbnail"]).read_bytes()[:2] == b"\xff\xd8"
            assert each["clip"] in page
            with av.open(folder / each["clip"]) as clip:
                assert clip.duration is not None
                assert clip.duration / 1e6 == pytest.approx(each["end"] - each["start"], abs=1.1)
    assert not (out / "highlight-97.jpg").exists()
    assert not (out / "camera-3").exists()
    assert (out / "of-the-user.txt").exists()


@pytest.mark.night
@pytest.mark.system
def test_ctrl_c_in_a_terminal_keeps_what_was_decided_and_leaves_no_process(tmp_path: Path) -> None:
    """At the stream's own pace, as for a webcam, which ends in no other way."""
    options = ["--out", str(tmp_path / "out")]
    terminal, end = os.openpty()
    environment = {**nothing_fetched(tmp_path), "COLUMNS": "100", "TERM": "xterm"}
    demo = subprocess.Popen([*WALLE, *options], cwd=ROOT, stdin=end, stdout=end, stderr=end, env=environment)
    os.close(end)
    shown = ""
    started_s = time.monotonic()
    with open(terminal, "rb", buffering=0) as screen:
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            started = set[int]()
            while chunk := screen.read(65536):
                shown += chunk.decode(errors="replace")
                assert time.monotonic() < started_s + LIMIT_S, shown[-2000:]
                if not started and re.search(r"│ 1 +│ 0:0[1-9]", shown):  # the live view's row of the device
                    started = descendants(demo.pid)
                    demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 130, shown[-2000:]
    found = json.loads((tmp_path / "out/highlights.json").read_text())
    assert 1 <= len(found["seconds"]) < 12
    assert re.fullmatch(r"stopped at 0:\d\d", found["faults"][0])
    assert "page:" in shown
    assert "Traceback" not in shown
    assert (tmp_path / "out/index.html").exists()
    assert started  # the VM host
    assert {pid for pid in started if Path(f"/proc/{pid}").exists()} == set()


def test_results_do_not_go_where_other_files_are(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    options = ["--out", str(tmp_path)]
    with pytest.raises(ConfigError, match=r"has files, and none of them .* new or empty folder"):
        CliRunner().invoke(app, ["demo", "livestream", *options], catch_exceptions=False)
    assert (tmp_path / "index.html").read_text() == "mine"


class TestResultsFolder:
    @pytest.mark.parametrize("out", ["/proc/self/results/of/today", "FILE/out"])
    def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_started(
        self, out: str, tmp_path: Path
    ) -> None:
        (tmp_path / "FILE").write_text("")
        out = out.replace("FILE", str(tmp_path / "FILE"))
        with pytest.raises(ConfigError, match=r"(no file can be written there|not a folder that can be read) .*--out"):
            CliRunner().invoke(app, ["demo", "livestream", "--out", out], catch_exceptions=False)

    def test_trying_to_write_leaves_nothing(self, tmp_path: Path) -> None:
        there = tmp_path / "there"
        there.mkdir()
        for path in (there, tmp_path / "a/b/c"):
            ResultsFolder(path).check_writable()
        assert list(tmp_path.rglob("*")) == [there]

    def test_a_list_that_names_other_files_removes_none_of_them(self, tmp_path: Path) -> None:
        out, away = tmp_path / "out", tmp_path / "away"
        out.mkdir()
        away.mkdir()
        (out / "camera-2").symlink_to(away)
        names = ["../away/index.html", "notes.txt", "camera-2/index.html", str(away / "index.html"), "files.json"]
        for file in (away / "index.html", out / "notes.txt"):
            file.write_text("kept")
        (out / "files.json").write_text(json.dumps({"files": [*names, 5, None]}))
        ResultsFolder(out).begin()
        assert (away / "index.html").exists()
        assert (out / "notes.txt").exists()
        assert json.loads((out / "files.json").read_text())["files"] == []

    @pytest.mark.parametrize("text", ["", "[]", '{"files": 5}', "[" * 100_000])
    def test_a_damaged_list_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "files.json").write_text(text)
        with pytest.raises(ConfigError, match="is not the list of an earlier run's files"):
            ResultsFolder(tmp_path)

    def test_a_source_that_the_run_would_remove_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "files.json").write_text(json.dumps({"files": ["stream.mp4"]}))
        (tmp_path / "stream.mp4").write_text("the stream")
        (tmp_path / "link.mp4").symlink_to("stream.mp4")
        for source in ("stream.mp4", "link.mp4"):
            with pytest.raises(ConfigError, match=f"{source} is a result of an earlier run, .* another --out"):
                ResultsFolder(tmp_path, tmp_path / source)
        ResultsFolder(tmp_path, tmp_path / "talk.mp4").begin()
        assert not (tmp_path / "stream.mp4").exists()

    def test_the_next_run_removes_the_listed_files_of_the_last(self, tmp_path: Path) -> None:
        first = ResultsFolder(tmp_path / "out")
        first.begin()
        (tmp_path / "out/camera-2").mkdir()
        first.add(tmp_path / "out", ["index.html", "stream.mp4"])
        first.add(tmp_path / "out/camera-2", ["highlight-3.jpg"])
        (tmp_path / "out/index.html").write_text("old")
        (tmp_path / "out/camera-2/highlight-3.jpg").write_text("old")
        ResultsFolder(tmp_path / "out").begin()
        assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["files.json"]


@pytest.mark.asyncio
async def test_q_ends_a_run_in_a_terminal_which_is_as_before_afterwards() -> None:
    person, terminal = os.openpty()
    before = termios.tcgetattr(terminal)
    pressed = asyncio.Event()
    with os.fdopen(terminal) as stream, mock.patch("os.tcgetpgrp", return_value=os.getpgrp()):
        with quit_key(pressed.set, stream) as possible:
            assert possible
            os.write(person, b"x")
            await asyncio.sleep(0)
            os.write(person, b"q")
            await asyncio.wait_for(pressed.wait(), 10)
        assert termios.tcgetattr(terminal) == before
    with quit_key(pressed.set, io.StringIO()) as possible:
        assert not possible
    os.close(person)


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "talk.mka"
    with av.open(path, "w") as container:
        stream = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        frame = av.AudioFrame(format="s16", layout="mono", samples=16_000)
        frame.sample_rate, frame.pts = 16_000, 0
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.mp4", r"nowhere.mp4: cannot be opened \(No such file"),
        ("webcam:97", "no camera at /dev/video97"),
        ("ftp://example/talk.mp4", "addresses of 'ftp' are not read"),
        ("SOUND", "no video in it"),
    ],
)
def test_a_source_that_cannot_be_played_is_refused_before_anything_starts(
    source: str, message: str, sound_file: Path, tmp_path: Path
) -> None:
    options = ["--source", source.replace("SOUND", str(sound_file)), "--out", str(tmp_path / "out")]
    with pytest.raises(WalleError, match=message):
        CliRunner().invoke(app, ["demo", "livestream", *options], catch_exceptions=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--source", "http://127.0.0.1:9/live.ts", "--clips"],
            "^http://127.0.0.1:9/live.ts is not a file, .*--clips",
        ),
        (["--fast", "--speed", "2"], "give one of --fast and --speed"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "livestream", "--out", str(tmp_path / "out"), *options])
    assert done.exit_code != 0
    assert re.search(message, str(done.exception) if isinstance(done.exception, ConfigError) else done.output)
    assert not (tmp_path / "out").exists()


def test_the_summary_has_whole_lines_and_no_table_of_nothing() -> None:
    seconds = [second(0, 0.9), second(1, 0.1)]
    stream = Stream(source="a [b].mp4", duration_s=2, frames=8, sound_s=2, faults=("lost",))
    found = document(stream, seconds, SecondCounts(), made_by="a test", made_at="now")
    title, table, where, frames, fault = summary(found, "camera-2")
    assert title == "camera-2: 1 highlight in a [b].mp4"
    assert isinstance(table, Table)
    assert str(where).startswith("2 seconds decided on the device, 0 in the cloud")
    assert str(frames).startswith("8 of 8 frames analysed, 0 unchanged; dropped by tasks: none")
    assert fault == "lost"
    title, where, *_ = summary(document(stream, seconds[1:], SecondCounts(), made_by="a test", made_at="now"))
    assert title == "0 highlights in a [b].mp4"
    assert str(where).startswith("1 seconds decided")


def test_without_the_public_models_that_are_asked_for_the_command_that_fetches_them_is_named(tmp_path: Path) -> None:
    options = ["--models", "public", "--models-dir", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    with (
        mock.patch("apps.livestream.demo.run.write_clip", side_effect=AssertionError("nothing is drawn before")),
        pytest.raises(WalleError, match=r"does not exist; fetch it with: walle model get"),
    ):
        CliRunner().invoke(app, ["demo", "livestream", *options], catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def test_each_highlight_has_the_picture_of_its_best_second() -> None:
    """Thumbnails join seconds as the document does."""
    scores = [0.8, 0.1, 0.9, 0.7, 0.1, 0.1, 0.95, 0.9]
    thumbnails = Thumbnails()
    pictures = [np.full((20, 30, 3), 30 * number, np.uint8) for number in range(len(scores))]
    for number, score in enumerate(scores):
        if score > 0.5:
            thumbnails.add(number, None if number == 6 else pictures[number], score)
    found = highlights([second(number, score) for number, score in enumerate(scores)])
    assert [each["start"] for each in found] == [0, 6]
    assert [thumbnails.of(each["start"]) for each in found] == [encode_jpeg(pictures[2]), encode_jpeg(pictures[7])]
    assert thumbnails.of(2) is thumbnails.of(7) is None


@pytest.mark.system
@pytest.mark.asyncio
async def test_a_task_that_fails_its_simulation_is_reported_at_once(tmp_path: Path) -> None:
    decision = {"bias": 0.0, "weights": {"no such evidence": 1.0}, "threshold": 0.5}
    with pytest.raises(TasksNotInstalledError, match=r"highlight-v1-4 is failed: .*no such evidence"):
        async with (
            asyncio.timeout(LIMIT_S),
            Studio(tmp_path, OwnModels(), settings={"highlight": {"device": decision}}),
        ):
            pass
