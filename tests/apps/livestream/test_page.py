"""The page of a stream in a real browser, Chromium by the DevTools protocol; skipped where it is not installed."""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from apps.livestream.page.page import write_page
from tests.apps.livestream.media_files import Movie
from tests.apps.livestream.test_document import made, second

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

WIDTH, HEIGHT = 360, 740  # a small phone


class Browser:
    """A headless Chromium with one page, driven by a pipe: messages are JSON, each ended by a zero byte."""

    def __init__(self, folder: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        script = f'exec {CHROMIUM} "$@" 3<&{commands} 4>&{answers}'
        arguments = [
            "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *arguments, "about:blank"], pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._input = os.fdopen(self._from, "rb", buffering=0)
        self._buffer = b""
        self._count = 0
        self._session: dict[str, str] = {}
        self.faults: list[Any] = []  # errors of scripts, of the console and of what could not be loaded

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._session = {}
        with contextlib.suppress(OSError, EOFError):
            self.call("Browser.close")
        os.close(self._to)
        self._input.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a method; note faults that are reported before it."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            self._note(answer)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, where: Path | str) -> None:
        """Load a file or an address, until its `load` event."""
        self.call("Page.navigate", url=where if isinstance(where, str) else where.as_uri())
        while True:
            answer = self._next()
            self._note(answer)
            if answer.get("method") == "Page.loadEventFired":
                return

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def settle(self, expression: str) -> Any:
        """Return what a promise gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def _note(self, answer: dict[str, Any]) -> None:
        entry = answer.get("params", {}).get("entry", {})
        kind = answer.get("params", {}).get("type")
        if (
            answer.get("method") == "Runtime.exceptionThrown"
            or entry.get("level") == "error"
            or (answer.get("method") == "Runtime.consoleAPICalled" and kind == "error")
        ):
            self.faults.append(answer["params"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = self._input.read(65536)
            if not chunk:
                raise EOFError("the browser ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


TEXT = "document.getElementById('timeline').getAttribute('aria-valuetext')"
CURSOR = "Number(document.getElementById('cursor').getAttribute('x1'))"


@pytest.mark.timeout(60)
def test_keys_move_the_cursor_and_say_the_second(browser: Browser, tmp_path: Path) -> None:
    scores = {0: 0.1, 1: 0.9, 2: 0.2, 3: 0.1, 5: 0.95}  # the fourth was not decided
    seconds = [second(number, score, held=score, decided="cloud") for number, score in scores.items()]
    long = "a-name-without-a-space-" * 6 + ".mp4"
    value = made(seconds, source=long, faults=(f"{long}: ended at 5.0 s of 9.0 s",))
    browser.faults.clear()
    browser.open(write_page(value, tmp_path))
    browser.value("document.getElementById('timeline').focus()")
    said = {}
    for key in ("Home", "ArrowDown", "End", "ArrowRight", "ArrowLeft", "ArrowUp"):
        browser.press(key)
        said[key] = (browser.value(TEXT).partition(",")[0], round(browser.value(CURSOR) * 6 / 1000 - 0.5, 3))
    assert said == {
        "Home": ("0:00: no highlight", 0),
        "ArrowDown": ("0:01: highlight", 1),
        "End": ("0:05: highlight", 5),
        "ArrowRight": ("0:05: highlight", 5),  # the last second is the end
        "ArrowLeft": ("0:04: not decided.", 4),
        "ArrowUp": ("0:01: highlight", 1),
    }
    assert "decided in the cloud" in browser.value(TEXT)
    assert browser.value("document.getElementById('now').textContent") == browser.value(TEXT)
    browser.value("document.querySelector('[data-second]').click()")
    assert browser.value(TEXT).startswith("0:01: highlight")
    assert browser.value("document.documentElement.scrollWidth") <= WIDTH
    assert browser.faults == []


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Give the address of a server of a folder, one that does not answer requests for a part of a file."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# Returns the video's time once it has its picture, and a change of its time has shown.
SETTLED = """new Promise(done => {
  const video = document.getElementById("video");
  const timer = setInterval(() => {
    if (video.readyState < 1 || video.seeking) return;
    clearInterval(timer);
    setTimeout(() => done(video.currentTime), 300);
  }, 20);
})"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("from_server", [False, True], ids=["file", "server without ranges"])
def test_keys_seek_in_the_video_or_say_why_not(browser: Browser, tmp_path: Path, from_server: bool) -> None:
    """The cursor goes where it was sent in both cases."""
    Movie(seconds=6, rate=4, gop=4, size=(640, 360), sound_rate=0).write(tmp_path / "stream.mp4")
    write_page(made([second(number, 0.1) for number in range(6)]), tmp_path, video="stream.mp4")
    browser.faults.clear()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(tmp_path)) if from_server else tmp_path.as_uri()
        browser.open(f"{address}/index.html")
        browser.settle(SETTLED)
        browser.value("document.getElementById('timeline').focus()")
        for key in ("Home", "ArrowRight", "ArrowRight"):
            browser.press(key)
        assert browser.settle(SETTLED) == (0 if from_server else 2)
        assert browser.value(TEXT).startswith("0:02")
        assert browser.value("document.getElementById('seeking').hidden") is not from_server
    assert browser.faults == []


@pytest.mark.timeout(60)
def test_a_fault_of_a_page_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """Show that the assertions of the other test can fail."""
    browser.faults.clear()
    (tmp_path / "page.html").write_text("<div style='width: 900px'>wide</div><script>nothing()</script>")
    browser.open(tmp_path / "page.html")
    assert browser.value("document.documentElement.scrollWidth") > WIDTH
    assert "nothing is not defined" in str(browser.faults)
