"""Report of a load test: an HTML page, and a record by which `walle figures` lists it."""

import html
import json
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("out/loadtest")


def write_report(
    folder: Path, name: str, *, title: str, command: str, text: str, summary: str, wrong: Sequence[str]
) -> Path:
    """Write NAME.html and NAME.json into a folder, and return the page. `wrong` are the results that must not be."""
    folder.mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    page = folder / f"{name}.html"
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    page.write_text(
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem}pre{overflow-x:auto}</style>"
        f"<h1>{html.escape(title)}</h1><p><code>{html.escape(command)}</code>, {when}: {html.escape(summary)};"
        f" {len(wrong)} wrong results</p><pre>{html.escape(text)}</pre>\n",
        encoding="utf-8",
    )
    record = {"title": title, "command": command, "ended_s": now_s, "summary": summary, "wrong": len(wrong)}
    (folder / f"{name}.json").write_text(json.dumps({**record, "page": page.name}, indent=1), encoding="utf-8")
    return page
