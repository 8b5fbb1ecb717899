"""The whole node suite of the `onnx` package: a case passes, or stands in the table of its version with its reason."""

import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tests.engine_ext.attention_text import definition
from tests.sim.onnx_suite import (
    TABLE,
    TABLES,
    Outcome,
    all_cases,
    difference,
    load_case,
    quiet,
    read_table,
    run_case,
    run_suite,
    to_value,
)
from walle.onnx_backend import Backend

VERSION = onnx.__version__
LEFT_OUT = read_table()
# The least numbers of cases that pass, by the issues of this project.
FLOORS = {"1.21.0": 1621, "1.23.2": 1800}
HAS_TABLE = pytest.mark.skipif(
    VERSION not in TABLES, reason=f"there are tables for onnx {', '.join(TABLES)}, this is {VERSION}"
)
UPDATE = "write the table again: python -m tests.sim.onnx_suite"


def broken_among(found: dict[str, Outcome]) -> str:
    """Return the cases that neither pass nor are left out, a line each."""
    return "\n".join(
        f"{name}: {outcome.status}: {outcome.reason}"
        for name, outcome in found.items()
        if outcome.status != "pass" and (name not in LEFT_OUT or LEFT_OUT[name].status != outcome.status)
    )


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    with quiet():
        return all_cases()


@HAS_TABLE
def test_each_fortieth_case_passes_or_is_left_out_for_a_reason(cases: dict[str, Any]) -> None:
    names = sorted(cases)[::40]
    assert len(names) > 25
    with quiet():
        assert not broken_among({name: run_case(cases[name]) for name in names})


@pytest.mark.night
@HAS_TABLE
def test_every_case_passes_or_is_left_out_for_a_reason() -> None:
    found = run_suite()
    assert not broken_among(found)
    better = [name for name in LEFT_OUT if name in found and found[name].status == "pass"]
    assert not better, f"{len(better)} cases pass now ({', '.join(better[:5])}); {UPDATE}"
    gone = [name for name in LEFT_OUT if name not in found]
    assert not gone, f"{len(gone)} cases of the table are not in onnx {VERSION} ({', '.join(gone[:5])}); {UPDATE}"
    counts = tomllib.loads(TABLE.read_text())
    assert counts["cases"] == len(found), UPDATE
    assert counts["passed"] == len(found) - len(LEFT_OUT), UPDATE


@pytest.mark.parametrize("version", TABLES)
def test_every_table_has_reasons_and_enough_cases_that_pass(version: str) -> None:
    assert all(len(outcome.reason) > 10 for outcome in read_table(TABLES[version]).values())
    assert tomllib.loads(TABLES[version].read_text())["passed"] >= FLOORS[version]


