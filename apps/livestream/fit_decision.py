"""Fits the weights of the highlight task's decision to the tuning and fresh clips, and writes them into settings.

There is one decision for each set of models: for the public ones with palm and article in settings_with_articles.json,
for the public ones without these in the task's settings, for the app's own in models/settings.json.

    python -m apps.livestream.fit_decision --clips FOLDER... [--models own|public] [--models-dir DIR]

The clips are played once through the app, with a device that is never sure, so that each second has the device's
evidence and the cloud's. Each side gets a logistic regression with an L2 penalty, whose weights are not negative: no
evidence speaks against a highlight. How well that does on a clip that it has not seen is printed, from fits that leave
out one file each, with a bootstrap interval over files. Clips that are absent are named; a fit without them gives other
weights. Clips of other sets (test, judging, unseen) are refused, and so is a file that one of them is a part of. For
the app's own models, which were trained on frames of the tuning clips, drawn clips are added: in them a presenter is
seen with and without an article.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apps.livestream.drawn_clip import SECONDS, shown_seconds, write_clip
from apps.livestream.evaluate import NEVER_SURE, ClipResult, add_clip_options, clips_of, play_clips
from apps.livestream.own_models import OwnModels
from apps.livestream.quality import labels, scores
from apps.livestream.quality.bands import Evidence
from apps.livestream.quality.clip_files import ClipFiles
from apps.livestream.task_files import OPTIONAL, SETTINGS_WITH_ARTICLES, TASKS, chosen_models, tasks_of
from walle.errors import ConfigError

SETTINGS = TASKS / "highlight" / "resources" / "settings.json"
type Kinds = Mapping[str, Sequence[str]]  # kinds of evidence, by side
KINDS: Kinds = {"device": ("held", "closeup", "kept"), "cloud": ("held", "closeup", "kept", "look")}
KINDS_WITH_ARTICLES: Kinds = {"device": ("handled", "shown"), "cloud": ("handled", "shown", "look")}
PENALTY = 0.05  # factor of half the sum of squared weights, in nats; the bias has none
SENT = 0.12  # share of the seconds that go to the cloud, the paper's (§7.1)
DRAWN_SEEDS = (11, 12, 13)  # seeds that the demo does not use
_STEPS = 20_000
_CHANGE = 1e-10  # smallest change of a weight in a step


def fit(
    evidence: npt.NDArray[np.float64], answers: npt.NDArray[np.bool], *, penalty: float = PENALTY
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the weights [k], none of them negative, and the bias of a logistic regression of answers [n] on evidence
    [n, k], within 1e-9 of the optimum: by projected gradients with momentum (FISTA, Beck and Teboulle 2009).
    """
    values = np.c_[evidence, np.ones(len(evidence))]
    weighed = np.r_[np.full(evidence.shape[1], penalty / len(answers)), 0.0]
    step = 1 / (np.linalg.norm(values.T @ values, 2) / (4 * len(answers)) + weighed.max())
    found, ahead, momentum = np.zeros(values.shape[1]), np.zeros(values.shape[1]), 1.0
    for _ in range(_STEPS):
        slope = values.T @ (1 / (1 + np.exp(-values @ ahead)) - answers) / len(answers) + weighed * ahead
        reached = ahead - step * slope
        reached[:-1] = np.maximum(reached[:-1], 0)
        if (reached - found) @ (ahead - reached) > 0:
            momentum = 1.0  # the step went too far: begin again without momentum
        following = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = reached + (momentum - 1) / following * (reached - found)
        change = np.abs(reached - found).max()
        found, momentum = reached, following
        if change < _CHANGE:
            break
    return found[:-1], float(found[-1])


def best_threshold(probabilities: npt.NDArray[np.float64]) -> float:
    """Return the probability from which a second is a highlight: half of the best F1 that the probabilities promise.

    Of calibrated probabilities this is where the expected F1 is best (Lipton, Elkan and Naryanaswamy, "Optimal
    Thresholding of Classifiers to Maximize F1 Measure", 2014). The labels themselves are not asked: of some tens of
    highlights, they would place the threshold by one or two of them.
    """
    taken = np.cumsum(np.sort(probabilities)[::-1])
    f1 = 2 * taken / (np.arange(1, len(taken) + 1) + taken[-1])
    return float(f1.max() / 2)


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


