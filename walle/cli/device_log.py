"""The log file of `walle device run`: `device.log` in the device's folder, of bounded size."""

import contextlib
import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path

from walle.cli.verbose import is_logging_to_stderr

LOG_FILE = "device.log"
MAX_BYTES = 1 << 20  # of the file, and of the one before it, device.log.1
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
