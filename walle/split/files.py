"""The two files of a cut model: the device's part, and the cloud's, which reads what the device's gives.

Both take and give arrays by name. The device's file has the model's inputs; it gives the arrays that pass as `cut 0`,
`cut 1`, and each output of the model that it has already computed. The cloud's file has the arrays that pass as its
inputs, and gives the other outputs. Quantised, a float32 array passes as int8 with its scales and offsets, taken from
each array itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle import nn, np
from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.export import builder_of, inference_trace
from walle.engine_ext.nn.partition import ArrayInfo
from walle.engine_ext.session import Session, load
from walle.split.cut import Cut
from walle.split.cuts import CutModel
from walle.split.quantised import dequantise, is_quantisable, quantise

PREFIX = "cut "
_PARTS = ("", " scale", " offset")


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of the two parts."""

    device: Path
    cloud: Path


@dataclass(frozen=True, slots=True)
class OutputError:
    """Difference of an output of the parts, run one after the other, from the uncut model's, over all samples.

    `greatest` is absolute, `relative` the norm of the differences as a share of the output's norm.
    """

    output: str
    greatest: float
    relative: float


def write_parts(model: CutModel, cut: Cut, folder: str | os.PathLike[str], *, is_quantised: bool = False) -> Parts:
    """Write `NAME.device.walle` and `NAME.cloud.walle`, and return their paths.

    Raises:
        ModelError: the cut is all here or all there, where the model's own file runs.
        OSError: a file cannot be written.
    """
    if cut in {model.all_here, model.all_there}:
        raise ModelError(f"{model.name} has no two parts where all of it runs in one place: its own file does")
    graph = model.graph
    infos = [model.arrays[number] for number in cut.values]
    names = [f"{PREFIX}{at}" for at in range(len(infos))]
    outputs = list(zip(graph.output_names, graph.outputs, strict=True))
    here = [one for one in outputs if graph.is_made_before(one[1], cut.place)]
    there = [one for one in outputs if one not in here]
    passing = list(zip(names, cut.values, strict=True))
    given = [(name, *model.input_types[at]) for at, name in enumerate(graph.input_names)]
    inputs = [(name, one.dtype, one.free_shape) for name, one in zip(names, infos, strict=True)]
    device: nn.Module = graph.part(given, graph.inputs, [*passing, *here], model.fixed)
    cloud: nn.Module = graph.part(inputs, cut.values, there, model.fixed)
    arrays = [np.zeros(one.shape, one.dtype) for one in infos]
    out_names = [*names, *(name for name, _ in here)]
    in_names = names
    if is_quantised:
        device, cloud = _Sender(device, infos), _Receiver(cloud, infos)
        in_names = [name + part for name, one in zip(names, infos, strict=True) for part in _sent_parts(one)]
        out_names = [*in_names, *(name for name, _ in here)]
        arrays = [part for one, info in zip(arrays, infos, strict=True) for part in _sent(one, info)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    parts = Parts(Path(folder) / f"{model.name}.device.walle", Path(folder) / f"{model.name}.cloud.walle")
    _write(device, model.inputs, graph.input_names, out_names, parts.device, free_batch=graph.free_batch)
    _write(cloud, arrays, in_names, [name for name, _ in there], parts.cloud, free_batch=graph.free_batch)
    return parts


def _write(
    module: nn.Module,
    inputs: Sequence[Any],
    names: Sequence[str],
    outputs: Sequence[str],
    path: Path,
    *,
    free_batch: bool,
) -> None:
    trace = inference_trace(module, inputs, free_batch=free_batch)
    trace.inputs = [(name, dtype, shape) for name, (_, dtype, shape) in zip(names, trace.inputs, strict=True)]
    trace.outputs = [(name, number) for name, (_, number) in zip(outputs, trace.outputs, strict=True)]
    builder_of(trace).save(path)


def _sent_parts(info: ArrayInfo) -> tuple[str, ...]:
    return _PARTS if is_quantisable(info) else _PARTS[:1]


def _sent(array: Any, info: ArrayInfo) -> tuple[Any, ...]:
    return quantise(array, info) if is_quantisable(info) else (array,)


class _Sender(nn.Module):
    """The device's part, with the arrays that pass in int8."""

    def __init__(self, part: nn.Module, infos: Sequence[ArrayInfo]) -> None:
        super().__init__()
        self.part = part
        self._infos = infos

    def forward(self, *inputs: Any) -> Any:
        found = self.part(*inputs)
        found = found if isinstance(found, tuple) else (found,)
        sent = [part for array, info in zip(found, self._infos, strict=False) for part in _sent(array, info)]
        return (*sent, *found[len(self._infos) :])


class _Receiver(nn.Module):
    """The cloud's part, for arrays that a `_Sender` gave."""

    def __init__(self, part: nn.Module, infos: Sequence[ArrayInfo]) -> None:
        super().__init__()
        self.part = part
        self._infos = infos

    def forward(self, *inputs: Any) -> Any:
        given = iter(inputs)
        arrays = []
        for info in self._infos:
            parts = [next(given) for _ in _sent_parts(info)]
            arrays.append(dequantise(*parts) if len(parts) > 1 else parts[0])
        return self.part(*arrays)


def passing(outputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the device's part gave as arrays that pass to the cloud, and outputs of the model."""
    sent = {name: one for name, one in outputs.items() if name.startswith(PREFIX)}
    return sent, {name: one for name, one in outputs.items() if name not in sent}


def run_parts(device: Session, cloud: Session, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's outputs, of the two parts one after the other."""
    sent, outputs = passing(device.run(inputs))
    return outputs | cloud.run(sent)


def errors_of(model: str | os.PathLike[str], parts: Parts, samples: Sequence[Mapping[str, Any]]) -> list[OutputError]:
    """Return the difference that the parts make for each output, over samples of the model's inputs."""
    whole, device, cloud = load(model), load(parts.device), load(parts.cloud)
    assert isinstance(device, Session)
    assert isinstance(cloud, Session)
    pairs = [(whole.run(dict(one)), run_parts(device, cloud, one)) for one in samples]
    found = []
    for info in whole.outputs:
        name = info.name
        differences = [np.asarray(got[name]) - np.asarray(expected[name]) for expected, got in pairs]
        norm = sum(float((np.asarray(expected[name]) ** 2).sum()) for expected, _ in pairs) ** 0.5
        found.append(
            OutputError(
                name,
                max(float(np.abs(one).max()) for one in differences),
                sum(float((one**2).sum()) for one in differences) ** 0.5 / max(norm, 1e-30),
            )
        )
    return found
