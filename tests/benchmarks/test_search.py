"""The search figure: its networks, regret and errors of given predictions, selection with layouts, and the report."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.primitives import report as reports
from benchmarks.primitives.accuracy import ALL, Regret, median_errors, regret
from benchmarks.primitives.data import Data, class_of
from benchmarks.primitives.networks import NETWORKS, Network, conv_name
from benchmarks.primitives.selection import Selected, latencies, select
from benchmarks.primitives.transfer import Transferred, transfers
from walle.engine_ext.search.layers import Layer, LayerDraw
from walle.engine_ext.search.samples_file import Sample, SampleSet, SamplesHead
from walle.engine_ext.session import Session
from walle.search import PerformanceModel

PRIMITIVES = ("direct(0)", "winograd(2)", "pack")
NAN = math.nan


@pytest.mark.parametrize(
    ("name", "layers", "gflops"),
    [
        ("AlexNet", 5, 1.35),
        ("VGG-11", 8, 15.0),
        ("VGG-19", 16, 39.0),
        ("GoogLeNet", 57, 3.2),
        ("ResNet-18", 20, 3.6),
        ("ResNet-34", 36, 7.3),
    ],
)
def test_networks_have_the_sizes_that_were_published(name: str, layers: int, gflops: float) -> None:
    network = NETWORKS[name]()
    assert len(network.layers) == layers
    assert sum(layer.flops for layer in network.layers) / 1e9 == pytest.approx(gflops, rel=0.08)
    assert all(source < reader for source, reader in network.edges)
    assert {reader for _, reader in network.edges} == set(range(1, layers))
    assert all(layer.fits() for layer in network.layers)


def data() -> Data:
    layers = np.array([[8, 8, 28, 1, 3], [16, 8, 28, 1, 3], [8, 8, 28, 2, 3]], float)
    times = np.array([[10.0, 5.0, 1.0], [20.0, 25.0, 1.0], [4.0, NAN, 1.0]])
    return Data(layers, times, PRIMITIVES)


def test_regret_is_the_excess_of_the_predicted_best() -> None:
    predicted = np.array([[9.0, 9.5, 0.1], [30.0, 31.0, 0.1], [4.0, 1.0, 0.1]])  # wrong, right, without a choice
    found = regret(predicted, data())
    assert (found.mean, found.worst, found.layers) == (0.5, 1.0, 2)
    assert regret(np.nan_to_num(data().times, nan=0.0), data()) == Regret(0.0, 0.0, 0.0, 2)


def test_errors_are_medians_of_the_defined_times_by_class() -> None:
    predicted = np.array([[11.0, 5.0, 1.0], [24.0, 30.0, 1.0], [4.0, 99.0, 1.3]])
    found = median_errors(predicted, data())
    assert {name: round(error, 6) for name, error in found.items()} == {
        "direct": 0.1, "pack": 0.0, "winograd": 0.1, ALL: 0.05,
    }  # fmt: skip
    assert class_of("merged groups(2)") == "merged groups"
    predicted[:, 1] = NAN  # no training layer had the primitive
    assert median_errors(predicted, data())["winograd"] == math.inf
    assert regret(predicted, data()).worst == 1.0


def test_columns_are_aligned_and_split_without_overlap() -> None:
    found = data().only(["pack", "winograd(6)"])
    assert found.times[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(found.times[:, 1]).all()
    many = Data(np.arange(50.0).reshape(10, 5), np.arange(10.0).reshape(10, 1), ("pack",))
    train, test = many.split(0)
    assert (len(train), len(test)) == (9, 1)
    assert sorted([*train.times[:, 0], *test.times[:, 0]]) == list(range(10))


def cost_us(layer: Layer, primitive: str, factor: float) -> float:
    """Return the microseconds of an imagined machine, on which neither algorithm is always the best."""
    pixels = layer.out**2
    speed = {"direct": 40e3, "winograd": 90e3}.get(class_of(primitive), 20e3)
    setup = {"winograd": 20.0 + 0.02 * pixels * (layer.k + layer.c)}.get(class_of(primitive), 1.0)
    work = 4 * layer.c * layer.im**2 if primitive == "pack" else layer.flops
    return factor * (setup + work / speed)


def samples(count: int, factor: float) -> SampleSet:
    rows = []
    for layer in itertools.islice(LayerDraw(5), count):
        names = [name for name in PRIMITIVES if class_of(name) != "winograd" or (layer.s, layer.f) == (1, 3)]
        rows.append(Sample(layer, {name: cost_us(layer, name, factor) for name in names}, {}))
    return SampleSet(SamplesHead("a CPU", "avx2", "0.1.0", 5), rows)


@pytest.mark.night
def test_transfer_compares_few_samples_with_all() -> None:
    first, second = (Data.of(samples(60, factor)) for factor in (1.0, 3.0))
    target, test = second.split(0)
    rows = transfers(first, target, test, fractions=(0.1,), repeats=1, seed=0)
    assert [(row.fraction, row.how) for row in rows] == [
        (0.02, "random"), (0.02, "active"), (0.1, "random"), (0.1, "active"), (1.0, "from scratch"),
    ]  # fmt: skip
    assert [row.samples for row in rows] == [1, 1, 5, 5, 54]
    assert all(0 <= row.error < 1 and row.regret >= 0 for row in rows)


def test_selection_weighs_layouts_and_is_compared_in_measured_times() -> None:
    network = Network()
    network.image = network.image._replace(size=8)
    x = network.conv(network.image, 8, 3)
    network.conv(network.conv(x, 16, 3), 8, 3)
    us = {"im2col GEMM(0)": 10.0, "direct(0)": 11.0, "pack": 4.0, "unpack": 4.0}
    layouts = {"im2col GEMM(0)": "plain>plain", "direct(0)": "packed>packed"}
    model = PerformanceModel.fit(np.array(network.layers, float), np.array([list(us.values())] * 3), seed=0)

    def selected(middle_us: float) -> Selected:
        """Return the selections where the model expects 11 µs of each direct convolution."""
        measured = {layer: Sample(layer, us, layouts) for layer in network.layers}
        measured[network.layers[1]] = Sample(network.layers[1], us | {"direct(0)": middle_us}, layouts)
        return select("AlexNet", network, model, tuple(us), measured, 1.5, "scalar", 0.01)

    assert selected(11.0).measured_us == 30.0  # no change of layout
    assert (selected(11.0).increase, selected(11.0).differing) == (0.0, 0)
    assert selected(11.0).profiling_s == 1.5
    assert selected(1.0).measured_us == 23.0  # all direct, because changes of layout cost 8
    assert selected(1.0).increase == pytest.approx(30 / 23 - 1)
    assert selected(1.0).differing == 3
    assert selected(1e-3).measured_us == pytest.approx(22.001)


def small_network() -> Network:
    """Return a network with all kinds of steps on an image of 8 pixels a side."""
    network = Network()
    network.image = network.image._replace(size=8)
    x = network.pool(network.conv(network.image, 8, 3), 4)
    y = network.add(network.conv(network.conv(x, 8, 3), 8, 3, is_summand=True), x)
    network.conv(network.concat(y, network.conv(x, 8, 1)), 8, 1, 2)
    return network


def test_a_plan_names_the_convolutions_of_a_network_by_their_numbers() -> None:
    network = small_network()
    plan = Session(network.to_bytes(), backend="scalar").plan()
    assert plan is not None
    assert {op.name for op in plan.ops if op.candidates} == {conv_name(i) for i in range(len(network.layers))}


def test_latencies_are_of_the_forced_algorithms_and_equal_for_equal_plans() -> None:
    forced = {conv_name(1): ("im2col GEMM", 0)}
    found = latencies(small_network(), "scalar", ({}, forced, {}, forced), seconds=0.01)
    assert (found[0], found[1]) == (found[2], found[3])
    assert min(found) > 0


def test_the_report_is_drawn_beside_the_papers_numbers(tmp_path: Path) -> None:
    regrets = {"ours": Regret(0.01, 0.05, 0.1, 7), "Linear": Regret(0.03, 0.2, 0.4, 7)}
    errors = {name: {"direct": 0.02, ALL: 0.03} for name in regrets}
    moved = [Transferred(0.1, 5, how, 0.1, 0.02) for how in ("random", "active", "from scratch")]
    model = PerformanceModel.fit([[8, 3, 224, 1, 3]] * 2, [[10.0]] * 2, seed=0)
    network = Network()
    network.image = network.image._replace(size=8)
    network.conv(network.image, 8, 3)
    layer = network.layers[0]
    measured = {layer: Sample(layer, {"direct(0)": 10.0}, {"direct(0)": "plain>packed"})}
    row = select("ResNet-34", network, model, ("direct(0)",), measured, 0.5, "scalar", 0.01)
    report = reports.Report({"machine": "M & <N>"}, regrets, errors, {"avx512 to avx2": moved}, [row])
    text = reports.table(report)
    assert "1.00 %" in text
    assert "194 ms" in text
    assert "+0.39 %" in text
    reports.plot(report, tmp_path / "search.png")
    reports.page(text, "M & <N>", tmp_path / "search.png", tmp_path / "search.html")
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")
    assert "M &amp; &lt;N&gt;" in (tmp_path / "search.html").read_text()
    assert reports.plain(report)["networks"][0]["network"] == "ResNet-34"
