"""`walle figures`: the benchmarks, each a module under benchmarks/ that can be run by itself."""

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
    raise ConfigError("no benchmarks/ folder was found; run this in a checkout of walle")


def figures(
    name: Annotated[str, typer.Argument(help="Which figure; all of them if not given.")] = "",
    arguments: Annotated[list[str] | None, typer.Argument(help="What it takes, after --; see its module.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Only say which figures there are.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure figures on this machine, against their peers in the same run.

    Of all figures, one that lacks what it measures says so, and the others go on.
    """
    known = _benchmarks()
    if show:
        rows = [{"figure": key, "module": f"benchmarks/{path.name}"} for key, path in known.items()]
        emit_rows(rows, as_json=as_json)
        return
    if name and name not in known:
        raise ConfigError(f"there is no figure {name!r}; there are: {', '.join(known)}")
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
