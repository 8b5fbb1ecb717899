"""Table 1's architectures and the benchmark of the livestream app's models."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import walle
from apps.livestream.make_embedder import write_embedder
from apps.livestream.own_models import OwnModels
from apps.livestream.task_files import NAMES, OPTIONAL
from benchmarks import livestream_models
from benchmarks.fig10.networks import described
from benchmarks.highlights import architectures, public_models
from walle.engine_ext.tflite_import.read import read_tflite
from walle.model_files import ModelFolder

MODELS = Path(__file__).parents[2].parent / "shared/data/models"


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_parameters_are_the_papers_within_two_percent(name: str) -> None:
    entry = described(architectures.ARCHITECTURES[name]().model())
    assert entry["params"] == pytest.approx(architectures.PARAMETERS[name], rel=0.02)


def test_weights_come_from_a_seed(tmp_path: Path) -> None:
    one, other = (architectures.voice().model().SerializeToString() for _ in range(2))
    assert one == other
    onnx.save(architectures.voice().model(), tmp_path / "voice_detection.onnx")
    manifest = architectures.write(tmp_path)
    assert manifest == json.loads((tmp_path / "manifest.json").read_bytes())
    assert manifest.keys() == architectures.ARCHITECTURES.keys()


def test_the_voice_network_keeps_its_state_between_runs(tmp_path: Path) -> None:
    results = []
    frames = np.random.default_rng(1).standard_normal((1, 100, 40)).astype(np.float32)
    for pieces in (1, 4):
        onnx.save(architectures.voice(frames=100 // pieces).model(), tmp_path / "voice.onnx")
        session = walle.Session(tmp_path / "voice.onnx")
        state, probabilities = np.zeros((1, 1, 32), np.float32), []
        for part in np.split(frames, pieces, axis=1):
            outputs = session.run({"frames": np.ascontiguousarray(part), "state": state})
            state = np.asarray(outputs["next_state"])
            probabilities.append(np.asarray(outputs["probability"]))
        results.append(np.concatenate(probabilities))
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)


def test_outputs_that_differ_end_the_benchmark(tmp_path: Path) -> None:
    onnx.save(architectures.voice().model(), tmp_path / "a.onnx")
    walle.convert(tmp_path / "a.onnx", tmp_path / "a.walle")
    ours, theirs = livestream_models.runs_of(tmp_path / "a.walle", tmp_path / "a.onnx")
    figures = livestream_models.interleaved({"walle": ours, "onnxruntime": theirs}, 3)
    assert all(0 < one["least_ms"] <= one["wall_ms"] and one["cpu_ms"] > 0 for one in figures.values())
    other = architectures.voice().model()
    for one in other.graph.initializer:
        if one.data_type == onnx.TensorProto.FLOAT:
            one.raw_data = (np.frombuffer(one.raw_data, np.float32) * np.float32(1.2)).tobytes()
    onnx.save(other, tmp_path / "b.onnx")
    with pytest.raises(SystemExit, match="differs by"):
        livestream_models.runs_of(tmp_path / "a.walle", tmp_path / "b.onnx")


@pytest.mark.night
@pytest.mark.skipif(not MODELS.is_dir(), reason="the real models are not beside this checkout")
def test_both_engines_get_the_same_graph(tmp_path: Path) -> None:
    pairs = public_models.write(tmp_path, ModelFolder(MODELS))
    for name, (ours, theirs) in pairs.items():
        livestream_models.runs_of(ours, theirs)
        graph = onnx.load(theirs).graph
        assert not {one.name for one in graph.initializer} & {one.name for one in graph.input}, name
    embedder = pairs["recognition_mobilenet"][0].read_bytes()
    source = MODELS / "cls_mobilenet_v1_0.25_128.tflite"
    assert write_embedder(source, tmp_path / "again.walle").read_bytes() == embedder
    assert read_tflite(source.read_bytes()).input_shape == (1, 128, 128, 3)


@pytest.mark.asyncio
async def test_every_task_is_measured_with_the_apps_own_models(tmp_path: Path) -> None:
    rows = await livestream_models.task_rows(tmp_path, OwnModels(), 1)
    assert [row["task"] for row in rows] == [name for name in NAMES if name not in OPTIONAL]
    assert all(row["phase_ms"]["execute"] >= 0 for row in rows)
    assert "highlight" in "\n".join(livestream_models.task_lines(rows))
