"""`walle demo livestream` as a person runs it: its results, its errors, and Ctrl-C in a terminal."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from typer.testing import CliRunner

from apps.livestream.demo.run import Thumbnails
from apps.livestream.document import highlights
from apps.livestream.drawn_clip import SECONDS, shown_seconds
from tests.apps.livestream.test_document import second
from walle.cli import app
from walle.errors import WalleError

ROOT = Path(__file__).parents[3]
LIMIT_S = 100
WALLE = [sys.executable, "-c", "from walle.cli import main; main()", "demo", "livestream"]


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


@pytest.mark.system
def test_with_nothing_fetched_it_finds_the_highlights_of_its_own_clip(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--out", str(out), "--fast", "--clips", "--json", "--frames-per-second", "2"]
    done = subprocess.run(
        [*WALLE, *options],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=nothing_fetched(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "models: the app's own small models, because" in done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((out / "highlights.json").read_text())
    assert found["source"] == "drawn_clip.mp4"
    assert [each["second"] for each in found["seconds"]][:SECONDS] == list(range(SECONDS))
    assert found["faults"] == []
    counts = found["counts"]
    assert counts["by_device"] + counts["by_cloud"] == len(found["seconds"])
    answered = {row["task"]: row["answered"] for row in counts["tasks"]}
    assert answered["item"] == answered["face"] == counts["frames"]
    decided = {each["second"] for each in found["seconds"] if each["highlight"]}
    assert len(decided & set(shown_seconds())) >= 7  # of nine
    assert len(decided - set(shown_seconds())) <= 2
    assert found["highlights"]
    page = (out / "index.html").read_text()
    assert 'src="stream.mp4"' in page
    assert (out / "stream.mp4").stat().st_size > 0
    for each in found["highlights"]:
        assert each["thumbnail"] in page
        assert (out / each["thumbnail"]).read_bytes()[:2] == b"\xff\xd8"
        assert each["clip"] in page
        with av.open(out / each["clip"]) as clip:
            assert clip.duration is not None
            assert clip.duration / 1e6 == pytest.approx(each["end"] - each["start"], abs=1.1)


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


def test_without_the_public_models_that_are_asked_for_the_command_that_fetches_them_is_named(tmp_path: Path) -> None:
    options = ["--models", "public", "--models-dir", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    with pytest.raises(WalleError, match=r"does not exist; fetch it with: walle model get"):
        CliRunner().invoke(app, ["demo", "livestream", *options], catch_exceptions=False)


def test_each_highlight_has_its_first_picture() -> None:
    """Thumbnails join seconds as the document does."""
    scores = [0.9, 0.1, 0.9, 0.1, 0.1, 0.9, 0.9]
    thumbnails = Thumbnails()
    for number, score in enumerate(scores):
        if score > 0.5:
            thumbnails.add(number, None if number == 5 else np.full((20, 30, 3), 30 * number, np.uint8))
    found = highlights([second(number, score) for number, score in enumerate(scores)])
    assert [each["start"] for each in found] == [0, 5]
    pictures = [thumbnails.of(each["start"]) for each in found]
    assert None not in pictures  # the second one's is of second 6
    assert pictures[0] != pictures[1]
    assert thumbnails.of(2) is thumbnails.of(6) is None
