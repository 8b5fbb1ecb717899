"""`walle model calibrate --learned`: a model that picks better than the rates is saved, travels, and is used."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import walle
from tests.engine_ext.search.constant_model import constant_model
from walle.cli import app
from walle.engine_ext import _core, calibration, rates
from walle.engine_ext.search import model_calibration
from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.mlp import Schedule
from walle.engine_ext.search.samples_file import Sample, SampleSet, SamplesFile, SamplesHead
from walle.errors import ConfigError

BACKEND = _core.backend()
SHORT = ("--learned", "--minutes", "0.001")
CHANNELS = (4, 16, 24, 32, 40, 48, 64)
SIZES = [Layer(k, c, 7, 1, f) for k, c, f in itertools.product((8, 16, 24, 32, 48), CHANNELS, (1, 3, 5))]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of the file of rates, in an empty folder; slices are short, and training too."""
    before = {one.name: _core.rates(one.name) for one in walle.backends() if one.available}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "_SLICE_S", 0.001)
    monkeypatch.setattr("walle.cli.model.calibrate._QUICK_S", 0.01)
    monkeypatch.setattr(model_calibration, "LayerDraw", lambda _seed: iter(SIZES))
    monkeypatch.setattr(model_calibration, "_AT_ONCE", len(SIZES))
    monkeypatch.setattr(model_calibration, "FITTING", Schedule(epochs=1))
    yield tmp_path / "cache" / "walle" / "rates.json"
    for name, one in before.items():
        _core.set_rates(name, one)
    _core.set_performance_model(BACKEND, None)


def pretend(monkeypatch: pytest.MonkeyPatch, power: float) -> None:
    """Let profiling find the rates' costs, to this power, as times: below 0 the rates pick the slowest primitives."""

    def profiled(layers: Sequence[Layer], backend: str) -> list[Sample]:
        by_rates = [model_calibration.costs_by_rates(layer, backend) for layer in layers]
        rows = [{name: 100 * us**power for name, us in one.items()} for one in by_rates]
        return [Sample(layer, us, {}) for layer, us in zip(layers, rows, strict=True)]

    monkeypatch.setattr(model_calibration, "profile_layers", profiled)


def run(*arguments: object) -> Any:
    """Return the JSON that the command prints; raise its errors."""
    command = ["model", "calibrate", *map(str, arguments), "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_model_that_picks_better_is_saved_and_travels(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, -1.0)
    file = tmp_path / "travel.json"
    found = run(*SHORT, "--output", file)["learned"][BACKEND]
    assert found["saved"]
    assert found["model"]["mean_regret"] < found["rates"]["mean_regret"]
    assert (found["layers"], found["held_out"]) == (len(SIZES), -(-len(SIZES) // 10))
    saved = rates.read_models(cache)
    assert list(saved) == [BACKEND]
    assert len(saved[BACKEND]) == found["model_bytes"]
    cache.unlink()
    run("--use", file)
    assert rates.read_models(cache) == saved
    run("--minutes", "0.001")  # rates alone: the model stays
    assert rates.read_models(cache) == saved
    samples = model_calibration.samples_path(BACKEND)
    assert {path.name for path in cache.parent.iterdir()} == {"rates.json", samples.name}
    content = json.loads(file.read_bytes())
    content["cpus"][0]["models"][BACKEND] = content["cpus"][0]["models"][BACKEND][:400]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"travel\.json: {BACKEND}: .*it is cut off"):
        run("--use", file)


def test_a_model_that_picks_no_better_is_not_saved(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1.0)
    result = CliRunner().invoke(app, ["model", "calibrate", *SHORT], catch_exceptions=False)
    assert "the model is not saved, because it picks no better than the rates" in result.stdout.replace("\n", " ")
    assert rates.read_models(cache) == {}
    assert rates.read(cache)


def test_few_layers_give_no_model_and_the_next_run_adds_layers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, -1.0)
    with monkeypatch.context() as fewer:
        fewer.setattr(model_calibration, "_AT_ONCE", 8)
        found = run("--learned", "--minutes", "0.00001")["learned"][BACKEND]
    assert (found["layers"], found["saved"]) == (8, False)
    assert "100 are needed" in found["text"]
    run(*SHORT)
    assert [one.layer for one in SampleSet.read(model_calibration.samples_path(BACKEND)).samples] == SIZES


def test_a_model_that_was_installed_stays_where_none_is_fitted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, -1.0)
    monkeypatch.setattr(model_calibration, "_AT_ONCE", 8)
    known = {BACKEND: constant_model({"direct(0)": 1.0})}
    rates.save({BACKEND: _core.rates(BACKEND)}, cache, known)
    assert not run("--learned", "--minutes", "0.00001")["learned"][BACKEND]["saved"]
    assert rates.read_models(cache) == known


def test_broken_samples_of_another_backend_stop_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, -1.0)
    other = next(one.name for one in walle.backends() if one.available and one.name != BACKEND)
    path = model_calibration.samples_path(other)
    path.parent.mkdir(parents=True)
    path.write_text("nothing\n")
    found = run(*SHORT)["learned"]
    assert found[BACKEND]["saved"]
    assert str(path) in found[other]["text"]


def test_samples_of_another_seed_are_continued_and_of_another_version_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, -1.0)
    monkeypatch.setattr(model_calibration, "_AT_ONCE", 8)
    path = model_calibration.samples_path(BACKEND)
    head = SamplesHead(rates.cpu_model(), BACKEND, walle.__version__, 7)
    SamplesFile.open(path, head).__exit__()
    assert run("--learned", "--minutes", "0.00001")["learned"][BACKEND]["layers"] == 8
    assert SampleSet.read(path).head == head
    path.unlink()
    SamplesFile.open(path, head._replace(engine="0.0.0")).__exit__()
    with pytest.raises(ConfigError, match=r"by engine 0\.0\.0, .*move it away, then calibrate again"):
        run("--learned")


def test_an_interrupted_run_is_continued_with_the_time_left(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_layers: Sequence[Layer], _backend: str) -> list[Sample]:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(model_calibration, "profile_layers", stop)
        result = CliRunner().invoke(app, ["model", "calibrate", "--learned"])
    assert result.exit_code == 130
    assert "stopped while profiling; the next calibration with --learned continues from here" in result.stderr
    assert rates.read(cache)  # the rates were measured before
    slices = cache.with_name("calibration.json")
    slices.write_text(json.dumps(json.loads(slices.read_bytes()) | {"profiled_s": {BACKEND: 1e6}}))
    monkeypatch.setattr(model_calibration, "profile_layers", stop)
    assert run("--learned")["learned"][BACKEND]["layers"] == 0  # no time is left
    assert not slices.exists()
