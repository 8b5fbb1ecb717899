"""The key `q` of a terminal, which ends a run; without a terminal there are no keys."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def quit_key(on_quit: Callable[[], None], stream: TextIO | None = None) -> Iterator[bool]:
    """Call `on_quit` when q is pressed, in the running loop; the value says whether that is possible.

    Keys are read without Enter meanwhile. Ctrl-C keeps its meaning. It is not possible where standard input (`stream`)
    is not a terminal, or this process is in its background, where changing the terminal would stop it.
    """
    stream = sys.stdin if stream is None else stream
    try:
        file = stream.fileno()
        is_ours = stream.isatty() and os.tcgetpgrp(file) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # closed, replaced, or no terminal
        is_ours = False
    if not is_ours:
        yield False
        return
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            keys = os.read(file, 1024)
        except OSError:
            keys = b""
        if b"q" in keys.lower():
            on_quit()
        if not keys:  # the terminal was closed
            loop.remove_reader(file)

    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield True
    finally:
        loop.remove_reader(file)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(file, termios.TCSADRAIN, before)
