"""Batched GRU of the IPV encoder in NumPy: the formula of make_encoder.py, which the models are compared with.

Shapes: B visits, T steps, W = 16 numbers a step, S = 32 numbers of state. Everything has the dtype of the weights.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.floating]


def forward(weights: Mapping[str, Array], rows: Array) -> Array:
    """Return the states [T + 1, B, S] over `rows` [B, T, W], from the zero state on.

    A row whose column 0 is 0 leaves its visit's state unchanged.
    """
    batch, steps, _ = rows.shape
    size = weights["u_n"].shape[0]
    states = np.zeros((steps + 1, batch, size), rows.dtype)
    gates_x = rows @ weights["w_zr"] + weights["b_zr"]
    new_x = rows @ weights["w_n"] + weights["b_n"]
    for t in range(steps):
        gates = 1 / (1 + np.exp(-(gates_x[:, t] + states[t] @ weights["u_zr"])))
        new = np.tanh(new_x[:, t] + gates[:, size:] * (states[t] @ weights["u_n"]))
        states[t + 1] = states[t] + rows[:, t, :1] * gates[:, :size] * (new - states[t])
    return states