def model_of(seconds: Sequence[Evidence], kinds: Sequence[str]) -> dict[str, Any]:
    """Return bias, weights by kind and threshold that fit the seconds, as the task's settings have them."""
    values, answers = _arrays(seconds, kinds)
    weights, bias = fit(values, answers)
    named = {kind: round(float(weight), 3) for kind, weight in zip(kinds, weights, strict=True)}
    found = {"bias": round(bias, 3), "weights": named}
    return {**found, "threshold": round(best_threshold(_probabilities(seconds, found)), 3)}


def left_out(files: Mapping[str, Sequence[Evidence]], kinds: Sequence[str]) -> dict[str, Any]:
    """Return the scores of each file's seconds by a model of the other files, together, with the mean log loss in nats
    and each file's counts.

    A file without seconds, or the only one, is ignored.
    """
    losses: list[float] = []

    def answers(others: Sequence[Evidence], seconds: Sequence[Evidence]) -> list[bool]:
        model = model_of(others, kinds)
        found = _probabilities(seconds, model)
        losses.extend(-float(np.log(p if one.label else 1 - p)) for one, p in zip(seconds, found, strict=True))
        return [bool(value >= model["threshold"]) for value in found]

    scored = _left_out(files, answers)
    return {**scored, "log_loss": round(float(np.mean(losses)), 3) if losses else None}


def left_out_together(files: Mapping[str, Sequence[Evidence]], kinds: Kinds) -> dict[str, Any]:
    """Return the same of device and cloud together: the cloud decides where the device is not sure, as `fitted` has it.
    `sent` is the share of the seconds that it decides.
    """
    sent: list[bool] = []

    def answers(others: Sequence[Evidence], seconds: Sequence[Evidence]) -> list[bool]:
        model = fitted({"others": others}, kinds)
        low, high = model["sure"]
        device, cloud = (_probabilities(seconds, model[side]) for side in ("device", "cloud"))
        unsure = [bool(low < value < high) for value in device]
        sent.extend(unsure)
        return [
            bool(there >= model["cloud"]["threshold"] if asks else here >= model["device"]["threshold"])
            for asks, here, there in zip(unsure, device, cloud, strict=True)
        ]

    scored = _left_out(files, answers)
    return {**scored, "sent": round(float(np.mean(sent)), 3) if sent else None}


def _left_out(
    files: Mapping[str, Sequence[Evidence]],
    answers_of: Callable[[Sequence[Evidence], Sequence[Evidence]], list[bool]],
) -> dict[str, Any]:
    """Return scores where `answers_of` gets the other files' seconds and a file's, and returns this one's answers."""
    by_file = {}
    blocks = []  # a file each
    for name, seconds in files.items():
        others = [one for other, each in files.items() if other != name for one in each]
        if not seconds or not others:
            continue
        labels, answers = [one.label for one in seconds], answers_of(others, seconds)
        counted = scores.count(labels, answers)
        blocks.append((labels, answers))
        by_file[name] = {
            "seconds": len(labels),
            "right": counted.true_positives,
            "false": counted.false_positives,
            "missed": counted.false_negatives,
        }
    counted = scores.count(
        [label for labels, _ in blocks for label in labels], [answer for _, answers in blocks for answer in answers]
    )
    measures = {name: round(getattr(counted, name), 3) for name in ("precision", "recall", "f1")}
    low, high = scores.interval(blocks, lambda one: one.f1, random.Random(1)) if blocks else (0.0, 0.0)
    return {**measures, "f1_low": round(low, 3), "f1_high": round(high, 3), "by_file": by_file}


def _arrays(seconds: Sequence[Evidence], kinds: Sequence[str]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool]]:
    values = [[one.values.get(kind, 0.0) for kind in kinds] for one in seconds]
    return np.asarray(values, np.float64), np.asarray([one.label for one in seconds], np.bool)


