"""Networks that are cut, and the measured times of their parts."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from apps.livestream.task_files import manifest
from benchmarks.fig10.networks import bert_squad, mobilenet_v2, resnet
from benchmarks.highlights.architectures import ARCHITECTURES
from walle.engine_ext.session import Session
from walle.model_files import ModelFileError, ModelFolder
from walle.split.cut import Cut
from walle.split.cuts import CutModel, find_cuts
from walle.split.files import errors_of, passing, write_parts

SEEDED: dict[str, Callable[[], Any]] = {
    "mobilenet_v2": mobilenet_v2,
    "resnet18": lambda: resnet("resnet18", (2, 2, 2, 2), bottleneck=False),
    "bert_small": lambda: bert_squad(layers=4, hidden=512, heads=8, length=128),
}
_LEAST_S = 0.15  # least seconds of runs of a part


@dataclasses.dataclass(frozen=True)
class TimedCut:
    """A cut with the measured milliseconds of both parts on this machine, least CPU times of a thread.

    Errors are relative to the norm of an output, the greatest of all outputs; None where nothing is cut.
    """

    cut: Cut
    device_ms: float
    cloud_ms: float
    error: float | None = None
    quantised_error: float | None = None


@dataclasses.dataclass(frozen=True)
class Network:
    name: str
    weights: str
    cut_count: int
    cuts: tuple[TimedCut, ...]  # those that some conditions make the fastest
    prediction_error: dict[str, float]  # by the way of prediction: mean over parts, as a share of the whole


def write(folder: Path, models: ModelFolder) -> dict[str, tuple[Path, str]]:
    """Write the networks; return for each its file, and where its weights are from."""
    found = {}
    for name, build in SEEDED.items():
        onnx.save(build().model(), folder / f"{name}.onnx")
        found[name] = (folder / f"{name}.onnx", "seeded")
    try:
        found["nanodet (livestream)"] = (models.file(manifest().chosen(["det_nanodet"])[0]), "published")
    except ModelFileError:
        onnx.save(ARCHITECTURES["item_detection"]().model(), folder / "item_detection.onnx")
        found["item_detection (livestream)"] = (folder / "item_detection.onnx", "seeded")
    return found


def measure(name: str, path: Path, weights: str, folder: Path, *, most_cuts: int) -> Network:
    """Return a network with the times of the parts of its worthwhile cuts, spread where there are more than a limit."""
    model, by_rates = find_cuts(path), find_cuts(path, times="rates")
    cuts = model.worthwhile()
    if len(cuts) > most_cuts:
        inner = cuts[1:-1]
        cuts = (cuts[0], *inner[:: -(-len(inner) // (most_cuts - 2))], cuts[-1])
    sample = _sample(model)
    whole_ms = _least_ms(Session(path), sample)
    timed = []
    errors: dict[str, list[float]] = {"steps": [], "rates": [], "plans of parts": []}
    for cut in cuts:
        if cut in {model.all_there, model.all_here}:
            here_ms = whole_ms if cut == model.all_here else 0.0
            timed.append(TimedCut(cut, here_ms, whole_ms - here_ms))
            continue
        parts = write_parts(model, cut, folder)
        device, cloud = Session(parts.device), Session(parts.cloud)
        sent, _ = passing(device.run(sample))
        device_ms, cloud_ms = _least_ms(device, sample), _least_ms(cloud, sent)
        other = by_rates.cuts[model.cuts.index(cut)]
        predicted = {
            "steps": (cut.device_us, cut.cloud_us),
            "rates": (other.device_us, other.cloud_us),
            "plans of parts": (_planned_us(device), _planned_us(cloud)),
        }
        for way, (device_us, cloud_us) in predicted.items():
            errors[way] += [abs(device_us / 1e3 - device_ms) / whole_ms, abs(cloud_us / 1e3 - cloud_ms) / whole_ms]
        exact = max(one.relative for one in errors_of(path, parts, [sample]))
        quantised = write_parts(model, cut, folder, is_quantised=True)
        rounded = max(one.relative for one in errors_of(path, quantised, [sample]))
        timed.append(TimedCut(cut, device_ms, cloud_ms, exact, rounded))
    means = {way: sum(found) / len(found) for way, found in errors.items() if found}
    return Network(name, weights, len(model.cuts), tuple(timed), means)


def _sample(model: CutModel) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        name: rng.standard_normal(one.shape).astype(np.float32)
        if str(one.dtype) == "float32"
        else np.ones(one.shape, np.int64)
        for name, one in zip(model.graph.input_names, model.inputs, strict=True)
    }


def _least_ms(session: Session, inputs: dict[str, Any]) -> float:
    session.run(inputs)
    least_ns, spent_ns, runs = float("inf"), 0, 0
    while spent_ns < _LEAST_S * 1e9 or runs < 5:
        begin_ns = time.thread_time_ns()
        session.run(inputs)
        took_ns = time.thread_time_ns() - begin_ns
        least_ns, spent_ns, runs = min(least_ns, took_ns), spent_ns + took_ns, runs + 1
    return least_ns / 1e6


def _planned_us(session: Session) -> float:
    plan = session.plan()
    assert plan is not None
    return sum(step.predicted_us for step in plan.ops)
