"""CPU time of a variant's model runs in this engine and in ONNX Runtime, measured in turns in one process."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks import livestream_models
from benchmarks.highlights import public_models
from walle.model_files import ModelFolder

# The public models by the counts of `ModelRuns`.
MODELS = {
    "detector": "det_nanodet",
    "embedder": "recognition_mobilenet",
    "faces": "face_yunet",
    "voice": "voice_silero",
}


def model_ms(folder: Path, models: ModelFolder, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median CPU ms of one run of each model, by engine.

    Raises:
        ModelFileError: a model is not in the folder of models.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs = public_models.write(folder, models)
    found = {}
    for count, name in MODELS.items():
        ours, theirs = livestream_models.runs_of(*pairs[name])
        times = livestream_models.interleaved({"walle": ours, "onnxruntime": theirs}, rounds)
        found[count] = {engine: one["cpu_ms"] for engine, one in times.items()}
    return found


def with_onnxruntime(cpu_ms: float, runs: Mapping[str, float], each_ms: Mapping[str, Mapping[str, float]]) -> float:
    """Return a CPU time with the runs of the models in ONNX Runtime in place of this engine."""
    return cpu_ms + sum(runs[count] * (times["onnxruntime"] - times["walle"]) for count, times in each_ms.items())
