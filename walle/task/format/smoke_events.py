"""Smoke events of a version: the first events of its simulation, with the files that they name, as devices get them.

Events that name no file travel in one file (`SMOKE_FILE`). Where one names an image or an array
(`walle.pipeline.events.event_files`), events and files are in a folder of the bundle (`SMOKE_FOLDER`): a device of an
older walle does not look there, and loads the version only, in place of running it on names of files.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from walle.protocol import MAX_SMOKE_BYTES, MAX_SMOKE_FILE_BYTES, SMOKE_EVENTS, SMOKE_FILE, SMOKE_FOLDER

_FILE_KEYS = ("$image", "$npy")


def smoke_files(events: bytes, files: Mapping[str, bytes], count: int) -> dict[str, bytes]:
    """Return what travels of these events, by path in the bundle: at most `count` of the first lines, which fit.

    `files` are those beside the events, by their paths from there. An event whose files do not exist or no longer fit
    ends the choice, so that what travels is the beginning of the stream.
    """
    lines = b""
    named: dict[str, bytes] = {}
    for line in [line for line in events.splitlines() if line.strip()][:count]:
        paths = set(_paths_in(line))
        if not all(_is_plain(path) and path in files for path in paths):
            break
        more = named | {f"{SMOKE_FOLDER}{path}": files[path] for path in paths}
        is_full = sum(map(len, more.values())) > MAX_SMOKE_FILE_BYTES or len(lines) + len(line) + 1 > MAX_SMOKE_BYTES
        if is_full or SMOKE_EVENTS in more:
            break
        lines += line + b"\n"
        named = more
    if not lines:
        return {}
    return {SMOKE_EVENTS: lines, **named} if named else {SMOKE_FILE: lines}


def _paths_in(line: bytes) -> Iterator[str]:
    """Yield the paths that an event's contents name; none of a line that is not an event, which devices skip."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    pending = [event.get("contents")] if isinstance(event, dict) else []
    while pending:
        value: Any = pending.pop()
        if isinstance(value, dict):
            key = next((key for key in _FILE_KEYS if key in value), None)
            if key is None:
                pending += value.values()
            else:
                yield str(value[key])
        elif isinstance(value, list):
            pending += value


def _is_plain(path: str) -> bool:
    return not ("\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")))
