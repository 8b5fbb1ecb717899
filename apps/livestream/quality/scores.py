"""Scores of yes-or-no answers against labels: precision, recall and F1, with bootstrap intervals, and calibration."""

import dataclasses
import random
from collections.abc import Callable, Sequence

_RESAMPLES = 2000
_BINS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Answers by outcome."""

    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def precision(self) -> float:
        """The share of positive answers that are right; 1 where there is none."""
        return _share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """The share of positive labels that are found; 1 where there is none."""
        return _share(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 1 where there is neither a positive label nor answer."""
        found = 2 * self.true_positives
        return _share(found, found + self.false_positives + self.false_negatives)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def count(labels: Sequence[bool], answers: Sequence[bool]) -> Counts:
    """Count answers by outcome; both have one entry for each second."""
    pairs = list(zip(labels, answers, strict=True))
    return Counts(
        sum(label and answer for label, answer in pairs),
        sum(answer and not label for label, answer in pairs),
        sum(label and not answer for label, answer in pairs),
        sum(not label and not answer for label, answer in pairs),
    )


def interval(
    blocks: Sequence[tuple[Sequence[bool], Sequence[bool]]],
    measure: Callable[[Counts], float],
    rng: random.Random,
    *,
    resamples: int = _RESAMPLES,
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a measure.

    Blocks of (labels, answers) are drawn, not single seconds: neighbours in a stream depend on each other, so an
    interval over seconds would be too narrow.
    """
    values = []
    for _ in range(resamples):
        chosen = rng.choices(blocks, k=len(blocks))
        labels = [label for block, _ in chosen for label in block]
        answers = [answer for _, block in chosen for answer in block]
        values.append(measure(count(labels, answers)))
    values.sort()
    return values[int(0.025 * resamples)], values[int(0.975 * resamples) - 1]


def blocks_of(
    labels: Sequence[bool], answers: Sequence[bool], *, seconds: int = 5
) -> list[tuple[Sequence[bool], Sequence[bool]]]:
    """Cut a clip into blocks of `seconds` for `interval`; the last may be shorter."""
    starts = range(0, len(labels), seconds)
    return [(labels[start : start + seconds], answers[start : start + seconds]) for start in starts]


@dataclasses.dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Answers whose confidence fell in one bin: their number, mean confidence, and share of positive labels."""

    answers: int
    confidence: float
    positive: float


def reliability(labels: Sequence[bool], confidences: Sequence[float], *, bins: int = _BINS) -> list[ReliabilityBin]:
    """Return the bins of a reliability diagram that have answers, lowest confidence first."""
    members: list[list[tuple[bool, float]]] = [[] for _ in range(bins)]
    for label, confidence in zip(labels, confidences, strict=True):
        members[min(int(confidence * bins), bins - 1)].append((label, confidence))
    return [
        ReliabilityBin(
            len(each),
            sum(confidence for _, confidence in each) / len(each),
            sum(label for label, _ in each) / len(each),
        )
        for each in members
        if each
    ]


def calibration_error(labels: Sequence[bool], confidences: Sequence[float], *, bins: int = _BINS) -> float:
    """Return the expected calibration error: the mean distance of confidence and share, weighted by answers."""
    found = reliability(labels, confidences, bins=bins)
    total = sum(each.answers for each in found)
    return sum(each.answers * abs(each.confidence - each.positive) for each in found) / total if total else 0.0
