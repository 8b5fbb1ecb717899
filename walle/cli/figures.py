"""`walle figures`: the benchmarks, each of which is a module under benchmarks/ and also runs alone."""

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from walle.cli.output import JsonFlag, emit_rows
from walle.errors import ConfigError


def _benchmarks() -> dict[str, Path]:
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        found = {path.stem: path for path in sorted((root / "benchmarks").glob("[a-z]*.py"))}
        if found:
            return found
    raise ConfigError("no benchmarks/ folder was found in this folder or in walle's; run this in a checkout of walle")


def figures(
    name: Annotated[str, typer.Argument(help="The figure to measure; by default all.")] = "",
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments, after --; see its module.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Only list the figures.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure figures on this machine, against their peers in the same run.

    When all figures are measured, one whose requirements are missing is reported, and the others continue.
    """
    known = _benchmarks()
    if show:
        rows = [{"figure": key, "module": f"benchmarks/{path.name}"} for key, path in known.items()]
        emit_rows(rows, as_json=as_json)
        return
    if name and name not in known:
        raise ConfigError(f"unknown figure {name!r}; known are: {', '.join(known)}")
    for key, path in known.items():
        if name in ("", key):
            sys.argv = [str(path), *(arguments or []), *(["--json"] if as_json else [])]
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as stop:
                if name or not isinstance(stop.code, str):
                    raise
                print(stop.code, file=sys.stderr)


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle figures vm")(figures)
