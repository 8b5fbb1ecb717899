"""Pages of the dashboard: templates that escape every value, static files, and headers that let nothing else run.

What is shown comes from authors of tasks and from devices, and is hostile. A template writes every value as text,
without control characters and bounded (`safe`); and should it ever write one as HTML, the policy keeps a browser from
running it: pages have no inline script or style, and only this cloud's own files are loaded.
"""

import dataclasses
import hashlib
import importlib.resources
import json
import mimetypes
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from walle.cloud.api.releases import safe
from walle.deploy.releases.stage_text import stage_text
from walle.deploy.releases.transition_text import transition_text

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # the login leads back to a form's page; no other site learns an address
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FOLDER = importlib.resources.files("walle.cloud.dashboard")
_YEAR_S = 31_536_000
_TIME = Markup(
    '<time datetime="{}">{}</time> <span class="ago" data-ago="{}" hx-morph-skip-children></span>'  # format escapes
)


@dataclasses.dataclass(frozen=True)
class StaticFile:
    """A file that pages load. Its address has its hash, so that a browser keeps it for as long as it likes."""

    data: bytes
    kind: str
    sha256: str

    def response(self) -> Response:
        headers = {**HEADERS, "Cache-Control": f"public, max-age={_YEAR_S}, immutable", "ETag": f'"{self.sha256}"'}
        return Response(self.data, headers=headers, media_type=self.kind)


class Pages:
    """Templates and static files, read once."""

    def __init__(self) -> None:
        self.static = dict(_static_files())
        self._templates = jinja2.Environment(
            loader=jinja2.FunctionLoader(lambda name: _FOLDER.joinpath("templates", name).read_text(encoding="utf-8")),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=lambda value: safe(value) if type(value) is str else value,
        )
        self._templates.globals["static"] = self._static_address
        self._templates.filters |= {
            "number": _number,
            "percent": _percent,
            "when": when,
            "path": lambda text: urllib.parse.quote(str(text), safe=""),
            "words": lambda text: stage_text(str(text)),
            "size": size_of,
            "fails": _fails,
            "transition": lambda one: transition_text(one["event"], one["state"], one["details"]),
        }

    def page(self, template: str, values: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
        """Return a whole page, which no cache keeps."""
        headers = {**HEADERS, "Cache-Control": "no-store"}
        return HTMLResponse(self.fragment(template, values), status, headers)

    def fragment(self, template: str, values: Mapping[str, Any]) -> str:
        return self._templates.get_template(template).render(values)

    def _static_address(self, name: str) -> str:
        return f"/dashboard/static/{name}?{self.static[name].sha256[:12]}"


def _static_files() -> Iterator[tuple[str, StaticFile]]:
    for path in _FOLDER.joinpath("static").iterdir():
        data = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "text/plain"
        yield path.name, StaticFile(data, kind, hashlib.sha256(data).hexdigest())


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")  # runs that count in part have a fraction


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.1f} %"


def size_of(size_bytes: float) -> str:
    """Return a size in bytes in a unit of which there are few."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= 10 * size:
            return f"{size_bytes / size:,.0f} {unit}"
    return f"{size_bytes:,.10g} B"


def _fails(totals: Mapping[str, Any], gate: Mapping[str, Any]) -> bool:
    """Return whether runs fail more often than the accepted failure rate of the release's gate."""
    return bool(totals["failed"] and totals["failure_rate"] > gate.get("p_good", 0.0))


def when(at_s: float | None) -> Markup:
    """Return a time in UTC; the page's script adds how long ago that was."""
    if not at_s:
        return Markup("–")
    try:
        time = datetime.fromtimestamp(at_s, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("–")
    text = time.strftime("%d %b %H:%M:%S UTC")
    return _TIME.format(time.isoformat(timespec="seconds"), text, int(at_s))


def chart(x: Sequence[float], series: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """Return a chart's data for the page's script: times in seconds, and series of `label`, `values` and `color`."""
    return json.dumps({"x": x, "series": series, **more}, separators=(",", ":"))
