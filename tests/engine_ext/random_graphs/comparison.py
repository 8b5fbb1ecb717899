"""Comparison of an engine's results with the reference, by bounds that follow from rounding.

A float differs by a multiple of the unit of rounding, of the square root of the number of operators, and of the
largest element of its output; and by what rounding of the inputs alone changes, which also finds elements beside a
jump. Bytes of a quantised graph differ by one step for each operator that rounds to steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.engine_ext.random_graphs.definition import Definition
from tests.engine_ext.random_graphs.maker import Array
from tests.engine_ext.random_graphs.reference import NoReference, Reference, most_of, unit_of

_ROUNDS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_FACTOR = 64.0  # units allowed for float32 and float64: longest sums, and algorithms such as Winograd's
_FLOAT16_UNIT, _FLOAT16_MOST = 2.0**-11, 30000.0
_SMALLEST = 0.25  # values are of unit size: a smaller result may be a difference of such
_HALF_FACTOR = 6.0  # units allowed for a 16-bit float, whose sums are computed in float32


@dataclass(frozen=True, slots=True)
class Expected:
    """Results of the reference, those of inputs that rounding moved, and the bounds for the graph's operators."""

    values: Mapping[str, Array]
    moved: tuple[Mapping[str, Array], ...]
    relative: float
    steps: int
    step: float

    def difference(self, found: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the first wrong output; None where none is."""
        for name, value in self.values.items():
            if name not in found:
                return f"output {name!r} is missing"
            said = self._of(name, value, np.asarray(found[name]))
            if said is not None:
                return f"output {name!r}: {said}"
        return None

    def _of(self, name: str, expected: Array, found: Array) -> str | None:
        if found.shape != expected.shape:
            return f"shape {found.shape}, expected {expected.shape}"
        if expected.dtype.kind == "f":
            found = found.astype(expected.dtype)
        elif found.dtype != expected.dtype:
            return f"{found.dtype}, expected {expected.dtype}"
        wide = np.float64 if expected.dtype.kind == "f" else np.int64
        a, b = expected.astype(wide), found.astype(wide)
        with np.errstate(all="ignore"):
            moved = np.zeros(a.shape)
            for other in self.moved:
                change = np.abs(other[name].astype(wide) - a).astype(np.float64)
                moved = np.maximum(moved, np.where(np.isnan(change), np.inf, change))
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b)).astype(np.float64)
            apart = np.where(np.isnan(apart), np.inf, apart)
            bound = 8 * moved + self._bound(expected)
            wrong = apart > bound
        if not wrong.any():
            return None
        at = np.unravel_index(np.argmax(np.where(wrong, apart, -1)), apart.shape)
        return (
            f"{wrong.sum()} of {wrong.size} elements differ, at {tuple(map(int, at))} {b[at]} instead of {a[at]}"
            f" (bound {np.broadcast_to(bound, apart.shape)[at]:.3g})"
        )

    def _bound(self, expected: Array) -> float:
        if expected.dtype.kind == "f":
            finite = np.abs(expected[np.isfinite(expected)])
            most = float(finite.max()) if finite.size else 0.0
            return self.relative * max(most, _SMALLEST) + self.step * self.steps
        if not self.steps or expected.dtype.kind == "b":
            return 0
        if expected.dtype.itemsize == 1:
            return self.steps
        return 0.05 * self.steps * float(np.abs(expected.astype(np.float64)).max(initial=0))


def expect(model: onnx.ModelProto, feeds: Mapping[str, Array], seed: int) -> Expected:
    """Return the reference's results for these inputs.

    Raises:
        NoReference: neither reference runs the graph, or a value is beyond float16 in a graph of float16.
    """
    reference, unit = Reference(model), unit_of(model)
    if unit == _FLOAT16_UNIT and most_of(model, feeds) > _FLOAT16_MOST:
        raise NoReference("a value is beyond float16")
    rng = np.random.default_rng(seed)
    steps = sum(node.op_type in _ROUNDS or node.op_type.startswith("Q") for node in model.graph.node)
    factor = _HALF_FACTOR if unit > 2.0**-20 else _FACTOR
    return Expected(
        values=reference.run(feeds),
        moved=tuple(reference.run(_moved(feeds, unit, rng)) for _ in range(3)),
        relative=factor * unit * (1 + len(model.graph.node)) ** 0.5,
        steps=steps,
        step=_largest_step(model) if steps else 0.0,
    )


def define(model: onnx.ModelProto, feeds: Mapping[str, Array], expected: Expected, seed: int) -> Expected:
    """Return the results by definition in float64, with the same bounds and what rounding changes in them.

    Raises:
        NoReference: a node has no definition.
    """
    definition, rng = Definition(model, unit_of(model)), np.random.default_rng(seed)
    moved = tuple(definition.run(feeds, rng) for _ in range(6))
    return replace(expected, values=definition.run(feeds), moved=moved)


def _moved(feeds: Mapping[str, Array], unit: float, rng: np.random.Generator) -> dict[str, Array]:
    """Return the inputs with each float moved by up to two units of rounding."""
    moved = dict(feeds)
    for name, array in feeds.items():
        if array.dtype.name in {"float16", "bfloat16", "float32", "float64"}:
            factors = 1 + 2 * unit * rng.uniform(-1, 1, array.shape)
            kind = np.float64 if array.dtype == np.float64 else np.float32
            moved[name] = np.asarray(array.astype(np.float64) * factors, dtype=kind)
    return moved


def _largest_step(model: onnx.ModelProto) -> float:
    """Return the largest scale by which a value is dequantised or quantised."""
    constants = {one.name: one for one in model.graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    found = [0.05]  # bound of the scales that depend on data
    for node in model.graph.node:
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"} or node.op_type.startswith("QLinear"):
            scales = [constants[name] for name in node.input if name in constants]
            found.extend(
                float(np.max(numpy_helper.to_array(one))) for one in scales if one.data_type == onnx.TensorProto.FLOAT
            )
    return max(found)
