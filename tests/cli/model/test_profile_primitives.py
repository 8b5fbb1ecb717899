"""`walle model profile-primitives`: samples are written, continued after a kill, and refused from elsewhere."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walle.cli import app
from walle.engine_ext.search import profiling
from walle.engine_ext.search.layers import Layer, LayerDraw
from walle.engine_ext.search.samples_file import SampleSet, SamplesFile, SamplesFileError, SamplesHead
from walle.errors import ConfigError

# SIGINT is ignored where a shell runs the tests in the background.
_WALLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import walle.cli.model.primitives
walle.cli.model.primitives._AT_ONCE = 2  # lines are written soon
walle.cli.main()
"""
_SEED = 2622  # seed of small first layers, the second with a stride


def command(path: Path, *more: object) -> list[str]:
    return ["model", "profile-primitives", "--output", str(path), "--seed", str(_SEED), *map(str, more)]


def run(path: Path, *more: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*command(path, *more), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def drawn(count: int) -> list[Layer]:
    draw = LayerDraw(_SEED)
    return [next(draw) for _ in range(count)]


def started(path: Path, least: int) -> subprocess.Popen[bytes]:
    """Return a real command that has written this many layers and still runs."""
    program = [sys.executable, "-c", _WALLE, *command(path, "--count", 100_000)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not path.exists() or path.read_bytes().count(b"\n") <= least:
        assert process.poll() is None
        time.sleep(0.005)
    return process


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time each primitive five times, not 25."""
    monkeypatch.setattr(profiling.profile_layers, "__kwdefaults__", {"runs": 5})


@pytest.mark.usefixtures("quick")
def test_a_killed_run_is_continued_with_the_layers_that_follow(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with started(path, 2) as process:
        process.kill()
    whole = SampleSet.read(path).samples
    path.write_bytes(path.read_bytes() + b'{"layer": [64, 3')  # a line that a power cut has cut
    report = run(path, "--count", len(whole) + 1)
    assert (report["layers"], report["measured"]) == (len(whole) + 1, 1)
    found = SampleSet.read(path)
    assert found.samples[:-1] == whole
    assert found.layers == drawn(len(whole) + 1)
    assert report["primitives"] == found.primitives
    assert report["backend"] == found.head.backend


def test_ctrl_c_says_how_many_layers_there_are(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with started(path, 1) as process:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    count = len(SampleSet.read(path).samples)
    assert process.returncode == 130
    assert error.decode() == f"walle: stopped; {path} has {count} layers, the same command continues there\n"


@pytest.mark.night
@pytest.mark.usefixtures("quick")
def test_it_stops_at_its_minutes(tmp_path: Path) -> None:
    report = run(tmp_path / "s.jsonl", "--minutes", 0.001)
    assert 1 <= report["layers"] < 100
    assert report["measured"] == report["layers"]


@pytest.mark.usefixtures("quick")
def test_an_undefined_primitive_is_null(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    run(path, "--count", 4)
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    strided = next(row for row in rows if row["layer"][3] > 1)
    assert "winograd(2)" not in {name for name, us in strided["us"].items() if us is not None}
    assert None in [us for row in rows for us in row["us"].values()]


def test_a_file_of_another_machine_or_backend_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    SamplesFile.open(path, SamplesHead("another CPU", "scalar", "0.1.0", _SEED)).__exit__()
    with pytest.raises(SamplesFileError, match=r"s\.jsonl: was measured with cpu 'another CPU'.*--output"):
        run(path, "--backend", "scalar", "--count", 1)
    with pytest.raises(ConfigError, match="'abacus' is unknown or not available here; available are: scalar"):
        run(path, "--backend", "abacus")
