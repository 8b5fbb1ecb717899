"""Highlights as intervals of seconds: made from answers by second, and scored as QVHighlights scores moments.

The score is the average precision at a threshold of the intersection over union (IoU): predicted intervals, the most
confident first, each match one labelled interval at most (Lei et al., "QVHighlights", NeurIPS 2021, section 5).
"""

import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence

_RESAMPLES = 1000
_PART_S = 5

type Part = tuple[list["Interval"], list["Interval"]]  # labelled, predicted


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Seconds from `start` up to `end`, which is not included; `score` is the highest confidence among them."""

    start: float
    end: float
    score: float = 1.0

    def overlap(self, other: "Interval") -> float:
        """Return the intersection over union of two intervals, 0 to 1."""
        shared = min(self.end, other.end) - max(self.start, other.start)
        return max(shared, 0.0) / (max(self.end, other.end) - min(self.start, other.start))


def intervals(answers: Sequence[bool], scores: Sequence[float] | None = None, *, bridge: int = 0) -> list[Interval]:
    """Join seconds with the answer True to intervals; gaps of up to `bridge` seconds are bridged."""
    found: list[Interval] = []
    for second, answer in enumerate(answers):
        if not answer:
            continue
        score = 1.0 if scores is None else scores[second]
        last = found[-1] if found else None
        if last is not None and second - last.end <= bridge:
            found[-1] = Interval(last.start, second + 1, max(last.score, score))
        else:
            found.append(Interval(second, second + 1, score))
    return found


def average_precision(clips: Iterable[tuple[Sequence[Interval], Sequence[Interval]]], *, overlap: float = 0.5) -> float:
    """Return the average precision over clips of (labelled, predicted) intervals; 1 without any interval.

    Equal scores are taken in the order given. Precision is interpolated: at each recall, the best at that recall or
    above.
    """
    labelled = 0
    ranked: list[tuple[float, int, int, Interval]] = []
    truth: dict[int, list[Interval]] = {}
    for number, (labels, predictions) in enumerate(clips):
        truth[number] = list(labels)
        labelled += len(labels)
        ranked += [(-each.score, number, place, each) for place, each in enumerate(predictions)]
    if labelled == 0:
        return 1.0 if not ranked else 0.0
    ranked.sort(key=lambda row: row[:3])
    hits, points = 0, list[tuple[float, float]]()
    for taken, (_, number, _, prediction) in enumerate(ranked, 1):
        best = max(truth[number], key=prediction.overlap, default=None)
        if best is not None and prediction.overlap(best) >= overlap:
            truth[number].remove(best)
            hits += 1
        points.append((hits / labelled, hits / taken))
    total, reached, ceiling = 0.0, 1.0, 0.0
    for recall, precision in reversed(points):
        total += (reached - recall) * ceiling if recall < reached else 0.0
        reached, ceiling = min(reached, recall), max(ceiling, precision)
    return total + reached * ceiling


def parts(labels: Sequence[bool], answers: Sequence[bool], scores: Sequence[float], *, bridge: int = 0) -> list[Part]:
    """Cut a clip into parts of (labelled, predicted) intervals for `average_precision` and `bootstrap`.

    A part has at least 5 seconds, unless it is the last, and ends where more than `bridge` seconds are neither labelled
    nor answered, so that no interval is cut.
    """
    ends, start, quiet = [0], 0, 0
    for second, (label, answer) in enumerate(zip(labels, answers, strict=True), 1):
        quiet = 0 if label or answer else quiet + 1
        if second - start >= _PART_S and quiet > bridge:
            ends.append(second)
            start = second
    if start < len(labels):
        ends.append(len(labels))
    return [
        (
            intervals(labels[begin:end], bridge=bridge),
            intervals(answers[begin:end], scores[begin:end], bridge=bridge),
        )
        for begin, end in itertools.pairwise(ends)
    ]


def bootstrap(found: Sequence[Part], rng: random.Random, *, overlap: float = 0.5) -> tuple[float, float]:
    """Return the 95 % percentile interval of the average precision, from resampled parts; (0, 1) without any."""
    if not found:
        return 0.0, 1.0
    values = sorted(average_precision(rng.choices(found, k=len(found)), overlap=overlap) for _ in range(_RESAMPLES))
    return values[int(0.025 * _RESAMPLES)], values[int(0.975 * _RESAMPLES) - 1]
