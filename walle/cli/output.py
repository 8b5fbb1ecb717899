"""Output of commands: tables for people, JSON for programs, progress and errors on standard error."""

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from walle.protocol import printable

console = Console(emoji=False)  # ":x:" of a path or of a log line is text
_PIPE_COLUMNS = 1000  # where no terminal sets a width, a row is a line
progress_console = Console(stderr=True, emoji=False)  # standard output holds results only

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
JsonLinesFlag = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each change.")]


def emit(value: Any, *, as_json: bool, text: str | None = None) -> None:
    """Print `value` as JSON, or `text` (a rich markup line) for people."""
    if as_json:
        print(json.dumps(value, indent=1, default=str))
    elif text is not None:
        safe = "\n".join(printable(line) for line in text.split("\n"))  # some of it comes from tasks and devices
        console.print(safe, highlight=False, soft_wrap=True)


def emit_line(value: Any) -> None:
    """Print `value` as one line of JSON, now: for commands that continue."""
    print(json.dumps(value, default=str), flush=True)


def emit_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str = "") -> None:
    """Print rows of the same keys as a JSON list or a table, whose cells are folded where a terminal is too narrow."""
    if as_json:
        print(json.dumps(list(rows), indent=1, default=str))
        return
    table = Table(title=Text(printable(title)) if title else None, title_justify="left", box=None, padding=(0, 2))
    for key in rows[0] if rows else ():
        table.add_column(Text(key), overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(printable(str(value))) for value in row.values())
        )  # plain Text, no markup: some values come from devices
    wide = console if console.is_terminal else Console(width=_PIPE_COLUMNS, emoji=False)
    wide.print(table if rows else "[dim]nothing to show[/]")


@contextlib.contextmanager
def interruptible(what: str) -> Iterator[None]:
    """Say on standard error that Ctrl-C stopped the block, and raise it further (exit status 130)."""
    try:
        yield
    except KeyboardInterrupt:
        print(printable(f"walle: stopped while {what}"), file=sys.stderr)
        raise


@contextlib.contextmanager
def working(what: str, *, as_json: bool) -> Iterator[None]:
    """Show that the block is at work, on a terminal; elsewhere say nothing, but that Ctrl-C stopped it.

    `what` is plain text, not markup, as the title of `emit_rows` is.
    """
    with interruptible(what):
        if as_json or not progress_console.is_terminal:
            yield
            return
        with progress_console.status(Text(printable(what))):
            yield


def fail(error: BaseException) -> int:
    """Print an error as one line on standard error (a JSON object where `--json` was asked for); return 1.

    With `--verbose` its traceback comes first.
    """
    if "--verbose" in sys.argv:
        text = "".join(traceback.format_exception(error))
        print("\n".join(printable(line) for line in text.splitlines()), file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": str(error), "type": type(error).__name__}), file=sys.stderr)
    else:
        print("\n".join(printable(line) for line in f"walle: {error}".split("\n")), file=sys.stderr)
    return 1
