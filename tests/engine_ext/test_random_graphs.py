"""2,000 random graphs against ONNX Runtime without its optimiser; failing ones are shrunk. More: make fuzz-graphs."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.engine_ext.random_graphs.campaign import (
    FAMILIES,
    Case,
    Failure,
    Setting,
    backends,
    campaign,
    make_case,
    save,
    shrunk,
)
from tests.engine_ext.random_graphs.comparison import expect
from tests.engine_ext.random_graphs.shrinking import Sample, shrink

GRAPHS, CHUNK, SEED = 2000, 200, 31


@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_random_graphs_agree_with_onnx_runtime(first: int, tmp_path: Path) -> None:
    report = campaign(make_case(number, SEED) for number in range(first, first + CHUNK))
    assert report.without_reference.total() <= CHUNK // 50, dict(report.without_reference)
    if report.failures:
        said = [_shown(tmp_path, case, failure) for case, failure in report.failures[:3]]
        pytest.fail(f"{len(report.failures)} of {CHUNK} graphs are wrong:\n" + "\n\n".join(said))


def _shown(folder: Path, case: Case, failure: Failure) -> str:
    small, what = shrunk(case, failure)
    return f"{case.name}, {failure.setting}: {failure.what}\n{save(folder, case.name, small, what)}"


def test_every_family_backend_and_setting_is_drawn() -> None:
    cases = [make_case(number, SEED) for number in range(CHUNK)]
    assert {case.name.partition("-")[0] for case in cases} == FAMILIES.keys()
    settings = {setting for case in cases for setting in case.settings}
    assert {one.backend for one in settings} == {"auto", *backends()}
    assert {(one.threads, one.open_shapes) for one in settings} == {(1, False), (1, True), (2, False), (2, True)}


def test_the_same_number_gives_the_same_graph() -> None:
    one, other = make_case(7, SEED), make_case(7, SEED)
    assert one.sample.model.SerializeToString() == other.sample.model.SerializeToString()
    assert all(one.sample.feeds[name].tobytes() == other.sample.feeds[name].tobytes() for name in one.sample.feeds)
    assert make_case(7, SEED + 1).sample.model.SerializeToString() != one.sample.model.SerializeToString()


def test_one_wrong_element_is_found() -> None:
    case = make_case(3, SEED, "vision")
    expected = expect(case.sample.model, case.sample.feeds, 0)
    values = {name: np.array(value) for name, value in expected.values.items()}
    assert expected.difference(values) is None
    name = next(iter(values))
    values[name].reshape(-1)[-1] += 1e-3 * max(1, np.abs(values[name]).max())
    assert f"output {name!r}: 1 of" in str(expected.difference(values))


def test_a_failing_graph_is_shrunk_to_the_node_that_fails(tmp_path: Path) -> None:
    def has_softmax(sample: Sample) -> bool:
        return any(node.op_type == "Softmax" for node in sample.model.graph.node)

    cases = (make_case(number, SEED, "transformer") for number in range(CHUNK))
    case = next(one for one in cases if has_softmax(one.sample) and len(one.sample.model.graph.node) > 20)
    small = shrink(case.sample, has_softmax)
    assert [node.op_type for node in small.model.graph.node] == ["Softmax"]
    assert sum(array.size for array in small.feeds.values()) == 1
    assert expect(small.model, small.feeds, 0).values  # ONNX Runtime takes it
    failure = Failure(Setting("scalar", 1, False), "as an example")
    text = save(tmp_path, "example", small, failure.what)
    assert "Softmax" in text
    assert onnx.load(tmp_path / "example.onnx").graph.node[0].op_type == "Softmax"
    compile((tmp_path / "example.py").read_text(), "example.py", "exec")
