import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from walle.engine_ext.errors import UnsupportedError
from walle.onnx_backend import Backend


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], output: str, opset: int = 21
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", infos, [result])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def test_runs_a_model_by_position_and_by_name() -> None:
    model = model_of([helper.make_node("Sub", ["a", "b"], ["c"])], {"a": [2, 3], "b": [3]}, "c")
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, dtype=np.float32)
    prepared = Backend.prepare(model)
    for given in ([a, b], {"b": b, "a": a}):
        (result,) = prepared.run(given)
        np.testing.assert_array_equal(result, a - 1)
    np.testing.assert_array_equal(Backend.run_model(model, [a, b])[0], a - 1)


def test_a_zero_dimensional_input_stays_so() -> None:
    model = model_of([helper.make_node("Neg", ["a"], ["c"])], {"a": []}, "c")
    (result,) = Backend.run_model(model, [np.array(2, dtype=np.float32)])
    assert result.shape == ()


def test_refuses_at_prepare_with_the_node_and_the_operator() -> None:
    model = model_of([helper.make_node("NoSuchThing", ["a"], ["c"], name="culprit")], {"a": [2]}, "c")
    with pytest.raises(UnsupportedError, match=r"culprit.*NoSuchThing.*opset 21"):
        Backend.prepare(model)


def test_only_the_cpu_is_a_device() -> None:
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("CUDA:0")
    with pytest.raises(ValueError, match="CUDA"):
        Backend.prepare(model_of([helper.make_node("Neg", ["a"], ["c"])], {"a": []}, "c"), device="CUDA")
