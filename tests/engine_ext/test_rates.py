"""Rates: the same in every process, set, saved as a whole; broken files and other machines' rates are ignored."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walle
from tests.engine_ext.search.constant_model import constant_model
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
    before = {name: _core.rates(name) for name in AVAILABLE}
    found = [_core.measure_rates(name, 0) for name in AVAILABLE]
    assert all(set(one) == NAMES and min(one.values()) > 0 for one in found)
    assert {name: _core.rates(name) for name in AVAILABLE} == before


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


PLAN = """
import json, sys
import walle
plan = walle.Session(sys.argv[1]).plan()
print(json.dumps([plan.backend, plan.source, plan.costs, [(op.predicted_us, op.candidates) for op in plan.ops]]))
"""
IN_VM = """
import asyncio, json, sys
from pathlib import Path
from walle.vm import VM, VmHost
host = VmHost() if sys.argv[3] == "host" else None
vm = VM(sys.argv[2], host=host)
print(json.dumps(asyncio.run(vm.call("run", Path(sys.argv[1]).read_bytes()))))
vm.close()
if host:
    host.close()
"""
TASK = """
import json

load = json.dumps.__globals__["__builtins__"]["__import__"]
session = load("walle.engine_ext.session", None, None, ["Session"])  # which a task reaches by ctx.session

def run(model):
    plan = session.Session(model).plan()
    return [plan.backend, plan.source, plan.costs, [(op.predicted_us, op.candidates) for op in plan.ops]]
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Return a model in which search has a choice of algorithms and of backends."""
    graph = GraphBuilder("g")
    x = graph.input("x", (1, 24, 14, 14))
    for step, (columns, size) in enumerate([(48, 1), (48, 3), (24, 1)]):
        rows = 48 if step else 24
        weights = graph.constant(f"w{step}", np.ones((columns, rows, size, size), "float32"))
        x = graph.op("Relu", [graph.op("Conv", [x, weights], pads=[size // 2] * 4)])
    graph.output("y", x)
    graph.save(tmp_path / "network.walle")
    return tmp_path / "network.walle"


def plan_of_new_process(*arguments: object, program: str = PLAN) -> list[Any]:
    """Return backend, source, costs and operators of the plan that a new process makes."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ), timeout=60)
    plan: list[Any] = json.loads(result.stdout)
    return plan


def family() -> str:
    """Return the source of rates on this CPU, by what the system reports of it."""
    found = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    info = {key.strip(): value.strip() for key, value in found.items()}
    model = int(info.get("model", 0))
    match info.get("vendor_id"), info.get("cpu family"):
        case "AuthenticAMD", "25" if model >> 4 in {1, 6, 7, 10}:
            return "shipped: AMD Zen 4"
        case "GenuineIntel", "6" if model in {143, 207}:
            return "shipped: Intel Sapphire Rapids"
    return "formula"


def test_every_process_makes_the_same_plan(network: Path) -> None:
    first, *others = [plan_of_new_process(network) for _ in range(4)]  # rates that each measured would differ
    assert others == [first] * 3
    assert first[1] == family()
    assert all(us > 0 for us in first[2].values())


def test_calibrated_backends_are_named_and_the_others_are_not(cache: Path, network: Path) -> None:
    _, source, costs, _ = plan_of_new_process(network)
    chosen = min(costs, key=costs.__getitem__)
    other = next(name for name in AVAILABLE if name != chosen)
    rates.save({other: dict.fromkeys(NAMES, 0.001)}, cache)
    backend, now, _, _ = plan_of_new_process(network)
    assert (backend, now) == (chosen, source)
    rates.save({chosen: dict.fromkeys(NAMES, 1e9)}, cache)
    backend, now, _, _ = plan_of_new_process(network)
    assert (backend, now) == (chosen, "calibrated")


@pytest.mark.parametrize("place", ["process", pytest.param("host", marks=pytest.mark.vm_host)])
def test_a_task_makes_the_plan_of_its_device(place: str, cache: Path, network: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", TASK)
    assert plan_of_new_process(network, task, place, program=IN_VM) == plan_of_new_process(network)
    names = AVAILABLE[1:]
    models = dict.fromkeys(names, constant_model({"im2col GEMM(0)": 1.0, "direct(0)": 500.0}))
    rates.save({name: dict.fromkeys(NAMES, 123.0) for name in names}, cache, models)
    found = plan_of_new_process(network, task, place, program=IN_VM)
    assert found == plan_of_new_process(network)
    assert found[1] == ("learned, calibrated" if found[0] in names else family())


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


@pytest.mark.parametrize("models", [1, {"scalar": 1}, {"scalar": "%"}, {"scalar": "AAAA"}])
def test_a_broken_model_is_ignored_with_a_warning(
    models: object, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rates.save(saved(6.0), cache)
    content = json.loads(cache.read_bytes())
    content["cpus"][0]["models"] = models
    cache.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        session()
    assert re.search(r"rates\.json (is|are) ignored: ", caplog.text)
    assert _core.performance_model("scalar") is None


def test_models_are_kept_until_others_replace_them(cache: Path) -> None:
    model = constant_model({"direct(0)": 1.0})
    rates.save(saved(1.0), cache, {"scalar": model})
    rates.save(saved(2.0), cache)
    assert (rates.read(cache), rates.read_models(cache)) == (saved(2.0), {"scalar": model})
    session()
    assert _core.performance_model("scalar") == model
    _core.set_performance_model("scalar", None)
    rates.save(saved(2.0), cache, {})
    assert rates.read_models(cache) == {}


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
