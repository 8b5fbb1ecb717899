"""The log file of `walle device run`: `device.log` in the device's folder, of bounded size; `walle device log`."""

import collections
import contextlib
import datetime as dt
import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from walle.cli.output import JsonFlag, emit_rows
from walle.cli.verbose import is_logging_to_stderr
from walle.errors import ConfigError
from walle.pipeline.events.rejected_events import recorded

LOG_FILE = "device.log"
MAX_BYTES = 1 << 20  # limit of the file, and of device.log.1, the one before it
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextlib.contextmanager
def device_log(folder: Path) -> Iterator[None]:
    """Write what `walle` and its tasks log, from INFO on, into the folder's log file; warnings go to stderr too.

    With `walle --verbose` all of it is on stderr already.
    """
    logger = logging.getLogger("walle")
    before = logger.level
    file = logging.handlers.RotatingFileHandler(folder / LOG_FILE, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8")
    file.setFormatter(logging.Formatter(_FORMAT))
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    if not is_logging_to_stderr():
        logger.setLevel(logging.INFO)
        logger.addHandler(terminal)
    file.setLevel(logging.INFO)
    logger.addHandler(file)
    try:
        yield
    finally:
        logger.removeHandler(terminal)
        logger.removeHandler(file)
        logger.setLevel(before)
        file.close()


def show(
    folder: Annotated[Path, typer.Argument(help="The device's folder.")],
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Show live events that could not be read, with the reason and the place.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the latest.", min=1)] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show the latest lines of a device's log, or the events that it set aside because they could not be read.

    The place of an event is its number in the app's call, from 0 on, and its byte there.
    """
    try:
        if rejected:
            rows = [_shown(row) for row in collections.deque(recorded(folder), maxlen=lines)]
        else:
            text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
            rows = [{"line": line} for line in text.splitlines()[-lines:]]
    except OSError as error:
        raise DeviceLogError(folder, error) from error
    if rejected and not folder.is_dir():
        raise DeviceLogError(folder, FileNotFoundError(2, "No such file or directory"))
    emit_rows(rows, as_json=as_json)


def _shown(row: dict[str, object]) -> dict[str, object]:
    time_ms = row.get("time_ms")
    when = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC) if isinstance(time_ms, int) else None
    more = f"and {row['more']} more in the same call" if "more" in row else ""
    return {
        "time": "" if when is None else when.isoformat(timespec="seconds"),
        "where": row.get("where", ""),
        "reason": row.get("reason", more),
        "bytes": row.get("size_bytes", ""),
        "event": row.get("text", ""),
    }


class DeviceLogError(ConfigError):
    """A device's folder or log that cannot be read. `folder` names it."""

    def __init__(self, folder: Path, error: OSError) -> None:
        what = f"has no log that can be read ({error.strerror}); name the folder of `walle device run`"
        super().__init__(f"device folder {folder}: {what}")
        self.folder = folder
