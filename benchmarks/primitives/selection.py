"""Selection of primitives for whole networks (Mulder et al., Table 1, Fig. 5): by predicted and by measured times.

Both selections are compared in the measured times of their primitives, and by runs of the network, which take turns.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.primitives.data import is_conversion
from benchmarks.primitives.networks import Network, conv_name
from walle.engine_ext import _core
from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.profiling import profile_layers
from walle.engine_ext.search.samples_file import Sample
from walle.search import PerformanceModel, solve_pbqp

_ROUNDS = 15
_FEWEST_RUNS = 5
_RUNS_S = 10.0
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
    latency_increase: float  # the same in latencies of the whole network
    planned_increase: float  # excess of the plan that a session makes by itself, in such latencies
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

    def algorithms(self, choices: Sequence[int]) -> dict[str, tuple[str, int]]:
        """Return the algorithm and its parameter for each convolution of the network's model."""
        chosen = [names[choice] for names, choice in zip(self.names, choices, strict=True)]
        parts = [name.rstrip(")").rpartition("(") for name in chosen]
        return {conv_name(i): (name, int(parameter)) for i, (name, _, parameter) in enumerate(parts)}

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
    backend: str,
    seconds: float = _RUNS_S,
) -> Selected:
    """Return both selections of a network, compared in measured times and in runs of that many seconds each."""
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
    of_measured, of_predicted = measured.algorithms(chosen_measured), measured.algorithms(chosen)
    best, predicted_us, planned_us = latencies(network, backend, (of_measured, of_predicted, {}), seconds)
    return Selected(
        network=name,
        layers=len(network.layers),
        model_ms=1e3 * model_s,
        pbqp_ms=1e3 * pbqp_s,
        profiling_s=profiling_s,
        measured_us=best_us,
        increase=measured.sum_of(chosen) / best_us - 1,
        latency_increase=predicted_us / best - 1,
        planned_increase=planned_us / best - 1,
        differing=sum(one != other for one, other in zip(chosen, chosen_measured, strict=True)),
    )


def latencies(
    network: Network, backend: str, selections: Sequence[Mapping[str, tuple[str, int]]], seconds: float
) -> list[float]:
    """Return the median CPU microseconds of runs of the network by each selection, an empty one being the plan's own.

    Runs take turns for that many seconds of each selection, five runs at least. Equal plans have equal latencies.
    """
    model = network.to_bytes()
    x = np.random.default_rng(1).standard_normal((1, *_shape(network)), np.float32)
    sessions = [_core.Session(model, backend, algorithms=dict(one)) for one in selections]
    plans = [_chosen(session) for session in sessions]
    places = [plans.index(plan) for plan in plans]
    times: dict[int, list[float]] = {place: [] for place in places}
    for place in times:
        sessions[place].run({"x": x}, None)  # the first run gets memory
    while min(map(len, times.values())) < _FEWEST_RUNS or sum(map(sum, times.values())) < 1e6 * seconds * len(times):
        for place, measured in times.items():
            begin_ns = time.thread_time_ns()
            sessions[place].run({"x": x}, None)
            measured.append((time.thread_time_ns() - begin_ns) / 1e3)
    return [statistics.median(times[place]) for place in places]


def _shape(network: Network) -> tuple[int, int, int]:
    return network.image.channels, network.image.size, network.image.size


def _chosen(session: _core.Session) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the steps of a plan by name, changes of layout among them, and the algorithm of each that has one."""
    plan = session.plan()
    assert plan is not None, "the model fixes all shapes"
    return [(op[0], [one[:2] for one in op[-1][:1]]) for op in plan["ops"]]


def _known(times: Mapping[str, float], name: str) -> float:
    us = times.get(name, math.nan)
    return us if math.isfinite(us) else _UNKNOWN_US


def _parts(network: Network, reader: int) -> dict[int, float]:
    """Return the share of a layer's input channels that each layer whose result it reads gives."""
    channels = network.layers[reader].c
    return {source: min(1.0, network.layers[source].k / channels) for source, other in network.edges if other == reader}
