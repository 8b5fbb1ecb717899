"""Selection of primitives for whole networks (Mulder et al., Table 1, Fig. 5): by predicted and by measured times."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.primitives.data import is_conversion
from benchmarks.primitives.networks import Network
from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.profiling import profile_layers
from walle.engine_ext.search.samples_file import Sample
from walle.search import PerformanceModel, solve_pbqp

_ROUNDS = 15
_UNKNOWN_US = 1e9  # cost of a primitive that no sample of the model had


class Selected(NamedTuple):
    """A network: times of model, PBQP and profiling its layers (CPU), and how its two selections differ."""

    network: str
    layers: int
    model_ms: float
    pbqp_ms: float
    profiling_s: float
    measured_us: float  # cost of the selection by measured times
    increase: float  # excess of the selection by predicted times, in measured times
    differing: int  # layers of other choices


def profiled(layers: Sequence[Layer], backend: str, runs: int) -> tuple[dict[Layer, Sample], float]:
    """Return the samples of layers, each measured once, and the CPU seconds that this took."""
    begin = time.process_time()
    different = list(dict.fromkeys(layers))
    return dict(zip(different, profile_layers(different, backend, runs=runs), strict=True)), time.process_time() - begin


class _Costs:
    """Node and edge costs of a network by one source of times."""

    def __init__(self, network: Network, samples: Mapping[Layer, Sample], times: Sequence[Mapping[str, float]]) -> None:
        self._samples = [samples[layer] for layer in network.layers]
        self.names = [sorted(name for name in one.us if not is_conversion(name)) for one in self._samples]
        self.nodes = [[_known(times[i], name) for name in names] for i, names in enumerate(self.names)]
        shares = [_parts(network, reader) for reader in range(len(network.layers))]
        self.edges = {
            (source, reader): np.array(self._matrix(source, reader, times[reader], shares[reader][source]))
            for source, reader in network.edges
        }

    def _matrix(self, source: int, reader: int, times: Mapping[str, float], share: float) -> list[list[float]]:
        """Return the microseconds of changing the layout of the value between two layers, by their primitives."""
        outs = [self._samples[source].layouts[name].partition(">")[2] for name in self.names[source]]
        ins = [self._samples[reader].layouts[name].partition(">")[0] for name in self.names[reader]]
        change = {"plain": _known(times, "pack"), "packed": _known(times, "unpack")}
        return [[0.0 if one == other else share * change[one] for other in ins] for one in outs]

    def solve(self) -> list[int]:
        return [int(choice) for choice in solve_pbqp([np.array(node) for node in self.nodes], self.edges)[0]]

    def sum_of(self, choices: Sequence[int]) -> float:
        nodes = sum(costs[choice] for costs, choice in zip(self.nodes, choices, strict=True))
        return nodes + float(sum(matrix[choices[a], choices[b]] for (a, b), matrix in self.edges.items()))


def select(
    name: str,
    network: Network,
    model: PerformanceModel,
    primitives: Sequence[str],
    samples: Mapping[Layer, Sample],
    profiling_s: float,
) -> Selected:
    """Return both selections of a network, compared in measured times."""
    layers = np.array(network.layers, float)
    measured = _Costs(network, samples, [samples[layer].us for layer in network.layers])
    chosen_measured = measured.solve()
    timings: list[tuple[float, float]] = []
    chosen: list[int] = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        predicted = np.asarray(model.predict(layers), float)
        middle = time.perf_counter()
        rows = [dict(zip(primitives, row, strict=True)) for row in predicted.tolist()]
        chosen = _Costs(network, samples, rows).solve()
        timings.append((middle - begin, time.perf_counter() - middle))
    model_s, pbqp_s = (statistics.median(column) for column in zip(*timings, strict=True))
    best_us = measured.sum_of(chosen_measured)
    return Selected(
        network=name,
        layers=len(network.layers),
        model_ms=1e3 * model_s,
        pbqp_ms=1e3 * pbqp_s,
        profiling_s=profiling_s,
        measured_us=best_us,
        increase=measured.sum_of(chosen) / best_us - 1,
        differing=sum(one != other for one, other in zip(chosen, chosen_measured, strict=True)),
    )


def _known(times: Mapping[str, float], name: str) -> float:
    us = times.get(name, math.nan)
    return us if math.isfinite(us) else _UNKNOWN_US


def _parts(network: Network, reader: int) -> dict[int, float]:
    """Return the share of a layer's input channels that each layer whose result it reads gives."""
    channels = network.layers[reader].c
    return {source: min(1.0, network.layers[source].k / channels) for source, other in network.edges if other == reader}
