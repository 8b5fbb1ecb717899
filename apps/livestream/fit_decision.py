"""Fits the weights of the highlight task's decision to the tuning clips, and writes them into its settings.
Those of the app's own models go into models/settings.json.

    python -m apps.livestream.fit_decision --clips FOLDER [--models own|public] [--models-dir DIR]

The tuning clips are played twice through the app: with a device that is always sure, for the device's evidence, and
with one that never is, for the cloud's. Each side gets a logistic regression with an L2 penalty, whose weights are not
negative: no evidence speaks against a highlight. The test clips are not read. For the app's own models, which were
trained on frames of the tuning clips, drawn clips are added: in them a presenter is seen with and without an article.
The mere presence of a person gets no weight there (ADR 144 says what it does).
"""

import argparse
import asyncio
import copy
import json
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apps.livestream.drawn_clip import SECONDS, shown_seconds, write_clip
from apps.livestream.evaluate import ClipResult, play_clips
from apps.livestream.own_models import OwnModels
from apps.livestream.quality import labels
from apps.livestream.task_files import TASKS, Models, add_model_options, chosen_models

SETTINGS = TASKS / "highlight" / "resources" / "settings.json"
KINDS = ("held", "item", "person", "face", "voice", "before")
PENALTY = 0.05  # of half the sum of squared weights, in nats; the bias has none
SENT = 0.12  # of the seconds, to the cloud: the share of the paper (§7.1)
DRAWN_SEEDS = (11, 12, 13)  # not the demo's
_STEPS = 20_000
_RATE = 0.05


def fit(
    evidence: npt.NDArray[np.float64], answers: npt.NDArray[np.bool], *, penalty: float = PENALTY
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the weights [k], none of them negative, and the bias of a logistic regression of answers [n] on evidence
    [n, k], by projected gradient descent.
    """
    weights, bias = np.zeros(evidence.shape[1]), 0.0
    for _ in range(_STEPS):
        error = 1 / (1 + np.exp(-(evidence @ weights + bias))) - answers
        weights = np.maximum(
            weights - _RATE * (evidence.T @ error / len(answers) + penalty * weights / len(answers)), 0
        )
        bias -= _RATE * error.mean()
    return weights, bias


def best_threshold(probabilities: npt.NDArray[np.float64], answers: npt.NDArray[np.bool]) -> float:
    """Return the probability from which a second is a highlight: between two neighbours, where F1 is best.

    Highlights are rare, so the probability that is best to cut at is below one half.
    """
    candidates = np.unique(np.append(probabilities, [0.0, 1.0]))
    cuts = (candidates[1:] + candidates[:-1]) / 2
    f1 = [2 * (answers & (probabilities >= cut)).sum() / ((probabilities >= cut).sum() + answers.sum()) for cut in cuts]
    return float(cuts[int(np.argmax(f1))])


def unsure_band(probabilities: npt.NDArray[np.float64], threshold: float, *, share: float = SENT) -> list[float]:
    """Return the probabilities below and above which the device is sure: the `share` of the seconds that are nearest to
    the threshold, by the distance of log-odds, are between them.
    """
    distances = np.sort(np.abs(_log_odds(probabilities) - _log_odds(np.asarray(threshold))))
    reach = distances[min(int(share * len(distances)), len(distances) - 1)]
    return [round(float(1 / (1 + np.exp(-(_log_odds(np.asarray(threshold)) + side)))), 3) for side in (-reach, reach)]


def _log_odds(probability: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    odds: npt.NDArray[np.float64] = np.log(probability / (1 - probability))
    return odds


def _probabilities(results: Sequence[ClipResult], model: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    evidence, _ = _table(results)
    weights = np.asarray([model["weights"][kind] for kind in KINDS])
    found: npt.NDArray[np.float64] = 1 / (1 + np.exp(-(evidence @ weights + model["bias"])))
    return found


def _table(results: Sequence[ClipResult]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool]]:
    rows, answers = [], []
    for each in results:
        truth = each.clip.labels("highlight")
        for decision in each.decisions:
            if decision.output is not None and decision.second < len(truth):  # sound may be longer than its video
                rows.append([decision.output["evidence"][kind] for kind in KINDS])
                answers.append(truth[decision.second])
    return np.asarray(rows), np.asarray(answers)


def _model(results: Sequence[ClipResult], ignored: Collection[str]) -> dict[str, Any]:
    evidence, answers = _table(results)
    evidence[:, [kind in ignored for kind in KINDS]] = 0  # so that its weight stays 0
    weights, bias = fit(evidence, answers)
    threshold = best_threshold(1 / (1 + np.exp(-(evidence @ weights + bias))), answers)
    named = {kind: round(float(weight), 3) for kind, weight in zip(KINDS, weights, strict=True)}
    return {"bias": round(bias, 3), "weights": named, "threshold": round(threshold, 3)}


async def _fitted(
    clips: Sequence[labels.Clip], folder: Path, models: Models, ignored: Collection[str]
) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(SETTINGS.read_bytes())

    async def played(sure: list[float]) -> list[ClipResult]:
        changed: Mapping[str, Any] = {"sure": sure, "timeout_ms": 30_000}
        return await play_clips(clips, folder, models, settings={"highlight": changed})

    found = copy.deepcopy(settings)
    alone = await played([2.0, 2.0])
    found["device"] = _model(alone, ignored)
    found["sure"] = unsure_band(_probabilities(alone, found["device"]), found["device"]["threshold"])
    found["cloud"] = _model(await played([-1.0, 2.0]), ignored)
    return found


def _drawn(folder: Path, seed: int) -> labels.Clip:
    """Write a drawn clip and return it with its labels."""
    path = write_clip(folder / f"drawn_{seed}.mp4", seed)
    seen: dict[str, frozenset[int]] = {"highlight": frozenset(shown_seconds()), "face": frozenset()}
    return labels.Clip(name=path.stem, file=str(path), seconds=SECONDS, is_test=False, passes=(seen,))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fit the highlight task's decision to the tuning clips.")
    parser.add_argument("--clips", type=Path, required=True, help="folder with the clips of labels.json")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    clips = [clip for clip in labels.read_labels(labels.LABELS) if not clip.is_test]
    models = chosen_models(options)
    ignored = ("person",) if isinstance(models, OwnModels) else ()
    with tempfile.TemporaryDirectory(prefix="walle-livestream-") as drawn:
        if isinstance(models, OwnModels):
            clips += [_drawn(Path(drawn), seed) for seed in DRAWN_SEEDS]
        found = asyncio.run(_fitted(clips, options.clips, models, ignored))
    made = {name: found[name] for name in ("device", "cloud", "sure")}
    path, written = SETTINGS, found
    if isinstance(models, OwnModels):
        path = models.folder / "settings.json"
        written = json.loads(path.read_bytes())
        written["highlight"] |= made
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
