"""Cuts of a model file: what passes, its bytes, and the times of both parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.split.models import saved, shaped, shrinking, two_ends
from walle import np
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.split.chooser import choose
from walle.split.conditions import Conditions
from walle.split.cuts import CutModel, find_cuts


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory: pytest.TempPathFactory) -> CutModel:
    return find_cuts(shrinking(tmp_path_factory.mktemp("models"))[0], times="rates")


def test_cuts_go_from_all_there_to_all_here(tmp_path: Path) -> None:
    path, _ = saved("residual", tmp_path)
    found = find_cuts(path)
    cuts = found.cuts
    assert found.all_there is cuts[0]
    assert found.all_here is cuts[-1]
    assert cuts[0].up_bytes == 4 * 64
    assert cuts[0].down_bytes == 4 * 4
    assert cuts[-1].up_bytes == cuts[-1].down_bytes == 0
    assert [one.place for one in cuts] == sorted({one.place for one in cuts})
    assert cuts[0].device_us == 0
    assert cuts[-1].cloud_us == pytest.approx(0)
    whole = cuts[-1].device_us
    assert whole > 0
    assert all(one.device_us + one.cloud_us == pytest.approx(whole) for one in cuts)
    assert [one.device_us for one in cuts] == sorted(one.device_us for one in cuts)


def test_within_a_shortcut_two_arrays_pass(tmp_path: Path) -> None:
    path, _ = saved("residual", tmp_path)
    passing = {len(one.values): one for one in find_cuts(path).cuts}
    assert passing[1].values
    assert passing[2].up_bytes == 4 * (6 + 12) * 64  # the shortcut, and the wider array beside it


def test_times_by_rates_need_no_runs_and_have_the_same_cuts(tmp_path: Path) -> None:
    path, _ = saved("depthwise", tmp_path)
    one, other = find_cuts(path, times="rates"), find_cuts(path)
    assert [cut.place for cut in one.cuts] == [cut.place for cut in other.cuts]
    assert one.cuts == find_cuts(path, times="rates").cuts


def test_bytes_are_of_the_given_shapes(tmp_path: Path) -> None:
    path, inputs = saved("residual", tmp_path)
    name = next(iter(inputs))
    assert find_cuts(path, {name: (3, 1, 8, 8)}).all_there.up_bytes == 3 * 4 * 64
    with pytest.raises(ModelError, match="no input y; the model takes"):
        find_cuts(path, {"y": (1,)})


def test_a_value_that_shapes_decide_does_not_pass(tmp_path: Path) -> None:
    found = find_cuts(shaped(tmp_path / "shaped.walle"))
    assert found.fixed
    assert all(found.arrays[number].dtype == "float32" for one in found.cuts for number in one.values)
    assert len(found.cuts) > 3


def test_the_cloud_sends_back_only_what_it_computed(tmp_path: Path) -> None:
    found = find_cuts(two_ends(tmp_path / "two.walle"), {"x": (1, 6)})
    assert {one.down_bytes for one in found.cuts} == {48, 24, 0}


def test_with_all_there_the_device_computes_nothing_also_where_an_input_changes_its_layout(tmp_path: Path) -> None:
    graph = GraphBuilder("packed")
    weights = np.ones((16, 16, 3, 3), "float32")
    x = graph.input("x", (1, 16, 32, 32))
    y = graph.op("Conv", [x, graph.constant("weights", weights)], pads=[1, 1, 1, 1])
    pooled = graph.op("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    graph.output("y", graph.op("Relu", [graph.op("Add", [y, pooled])]))
    path = tmp_path / "packed.walle"
    graph.save(path)
    cuts = find_cuts(path).cuts
    assert cuts[0].device_us == 0
    assert cuts[-1].device_us > 0


def test_control_flow_is_refused(tmp_path: Path) -> None:
    graph = GraphBuilder("flow")
    condition = graph.input("condition", (), "bool")
    branches = []
    for name in ("then", "else"):
        inner = graph.subgraph(name)
        inner.output(name, inner.constant(f"{name} value", [1.0]))
        branches.append(inner)
    graph.output("y", graph.op("If", [condition], then_branch=branches[0], else_branch=branches[1]))
    graph.save(tmp_path / "flow.walle")
    with pytest.raises(UnsupportedError, match="control flow"):
        find_cuts(tmp_path / "flow.walle")


@given(st.floats(0.0, 200.0), st.floats(10.0, 1e6), st.floats(0.1, 100.0), st.floats(0.1, 100.0), st.booleans())
def test_the_fastest_cut_is_among_the_worthwhile(
    shrunk: CutModel, rtt: float, rate: float, device: float, cloud: float, is_quantised: bool
) -> None:
    conditions = Conditions(rtt, rate, device, cloud)
    best = choose(shrunk.cuts, conditions, is_quantised=is_quantised).latency.total_ms
    few = choose(shrunk.worthwhile(is_quantised=is_quantised), conditions, is_quantised=is_quantised)
    assert few.latency.total_ms == pytest.approx(best)
