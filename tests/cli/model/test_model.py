"""`walle model` and `walle operators` on a small model."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from walle.cli import app
from walle.cli.model.commands import InputError, read_npy
from walle.engine_ext.model import GraphBuilder
from walle.errors import ConfigError, EngineError


def run(*arguments: object) -> Any:
    """Return the JSON that a command prints; raise its errors."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model of y = x @ w + b for x [2, 3]."""
    graph = GraphBuilder("affine")
    x, b = graph.input("x", (2, 3)), graph.input("b", (1, 2))
    w = graph.constant("w", [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
    graph.output("y", graph.op("Add", [graph.op("MatMul", [x, w]), b]))
    graph.save(tmp_path / "affine.walle")
    return tmp_path / "affine.walle"


def test_run_takes_npy_and_json_and_prints_the_outputs(model: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "b.json").write_text("[[10, 20]]")
    inputs = ["--input", f"x={tmp_path}/x.npy", "--input", f"b={tmp_path}/b.json"]
    want = x @ np.array([[1, 0], [0, 1], [1, -1]], dtype="float32") + [[10, 20]]
    assert run("model", "run", model, *inputs) == {"y": {"shape": [2, 2], "dtype": "float32", "values": want.tolist()}}
    text = CliRunner().invoke(app, ["model", "run", str(model), *inputs]).stdout
    assert "2×2" in text
    assert "12, 19, 18, 19" in text


def test_run_and_plan_take_models_with_control_flow(tmp_path: Path) -> None:
    graph = GraphBuilder("parts")
    x, flag, parts = graph.input("x", (3,)), graph.input("flag", (), "bool"), graph.object_input("parts")
    then, other = graph.subgraph("then"), graph.subgraph("else")
    then.output("y", then.op("Neg", [then.outer(x)]))
    other.output("y", other.op("Identity", [other.outer(x)]))
    graph.output("y", graph.op("If", [flag], then_branch=then, else_branch=other))
    graph.output("both", graph.op("SequenceInsert", [parts, x]))
    graph.output("none", graph.op("Optional", []))
    graph.save(tmp_path / "parts.walle")
    for name, value in {"x": [1, 2, 3], "flag": True, "parts": [[4.0], [5.0, 6.0]]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    inputs = [part for name in ("x", "flag", "parts") for part in ("--input", f"{name}={tmp_path}/{name}.json")]
    found = run("model", "run", tmp_path / "parts.walle", *inputs)
    assert found["y"] == {"shape": [3], "dtype": "float32", "values": [-1, -2, -3]}
    assert [one["values"] for one in found["both"]] == [[4], [5, 6], [1, 2, 3]]
    assert found["none"] is None
    text = CliRunner().invoke(app, ["model", "run", str(tmp_path / "parts.walle"), *inputs]).stdout
    assert "both[1]" in text
    steps = run("model", "plan", tmp_path / "parts.walle")["ops"]
    assert "If" in [step["op"] for step in steps]


def test_run_says_which_inputs_there_are(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"b: .* x \(float32, 2×3\), b \(float32, 1×2\)"):
        run("model", "run", model, "--input", "x=x.npy")
    with pytest.raises(EngineError):
        run("model", "run", model.with_name("none.walle"))
    assert CliRunner().invoke(app, ["model", "run", str(model), "--input", "x.npy"]).exit_code == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (2, 0)])
def test_npy_files_are_read_as_numpy_wrote_them(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    got = np.asarray(read_npy(tmp_path / "a.npy"))
    assert got.dtype == values.dtype
    assert got.tolist() == (values.tolist() if values.size and shape else values.ravel().tolist())


def test_unsupported_npy_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for values in (np.asfortranarray(np.ones((2, 3))), np.ones(3, dtype=">f4"), np.array(["text"])):
        np.save(path, values)
        with pytest.raises(InputError, match=r"a\.npy: type .* is not supported"):
            read_npy(path)
    np.save(path, np.ones((4, 5)))
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"a\.npy"):
            read_npy(path)


def test_plan_shows_each_step(model: Path) -> None:
    found = run("model", "plan", model)
    assert [step["op"] for step in found["ops"]] == ["Linear", "Add"]
    text = CliRunner().invoke(app, ["model", "plan", str(model)]).stdout
    assert found["backend"] in text
    assert f"source of costs: {found['source']})" in text


def test_plan_of_open_shapes_asks_for_them(tmp_path: Path) -> None:
    graph = GraphBuilder("open")
    x = graph.input("x", (None, 3))
    graph.output("y", graph.op("Tanh", [x]))
    graph.save(tmp_path / "open.walle")
    with pytest.raises(ConfigError, match=r"x \(float32, \?×3\).*--shape"):
        run("model", "plan", tmp_path / "open.walle")
    assert run("model", "plan", tmp_path / "open.walle", "--shape", "x=4x3")["ops"][0]["op"] == "Tanh"
    for wrong in ("x", "x=4xa", "=4", "x=-1x3"):
        assert CliRunner().invoke(app, ["model", "plan", str(model), "--shape", wrong]).exit_code == 2


def test_convert_writes_a_model_that_runs(tmp_path: Path) -> None:
    import onnx

    from tests.sim.onnx_models import NODE
    from tests.sim.onnx_models import model as onnx_model

    x = np.arange(3, dtype="float32")
    onnx.save(onnx_model([NODE("Neg", ["x"], ["y"])], {"x": x}, ["y"]), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    report = run("model", "convert", tmp_path / "m.onnx")
    assert report == {"model": str(tmp_path / "m.walle"), "bytes": (tmp_path / "m.walle").stat().st_size}
    out = run("model", "run", tmp_path / "m.walle", "--input", f"x={tmp_path}/x.npy")
    assert out["y"]["values"] == [0, -1, -2]
    with pytest.raises(EngineError, match=r"none\.onnx"):
        run("model", "convert", tmp_path / "none.onnx", tmp_path / "other.walle")
    assert not (tmp_path / "other.walle").exists()


def test_operators_are_in_the_four_categories() -> None:
    known = {row["name"]: row for row in run("operators")}
    assert known["MatMul"]["category"] == "atomic"
    categories = {row["category"] for row in known.values()}
    assert categories <= {"atomic", "transform", "composite", "control-flow", "sequence"}
    assert "MatMul" in CliRunner().invoke(app, ["operators"]).stdout


def test_bench_times_a_model_and_its_operators(model: Path) -> None:
    found = run("model", "bench", model, "--runs", 5, "--profile", "--threads", 2, "--backend", "scalar")
    assert (found["backend"], found["threads"], found["runs"]) == ("scalar", 2, 5)
    assert 0 < found["min_ms"] <= found["median_ms"]
    assert 0 <= found["search_ms"] <= found["load_ms"]
    assert found["first_ms"] > 0
    assert {row["operator"] for row in found["operators"]} >= {"Linear"}
    assert sum(float(row["share"].removesuffix(" %")) for row in found["operators"]) == pytest.approx(100, abs=1)
    text = CliRunner().invoke(app, ["model", "bench", str(model), "--runs", "2", "--profile"])
    assert text.exit_code == 0, text.output
    assert "median" in text.stdout
    assert "Linear" in text.stdout


def test_bench_requires_shapes_that_the_model_does_not_fix(tmp_path: Path) -> None:
    graph = GraphBuilder("open")
    graph.output("y", graph.op("Relu", [graph.input("x", (None, 3))]))
    graph.save(tmp_path / "open.walle")
    with pytest.raises(ConfigError, match="--shape x=8x16"):
        run("model", "bench", tmp_path / "open.walle")
    with pytest.raises(ConfigError, match="no input is named z"):
        run("model", "bench", tmp_path / "open.walle", "--shape", "z=2")
    assert run("model", "bench", tmp_path / "open.walle", "--shape", "x=2x3", "--runs", 1)["runs"] == 1


def test_bench_says_of_what_the_search_is_a_part(model: Path, tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["model", "bench", str(model), "--runs", "1"]).stdout
    assert re.search(r"load [\d.]+ ms, of which search [\d.]+ ms; first run [\d.]+ ms$", text.strip()), text
    graph = GraphBuilder("open")
    graph.output("y", graph.op("Relu", [graph.input("x", (None, 3))]))
    graph.save(tmp_path / "open.walle")
    arguments = ["model", "bench", str(tmp_path / "open.walle"), "--shape", "x=2x3", "--runs", "1"]
    text = CliRunner().invoke(app, arguments).stdout  # a model with open shapes is planned at its first run
    assert re.search(r"load [\d.]+ ms; first run [\d.]+ ms, of which search [\d.]+ ms$", text.strip()), text
    found = run(*arguments)
    assert found["planned_in"] == "first run"
    assert found["search_ms"] <= found["first_ms"]


def test_a_plan_shows_no_step_of_no_time(model: Path) -> None:
    text = CliRunner().invoke(app, ["model", "plan", str(model)]).stdout
    assert not re.search(r"\b0 µs", text)
    assert "< 1 µs" in text
