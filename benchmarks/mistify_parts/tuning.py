"""Fine-tuning at the edge: accuracy by the peers that teach (Table 3), and time of communication by training (Fig. 7).

Devices have few digits each (MNIST-5k, 14 by 14 pixels), whose classes are uneven, and networks of four widths.
A coordinator in the process chooses peers by the devices' class shares. All are tested on the same 1,000 other digits.
"""

import itertools
import math
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.mistify_parts.mnist import images_and_labels
from walle import nn, np
from walle.adapt.dataset import Dataset
from walle.adapt.masked.evaluation import Evaluation, accuracy
from walle.adapt.tuning.coordinator import TuningCoordinator
from walle.adapt.tuning.distillation import Tuner, TuningOptions, model_file
from walle.adapt.tuning.hints import Hints, class_shares
from walle.adapt.tuning.noise import LaplaceNoise

_DEVICES, _SAMPLES, _TEST = 8, 150, 1000
_EVENNESS = 3.0  # parameter of the Dirichlet distribution of a device's classes
_WIDTHS = (6, 8, 10, 12)
_FULL_WIDTH = 16
_EPSILON = 4.0
_PEERS = (1, 2, 4)
_BANDWIDTHS = (1, 5, 10, 50)  # megabytes a second
_TASK = "mistify/digits"
# Two-sided quantiles of Student's t distribution at 95 %, by degrees of freedom.
_T = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    9: 2.26,
    10: 2.23,
    11: 2.20,
    14: 2.14,
    19: 2.09,
    23: 2.07,
}


class Network(nn.Module):
    """Two convolutions with normalisation, and a dense layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * width, 10),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.body(x)


def measure(seeds: int) -> dict[str, Any]:
    """Return the results of Table 3 and of Fig. 7."""
    return {"accuracy": measure_accuracy(seeds), "communication": measure_communication()}


def measure_accuracy(seeds: int) -> dict[str, Any]:
    """Return accuracies by scenario, a list with the devices' mean for each seed, and the intervals of their means."""
    images, labels = images_and_labels()
    rows: dict[str, list[float]] = {}
    for seed in range(seeds):
        for scenario, found in _accuracies(images, labels, seed).items():
            rows.setdefault(scenario, []).append(found)
    order = ["local", *(_named(count) for count in _PEERS), "full model"]
    gains = [
        interval([b - a for a, b in zip(rows[one], rows[other], strict=True)])
        for one, other in itertools.pairwise(order)
    ]
    return {"rows": rows, "intervals": {name: interval(row) for name, row in rows.items()}, "gains": gains}


def measure_communication(rounds: int = 3) -> list[dict[str, Any]]:
    """Return for networks of two widths, by count of peers: bytes of one round of a device, and seconds of training."""
    images, labels = images_and_labels()
    test, _, parts = _split(labels, 0)
    sample = Dataset((images[test[:2]],), labels[test[:2]])
    found = []
    for width in (_WIDTHS[1], 4 * _WIDTHS[1]):
        for count in (*_PEERS, _DEVICES - 1):
            times = []
            for seed in range(rounds):
                data = Dataset((images[parts[0]],), labels[parts[0]])
                tuner = _tuner(width, data, seed)
                files = [model_file(_network(width, 50 + at), sample) for at in range(count)]
                begin = time.process_time()
                tuner.train()
                sent = model_file(tuner.model, sample)
                tuner.train_with(files)
                times.append(time.process_time() - begin)
            size_bytes = len(sent) + sum(map(len, files))
            training_s = statistics.median(times)
            shares = {str(rate): size_bytes / (rate * 1e6) / training_s for rate in _BANDWIDTHS}
            found.append(
                {"width": width, "peers": count, "bytes": size_bytes, "training_s": training_s, "shares": shares}
            )
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval."""
    if len(values) < 2:
        return values[0], math.inf
    degrees = len(values) - 1
    quantile = _T[max(one for one in _T if one <= degrees)]
    return statistics.mean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def print_tuning(result: dict[str, Any]) -> None:
    """Print Table 3 and Fig. 7."""
    print(f"accuracy of {_DEVICES} devices with {_SAMPLES} digits each, mean of seeds with its 95 % interval:")
    for name, (mean, half) in result["accuracy"]["intervals"].items():
        print(f"    {name:24} {mean:.4f} +- {half:.4f}")
    steps = ", ".join(f"{mean:+.4f} +- {half:.4f}" for mean, half in result["accuracy"]["gains"])
    print(f"    steps of local, {', '.join(map(_named, _PEERS))}, full model, by seed: {steps}")
    print("communication by training time, at " + ", ".join(f"{rate} MB/s" for rate in _BANDWIDTHS) + ":")
    for one in result["communication"]:
        shares = "  ".join(f"{share:7.2%}" for share in one["shares"].values())
        print(
            f"    width {one['width']:2}, {one['peers']} peers: {shares}   "
            f"({one['bytes'] / 1e3:.0f} kB, {one['training_s']:.2f} CPU s)"
        )


def draw(result: dict[str, Any], out: Path) -> None:
    """Write both figures to out/mistify-tuning.png."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    names = list(result["accuracy"]["intervals"])
    means, halves = zip(*result["accuracy"]["intervals"].values(), strict=True)
    left.barh(names[::-1], means[::-1], xerr=halves[::-1] if math.isfinite(max(halves)) else None)
    left.set_xlabel("accuracy, with 95 % intervals")
    for rate in _BANDWIDTHS:
        for width in sorted({one["width"] for one in result["communication"]}):
            rows = [one for one in result["communication"] if one["width"] == width]
            shares = [one["shares"][str(rate)] for one in rows]
            right.plot([one["peers"] for one in rows], shares, "o-", label=f"{rate} MB/s, width {width}")
    right.set_yscale("log")
    right.axhline(0.15, color="grey", lw=0.8)  # bound of the paper above 5 MB/s
    right.set_xlabel("peers")
    right.set_ylabel("communication by training time")
    right.legend(fontsize=7)
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "mistify-tuning.png", dpi=150)
    plt.close(figure)


