"""Log of `walle --verbose`: what walle does, on standard error."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import override

from walle.protocol import printable

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Lines on standard error, without control characters: some of it comes from tasks and devices."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter(_FORMAT))

    @override
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(printable(line) for line in super().format(record).splitlines())


@contextlib.contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write all that `walle` logs within the block, from DEBUG on, and warnings of other packages."""
    root, logger = logging.getLogger(), logging.getLogger("walle")
    handler, before = StderrHandler(), logger.level
    root.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(before)
        root.removeHandler(handler)


def is_logging_to_stderr() -> bool:
    return any(isinstance(handler, StderrHandler) for handler in logging.getLogger().handlers)
