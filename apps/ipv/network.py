"""The IPV encoder with linear read-outs as a network that walle.nn trains, and its optimizer.

Shapes: B visits, T steps, W = 16 numbers a step, S = 32 numbers of state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import walle.np as wnp
from apps.ipv.make_encoder import STATE, WIDTH, random_weights
from apps.ipv.training_data import NEXT_EVENTS, NEXT_VISITS
from walle import nn, optim

type Array = NDArray[np.float32]

READOUTS = {"event": len(NEXT_EVENTS), "visit": len(NEXT_VISITS)}  # prediction: its classes


class Predictor(nn.Module):
    """The encoder, which all logs share, and for each log two read-outs of its states.

    The encoder is PyTorch's GRU: its update gate is 1 - z of make_encoder.py, so that its weights have the other sign,
    and its recurrent products have no bias. Padding comes last in a visit, where nothing depends on it.
    """

    def __init__(self, seed: int, logs: Sequence[str]) -> None:
        super().__init__()
        self.logs = {log: number for number, log in enumerate(logs)}
        self.encoder = nn.GRU(WIDTH, STATE, batch_first=True)
        self.encoder.load_state_dict(_gru_state({name: np.asarray(w) for name, w in random_weights(seed).items()}))
        self.encoder.bias_hh_l0.requires_grad = False
        for name, classes in READOUTS.items():
            readout = nn.Embedding(len(logs), (STATE + 1) * classes)
            nn.init.zeros_(readout.weight)
            setattr(self, name, readout)

    def forward(self, rows: Any, log: Any) -> tuple[Any, ...]:
        """Return the logits [B, T, classes] of next events and next visits; `log` [1] is the log's number."""
        states = self.encoder(rows)[0]
        logits = []
        for name, classes in READOUTS.items():
            readout = getattr(self, name)(log).reshape(STATE + 1, classes)
            logits.append(states @ readout[:STATE] + readout[STATE])
        return tuple(logits)

    def encoder_weights(self) -> dict[str, Array]:
        """Return the encoder's weights by the names of make_encoder.py."""
        return encoder_weights(self.encoder)


def encoder_weights(encoder: nn.GRU) -> dict[str, Array]:
    """Return the weights of a GRU without biases of its recurrent products, by the names of make_encoder.py."""
    state = {name: np.asarray(value, np.float32) for name, value in encoder.state_dict().items()}
    found: dict[str, Array] = {}
    for letter, key in (("w", "weight_ih_l0"), ("u", "weight_hh_l0"), ("b", "bias_ih_l0")):
        reset, update, new = np.split(np.atleast_2d(state[key].T), 3, axis=1)
        found |= {f"{letter}_zr": np.concatenate([-update, reset], axis=1), f"{letter}_n": new.copy()}
    return found


def _gru_state(weights: Mapping[str, NDArray[np.floating]]) -> dict[str, Array]:
    """Return the state of nn.GRU that computes make_encoder.py's formula."""
    state = {"bias_hh_l0": np.zeros(3 * STATE, np.float32)}
    for letter, key in (("w", "weight_ih_l0"), ("u", "weight_hh_l0"), ("b", "bias_ih_l0")):
        update, reset = np.split(weights[f"{letter}_zr"], 2, axis=1)
        whole = np.concatenate([reset, -update, weights[f"{letter}_n"]], axis=1).astype(np.float32)
        state[key] = whole[0] if letter == "b" else np.ascontiguousarray(whole.T)
    return state


class LazyAdamW(optim.AdamW):
    """AdamW that leaves rows without a gradient unchanged: read-outs of other logs than the batch's."""

    def update(self, parameter: Any, gradient: Any, states: Any, lr: Any, count: Any) -> tuple[Any, dict[str, Any]]:
        new, following = super().update(parameter, gradient, states, lr, count)
        axes = tuple(range(1, len(parameter.shape)))
        if not axes:
            return new, following
        changes = wnp.any(gradient != 0, axis=axes, keepdims=True)
        kept = {name: wnp.where(changes, state, states[name]) for name, state in following.items()}
        return wnp.where(changes, new, parameter), kept
