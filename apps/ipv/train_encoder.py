"""Training of the IPV encoder on event logs: `python -m apps.ipv.train_encoder --logs FOLDER`.

The GRU of make_encoder.py learns to predict the next action (training_data.py) from the state after each event, by two
linear read-outs. The encoder is shared by the logs, each log has its own read-outs, and they are dropped afterwards.
Users whose hash says so are held out; on their visits the loss and the
accuracy are reported, beside

- most frequent: the most frequent action of the training visits of the same log,
- after this kind: the most frequent action after the present event's kind (next events only),
- random encoder: the encoder with which training starts, with read-outs trained as long as the trained one's.

Plain NumPy, one thread is enough. The same logs and seed give the same weights on the same machine. The weights are
rounded to 4 decimals and written as text, about 45 KB.
"""

import argparse
import collections
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.ipv.gru import Adam, Array, Parameters, backward, forward, softmax_loss
from apps.ipv.logs import LOGS, generated_visits, logged_visits, open_log
from apps.ipv.make_encoder import SEED, STATE, WEIGHTS_PATH, WIDTH, random_weights
from apps.ipv.training_data import NEXT_EVENTS, NEXT_VISITS, Example, is_held_out, make_examples

EPOCHS = 40
BATCH = 32
RATE = 5e-3
_DECAY = 0.1  # decay of the weights; keeps states away from saturation
_CLIP = 1.0  # limit of the gradients' norm
_GENERATED_USERS, _GENERATED_EACH = 150, 20
_READOUTS = {"event": len(NEXT_EVENTS), "visit": len(NEXT_VISITS)}

type ExampleSets = dict[str, list[Example]]  # by log
type Classes = NDArray[np.int64]


def load_examples(folder: Path | None) -> ExampleSets:
    """Return the examples of each log of LOGS in `folder`, and of the generator."""
    sets = {"generated": make_examples(generated_visits(SEED, _GENERATED_USERS, _GENERATED_EACH))}
    for name in LOGS if folder else ():
        if (folder / name).is_file():  # type: ignore[operator]
            sets[name.partition(".")[0]] = make_examples(logged_visits(open_log(folder, name)))  # type: ignore[arg-type]
    return sets


def new_parameters(seed: int, logs: Iterable[str]) -> Parameters:
    """Return the weights of the encoder, and of each log's read-outs as LOG/event_w and so on, as training starts."""
    parameters = {name: np.asarray(value, np.float32) for name, value in random_weights(seed).items()}
    for log in logs:
        for name, classes in _READOUTS.items():
            parameters[f"{log}/{name}_w"] = np.zeros((STATE, classes), np.float32)
            parameters[f"{log}/{name}_b"] = np.zeros((1, classes), np.float32)
    return parameters


def batches(examples: Sequence[Example], rng: np.random.Generator | None) -> Iterator[tuple[Array, Classes, Classes]]:
    """Yield rows [B, T, W], next events [B, T] and next visits [B, T], with -1 where there is nothing to predict.

    Visits of about the same length share a batch; with `rng`, ties and the order of the batches are random.
    """
    order = np.arange(len(examples)) if rng is None else rng.permutation(len(examples))
    order = order[np.argsort([len(examples[number].rows) for number in order], kind="stable")]
    starts = np.arange(0, len(order), BATCH)
    for start in starts if rng is None else rng.permutation(starts):
        chosen = [examples[number] for number in order[start : start + BATCH]]
        steps = max(len(example.rows) for example in chosen)
        rows = np.zeros((len(chosen), steps, WIDTH), np.float32)
        events, visits = np.full((2, len(chosen), steps), -1)
        for line, example in enumerate(chosen):
            length = len(example.rows)
            rows[line, :length] = example.rows
            events[line, :length] = example.next_events
            visits[line, length - 1] = example.next_visit
        yield rows, events, visits


def loss_and_gradients(
    parameters: Parameters, log: str, rows: Array, events: Classes, visits: Classes, *, encoder: bool = True
) -> tuple[float, Parameters]:
    """Return the mean loss per prediction and its gradients: of the log's read-outs, with `encoder` of the GRU too."""
    trace = forward(parameters, rows)
    states = trace.states[1:]
    counted = max(1, int((events >= 0).sum() + (visits >= 0).sum()))
    total = 0.0
    gradients: Parameters = {}
    of_states = np.zeros_like(states)
    for name, classes in (("event", events), ("visit", visits)):
        weights, bias = f"{log}/{name}_w", f"{log}/{name}_b"
        losses, of_logits = softmax_loss(states @ parameters[weights] + parameters[bias], classes.T)
        of_logits = of_logits / counted
        total += float(losses.sum()) / counted
        gradients[weights] = states.reshape(-1, STATE).T @ of_logits.reshape(-1, of_logits.shape[-1])
        gradients[bias] = of_logits.sum((0, 1))[None]
        of_states += of_logits @ parameters[weights].T
    return total, gradients | backward(parameters, rows, trace, of_states) if encoder else gradients


def train(sets: ExampleSets, *, seed: int = SEED, epochs: int = EPOCHS, encoder: bool = True) -> Parameters:
    """Return the parameters trained on the visits of each log; without `encoder` only the read-outs are trained."""
    rng = np.random.default_rng(seed)
    parameters = new_parameters(seed, sets)
    optimiser = Adam(parameters)
    for epoch in range(epochs):
        optimiser.rate = RATE * (1.05 - epoch / epochs)
        of_epoch = [(log, batch) for log, examples in sets.items() for batch in batches(examples, rng)]
        for number in rng.permutation(len(of_epoch)):
            log, batch = of_epoch[number]
            _, gradients = loss_and_gradients(parameters, log, *batch, encoder=encoder)
            norm = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values())))
            scale = min(1.0, _CLIP / (norm + 1e-9))
            optimiser.step({name: gradient * scale for name, gradient in gradients.items()}, decay=_DECAY)
    return parameters


def evaluate(parameters: Parameters, log: str, examples: Sequence[Example]) -> dict[str, dict[str, float]]:
    """Return loss in nats and accuracy of both predictions."""
    sums = {name: np.zeros(3) for name in _READOUTS}
    for rows, events, visits in batches(examples, None):
        states = forward(parameters, rows).states[1:]
        for name, classes in (("event", events.T), ("visit", visits.T)):
            logits = states @ parameters[f"{log}/{name}_w"] + parameters[f"{log}/{name}_b"]
            losses, _ = softmax_loss(logits, classes)
            right = (logits.argmax(-1) == classes) & (classes >= 0)
            sums[name] += losses.sum(), right.sum(), (classes >= 0).sum()
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
        counts = collections.defaultdict[str, Array](lambda: np.ones(_READOUTS[prediction]))
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
        "most frequent": {name: score(name, by_kind=False) for name in _READOUTS},
        "after this kind": {"event": score("event", by_kind=True)},
    }


def _score(loss: float, right: float, count: float) -> dict[str, float]:
    return {"loss": loss / max(count, 1), "accuracy": right / max(count, 1), "predictions": int(count)}


def report(sets: ExampleSets, trained: Parameters, random_encoder: Parameters) -> dict[str, Any]:
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


def write_weights(parameters: Parameters, path: Path, *, trained_on: Sequence[str], seed: int) -> None:
    """Write the encoder's weights as JSON, rounded to 4 decimals; the read-outs are left out."""
    weights = {
        name: [[round(float(number), 4) for number in row] for row in value]
        for name, value in parameters.items()
        if "/" not in name
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
