"""The IPV encoder as a .walle model, a recurrent network from a visit's steps to 32 numbers: `python -m
apps.ipv.make_encoder`.

The encoder is a GRU with a state of 32, in the form that applies the reset gate after the recurrent product:

    z, r = sigmoid(x W_zr + b_zr + h U_zr)        x: one step, [1, 16], laid out as in task/steps.py
    n    = tanh(x W_n + b_n + r * (h U_n))
    h'   = h + present * z * (n - h)              present: column 0 of x; a padding step leaves the state unchanged

Its weights come from `encoder_weights.json`, which `train_encoder.py` writes. `random_weights` are where training
starts: update gates at sigmoid(-0.5), and a recurrent product that keeps about its input's size, so that the state
neither vanishes over a visit nor saturates (tested in tests/apps/ipv/test_encoder.py, for the trained weights too).

The model takes CHUNK = 8 steps at once, and the caller passes the state on:

    x [8, 16], state [1, 32]  ->  next_state [1, 32]

A smaller encoder (encoder_sizes.py) uses the first numbers of the state, leaves zeros in the others, and has a second
output: `encoding` [1, 32], its state projected to the numbers of the given encoder's.

With one step per run, Python would call the engine once per event, about 19 times a visit. With a fixed 64 steps, every
visit would cost as much as a long one. With 8 the mean visit takes 3 runs and 4 steps of padding, the graph has about
140 small operators, and a visit may have any length.
"""

import argparse
import json
import math
import random
from pathlib import Path

from walle.engine_ext.model import GraphBuilder, Value

CHUNK = 8
WIDTH = 16
STATE = 32
SEED = 2022
WEIGHTS_PATH = Path(__file__).with_name("encoder_weights.json")
SIZES_PATH = Path(__file__).with_name("encoder_sizes.json")  # weights of smaller encoders: encoder_sizes.py
ENCODER_PATH = Path(__file__).parent / "task" / "resources" / "encoder.walle"

type Weights = dict[str, list[list[float]]]  # by the names of the formula above, row-major


def trained_weights(path: Path = WEIGHTS_PATH) -> Weights:
    """Return the weights that `train_encoder.py` wrote to `path`."""
    weights: Weights = json.loads(path.read_text("utf-8"))["weights"]
    return weights


def sizes_weights(path: Path = SIZES_PATH) -> dict[str, Weights]:
    """Return the weights of the smaller encoders by class of performance, the least first."""
    weights: dict[str, Weights] = json.loads(path.read_text("utf-8"))["weights"]
    return weights


def random_weights(seed: int = SEED) -> Weights:
    """Return the weights with which training starts, from a seed."""
    rng = random.Random(seed)
    return {
        "w_zr": _normal(rng, WIDTH, 2 * STATE, 0.6),
        "b_zr": [[-0.5] * STATE + [0.0] * STATE],
        "u_zr": _normal(rng, STATE, 2 * STATE, 0.8 / math.sqrt(STATE)),
        "w_n": _normal(rng, WIDTH, STATE, 0.6),
        "b_n": _normal(rng, 1, STATE, 0.1),
        "u_n": _normal(rng, STATE, STATE, 1.0 / math.sqrt(STATE)),
    }


def build_encoder(graph: GraphBuilder, weights: Weights) -> None:
    """Add the encoder to an empty graph."""
    x = graph.input("x", (CHUNK, WIDTH))
    state = graph.input("state", (1, STATE))
    w = {name: graph.constant(name, weights[name]) for name in ("w_zr", "b_zr", "u_zr", "w_n", "b_n", "u_n")}
    steps = _Slices(graph)
    size = len(weights["u_n"])
    is_smaller = size < STATE
    if is_smaller:
        state = steps.cut(state, 1, 0, size)
    gates_x = graph.op("Add", [graph.op("MatMul", [x, w["w_zr"]]), w["b_zr"]])  # gates of all steps at once
    new_x = graph.op("Add", [graph.op("MatMul", [x, w["w_n"]]), w["b_n"]])
    present = steps.cut(x, 1, 0, 1)
    for step in range(CHUNK):
        gates_h = graph.op("MatMul", [state, w["u_zr"]])
        gates = graph.op("Sigmoid", [graph.op("Add", [steps.cut(gates_x, 0, step, step + 1), gates_h])])
        update, reset = steps.cut(gates, 1, 0, size), steps.cut(gates, 1, size, 2 * size)
        past = graph.op("Mul", [reset, graph.op("MatMul", [state, w["u_n"]])])
        new = graph.op("Tanh", [graph.op("Add", [steps.cut(new_x, 0, step, step + 1), past])])
        share = graph.op("Mul", [steps.cut(present, 0, step, step + 1), update])
        state = graph.op("Add", [state, graph.op("Mul", [share, graph.op("Sub", [new, state])])])
    if is_smaller:
        out = [graph.constant(name, weights[name]) for name in ("w_out", "b_out")]
        graph.output("encoding", graph.op("Add", [graph.op("MatMul", [state, out[0]]), out[1]]))
        unused = graph.constant("unused", [[0.0] * (STATE - size)])
        state = graph.op("Concat", [state, unused], axis=1)
    graph.output("next_state", state)


class _Slices:
    """Slices of a graph's tensors; each bound is one shared constant."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._numbers: dict[int, Value] = {}

    def cut(self, value: Value, axis: int, start: int, end: int) -> Value:
        """Return value[start:end] along `axis`."""
        bounds = [self._number(number) for number in (start, end, axis)]
        result: Value = self._graph.op("Slice", [value, *bounds])
        return result

    def _number(self, number: int) -> Value:
        if number not in self._numbers:
            self._numbers[number] = self._graph.constant(f"int_{number}", [number], "int64")
        return self._numbers[number]


def _normal(rng: random.Random, rows: int, columns: int, deviation: float) -> list[list[float]]:
    return [[rng.gauss(0.0, deviation) for _ in range(columns)] for _ in range(rows)]


def write_encoder(path: Path = ENCODER_PATH, weights: Weights | None = None) -> Path:
    """Write the encoder to `path`, making its folder; return the path. Without `weights` it has the trained ones."""
    graph = GraphBuilder("ipv_encoder")
    build_encoder(graph, trained_weights() if weights is None else weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    graph.save(path)
    return path


def main() -> None:
    """Write the encoder to the task's resources, or to the given path."""
    parser = argparse.ArgumentParser(description="Write the IPV encoder as a .walle model.")
    parser.add_argument("path", nargs="?", type=Path, default=ENCODER_PATH)
    parser.add_argument("--weights", type=Path, default=WEIGHTS_PATH, help="a file of apps.ipv.train_encoder")
    arguments = parser.parse_args()
    write_encoder(arguments.path, trained_weights(arguments.weights))


if __name__ == "__main__":
    main()
