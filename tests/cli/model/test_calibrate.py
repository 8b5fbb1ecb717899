"""`walle model calibrate`: rates measured, interrupted and continued, and used on another machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import walle
from walle.cli import app
from walle.engine_ext import calibration, rates
from walle.engine_ext.calibration import Calibration
from walle.errors import ConfigError

AVAILABLE = [backend.name for backend in walle.backends() if backend.available]
WHOLE = dict.fromkeys(("panel", "pairs", "lanes", "streamed", "moved"), 1.0)
SHORT = ("--minutes", "0.002")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the file of rates, in an empty folder; slices are short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "_SLICE_S", 0.001)
    return tmp_path / "cache" / "walle" / "rates.json"


def run(*arguments: object) -> Any:
    """Return the JSON that the command prints; raise its errors."""
    command = ["model", "calibrate", *map(str, arguments), "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_rates_that_sessions_use_are_saved(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(*SHORT)
    assert found["file"] == str(cache)
    assert rates.read(cache) == found["rates"]
    assert list(found["rates"]) == AVAILABLE
    assert found["measured_s"] >= 0.12
    assert [path.name for path in cache.parent.iterdir()] == ["rates.json"]
    text = CliRunner().invoke(app, ["model", "calibrate", *SHORT]).stdout
    assert "GFLOP/s" in text
    assert str(cache) in text.replace("\n", "")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"calibration\.json"):
        run(*SHORT)


def test_rates_have_three_digits_and_memory_has_one_rate(cache: Path) -> None:
    found = run(*SHORT)["rates"]
    assert all(float(f"{rate:.3g}") == rate for one in found.values() for rate in one.values())
    assert len({(one["streamed"], one["moved"]) for one in found.values()}) == 1


@pytest.mark.night
def test_an_interrupted_run_is_continued_by_the_next(cache: Path) -> None:
    slices = cache.with_name("calibration.json")
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nimport walle.cli; walle.cli.main()"
    )
    command = [sys.executable, "-c", program, "model", "calibrate", "--minutes", "5"]
    with subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True) as child:
        try:
            until = time.monotonic() + 60
            while not slices.exists():
                assert time.monotonic() < until
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            _, text = child.communicate(timeout=60)
        finally:
            child.kill()
    message = "walle: stopped while measuring; the next calibration continues from here\n"
    assert (child.returncode, text) == (130, message)
    assert not cache.exists()
    measured_s: float = json.loads(slices.read_bytes())["measured_s"]
    assert measured_s > 0.15  # at least a slice of 0.05 s for each rate of a backend
    found = run("--minutes", 0)
    assert measured_s < found["measured_s"] < measured_s + 10
    assert [path.name for path in cache.parent.iterdir()] == ["rates.json"]


def test_each_backend_has_a_slice_of_each_rate_and_they_take_turns(tmp_path: Path) -> None:
    path, done = tmp_path / "calibration.json", list[float]()
    measuring = Calibration(path, AVAILABLE)
    measuring.measure(0, done.append)
    assert len(done) == len(AVAILABLE)
    again = Calibration(path, AVAILABLE)
    assert again.measured_s == measuring.measured_s == done[-1]
    assert again.rates() == measuring.rates()
    again.measure(0, done.append)
    assert len(done) == len(AVAILABLE)  # nothing is left to measure
    again.measure(again.measured_s + 1e-6, done.append)
    assert len(done) == len(AVAILABLE) + 1
    counts = {name: len(slices) for name, slices in json.loads(path.read_bytes())["slices"].items()}
    assert counts == dict.fromkeys(AVAILABLE, 1) | {AVAILABLE[0]: 2}
    again.remove()
    assert Calibration(path, AVAILABLE).measured_s == 0


def test_the_median_of_slices_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    Calibration(path, ["scalar"]).measure(0)
    content = json.loads(path.read_bytes())
    values = (1.0, 100.0, 12.3456, 2.0, 1e6)
    content["slices"]["scalar"] = [dict.fromkeys(content["slices"]["scalar"][0], value) for value in values]
    path.write_text(json.dumps(content))
    assert set(Calibration(path, ["scalar"]).rates()["scalar"].values()) == {12.3}


@pytest.mark.parametrize("key", ["cpu", "engine"])
def test_slices_of_another_machine_or_version_are_not_continued(key: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    Calibration(path, ["scalar"]).measure(0)
    assert Calibration(path, ["scalar"]).measured_s > 0
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: "another"}))
    assert Calibration(path, ["scalar"]).measured_s == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"format": 2}, {"measured_s": -1}, {"measured_s": "1"}, {"slices": []}, {"slices": {"scalar": {}}},
        {"slices": {"scalar": [{"panel": 1.0}]}}, {"slices": {"scalar": [WHOLE | {"panel": "fast"}]}},
        {"slices": {"scalar": [WHOLE | {"panel": float("nan")}]}}, {"slices": {"scalar": [WHOLE, 1]}},
    ],
)  # fmt: skip
def test_broken_slices_are_ignored_with_a_warning(
    broken: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calibration.json"
    Calibration(path, ["scalar"]).measure(0)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | broken))
    assert Calibration(path, ["scalar"]).measured_s == 0
    assert "calibration.json is ignored, and measuring begins again" in caplog.text


def test_a_file_is_used_on_a_machine_with_the_same_cpu(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "travel" / "rates.json"
    found = run(*SHORT, "--output", file)["rates"]
    cache.unlink()
    used = run("--use", file)
    assert used == {"file": str(cache), "cpu": rates.cpu_model(), "rates": found}
    assert rates.read(cache) == found


def test_a_file_of_another_cpu_is_refused_unless_forced(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rates.json"
    with monkeypatch.context() as there:
        there.setattr(rates, "cpu_model", lambda: "Abacus 9000")
        found = run(*SHORT, "--output", file)["rates"]
        cache.unlink()
    with pytest.raises(ConfigError, match=r"rates\.json: its rates are for Abacus 9000, and this is .*--force"):
        run("--use", file)
    assert not cache.exists()
    assert run("--use", file, "--force")["rates"] == found
    assert rates.read(cache) == found


def test_a_file_of_another_version_or_no_file_of_rates_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rates.json"
    with monkeypatch.context() as there:
        there.setattr(walle, "__version__", "0.0.0")
        run(*SHORT, "--output", file)
        cache.unlink()
    with pytest.raises(ConfigError, match=r"for engine version 0\.0\.0, and this is"):
        run("--use", file, "--force")
    rates.save({"scalar": {"panel": 1.0}}, file)
    with pytest.raises(ConfigError, match="do not have this engine's names"):
        run("--use", file)
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"rates\.json: "):
        run("--use", file)
    assert not cache.exists()


@pytest.mark.parametrize(
    "arguments",
    [("--use", "FILE", "--minutes", "1"), ("--use", "FILE", "--output", "FILE"), ("--force",), ("--use", "/none")],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], cache: Path, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text("{}")
    given = [str(tmp_path / "FILE") if one == "FILE" else one for one in arguments]
    assert CliRunner().invoke(app, ["model", "calibrate", *given]).exit_code == 2
    assert not cache.exists()
