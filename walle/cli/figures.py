"""`walle figures`: the benchmarks, each a module under benchmarks/ with a `main(arguments) -> int`."""

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
    show: Annotated[bool, typer.Option("--list", help="Only say which figures there are.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure figures on this machine, against their peers in the same run."""
    known = _benchmarks()
    if show:
        rows = [{"figure": key, "module": f"benchmarks/{path.name}"} for key, path in known.items()]
        emit_rows(rows, as_json=as_json)
        return
    if name and name not in known:
        raise ConfigError(f"there is no figure {name!r}; there are: {', '.join(known)}")
    for key, path in known.items():
        if name in ("", key):
            sys.argv = [str(path), *(["--json"] if as_json else [])]
            runpy.run_path(str(path), run_name="__main__")


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle figures vm_parallel")(figures)
