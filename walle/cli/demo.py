"""`walle demo`: the main job, from git push to features in the cloud, on this machine."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from walle.cli.output import JsonFlag
from walle.errors import ConfigError


def _find_app(app: Path) -> Path:
    """Return the folder of a reference app: as given, or beside the installed package in a checkout."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / app / "demo" / "run.py").is_file():
            return (root / app).resolve()
    raise ConfigError(
        f"no demo was found in {app}; run this in a checkout of walle, or name an app's folder with --app"
    )


def demo(
    devices: Annotated[int, typer.Option(help="How many devices to start.", min=4, max=500)] = 20,
    events: Annotated[Path | None, typer.Option(help="Play this event log instead of the generator.")] = None,
    mapping: Annotated[Path | None, typer.Option(help="Which of the log's columns are which (a TOML file).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated events and attributes.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/demo"),
    app: Annotated[Path, typer.Option(help="Folder of the reference app.")] = Path("apps/ipv"),
    address: Annotated[str, typer.Option(help="Ray cluster to use; a local one is started if empty.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Ship the IPV task to a fleet, see its features come back, then see a broken version rolled back.

    Starts a cloud and the devices on a local Ray, pushes the task with git, releases it in steps, and releases a broken
    version that must be rolled back. Exit status 0 only if everything held.
    """
    folder = _find_app(app)
    root = folder.parents[1]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    run = importlib.import_module(f"{folder.parent.name}.{folder.name}.demo.run")
    options = run.Options(
        devices=devices, events=events, mapping=mapping, seed=seed, out=out, address=address, root=root, as_json=as_json
    )
    raise typer.Exit(run.main(options))


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle demo --devices 40 --seed 7")(demo)
