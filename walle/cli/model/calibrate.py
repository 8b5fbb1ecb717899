"""`walle model calibrate`: the rates of this machine, measured and saved, or taken from a machine of its kind.

With `--learned`, performance models too (`learned.py`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.model.learned import learn
from walle.cli.output import JsonFlag, emit, emit_rows, interruptible, progress_console
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.engine_ext.calibration import Calibration

_QUICK_S = 5.0
_LEARNED_MINUTES = 10.0
_MOST_MINUTES = 60.0  # more slices do not change a median any more
_SLICES = "calibration.json"  # an interrupted run's, beside the file of rates
# of 10^3 per microsecond
_UNITS = {"panel": "GFLOP/s", "pairs": "GFLOP/s", "lanes": "GFLOP/s", "streamed": "GB/s", "moved": "GB/s"}


def calibrate(
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=_MOST_MINUTES,
            help="How long to measure; by default seconds, 10 minutes with --learned. Ctrl-C loses a minute at most.",
        ),
    ] = None,
    learned: Annotated[
        bool, typer.Option("--learned", help="Time convolutions for these minutes, and learn to predict their times.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the rates to this file too, for other machines with the same CPU.")
    ] = None,
    use: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Measure nothing; save the rates of an --output file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --use: the file may be of another CPU model.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure this machine's rates and save them for later sessions; an interrupted run is continued by the next one.

    The file is walle/rates.json in the user's cache folder. Without it, sessions have rates that are shipped for this
    CPU's family, or a formula's; `walle model plan` shows which. With --learned, it also gets a model of the times of
    convolutions, for the backend that models run on and each other one of `walle model profile-primitives`, where the
    model picks better on held-out layers than the rates. Later runs with --learned add layers.
    """
    from walle.engine_ext import rates

    if use is not None and (minutes is not None or output is not None or learned):
        text = "measures nothing, so that --minutes, --learned and --output have no meaning"
        raise typer.BadParameter(text, param_hint="--use")
    if force and use is None:
        raise typer.BadParameter("needs --use FILE", param_hint="--force")
    path = rates.cache_path()
    report: dict[str, Any] = {"file": str(path), "cpu": rates.cpu_model()}
    models: dict[str, bytes] | None = None
    if use is not None:
        try:
            found, models = rates.read_portable(use, any_cpu=force)
        except ValueError as error:
            raise ConfigError(f"{use}: {error}") from error
        _save(found, path, models)
    else:
        calibration = _measure(path, _QUICK_S if minutes is None or learned else 60 * minutes, as_json=as_json)
        found = calibration.rates()
        _save(found, path)
        report["measured_s"] = calibration.measured_s
        if learned:
            minutes = _LEARNED_MINUTES if minutes is None else minutes
            models = learn(calibration, found, minutes, report, _saved_models(path), as_json=as_json)
            _save(found, path, models)
        calibration.remove()
    if output is not None:
        _save(found, output, _saved_models(path) if models is None else models)
    if as_json:
        emit(report | {"rates": found}, as_json=True)
        return
    for line in report.get("learned", {}).values():
        emit(None, as_json=False, text=escape(line["text"]))
    rows = [
        {"backend": name} | {f"{rate}, {_UNITS[rate]}": f"{value / 1e3:.1f}" for rate, value in one.items()}
        for name, one in found.items()
    ]
    emit_rows(rows, as_json=False, title=rates.cpu_model())
    emit(None, as_json=False, text=escape(f"saved in {path}" + (f" and {output}" if output is not None else "")))


def _measure(path: Path, total_s: float, *, as_json: bool) -> "Calibration":
    """Return the calibration of this machine's rates after `total_s` seconds, earlier runs' included."""
    from walle.engine_ext.calibration import Calibration
    from walle.engine_ext.session import backends

    slices = path.with_name(_SLICES)
    calibration = Calibration(slices, [backend.name for backend in backends() if backend.available])
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    progress = Progress(
        *columns, console=progress_console, transient=True, disable=as_json or not progress_console.is_terminal
    )
    with interruptible("measuring; the next calibration continues from here"), progress:
        bar = progress.add_task("measuring", total=total_s)
        progress.update(bar, completed=calibration.measured_s)
        try:
            calibration.measure(total_s, lambda measured_s: progress.update(bar, completed=measured_s))
        except OSError as error:
            raise ConfigError(f"{slices}: {error.strerror or error}") from error
    return calibration


def _saved_models(path: Path) -> dict[str, bytes]:
    from walle.engine_ext import rates

    try:
        return rates.read_models(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _save(found: Any, path: Path, models: dict[str, bytes] | None = None) -> None:
    from walle.engine_ext import rates

    try:
        rates.save(found, path, models)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