def saturated_product(node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
    """QLinearMatMul: y = saturate((x / y_scale) + y_zero_point), x / y_scale rounded to nearest, ties to even."""
    del node
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (one.astype(np.float64) for one in inputs)
    y = np.rint((a - a_zero) @ (b - b_zero) * (a_scale * b_scale / y_scale)) + y_zero
    limits = np.iinfo(inputs[7].dtype)
    return [np.clip(y, limits.min, limits.max).astype(inputs[7].dtype)]


def inverse_transform(node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
    """DFT with inverse = 1 along axis 1, in float64."""
    del node
    x = inputs[0].astype(np.float64)
    y = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1)
    exact = np.stack([y.real, y.imag], -1)
    exact[np.abs(exact) < 1e-12] = 0  # the noise of float64
    return [exact.astype(np.float32)]


def adam(node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
    """Adam's pseudo code at T = 0, with the defaults of ONNX's own schema."""
    schema = onnx.defs.get_schema("Adam", 1, "ai.onnx.preview.training")
    said = {one.name: one.f for one in node.attribute}
    given = {name: said.get(name, one.default_value.f) for name, one in schema.attributes.items()}
    rate, count, *rest = inputs
    assert count == 0
    x, g, v, h = (rest[i : i + 2] for i in range(0, 8, 2))
    g = [given["norm_coefficient"] * x[i] + g[i] for i in range(2)]
    v = [given["alpha"] * v[i] + (1 - given["alpha"]) * g[i] for i in range(2)]
    h = [given["beta"] * h[i] + (1 - given["beta"]) * g[i] * g[i] for i in range(2)]
    new = [x[i] - rate * v[i] / (np.sqrt(h[i]) + given["epsilon"]) for i in range(2)]
    return [one.astype(np.float32) for one in (*new, *v, *h)]


def attention(node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
    """Attention by the text of onnx 1.23.2, for the operands that the cases of onnx 1.21 give."""
    given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    present = iter(inputs)
    operands = dict(zip(("q", "k", "v", "mask", "past_key", "past_value", "lengths"), node.input, strict=False))
    values = {name: next(present) for name, said in operands.items() if said}
    q, k, v = values["q"], values["k"], values["v"]
    if flat := q.ndim == 3:
        heads = {"q": given["q_num_heads"], "k": given["kv_num_heads"], "v": given["kv_num_heads"]}
        q, k, v = (values[name].reshape(*values[name].shape[:2], heads[name], -1).swapaxes(1, 2) for name in "qkv")
    past = 0
    if "past_key" in values:
        past = values["past_key"].shape[2]
        k, v = np.concatenate([values["past_key"], k], 2), np.concatenate([values["past_value"], v], 2)
    found = definition(
        q, k, v, values.get("mask"), values.get("lengths"), past,
        causal=given.get("is_causal", 0) != 0, softcap=given.get("softcap", 0), scale=given.get("scale"),
    )  # fmt: skip
    y = found["y"].swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1) if flat else found["y"]
    shown = found[("raw", "capped", "scores", "weights")[given.get("qk_matmul_output_mode", 0)]]
    results = (y, k, v, shown)
    return [one.astype(inputs[0].dtype) for one, name in zip(results, node.output, strict=False) if name]


TEXT: dict[str, Callable[[onnx.NodeProto, list[Any]], list[Any]]] = {
    "QLinearMatMul": saturated_product,
    "DFT": inverse_transform,
    "Adam": adam,
    "Attention": attention,
}


DIFFERING = [name for name, outcome in LEFT_OUT.items() if outcome.status == "differs"]
# Cases whose expected values are rounded at each step; both they and the engine are near the definition.
ROUNDED = {"test_attention_4d_causal_fp16_expanded"}


@HAS_TABLE
@pytest.mark.parametrize("name", [name for name in DIFFERING if name not in ROUNDED])
def test_a_case_that_differs_contradicts_the_text_of_its_operator(name: str) -> None:
    with quiet():
        case = all_cases()[name]
        model, [(inputs, expected)] = load_case(case)
        arrays = [to_value(one) for one in inputs]
        wanted = TEXT[model.graph.node[0].op_type](model.graph.node[0], arrays)
        found = list(Backend.run_model(model, arrays))
    assert difference(wanted, found, case.rtol, case.atol) is None
    assert difference(wanted, to_value(expected), case.rtol, case.atol) is not None


@HAS_TABLE
@pytest.mark.parametrize("name", [name for name in DIFFERING if name in ROUNDED] or ["none in this table"])
def test_the_engine_is_nearer_to_the_definition_than_a_case_that_rounds_at_each_step(name: str) -> None:
    if name not in LEFT_OUT:
        pytest.skip(f"onnx {VERSION} has no such case")
    with quiet():
        case = all_cases()[name]
        model, [(inputs, [expected])] = load_case(case)
        arrays = [to_value(one) for one in inputs]
        (found,) = Backend.run_model(model, arrays)
    q, k, v = (one.astype(np.float64) for one in arrays)
    exact = definition(q, k, v, None, None, 0, causal=True, softcap=0, scale=None)["y"]
    ours, theirs = (np.abs(one.astype(np.float64) / exact - 1).max() for one in (found, to_value(expected)))
    assert ours < theirs < case.rtol
