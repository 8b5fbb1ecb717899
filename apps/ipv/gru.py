"""Batched GRU of the IPV encoder in NumPy, with backpropagation through time; the formula is in make_encoder.py.

Shapes: B visits, T steps, W = 16 numbers a step, S = 32 numbers of state. Everything has the dtype of the weights.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.floating]
type Parameters = dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """The values of a forward pass that the backward pass needs. `states` is [T + 1, B, S], from the zero state on."""

    states: Array
    gates: Array  # [T, B, 2 S]: update, reset
    past: Array  # [T, B, S]: h U_n
    new: Array  # [T, B, S]


def forward(weights: Mapping[str, Array], rows: Array) -> Trace:
    """Run the GRU over `rows` [B, T, W]; a row whose column 0 is 0 leaves its visit's state unchanged."""
    batch, steps, _ = rows.shape
    size = weights["u_n"].shape[0]
    states = np.zeros((steps + 1, batch, size), rows.dtype)
    gates = np.empty((steps, batch, 2 * size), rows.dtype)
    past, new = np.empty((2, steps, batch, size), rows.dtype)
    gates_x = rows @ weights["w_zr"] + weights["b_zr"]
    new_x = rows @ weights["w_n"] + weights["b_n"]
    for t in range(steps):
        gates[t] = 1 / (1 + np.exp(-(gates_x[:, t] + states[t] @ weights["u_zr"])))
        past[t] = states[t] @ weights["u_n"]
        new[t] = np.tanh(new_x[:, t] + gates[t, :, size:] * past[t])
        states[t + 1] = states[t] + rows[:, t, :1] * gates[t, :, :size] * (new[t] - states[t])
    return Trace(states, gates, past, new)


def backward(weights: Mapping[str, Array], rows: Array, trace: Trace, state_gradients: Array) -> Parameters:
    """Return the gradients of the weights; `state_gradients` [T, B, S] are those of the state after each step."""
    _, steps, _ = rows.shape
    size = weights["u_n"].shape[0]
    of_gates, of_new = np.empty_like(trace.gates), np.empty_like(trace.new)
    of_past = np.empty_like(trace.past)
    carried = np.zeros_like(trace.states[0])
    for t in range(steps - 1, -1, -1):
        carried = carried + state_gradients[t]
        present, state = rows[:, t, :1], trace.states[t]
        update, reset = trace.gates[t, :, :size], trace.gates[t, :, size:]
        of_new[t] = carried * present * update * (1 - trace.new[t] ** 2)
        of_past[t] = of_new[t] * reset
        of_gates[t, :, :size] = carried * present * (trace.new[t] - state) * update * (1 - update)
        of_gates[t, :, size:] = of_new[t] * trace.past[t] * reset * (1 - reset)
        carried = carried * (1 - present * update) + of_past[t] @ weights["u_n"].T + of_gates[t] @ weights["u_zr"].T
    before, inputs = trace.states[:-1], rows.swapaxes(0, 1)
    return {
        "w_zr": _outer(inputs, of_gates),
        "b_zr": of_gates.sum((0, 1))[None],
        "u_zr": _outer(before, of_gates),
        "w_n": _outer(inputs, of_new),
        "b_n": of_new.sum((0, 1))[None],
        "u_n": _outer(before, of_past),
    }


def _outer(left: Array, right: Array) -> Array:
    """Return the sum over steps and visits of the outer products: [T, B, I], [T, B, J] -> [I, J]."""
    result: Array = left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])
    return result


def softmax_loss(logits: Array, classes: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the cross-entropy of each row in nats, and its gradient; a row of class -1 has loss and gradient 0."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    counted = classes >= 0
    chosen = np.take_along_axis(log_p, np.maximum(classes, 0)[..., None], -1)[..., 0]
    gradient = np.exp(log_p)
    np.put_along_axis(
        gradient,
        np.maximum(classes, 0)[..., None],
        np.take_along_axis(gradient, np.maximum(classes, 0)[..., None], -1) - 1,
        -1,
    )
    return -chosen * counted, gradient * counted[..., None]


class Adam:
    """The Adam optimiser over named arrays, which it changes in place."""

    def __init__(self, parameters: Parameters, rate: float = 1e-3) -> None:
        self._parameters = parameters
        self.rate = rate
        self._moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in parameters.items()}
        self._steps = 0

    def step(self, gradients: Parameters, *, decay: float = 0.0) -> None:
        """Change each parameter that has a gradient; `decay` is that of the weights, as in AdamW."""
        self._steps += 1
        for name, gradient in gradients.items():
            first, second = self._moments[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            mean, square = first / (1 - 0.9**self._steps), second / (1 - 0.999**self._steps)
            parameter = self._parameters[name]
            parameter -= self.rate * (mean / (np.sqrt(square) + 1e-8) + decay * parameter)
