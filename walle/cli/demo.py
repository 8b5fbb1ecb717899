"""`walle demo`: the main job, from git push to features in the cloud, on this machine; and the apps' own demos."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer

from walle.cli.output import JsonFlag
from walle.errors import ConfigError

_IPV = Path("apps/ipv")
_LIVESTREAM = Path("apps/livestream")
_SPEED = 1.0
_ModelSet = Literal["own", "public"]


def _load(app: Path) -> tuple[ModuleType, Path]:
    """Return a reference app's demo and the folder that the app's package is in: as given, or in a checkout."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / app / "demo" / "run.py").is_file():
            folder = (root / app).resolve()
            break
    else:
        raise ConfigError(
            f"no demo was found in {app}; run this in a checkout of walle, or name an app's folder with --app"
        )
    root = folder.parents[1]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(f"{folder.parent.name}.{folder.name}.demo.run"), root


def demo(
    context: typer.Context,
    devices: Annotated[int, typer.Option(help="How many devices to start.", min=4, max=500)] = 20,
    events: Annotated[Path | None, typer.Option(help="Play this event log instead of the generator.")] = None,
    mapping: Annotated[Path | None, typer.Option(help="Which of the log's columns are which (a TOML file).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated events and attributes.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/demo"),
    app: Annotated[Path, typer.Option(help="Folder of the reference app.")] = _IPV,
    address: Annotated[str, typer.Option(help="Ray cluster to use; a local one is started if empty.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Ship the IPV task to a fleet, see its features come back, then see a broken version rolled back.

    Starts a cloud and the devices on a local Ray, pushes the task with git, releases it in steps, and releases a broken
    version that must be rolled back. Exit status 0 only if everything held.
    """
    if context.invoked_subcommand is not None:
        return
    run, root = _load(app)
    options = run.Options(
        devices=devices, events=events, mapping=mapping, seed=seed, out=out, address=address, root=root, as_json=as_json
    )
    raise typer.Exit(run.main(options))


def livestream(
    source: Annotated[
        str,
        typer.Option(
            help="A video file, webcam, webcam:/dev/videoN, or an http(s):// or rtsp:// address;"
            " without it a clip that the app draws."
        ),
    ] = "",
    devices: Annotated[int, typer.Option(help="How many devices play it.", min=1, max=50)] = 1,
    models: Annotated[
        _ModelSet | None,
        typer.Option(
            help="The app's own small models, or the public ones of `walle model get`; by default public ones if all"
            " are there."
        ),
    ] = None,
    models_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the public models; without it that of `walle model get`.", envvar="WALLE_MODELS"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where highlights.json, the page and the clips go.")] = Path(
        "out/livestream"
    ),
    fast: Annotated[
        bool, typer.Option("--fast", help="Play a file as fast as the models follow, and drop no frame.")
    ] = False,
    speed: Annotated[float, typer.Option(help="Play a file at this many times its pace.", min=0.1, max=100.0)] = _SPEED,
    frames_per_second: Annotated[float, typer.Option(help="Frames that the models get.", min=0.1, max=60.0)] = 4.0,
    budget: Annotated[
        float | None,
        typer.Option(help="Share of one core that the models of a stream may take, as 0.25.", min=0.001, max=64.0),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="End after this much of the stream.", min=1.0)] = None,
    clips: Annotated[bool, typer.Option("--clips", help="Cut a video of each highlight of a file.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the moments of a stream in which an item is presented, on devices with the help of their cloud.

    Starts a cloud and the devices, pushes the tasks that detect items, faces and voice and decide about each second,
    and plays the stream. Seconds that a device is not sure of go to the cloud. Writes highlights.json and a page with
    the timeline; open it in a browser. Ends with the stream, after --seconds, or with q or Ctrl-C.
    """
    if fast and speed != _SPEED:
        raise typer.BadParameter("--fast has no pace; give one of --fast and --speed")
    run, _ = _load(_LIVESTREAM)
    options = run.Options(
        source=source,
        devices=devices,
        models=models,
        models_dir=models_dir,
        out=out,
        pace=None if fast else speed,
        frames_per_second=frames_per_second,
        clips=clips,
        as_json=as_json,
        budget=budget,
        seconds=seconds,
    )
    raise typer.Exit(run.main(options))


def register(app: typer.Typer) -> None:
    group = typer.Typer()
    group.callback(invoke_without_command=True, epilog="Example: walle demo --devices 40 --seed 7")(demo)
    group.command(epilog="Example: walle demo livestream --fast; walle demo livestream --source talk.mp4")(livestream)
    app.add_typer(group, name="demo")