def _accuracies(images: Any, labels: Any, seed: int) -> dict[str, float]:
    test_places, pool, parts = _split(labels, seed)
    test = Dataset((images[test_places],), labels[test_places])
    full = Tuner(_network(_FULL_WIDTH, seed), Dataset((images[pool],), labels[pool]), TuningOptions(64, max_epochs=15))
    full.train()
    tuners = [
        _tuner(_WIDTHS[at % len(_WIDTHS)], Dataset((images[places],), labels[places]), seed * _DEVICES + at)
        for at, places in enumerate(parts)
    ]
    quiet, noisy = TuningCoordinator(seed=seed), TuningCoordinator(seed=seed)
    for at, tuner in enumerate(tuners):
        done = tuner.train()
        hints = Hints(summary=class_shares(tuner.data.labels.tolist(), 10))
        for coordinator in (quiet, noisy):
            noise = LaplaceNoise(_EPSILON, 0.0, 1.0, seed=at)
            model = tuner.model if coordinator is quiet else tuner.noisy_model(noise)
            file = model_file(model, test)
            coordinator.share(f"{at}", _TASK, file, hints, loss=done.loss, accuracy=done.accuracy, now_s=0.0)
    teacher = model_file(full.model, test)

    def right(tuner: Tuner) -> float:
        return accuracy(Evaluation(tuner.model)(*test.inputs), test.labels)

    found: dict[str, list[float]] = {}
    for at, tuner in enumerate(tuners):
        state = tuner.model.state_dict()
        found.setdefault("local", []).append(right(tuner))
        for name, coordinator, count in (
            ("local, trained on", quiet, 0), *((_named(count), quiet, count) for count in _PEERS),
            (f"4 peers, epsilon {_EPSILON:g}", noisy, 4),
        ):  # fmt: skip
            files = [one.file for one in coordinator.peers(f"{at}", _TASK, count, now_s=0.0)] if count else []
            tuner.model.load_state_dict(state)
            tuner.train_with(files)
            found.setdefault(name, []).append(right(tuner))
        tuner.model.load_state_dict(state)
        tuner.train_with([teacher])
        found.setdefault("full model", []).append(right(tuner))
    found["full model itself"] = [right(full)]
    return {name: statistics.mean(row) for name, row in found.items()}


def _named(count: int) -> str:
    return f"{count} peer{'s' * (count > 1)}"


def _network(width: int, seed: int) -> Network:
    nn.manual_seed(seed)
    return Network(width)


def _tuner(width: int, data: Dataset, seed: int) -> Tuner:
    return Tuner(_network(width, seed), data, TuningOptions(seed=seed))


def _split(labels: Any, seed: int) -> tuple[Any, Any, list[Any]]:
    """Return places of the test data, of all others, and of each device's, which overlap nowhere."""
    random = np.random.default_rng(seed)
    order = random.permutation(labels.shape[0])
    by_class: list[list[int]] = [[] for _ in range(10)]
    for place in order[_TEST:].tolist():
        by_class[int(labels[place])].append(place)
    parts = []
    for _ in range(_DEVICES):
        weights = _gamma(random, _EVENNESS)
        total = sum(weights)
        counts = [int(_SAMPLES * one / total) for one in weights]
        while sum(counts) < _SAMPLES:
            counts[int(random.integers(0, 10))] += 1
        places = [by_class[label].pop() for label, count in enumerate(counts) for _ in range(count)]
        parts.append(np.asarray(places))
    return order[:_TEST], order[_TEST:], parts


def _gamma(random: Any, shape: float) -> list[float]:
    """Return ten numbers of a gamma distribution with a whole shape; as shares they are of a Dirichlet distribution."""
    return [sum(random.exponential(1.0, int(shape)).tolist()) for _ in range(10)]
