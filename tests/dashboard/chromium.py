"""Chromium without a window, driven over a pipe by the DevTools protocol: for tests and screenshots of the dashboard.

It needs a `chromium` on PATH and nothing else: Playwright would bring 45 MB, a copy of Node.js among them.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

LIMIT_S = 30.0
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " ")}
PHONE = (360, 740)
WIDE = (1280, 900)


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class PageError(AssertionError):
    """A page that did not do what was waited for, or a call that Chromium refused."""


class Browser:
    """One process of Chromium. Messages are JSON, each ended by a NUL, on its descriptors 3 and 4."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, write_fd: int) -> None:
        self._process = process
        self._reader = reader
        self._write_fd = write_fd
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reading = asyncio.create_task(self._read(), name="read chromium")

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await asyncio.to_thread(_write, self._write_fd, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(LIMIT_S):
            found = await answer
        if "error" in found:
            raise PageError(f"{method}: {found['error']}")
        result: dict[str, Any] = found["result"]
        return result

    async def _read(self) -> None:
        buffer = b""
        while data := await self._reader.read(1 << 16):
            *messages, buffer = (buffer + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    waiting = self._answers.pop(message["id"], None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message)
                elif message.get("sessionId") in self._pages:
                    self._pages[message["sessionId"]].note(message["method"], message["params"])

    @contextlib.asynccontextmanager
    async def page(self, *, size: tuple[int, int] = WIDE, dark: bool = False) -> AsyncIterator["Page"]:
        """Open a page with cookies of its own."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        made = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.resize(size)
        scheme = "dark" if dark else "light"
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        try:
            yield page
        finally:
            del self._pages[attached["sessionId"]]
            await self.call("Target.disposeBrowserContext", browserContextId=context)

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        os.close(self._write_fd)


class Page:
    """A page. `complaints` has what its policy refused, its scripts threw, and its console said as an error."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        self.requested: list[str] = []
        self._slow: dict[str, float | None] = {}
        self._answering: set[asyncio.Task[Any]] = set()

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.complaints.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] == "error":
                self.complaints.append(str([one.get("value") for one in parameters["args"]]))
            case "Page.javascriptDialogOpening":
                self.dialogs.append(parameters["message"])
            case "Network.requestWillBeSent":
                self.requested.append(parameters["request"]["url"])
            case "Fetch.requestPaused":
                request, url = parameters["requestId"], parameters["request"]["url"]
                answering = asyncio.create_task(self._let_through(request, url))
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)

    async def slow(self, delays_s: dict[str, float | None]) -> None:
        """Let each request whose address has one of these texts wait that long, or fail where it has None.

        Replaces the delays of an earlier call.
        """
        self._slow = delays_s
        if delays_s:
            await self.call("Fetch.enable", patterns=[{"urlPattern": f"*{text}*"} for text in delays_s])
        else:
            await self.call("Fetch.disable")

    async def _let_through(self, request: str, url: str) -> None:
        delay_s = next((delay for text, delay in self._slow.items() if text in url), 0.0)
        with contextlib.suppress(PageError):  # the page is gone, or no request waits any more
            if delay_s is None:
                await self.call("Fetch.failRequest", requestId=request, errorReason="ConnectionRefused")
            else:
                await asyncio.sleep(delay_s)
                await self.call("Fetch.continueRequest", requestId=request)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)

    async def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        mobile = width < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def go(self, url: str) -> None:
        """Load a page, and return once its scripts have run."""
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({json.dumps(url.split('#', maxsplit=1)[0])}) || document.title")
        await self.loaded()

    async def loaded(self) -> None:
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def run(self, script: str) -> Any:
        """Return the value of an expression; what it raises is raised."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    async def until(self, script: str, limit_s: float = LIMIT_S) -> None:
        """Return once an expression holds; a navigation meanwhile does not matter."""
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    with contextlib.suppress(PageError):
                        if await self.run(f"Promise.resolve({script}).then(Boolean)"):
                            return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            text = await self.run("document.body.innerText.slice(0, 2000)")
            raise PageError(f"{script} does not hold; the page says: {text}") from None

    async def press(self, *keys: str, shift: bool = False) -> None:
        for key in keys:
            code, text = KEYS[key]
            more = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift, "code": key}
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **more)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def tab_to(self, words: str) -> None:
        """Move the focus by the Tab key to the element with this text, label or id."""
        for _ in range(120):
            await self.press("Tab")
            found = await self.run(
                "(() => { const e = document.activeElement; const label = e.labels && e.labels[0];"
                " return [e.id, e.innerText, label && label.innerText, e.getAttribute('aria-label')]; })()"
            )
            if any(one is not None and str(one).strip() == words for one in found):
                return
        raise PageError(f"the Tab key does not lead to {words!r}")

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        more: dict[str, Any] = {}
        if whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            more["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 2600), "scale": 1}
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **more)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Chromium, and end it."""
    path = chromium_path()
    assert path is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium", ignore_cleanup_errors=True) as folder:
        arguments = [
            "--headless=new",
            "--no-sandbox",  # tests in containers run as root; what is loaded is our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--ignore-certificate-errors",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]
        script = f'exec 3<&{to_read} 4>&{from_write}; exec "$0" "$@"'
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script,
            path,
            *arguments,
            pass_fds=(to_read, from_write),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        reader = asyncio.StreamReader(limit=1 << 26)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_read, "rb")
        )
        browser = Browser(process, reader, to_write)
        try:
            yield browser
        finally:
            await browser.close()
            transport.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
