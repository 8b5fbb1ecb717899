"""`walle model calibrate --learned`: performance models of this machine's backends, compared with its rates."""

from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.output import interruptible, progress_console
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.engine_ext.calibration import Calibration
    from walle.engine_ext.search.model_calibration import ModelFit, Score


def learn(
    calibration: "Calibration",
    rates: dict[str, dict[str, float]],
    minutes: float,
    report: dict[str, Any],
    saved: dict[str, bytes],
    *,
    as_json: bool,
) -> dict[str, bytes]:
    """Return the performance models that pick better than the rates, by backend.

    Profiles the backend that models run on until `minutes` have passed, those of an interrupted run included, and fits
    a model for each backend that has enough samples; of others, the one in `saved` is returned. `report["learned"]`
    gets the scores of each.
    """
    from walle.engine_ext import _core
    from walle.engine_ext.search import model_calibration
    from walle.engine_ext.search.samples_file import SamplesFileError

    for name, one in rates.items():
        _core.set_rates(name, one)
    _profile(calibration, _core.backend(), 60 * minutes, as_json=as_json)
    models, report["learned"] = dict(saved), dict[str, Any]()
    for name in rates:
        path = model_calibration.samples_path(name)
        try:
            samples = model_calibration.read_samples(name, path)
        except (OSError, SamplesFileError) as error:  # other backends are learned nevertheless
            report["learned"][name] = {"layers": 0, "saved": False, "text": f"{name}: no model: {error}"}
            continue
        if samples is None:
            continue
        if len(samples) < model_calibration.FEWEST_LAYERS:
            text = f"{name}: no model: {len(samples)} layers are profiled, {model_calibration.FEWEST_LAYERS} are needed"
            report["learned"][name] = {"layers": len(samples), "saved": False, "text": text}
            continue
        with interruptible(f"learning; the next calibration with --learned continues with {path}"):
            found = model_calibration.fit(name, samples)
        models.pop(name, None)
        if found.is_better:
            models[name] = found.model
        report["learned"][name] = _scores(name, found)
    return models


def _profile(calibration: "Calibration", backend: str, total_s: float, *, as_json: bool) -> None:
    from walle.engine_ext.search import model_calibration

    path = model_calibration.samples_path(backend)
    passed_s = calibration.profiled_s.get(backend, 0.0) if path.exists() else 0.0
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    hidden = as_json or not progress_console.is_terminal
    with (
        interruptible("profiling; the next calibration with --learned continues from here"),
        Progress(*columns, console=progress_console, transient=True, disable=hidden) as progress,
    ):
        bar = progress.add_task(f"profiling {backend}", total=total_s)

        def keep(seconds: float) -> None:
            calibration.keep_profiled(backend, seconds)
            progress.update(bar, completed=seconds)

        try:
            model_calibration.profile(backend, path, total_s, passed_s=passed_s, on_layers=keep)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error


def _scores(name: str, found: "ModelFit") -> dict[str, Any]:
    text = (
        f"{name}: {found.layers} layers, {found.held_out} of them held out; picks cost more than the fastest by "
        f"{_regret(found.learned)} learned, {_regret(found.rates)} by rates; median errors "
        f"{found.learned.median_error:.1%} and {found.rates.median_error:.1%}"
    )
    if not found.is_better:
        text += "; the model is not saved, because it picks no better than the rates: give it more --minutes"
    return {
        "layers": found.layers,
        "held_out": found.held_out,
        "rates": found.rates._asdict(),
        "model": found.learned._asdict(),
        "model_bytes": len(found.model),
        "saved": found.is_better,
        "text": text,
    }


def _regret(score: "Score") -> str:
    return f"{score.mean_regret:.2%} (at most {score.worst_regret:.0%})"
