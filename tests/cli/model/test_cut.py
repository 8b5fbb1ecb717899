"""`walle model cut`: the table of cuts, the best one, its files and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.split.models import saved, shrinking
from walle import np
from walle.cli import app
from walle.engine_ext.session import Session, load
from walle.split.files import run_parts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return saved("residual", tmp_path_factory.mktemp("models"))


def run(path: Path, *options: object) -> Any:
    command = ["model", "cut", str(path), *map(str, options), "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_best_cut_depends_on_link_and_device(model: tuple[Path, dict[str, Any]]) -> None:
    slow = run(model[0], "--bandwidth", "1kbit/s", "--rtt", "1s")
    assert slow["cuts"][slow["best"]]["name"] == "all here"
    fast = run(model[0], "--bandwidth", "100Gbit/s", "--rtt", "0.001ms", "--device-slower", 10_000)
    assert fast["cuts"][fast["best"]]["name"] == "all there"
    assert fast["why"].startswith("all there: ")
    for one in slow["cuts"]:
        assert one["latency_ms"] == pytest.approx(one["device_ms"] + one["transfer_ms"] + one["cloud_ms"])
    assert slow["cuts"][0]["transfer_ms"] == pytest.approx(1_000 + 8 * (256 + 16))


def test_files_of_the_best_cut_and_its_picture_are_written(tmp_path: Path) -> None:
    path, inputs = shrinking(tmp_path)
    options = ["--bandwidth", "10Mbit/s", "--rtt", "1ms", "--device-slower", 50]
    found = run(path, *options, "--out", tmp_path / "parts")
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert found["cuts"][found["best"]]["up_bytes"] == 4 * 3 * 16 * 16
    device, cloud = Session(found["device"]), Session(found["cloud"])
    [(name, expected)] = load(path).run(inputs).items()
    assert np.allclose(run_parts(device, cloud, inputs)[name], expected, atol=1e-5)
    [error] = found["errors"]
    assert error["relative"] < 2e-6
    rounded = run(path, *options, "--quantised", "--out", tmp_path / "int8")
    assert error["relative"] < rounded["errors"][0]["relative"] < 0.05


def test_a_model_that_runs_in_one_place_has_no_files(model: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    found = run(model[0], "--bandwidth", "1kbit/s", "--rtt", "1s", "--out", tmp_path / "new")
    assert "the model's own file" in found["no_files"]
    assert "device" not in found


def test_the_table_marks_the_best_cut(model: tuple[Path, dict[str, Any]]) -> None:
    command = ["model", "cut", str(model[0]), "--bandwidth", "10 Mbit/s", "--rtt", "30ms"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert "all here (best)" in shown
    assert "all there" in shown
    assert "transfer ms" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bandwidth", "10", "--rtt", "30ms"], "such as 10Mbit/s"),
        (["--bandwidth", "0Mbit/s", "--rtt", "30ms"], "such as 10Mbit/s"),
        (["--bandwidth", "1Mbit/s", "--rtt", "30 minutes"], "such as 30ms"),
    ],
)
def test_a_quantity_without_a_known_unit_is_refused(
    model: tuple[Path, dict[str, Any]], options: list[str], message: str
) -> None:
    result = CliRunner().invoke(app, ["model", "cut", str(model[0]), *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
