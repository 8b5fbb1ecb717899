"""Rates of the machine: measured, set, saved as a whole; broken files and other machines' rates are ignored."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import walle
from tests.sim.vm_task import write_task
from walle.engine_ext import _core, rates
from walle.engine_ext.errors import BackendError
from walle.engine_ext.model import GraphBuilder

AVAILABLE = [backend.name for backend in walle.backends() if backend.available]
NAMES = {"panel", "pairs", "lanes", "streamed", "moved"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of the file of rates, in an empty folder; the process's rates are restored afterwards."""
    before = {name: _core.rates(name) for name in AVAILABLE}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates.use_saved.cache_clear()
    yield tmp_path / "walle" / "rates.json"
    for name, one in before.items():
        _core.set_rates(name, one)
    rates.use_saved.cache_clear()


def session() -> walle.Session:
    graph = GraphBuilder("g")
    graph.output("y", graph.op("Relu", [graph.input("x", (4,))]))
    return walle.Session(graph.to_bytes())


def saved(value: float) -> rates.Rates:
    return {name: dict.fromkeys(NAMES, value) for name in AVAILABLE}


def test_every_rate_of_every_backend_is_measured_and_none_is_set() -> None:
    found = rates.measure(AVAILABLE, 0)
    assert set(found) == set(AVAILABLE)
    assert all(set(one) == NAMES and min(one.values()) > 0 for one in found.values())
    before = _core.rates("scalar")
    rates.measure(["scalar"], 0)
    assert _core.rates("scalar") == before  # measuring sets nothing


def test_the_peak_is_no_less_than_what_the_tile_kernel_reaches() -> None:
    for backend in walle.backends():
        if backend.available and backend.name != "scalar":
            best = max(backend.peak_gflops for _ in range(5))
            assert best > _core.measure_rates(backend.name, 0)["panel"] / 1e3 / 2
        elif not backend.available:
            assert backend.peak_gflops == 0


def test_sessions_use_saved_rates_and_write_nothing(cache: Path) -> None:
    session()
    assert not cache.parent.exists()
    rates.save(saved(123.0), cache)
    rates.use_saved.cache_clear()
    content = cache.read_bytes()
    session()
    assert all(_core.rates(name) == dict.fromkeys(NAMES, 123.0) for name in AVAILABLE)
    assert cache.read_bytes() == content
    assert [path.name for path in cache.parent.iterdir()] == ["rates.json"]


def left_to_measure(statement: str, task: Path) -> list[str]:
    """Return the backends that have no rates after this statement, in a new process."""
    program = f"""
import json, sys
from walle.engine_ext import _core, rates
from walle.vm import VM, VMPool
{statement}
print(json.dumps(_core.prime_rates()))
"""
    command = [sys.executable, "-c", program, str(task)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ), timeout=60)
    names: list[str] = json.loads(result.stdout)
    return names


@pytest.mark.parametrize("statement", ["pool = VMPool(1)", "vm = VM(sys.argv[1])"])
def test_a_vm_or_a_pool_leaves_no_rate_for_a_task_to_measure(statement: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", "def run():\n    return 1\n")
    assert left_to_measure("pass", task) == AVAILABLE
    assert left_to_measure(statement, task) == []


def test_saved_rates_are_not_measured_again(cache: Path, tmp_path: Path) -> None:
    rates.save({"scalar": dict.fromkeys(NAMES, 123.0)}, cache)
    assert left_to_measure("rates.use_saved()", tmp_path) == [name for name in AVAILABLE if name != "scalar"]
    rates.prime()
    assert _core.rates("scalar") == dict.fromkeys(NAMES, 123.0)
    assert _core.prime_rates() == []


def test_other_cpus_are_kept_and_other_versions_dropped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates.save(saved(1.0), cache)
    monkeypatch.setattr(rates, "cpu_model", lambda: "another")
    assert rates.read(cache) == {}
    rates.save(saved(2.0), cache)
    rates.save(saved(3.0), cache)
    assert rates.read(cache) == saved(3.0)
    monkeypatch.undo()
    assert rates.read(cache) == saved(1.0)
    monkeypatch.setattr(walle, "__version__", "0.0.0")
    assert rates.read(cache) == {}
    rates.save(saved(4.0), cache)
    assert len(json.loads(cache.read_bytes())["cpus"]) == 1


def test_the_file_stays_small(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        monkeypatch.setattr(rates, "cpu_model", lambda number=number: f"cpu {number}")
        rates.save(saved(float(number + 1)), cache)
    assert len(json.loads(cache.read_bytes())["cpus"]) == 16
    assert rates.read(cache) == saved(20.0)


def mine(one: object) -> bytes:
    entry = {"cpu": rates.cpu_model(), "engine": walle.__version__, "rates": one}
    return json.dumps({"format": 1, "cpus": [entry]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"format": 2, "cpus": []}',
        b'{"format": 1, "cpus": [1]}',
        b'{"format": 1, "cpus": [{"cpu": "a", "engine": "b"}]}',
        b"[" * 100_000,
        mine({"scalar": {"panel": "fast"}}),
        mine({"scalar": {"panel": 1.0}}),
        mine({"scalar": dict.fromkeys(NAMES, 0.0)}),
        mine({"scalar": dict.fromkeys(NAMES, float("nan"))}),
        mine({"scalar": dict.fromkeys({*NAMES, "luck"}, 1.0)}),
    ],
)
def test_a_broken_file_is_ignored_with_a_warning(content: bytes, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir()
    cache.write_bytes(content)
    before = _core.rates("scalar")
    with caplog.at_level(logging.WARNING):
        session()
    assert "rates.json is ignored" in caplog.text
    assert _core.rates("scalar") == before
    rates.save(saved(5.0), cache)
    assert rates.read(cache) == saved(5.0)


def test_saving_that_fails_leaves_the_old_file_and_nothing_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates.save(saved(1.0), cache)

    def refuse(_path: Path, _target: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        rates.save(saved(2.0), cache)
    assert rates.read(cache) == saved(1.0)
    assert len(list(cache.parent.iterdir())) == 1


def test_relative_cache_folders_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rates.cache_path() == tmp_path / ".cache" / "walle" / "rates.json"


def test_rates_must_be_whole_and_positive() -> None:
    for wrong in ({}, {"panel": 1.0}, dict.fromkeys(NAMES, -1.0), dict.fromkeys(NAMES, float("inf"))):
        with pytest.raises(BackendError):
            _core.set_rates("scalar", wrong)
    with pytest.raises(BackendError):
        _core.set_rates("abacus", dict.fromkeys(NAMES, 1.0))
