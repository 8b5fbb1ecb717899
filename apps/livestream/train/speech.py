"""Training of the voice detector with walle.nn: `python -m apps.livestream.train.speech --data PACK --out FOLDER`.

PACK is made by make_data.py. FOLDER gets voice.npz, weights by the names that own_models.py builds the graph from;
check_voice.npz, a sound with the network's answers; and metrics_voice.json on the sounds that were held out.
`install.py` puts the weights where the app has them. With --start the training continues from an earlier run's FOLDER.
The same pack, seed and machine give the same weights, with any number of threads.

models/voice.npz is from PyTorch on a GPU: 97.2 % of the held-out windows are right. Here 8,000 steps (--seed 1) reach
90.2 %, as half of a film's music passes for speech, and 2,000 more (--start RUN --steps 2000 --seed 2) 97.3 %.
"""

import argparse
import collections
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from apps.livestream.own_models import BANDS, CONTEXT, WINDOW, mel_matrix
from apps.livestream.train.mixtures import Array, Mixtures
from apps.livestream.train.rates import rate_at
from walle import nn, optim

INNER, UNITS = 24, 36
STEPS, BATCH, WINDOWS = 8000, 16, 100
_STEPS_PER_BATCH = 3  # making a batch takes longer than a step
_KEPT = 64  # batches that a step is drawn from, the newest ones
_DECAY = 0.998  # share of a step before in the moving average of the weights
_FIRST = 3  # number of the first window whose answer counts: the GRU settles before it
_HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
_MEL = mel_matrix().astype(np.float32)


def features(samples: Array) -> Array:
    """Return two log-mel frames of each window, [n, windows, 48], of samples [n, 512 windows] after silence."""
    heard = np.pad(samples, ((0, 0), (CONTEXT, 0)))
    frames = np.lib.stride_tricks.sliding_window_view(heard, WINDOW, axis=1)[:, ::CONTEXT]
    power = np.abs(np.fft.rfft(frames[:, : 2 * (samples.shape[1] // WINDOW)] * _HANN)) ** 2
    logs = np.log(power @ _MEL + np.float32(1e-5))
    found: Array = (0.25 * logs + 1).astype(np.float32).reshape(len(samples), -1, 2 * BANDS)
    return found


class Voice(nn.Module):
    """A GRU over the features of windows: the logit of speech for each, [n, windows]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * BANDS, INNER)
        self.gru = nn.GRU(INNER, UNITS, batch_first=True)
        self.out = nn.Linear(UNITS, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.gru(nn.functional.relu(self.inner(x)))[0])[..., 0]

    def weights(self) -> dict[str, Array]:
        return {name: np.asarray(value, np.float32).copy() for name, value in self.state_dict().items()}


def loss(logits: Any, labels: Any) -> Any:
    """Return the mean cross-entropy; windows that may be speech or not count a fifth."""
    unsure = (labels > 0.25) & (labels < 0.75)
    weight = nn.functional.relu(1 - 0.8 * unsure.astype("float32"))
    speech = (labels > 0.5).astype("float32")
    losses = nn.functional.binary_cross_entropy_with_logits(logits, speech, reduction="none")
    return (weight * losses)[:, _FIRST:].mean()


def train_voice(
    mixtures: Mixtures, *, steps: int, batch: int, windows: int, seed: int, threads: int, start_folder: Path | None
) -> Voice:
    """Return a trained detector, with the moving average of its weights."""
    nn.manual_seed(seed)
    network = Voice()
    if start_folder:
        with np.load(start_folder / "voice.npz") as pack:
            network.load_state_dict({name: pack[name].astype(np.float32) for name in pack.files})
    average = network.weights()
    optimizer = optim.AdamW(lr=1e-3, weight_decay=1e-3)
    step = nn.TrainStep(network, loss, optimizer, clip_grad_norm=1.0, seed=seed, threads=threads)
    random = np.random.default_rng(seed)
    kept = collections.deque[tuple[Array, Array]](maxlen=_KEPT)
    started = time.process_time()
    for number in range(steps):
        optimizer.lr = rate_at(number / steps, 2e-3 if start_folder else 6e-3)
        if number % _STEPS_PER_BATCH == 0:
            samples, labels = mixtures.batch(batch, windows)
            kept.append((features(samples), labels))
        found = step(*kept[random.integers(len(kept))])
        keep = np.float32(min(_DECAY, (number + 1) / (number + 21)))
        for name, value in network.state_dict().items():
            average[name] += (1 - keep) * (np.asarray(value) - average[name])
        if number % max(1, steps // 10) == 0:
            spent = time.process_time() - started
            print(f"voice {number / steps:4.0%} loss {float(found):.3f}, {spent:.0f} CPU s", flush=True)
    network.load_state_dict(average)
    return network.eval()


def logits_of(network: Voice, samples: Array) -> Array:
    """Return the logit of speech for each whole window of one sound."""
    whole = len(samples) // WINDOW * WINDOW
    found: Array = np.asarray(network(features(samples[None, :whole])), np.float32)[0]
    return found


def evaluate_voice(mixtures: Mixtures, network: Voice) -> dict[str, Any]:
    """Return, for each held-out sound, shares of windows: told as labelled, speech that is found, false speech."""
    rows = {}
    for name, (wave, labels) in mixtures.held_out.items():
        count = min(len(wave) // WINDOW, len(labels))
        speech, truth = logits_of(network, wave)[:count] > 0, labels[:count] > 0.5
        clear = (labels[:count] < 0.25) | (labels[:count] > 0.75)
        rows[name] = {
            "windows": count,
            "agreement": float((speech == truth)[clear].mean()),
            "speech found": float(speech[truth & clear].mean()) if (truth & clear).any() else None,
            "false speech": float(speech[~truth & clear].mean()) if (~truth & clear).any() else None,
        }
    return rows


def main() -> None:
    """Train, evaluate and write."""
    parser = argparse.ArgumentParser(description="Train the livestream app's voice detector.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="folder of an earlier run to continue")
    parser.add_argument("--steps", type=int, default=STEPS, help="0: only evaluate the weights of --start")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--windows", type=int, default=WINDOWS, help="windows of a mixture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    mixtures = Mixtures(arguments.data, np.random.default_rng(arguments.seed))
    print("seconds of sound:", {kind: round(seconds) for kind, seconds in mixtures.seconds.items()})
    network = train_voice(
        mixtures,
        steps=arguments.steps,
        batch=arguments.batch,
        windows=arguments.windows,
        seed=arguments.seed,
        threads=arguments.threads,
        start_folder=arguments.start,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.savez(arguments.out / "voice.npz", allow_pickle=False, **network.weights())
    wave = next(iter(mixtures.held_out.values()))[0][: 60 * WINDOW]
    probability = 1 / (1 + np.exp(-logits_of(network, wave)))
    np.savez_compressed(arguments.out / "check_voice.npz", allow_pickle=False, samples=wave, probability=probability)
    metrics = evaluate_voice(mixtures, network)
    (arguments.out / "metrics_voice.json").write_text(json.dumps(metrics, indent=1))
    print(json.dumps(metrics, indent=1))


if __name__ == "__main__":
    main()
