"""The IPV encoder in smaller sizes, for devices of less performance: `python -m apps.ipv.encoder_sizes`.

A smaller GRU and a projection of its state to 32 numbers learn the states of the given encoder on generated visits, so
that the cloud compares the encodings of all sizes. Measured on the visits of users who are held out: the part of the
variance that is explained, and the share of the 25 nearest visits (ranking.py) that are the same.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apps.ipv.gru import forward
from apps.ipv.logs import generated_visits
from apps.ipv.make_encoder import SEED, SIZES_PATH, STATE, WIDTH, Weights, trained_weights
from apps.ipv.network import Array, encoder_weights
from apps.ipv.ranking import NEIGHBOURS
from apps.ipv.train_encoder import batches
from apps.ipv.training_data import Example, is_held_out, make_examples
from walle import nn, optim

STATES = {"low": 12, "middle": 20}  # numbers of state by class of performance
EPOCHS = 80
_RATE = 1e-2
_USERS, _EACH = 150, 20


class SmallerEncoder(nn.Module):
    """A GRU with a small state; `forward` returns its states, projected, [B, T, 32]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder = nn.GRU(WIDTH, size, batch_first=True)
        self.encoder.bias_hh_l0.data = self.encoder.bias_hh_l0.data * 0.0
        self.encoder.bias_hh_l0.requires_grad = False
        self.out = nn.Linear(size, STATE)

    def forward(self, rows: Any) -> Any:
        return self.out(self.encoder(rows)[0])

    def weights(self) -> dict[str, Array]:
        """Return the weights by the names of make_encoder.py."""
        out = {name: np.asarray(value) for name, value in self.out.state_dict().items()}
        return encoder_weights(self.encoder) | {"w_out": out["weight"].T, "b_out": out["bias"][None]}


def state_error(states: Any, wanted: Any, present: Any) -> Any:
    """Return the mean square error of the states after each event; `present` [B, T, 1] is 0 for padding."""
    return (((states - wanted) * present) ** 2).sum() / (present.sum() * STATE)


def train(examples: Sequence[Example], size: int, *, epochs: int = EPOCHS, seed: int = SEED) -> SmallerEncoder:
    """Return an encoder with that many numbers of state that has learned the given one's states."""
    given = {name: np.asarray(value, np.float32) for name, value in trained_weights().items()}
    rng = np.random.default_rng(seed)
    nn.manual_seed(seed)
    model = SmallerEncoder(size)
    optimizer = optim.Adam(lr=_RATE)
    step = nn.TrainStep(model, state_error, optimizer)
    for epoch in range(epochs):
        optimizer.lr = _RATE * (1.05 - epoch / epochs)
        for rows, _, _ in batches(examples, rng):
            wanted = np.ascontiguousarray(forward(given, rows)[1:].transpose(1, 0, 2), np.float32)
            step(rows, wanted, np.ascontiguousarray(rows[:, :, :1]))
    return model


def encodings(weights: Mapping[str, Any], examples: Sequence[Example]) -> Array:
    """Return the encoding of each visit, [n, 32]."""
    w = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    states = np.stack([forward(w, example.rows[None])[-1][0] for example in examples])
    return states @ w["w_out"] + w["b_out"][0] if "w_out" in w else states


def likeness(own: Array, given: Array) -> dict[str, float]:
    """Return the part of the variance of the given encodings that others explain, and the share of equal neighbours."""
    explained = 1 - ((own - given) ** 2).sum() / ((given - given.mean(0)) ** 2).sum()
    near, wanted = _nearest(own), _nearest(given)
    same = [len(set(a) & set(b)) / len(b) for a, b in zip(near.tolist(), wanted.tolist(), strict=True)]
    return {"variance": float(explained), "neighbours": float(np.mean(same))}


def _nearest(encodings: Array) -> Any:
    """Return the nearest visits of each, by the direction from the mean as in ranking.py, [n, 25]."""
    directions = encodings - encodings.mean(0)
    directions = directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)
    alike = directions @ directions.T
    np.fill_diagonal(alike, -2)
    return np.argsort(-alike, axis=1, kind="stable")[:, :NEIGHBOURS]


def parameters(weights: Weights) -> int:
    """Return the count of numbers in an encoder's weights."""
    return sum(int(np.asarray(value).size) for value in weights.values())


def operations(weights: Weights) -> int:
    """Return the multiply-adds of a run of eight events with eight products of the state, and one projection."""
    step = sum(int(np.asarray(weights[name]).size) for name in ("w_zr", "u_zr", "w_n", "u_n"))
    return 8 * step + (int(np.asarray(weights["w_out"]).size) if "w_out" in weights else 0)


def main() -> None:
    """Train the sizes, print their likeness, and write the weights, rounded to 4 decimals."""
    parser = argparse.ArgumentParser(description="Train smaller sizes of the IPV encoder.")
    parser.add_argument("--out", type=Path, default=SIZES_PATH)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    examples = make_examples(generated_visits(SEED, _USERS, _EACH))
    held_out = [example for example in examples if is_held_out(example.user)]
    examples = [example for example in examples if not is_held_out(example.user)]
    given = encodings(trained_weights(), held_out)
    written: dict[str, Weights] = {}
    for name, size in STATES.items():
        made = train(examples, size, epochs=arguments.epochs).weights()
        written[name] = {key: np.round(value.astype(float), 4).tolist() for key, value in made.items()}
        found = likeness(encodings(written[name], held_out), given)
        sys.stdout.write(
            f"{name:8} state of {size:2}, {parameters(written[name]):,} parameters: {found['variance']:.1%} of the "
            f"variance, {found['neighbours']:.1%} of the neighbours\n"
        )
    arguments.out.write_text(json.dumps({"seed": SEED, "weights": written}) + "\n", "utf-8")


if __name__ == "__main__":
    main()
