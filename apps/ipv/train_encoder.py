"""Training of the IPV encoder on event logs: `python -m apps.ipv.train_encoder --logs FOLDER`.

The GRU of make_encoder.py learns to predict the next action (training_data.py) from the state after each event, by two
linear read-outs. The encoder is shared by the logs, each log has its own read-outs, and they are dropped afterwards.
Users whose hash says so are held out; on their visits the loss and the
accuracy are reported, beside

- most frequent: the most frequent action of the training visits of the same log,
- after this kind: the most frequent action after the present event's kind (next events only),
- random encoder: the encoder with which training starts, with read-outs trained as long as the trained one's.

walle.nn trains on one thread. The same logs and seed give the same weights on the same machine. The weights are rounded
to 4 decimals and written as text, about 45 KB.
"""

import argparse
import collections
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.ipv.logs import LOGS, generated_visits, logged_visits, open_log
from apps.ipv.make_encoder import SEED, WEIGHTS_PATH, WIDTH
from apps.ipv.network import READOUTS, Array, LazyAdamW, Predictor
from apps.ipv.training_data import MAX_STEPS, Example, is_held_out, make_examples
from walle import nn

EPOCHS = 40
BATCH = 32
RATE = 5e-3
_DECAY = 0.1  # decay of the weights; keeps states away from saturation
_CLIP = 1.0  # limit of the gradients' norm
_GENERATED_USERS, _GENERATED_EACH = 150, 20
_NONE = -1  # class of a row where there is nothing to predict
_LENGTHS = 8  # steps of a batch are a multiple of this: a training step is planned for each shape

type ExampleSets = dict[str, list[Example]]  # by log
type Classes = NDArray[np.int64]


def load_examples(folder: Path | None) -> ExampleSets:
    """Return the examples of each log of LOGS in `folder`, and of the generator."""
    sets = {"generated": make_examples(generated_visits(SEED, _GENERATED_USERS, _GENERATED_EACH))}
    for name in LOGS if folder else ():
        if (folder / name).is_file():  # type: ignore[operator]
            sets[name.partition(".")[0]] = make_examples(logged_visits(open_log(folder, name)))  # type: ignore[arg-type]
    return sets