def _probabilities(seconds: Sequence[Evidence], model: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    odds = np.asarray([one.log_odds(model) for one in seconds])
    found: npt.NDArray[np.float64] = 1 / (1 + np.exp(-odds))
    return found


def check_whole(results: Sequence[ClipResult]) -> None:
    """Refuse results that lack seconds, from which a fit could not be repeated.

    Raises:
        ConfigError: a second was not decided, or the cloud did not answer.
    """
    for each in results:
        lacking = [
            f"{each.clip.name}, second {one.second}: {one.why or (one.output and one.output['why'])}"
            for one in each.decisions
            if one.output is None or one.output["decided"] == "device alone"
        ]
        if lacking:
            raise ConfigError(
                f"{len(lacking)} seconds have no evidence of device or cloud, the first of {lacking[0]}; nothing was"
                " written: run it again on a machine that is less busy"
            )


def fitted(files: Mapping[str, Sequence[Evidence]], kinds: Kinds = KINDS) -> dict[str, Any]:
    """Return the settings that are fitted to all seconds: both models, and the band where the device is not sure."""
    seconds = [one for each in files.values() for one in each]
    found: dict[str, Any] = {side: model_of(seconds, chosen) for side, chosen in kinds.items()}
    found["sure"] = unsure_band(_probabilities(seconds, found["device"]), found["device"]["threshold"])
    return found


def unweighed(kinds: Kinds = KINDS) -> dict[str, Any]:
    """Return settings of both sides without a weight, so that a fit asks for no earlier one of the same evidence."""
    return {
        side: {"bias": 0.0, "weights": dict.fromkeys(chosen, 0.0), "threshold": 0.5} for side, chosen in kinds.items()
    }


def fit_clips(clips: Sequence[labels.Clip]) -> list[labels.Clip]:
    """Return the clips that a fit may read.

    Raises:
        ConfigError: one of them is of a file that a clip of another set is of too.
    """
    judged = {clip.sha256: clip.name for clip in clips if clip.set not in labels.FIT_SETS}
    found = [clip for clip in clips if clip.set in labels.FIT_SETS]
    for clip in found:
        if clip.sha256 in judged:
            raise ConfigError(
                f"clip {clip.name!r} is of the same file as {judged[clip.sha256]!r}, which is not for fits"
            )
    return found


def drawn_clips(folder: Path, seeds: Sequence[int] = DRAWN_SEEDS) -> list[labels.Clip]:
    """Write drawn clips to a folder, and return them with their labels."""
    seen: dict[str, frozenset[int]] = {"highlight": frozenset(shown_seconds()), "face": frozenset()}
    paths = [write_clip(folder / f"drawn_{seed}.mp4", seed) for seed in seeds]
    return [
        labels.Clip(name=path.stem, file=path.name, seconds=SECONDS, set="tuning", sha256="", source="", passes=(seen,))
        for path in paths
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fit the highlight task's decision to the tuning clips.")
    add_clip_options(parser)
    options = parser.parse_args(arguments)
    fit_clips(labels.read_labels(labels.LABELS))
    clips, files = clips_of(options.clips, labels.FIT_SETS)
    models = chosen_models(options)
    with_articles = set(OPTIONAL) <= set(tasks_of(models))
    kinds = KINDS_WITH_ARTICLES if with_articles else KINDS
    with tempfile.TemporaryDirectory(prefix="walle-livestream-") as folder:
        if isinstance(models, OwnModels):
            drawn = drawn_clips(Path(folder))
            clips = [*clips, *drawn]
            paths = {clip.name: Path(folder) / clip.file for clip in drawn}
            files = ClipFiles({**files.paths, **paths}, files.absent)
        settings = {"highlight": {**NEVER_SURE["highlight"], **unweighed(kinds)}}
        results = asyncio.run(play_clips(clips, files, models, settings=settings))
    check_whole(results)
    evidence: dict[str, list[Evidence]] = {}
    for each in results:  # a file's crops are left out with it
        evidence.setdefault(each.clip.file, []).extend(each.evidence())
    found = fitted(evidence, kinds)
    if isinstance(models, OwnModels):
        path = models.folder / "settings.json"
        written = json.loads(path.read_bytes())
        written["highlight"] |= found
    elif with_articles:
        path, written = SETTINGS_WITH_ARTICLES, {"highlight": found}
    else:
        path = SETTINGS
        written = {**json.loads(path.read_bytes()), **found}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    shown: dict[str, Any] = {"absent": [clip.name for clip in files.absent], **found}
    shown["left_out"] = {side: left_out(evidence, chosen) for side, chosen in kinds.items()}
    shown["left_out"]["together"] = left_out_together(evidence, kinds)
    sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
