"""Plans of training steps: elementwise operators are joined, and updates run as soon as their gradients exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walle.engine_ext import _core, np
from walle.engine_ext.nn.tracing import Trace
from walle.engine_ext.session_info import plan_of

if TYPE_CHECKING:
    from walle.engine_ext.session_info import Plan

_LAYERS = 12
_SIZE = 64


def _step(threads: int = 1) -> tuple[dict[str, bytes], Plan]:
    """Return the updated weights and the plan of one step of a deep network, by gradient descent with momentum."""
    rng = np.random.default_rng(1)
    x = np.asarray(rng.standard_normal((_SIZE, _SIZE)), "float32")
    given = {"x": x} | {f"w{i}": np.asarray(rng.standard_normal((_SIZE, _SIZE)) / 8, "float32") for i in range(_LAYERS)}
    states = {f"m{i}": np.zeros((_SIZE, _SIZE), "float32") for i in range(_LAYERS)}
    with Trace("step") as trace:
        value: Any = trace.input("x", x)
        weights: list[Any] = [trace.input(f"w{i}", given[f"w{i}"]) for i in range(_LAYERS)]
        for weight in weights:
            value = np.tanh(np.matmul(value, weight))
        gradients = trace.gradient(np.sum(value * value), weights)
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            momentum = trace.input(f"m{i}", states[f"m{i}"]) * 0.9 + gradient
            trace.output(f"m{i}", momentum)
            trace.output(f"w{i}", weight - momentum * 0.1)
    session = _core.Session(trace.graph(), "auto", threads)
    results = session.run(given | states)
    plan = session.plan()
    assert plan is not None
    return {name: array.tobytes() for name, array in results.items()}, plan_of(plan)


def test_updates_are_joined_and_run_early() -> None:
    _, plan = _step()
    algorithms = [op.algorithm for op in plan.ops if op.op == "Elementwise"]
    assert algorithms.count("Mul+Add") == _LAYERS
    assert algorithms.count("Mul+Sub") == _LAYERS
    # Forward values live until their gradients: about one for each layer; all gradients at once would be as much again.
    assert plan.arena_bytes < 1.6 * _LAYERS * _SIZE * _SIZE * 4


def test_threads_compute_the_same_bits() -> None:
    assert _step(1)[0] == _step(2)[0]