def batches(examples: Sequence[Example], rng: np.random.Generator | None) -> Iterator[tuple[Array, Classes, Classes]]:
    """Yield rows [B, T, W], next events [B, T] and next visits [B, T], with -1 where there is nothing to predict.

    B is BATCH, T a multiple of 8; the last visits of a batch may be empty. Visits of about the same length share a
    batch; with `rng`, ties and the order of the batches are random.
    """
    order = np.arange(len(examples)) if rng is None else rng.permutation(len(examples))
    order = order[np.argsort([len(examples[number].rows) for number in order], kind="stable")]
    starts = np.arange(0, len(order), BATCH)
    for start in starts if rng is None else rng.permutation(starts):
        chosen = [examples[number] for number in order[start : start + BATCH]]
        longest = max(len(example.rows) for example in chosen)
        steps = min(MAX_STEPS, -(-longest // _LENGTHS) * _LENGTHS)
        rows = np.zeros((BATCH, steps, WIDTH), np.float32)
        events, visits = np.full((2, BATCH, steps), _NONE)
        for line, example in enumerate(chosen):
            length = len(example.rows)
            rows[line, :length] = example.rows
            events[line, :length] = example.next_events
            visits[line, length - 1] = example.next_visit
        yield rows, events, visits


def mean_loss(logits: Any, events: Any, visits: Any) -> Any:
    """Return the mean loss per prediction, in nats."""
    total = sum(
        nn.functional.cross_entropy(part.reshape(-1, part.shape[-1]), classes.reshape(-1), ignore_index=_NONE,
                                    reduction="sum")
        for part, classes in zip(logits, (events, visits), strict=True)
    )  # fmt: skip
    counted = (events >= 0).sum() + (visits >= 0).sum()
    return total / counted.astype("float32")


def train(sets: ExampleSets, *, seed: int = SEED, epochs: int = EPOCHS, encoder: bool = True) -> Predictor:
    """Return the network trained on the visits of each log; without `encoder` only the read-outs are trained."""
    rng = np.random.default_rng(seed)
    network = Predictor(seed, list(sets))
    if not encoder:
        network.encoder.requires_grad_(False)
    optimizer = LazyAdamW(weight_decay=_DECAY)
    step = nn.TrainStep(network, mean_loss, optimizer, clip_grad_norm=_CLIP)
    for epoch in range(epochs):
        optimizer.lr = RATE * (1.05 - epoch / epochs)
        of_epoch = [(log, batch) for log, examples in sets.items() for batch in batches(examples, rng)]
        for number in rng.permutation(len(of_epoch)):
            log, (rows, events, visits) = of_epoch[number]
            step(rows, np.array([network.logs[log]]), events, visits)
    return network.eval()


def evaluate(network: Predictor, log: str, examples: Sequence[Example]) -> dict[str, dict[str, float]]:
    """Return loss in nats and accuracy of both predictions."""
    sums = {name: np.zeros(3) for name in READOUTS}
    for rows, events, visits in batches(examples, None):
        logits = network(rows, np.array([network.logs[log]]))
        for name, part, classes in zip(READOUTS, logits, (events, visits), strict=True):
            flat, wanted = part.reshape(-1, part.shape[-1]), classes.reshape(-1)
            loss = nn.functional.cross_entropy(flat, wanted, ignore_index=_NONE, reduction="sum")
            right = (np.asarray(flat).argmax(-1) == wanted) & (wanted >= 0)
            sums[name] += float(loss), float(right.sum()), float((wanted >= 0).sum())
    return {name: _score(*values) for name, values in sums.items()}


def frequency_baselines(train_set: Sequence[Example], test_set: Sequence[Example]) -> dict[str, Any]:
    """Return loss and accuracy of the most frequent action, and of the most frequent after the present kind.

    The loss is that of predicting the frequencies (with one added to each count).
    """

    def pairs(examples: Sequence[Example], prediction: str, *, by_kind: bool) -> Iterator[tuple[str, int]]:
        for example in examples:
            if prediction == "visit":
                if example.next_visit >= 0:
                    yield "", example.next_visit
                continue
            for kind, action in zip(example.kinds, example.next_events[:-1], strict=False):
                yield kind if by_kind else "", int(action)

    def score(prediction: str, *, by_kind: bool) -> dict[str, float]:
        counts = collections.defaultdict[str, NDArray[np.float64]](lambda: np.ones(READOUTS[prediction]))
        for kind, action in pairs(train_set, prediction, by_kind=by_kind):
            counts[kind][action] += 1
        loss = right = count = 0.0
        for kind, action in pairs(test_set, prediction, by_kind=by_kind):
            share = counts[kind] / counts[kind].sum()
            loss -= float(np.log(share[action]))
            right += int(share.argmax()) == action
            count += 1
        return _score(loss, right, count)

    return {
        "most frequent": {name: score(name, by_kind=False) for name in READOUTS},
        "after this kind": {"event": score("event", by_kind=True)},
    }


def _score(loss: float, right: float, count: float) -> dict[str, float]:
    return {"loss": loss / max(count, 1), "accuracy": right / max(count, 1), "predictions": int(count)}


def report(sets: ExampleSets, trained: Predictor, random_encoder: Predictor) -> dict[str, Any]:
    """Return the scores on the held-out visits of each log, by method."""
    found = {}
    for name, examples in sets.items():
        test_set = [example for example in examples if is_held_out(example.user)]
        train_set = [example for example in examples if not is_held_out(example.user)]
        scores = frequency_baselines(train_set, test_set)
        scores["random encoder"] = evaluate(random_encoder, name, test_set)
        scores["trained encoder"] = evaluate(trained, name, test_set)
        found[name] = {"visits": len(train_set), "held_out": len(test_set), "scores": scores}
    return found


def table(found: dict[str, Any]) -> str:
    """Return the scores as text: loss in nats and accuracy of each prediction."""
    lines = []
    for name, part in found.items():
        lines.append(f"{name}: {part['visits']:,} visits to train, {part['held_out']:,} held out")
        for method, scores in part["scores"].items():
            cells = (
                f"next {prediction} {score['loss']:.3f} nats {score['accuracy']:6.1%}"
                for prediction, score in scores.items()
            )
            lines.append(f"  {method:16} {'   '.join(cells)}")
    return "\n".join(lines)


def write_weights(network: Predictor, path: Path, *, trained_on: Sequence[str], seed: int) -> None:
    """Write the encoder's weights as JSON, rounded to 4 decimals; the read-outs are left out."""
    weights = {
        name: [[round(float(number), 4) for number in row] for row in value]
        for name, value in network.encoder_weights().items()
    }
    path.write_text(json.dumps({"trained_on": list(trained_on), "seed": seed, "weights": weights}) + "\n", "utf-8")


def main() -> None:
    """Train, print the scores, and write the weights."""
    parser = argparse.ArgumentParser(description="Train the IPV encoder on event logs.")
    parser.add_argument("--logs", type=Path, help="folder with the logs named in apps/ipv/logs.py")
    parser.add_argument("--out", type=Path, default=WEIGHTS_PATH)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    arguments = parser.parse_args()
    sets = load_examples(arguments.logs)
    train_sets = {
        name: [example for example in examples if not is_held_out(example.user)] for name, examples in sets.items()
    }
    trained = train(train_sets, seed=arguments.seed, epochs=arguments.epochs)
    random_encoder = train(train_sets, seed=arguments.seed, epochs=arguments.epochs, encoder=False)
    found = report(sets, trained, random_encoder)
    sys.stdout.write((json.dumps(found, indent=1) if arguments.json else table(found)) + "\n")
    write_weights(trained, arguments.out, trained_on=list(sets), seed=arguments.seed)


if __name__ == "__main__":
    main()
