"""Fig. 10: the networks, the float64 reference, workers, forced algorithms, ratios and the report."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import engine
from benchmarks.fig10 import costs, interleave, networks, plans, report
from benchmarks.fig10.engines import ENGINES, inputs_of
from benchmarks.fig10.reference import in_float64, reference
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError
from walle.engine_ext.model import GraphBuilder


@pytest.fixture
def din(tmp_path: Path) -> Path:
    networks.write(tmp_path, ["din"])
    return tmp_path / "din.onnx"


def entry_of(model: Path) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((model.parent / "manifest.json").read_bytes())[model.stem]
    return entry


@pytest.mark.parametrize(
    ("name", "gflops", "parameters"),
    [
        ("mobilenet_v2", 0.60, 3.5),
        ("squeezenet1_1", 0.70, 1.24),
        ("shufflenet_v2", 0.29, 2.3),
        ("fcos_lite", 12.66, 7.9),
        ("voice_rnn", 0.0014, 0.0077),
    ],
)
def test_networks_have_the_sizes_that_were_published(name: str, gflops: float, parameters: float) -> None:
    described = networks.described(networks.NETWORKS[name]().model())
    assert described["flops"] / 1e9 == pytest.approx(gflops, rel=0.02)
    assert described["params"] / 1e6 == pytest.approx(parameters, rel=0.02)


def test_networks_are_written_once_and_the_same_each_time(din: Path, tmp_path: Path) -> None:
    first = din.read_bytes()
    din.with_suffix(".kept").write_bytes(first)
    networks.write(tmp_path, ["din", "voice_rnn"])
    assert din.read_bytes() == first
    assert set(json.loads((tmp_path / "manifest.json").read_bytes())) == {"din", "voice_rnn"}
    assert networks.NETWORKS["din"]().model().SerializeToString() == onnx.load(din).SerializeToString()


@pytest.mark.parametrize("name", ["din", "voice_rnn"])
def test_the_reference_is_float64_and_engines_are_near_it(name: str, tmp_path: Path) -> None:
    networks.write(tmp_path, [name])
    model = tmp_path / f"{name}.onnx"
    wide = in_float64(onnx.load(model))
    assert not any(constant.data_type == onnx.TensorProto.FLOAT for constant in wide.graph.initializer)
    with np.load(reference(model)) as exact:
        wanted = exact[exact.files[0]]
    assert wanted.dtype == np.float64
    entry = entry_of(model)
    for contestant in (ENGINES["walle"], ENGINES["onnxruntime"]):
        runner = contestant(model, 1, entry)
        runner.imports()
        runner.convert()
        runner.load()
        np.testing.assert_allclose(runner.run(inputs_of(entry))[0], wanted, rtol=1e-4, atol=1e-6)


def test_networks_are_quantised_once_and_run_near_the_float_ones(din: Path) -> None:
    entry, first = entry_of(din), b""
    with np.load(reference(din)) as exact:
        wanted = exact[exact.files[0]]
    found = {}
    for name in ("walle-int8", "onnxruntime-int8"):
        runner = ENGINES[name](din, 1, entry)
        runner.imports()
        runner.convert()
        runner.load()
        found[name] = runner.run(inputs_of(entry))[0]
        assert np.abs(found[name] - wanted).max() <= 0.1 * np.abs(wanted).max()
        first = first or din.with_suffix(".int8.onnx").read_bytes()
        assert din.with_suffix(".int8.onnx").read_bytes() == first
    ops = [node.op_type for node in onnx.load(din.with_suffix(".int8.onnx")).graph.node]
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(ops)


@pytest.mark.night
def test_workers_alternate_and_failures_are_reported(din: Path) -> None:
    broken = din.with_name("broken.onnx")
    broken.write_bytes(b"nothing")
    manifest = json.loads((din.parent / "manifest.json").read_bytes())
    (din.parent / "manifest.json").write_text(json.dumps(manifest | {"broken": manifest["din"]}))
    mine = [interleave.Contestant("walle", "walle")]
    rounds = list(interleave.measure(mine, din, reference(din), 1, 2, 0.0))
    assert [number for number, _ in rounds] == [1, 2]
    found = rounds[-1][1]["walle"]
    assert found["runs"] == 4
    assert 0 < found["min_ms"] <= found["wall_ms"]
    assert found["error"] < 1e-5
    assert found["search_ms"] >= 0
    failed = list(interleave.measure(mine, broken, reference(din), 1, 1, 0.0))[-1][1]["walle"]
    assert list(failed) == ["failed"]
    assert "Error" in failed["failed"] or "broken" in failed["failed"]


def test_absent_engines_report_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINES["ncnn"], "packages", ("no_such_package",))
    assert ENGINES["ncnn"].absent() == "no_such_package not installed"
    monkeypatch.setattr(ENGINES["walle-bf16"], "backend", "abacus")
    assert "abacus" in ENGINES["walle-bf16"].absent()
    assert not ENGINES["walle"].absent()


def convolution() -> bytes:
    graph = GraphBuilder("g")
    weights = graph.constant("w", np.full((16, 16, 3, 3), 0.01, dtype="float32"))
    y = graph.op("Conv", [graph.input("x", (1, 16, 12, 12)), weights], pads=[1, 1, 1, 1], name="c")
    graph.output("y", y)
    return graph.to_bytes()


def test_an_algorithm_is_forced_and_computes_the_same() -> None:
    data, x = convolution(), np.random.default_rng(0).random((1, 16, 12, 12), dtype=np.float32)
    searched = _core.Session(data, "auto")
    op = next(op for op in (searched.plan() or {})["ops"] if op[-1])
    wanted = np.asarray(searched.run({"x": x})["y"])
    assert len(op[-1]) > 1
    for algorithm, parameter, _ in op[-1]:
        forced = _core.Session(data, "auto", algorithms={op[0]: (algorithm, parameter)})
        found = next(one for one in (forced.plan() or {})["ops"] if one[0] == op[0] and one[-1])
        assert found[-1][0][:2] == (algorithm, parameter)
        assert found[2] == algorithm
        np.testing.assert_allclose(np.asarray(forced.run({"x": x})["y"]), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match=r"luck\(7\) is .* candidate"):
        _core.Session(data, "auto", algorithms={op[0]: ("luck", 7)})


def test_plans_are_evaluated_by_all_candidates(tmp_path: Path) -> None:
    (tmp_path / "g.walle").write_bytes(convolution())
    found = plans.quality(tmp_path / "g.walle", {"x": np.ones((1, 16, 12, 12), dtype=np.float32)}, 3)
    assert found["operators"] == 1
    assert found["candidates"] > 1
    assert 0 < found["best_us"] <= found["chosen_us"]
    assert plans.excess(found) >= 0
    assert "g " in plans.table([found])


def test_predicted_costs_are_compared_with_measured_ones(
    din: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--models", "din", "--costs", "--rounds", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["engine.py", str(din.parent), *arguments])
    engine.main()
    (found,) = json.loads(capsys.readouterr().out)
    assert found["error"] == pytest.approx(found["predicted_us"] / found["measured_us"] - 1)
    assert found["measured_us"] == pytest.approx(sum(kind["measured_us"] for kind in found["kinds"].values()))
    assert "din " in costs.table([found])


def row(cpu: float, wall: float) -> dict[str, Any]:
    return {
        "cpu_ms": cpu, "wall_ms": wall, "min_ms": wall, "runs": 1, "load_ms": 1.0, "first_ms": 1.0, "search_ms": None,
        "memory_mib": 1.0, "error": 0.0,
    }  # fmt: skip


def results() -> report.Results:
    one = {"walle": row(1, 4), "mnn": row(2, 1), "ncnn": row(4, 2), "openvino-bf16": row(0.1, 0.1)}
    other = {"walle": row(8, 8), "mnn": row(1, 1), "ncnn": {"failed": "it has no such operator"}}
    return {1: {"din": one, "voice_rnn": other}}


def test_ratios_are_to_the_best_peer_of_the_same_precision() -> None:
    (cpu,), (wall,) = report.ratios(results()), report.ratios(results(), "wall_ms")
    assert {name: one["ratio"] for name, one in cpu["networks"].items()} == {"din": 0.5, "voice_rnn": 8.0}
    assert cpu["networks"]["din"]["peer"] == "mnn"
    assert cpu["mean"] == pytest.approx(2.0)
    assert wall["mean"] == pytest.approx(math.sqrt(32))
    alone = {1: {"din": {"walle": row(1, 1)}}}
    assert report.ratios(alone) == []


def test_revisions_are_compared_where_both_ran() -> None:
    both, alone = {"walle": row(1, 1), "walle@old": row(4, 4)}, {"walle": {"failed": "no"}, "walle@old": row(1, 1)}
    (found,) = report.revisions({2: {"din": both, "voice_rnn": alone}})
    assert (found["threads"], found["against"], found["networks"]) == (2, "walle@old", {"din": 0.25})


def test_the_report_names_failures_and_is_drawn(tmp_path: Path) -> None:
    manifest = {name: {"flops": 1e6, "params": 1e3} for name in ("din", "voice_rnn")}
    text = report.table(results(), manifest, 100.0)
    assert "it has no such operator" in text
    assert "geometric mean 2.000" in text
    report.plot(results(), tmp_path / "engine.png")
    report.page(text, "facts & <figures>", tmp_path / "engine.png", tmp_path / "engine.html")
    assert (tmp_path / "engine.png").read_bytes().startswith(b"\x89PNG")
    assert "facts &amp; &lt;figures&gt;" in (tmp_path / "engine.html").read_text()


def test_the_command_refuses_unknown_networks_and_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--models", "alexnet"], ["--models", "din", "--engines", "abacus"]):
        monkeypatch.setattr(sys, "argv", ["engine.py", str(tmp_path), *arguments])
        with pytest.raises(SystemExit, match=r"engine: no (network|engine)"):
            engine.main()
