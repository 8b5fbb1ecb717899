"""HTML pages of the API: files of this package, each sent with a content security policy of its own."""

import base64
import hashlib
import importlib.resources
import re

from fastapi.responses import HTMLResponse

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class Page:
    """A page that shows data of tasks and devices, which is hostile.

    It gets the data as JSON and writes it as text. Should it ever write it as HTML, the policy keeps a browser from
    running it: only the page's own script and style are allowed, by their hashes.
    """

    def __init__(self, file: str) -> None:
        folder = importlib.resources.files("walle.deploy.cloud")
        self._html = folder.joinpath(file).read_text(encoding="utf-8")
        hashes: dict[str, list[str]] = {"script": [], "style": []}
        for kind, text in _INLINE.findall(self._html):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            hashes[kind].append(f"'sha256-{digest}'")
        allowed = [f"{kind}-src {' '.join(found)}" for kind, found in hashes.items() if found]
        policy = ["default-src 'none'", *allowed, "connect-src 'self'", "base-uri 'none'", "form-action 'none'"]
        self._headers = {
            "Content-Security-Policy": "; ".join([*policy, "frame-ancestors 'none'"]),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }

    def response(self) -> HTMLResponse:
        return HTMLResponse(self._html, headers=self._headers)
