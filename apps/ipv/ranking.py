"""Ranking of items by encodings in the cloud: like visits of other users, and the items that these put in their carts.

A visit's encoding says how the visit went, so it is compared with the encodings of other users' visits. The items that
their users put in the cart in that visit or the next ones of the session get the likeness as a score. Popularity (an
item's share of what was put in carts), times a weight, is added. `fitted_ranking` chooses the weight on users that it
leaves out in turn, so that a shop whose visits say nothing is ranked by popularity. The ranking is measured against
popularity alone: `python benchmarks/ipv.py` prints the figure.
"""

import collections
import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

STATE_BYTES = 128
AHEAD = 3  # visits after a visit within which a cart counts as its outcome
NEIGHBOURS = 25  # visits that led to a cart, by likeness
POPULARITY_WEIGHTS = (0.0, 10.0, 100.0, 1e6)
_GAP_MS = 1_800_000  # a longer silence ends a session
_FOLDS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedVisit:
    """A visit as the cloud has it: keys and encoding; `carted` are the items that the user put in the cart in it."""

    user: str
    enter_ms: int
    encoding: bytes
    carted: tuple[str, ...] = ()


class ItemRanking:
    """A ranking from the visits given; `rank` returns the best items for a user's latest visits."""

    def __init__(self, visits: Iterable[EncodedVisit], *, popularity_weight: float = 0.0) -> None:
        self.popularity_weight = popularity_weight
        by_user: dict[str, list[EncodedVisit]] = {}
        for visit in visits:
            by_user.setdefault(visit.user, []).append(visit)
        self.popularity: collections.Counter[str] = collections.Counter()
        encodings, self._outcomes, self._users = [], list[Mapping[str, float]](), list[str]()
        for user, theirs in by_user.items():
            theirs.sort(key=lambda visit: visit.enter_ms)
            for number, visit in enumerate(theirs):
                self.popularity.update(visit.carted)
                outcome = _outcome(theirs[number : number + 1 + AHEAD])
                if outcome:
                    encodings.append(vector(visit.encoding))
                    self._outcomes.append(outcome)
                    self._users.append(user)
        self._popular = [item for item, _ in sorted(self.popularity.items(), key=lambda pair: (-pair[1], pair[0]))]
        self._mean = np.mean(encodings, axis=0) if encodings else np.zeros(STATE_BYTES // 4)
        self._vectors = np.asarray([self._direction(each) for each in encodings], np.float32)

    def __len__(self) -> int:
        """Return the number of visits that led to a cart."""
        return len(self._outcomes)

    def rank(self, user: str, encodings: Sequence[bytes], count: int = 10) -> list[tuple[str, float]]:
        """Return at most `count` items with their scores, best first, for a user's latest visits, oldest first.

        The user's own visits are left out of the neighbours. A later visit weighs more. Items with equal scores are
        ranked by popularity.
        """
        scores: collections.defaultdict[str, float] = collections.defaultdict(float)
        for age, encoding in enumerate(reversed(encodings)):
            if not len(self._vectors):
                break
            likeness = self._vectors @ self._direction(vector(encoding))
            order = (number for number in np.argsort(-likeness, kind="stable") if self._users[number] != user)
            for number in itertools.islice(order, NEIGHBOURS):
                for item, weight in self._outcomes[number].items():
                    scores[item] += weight * max(0.0, float(likeness[number])) ** 4 / (1 + age)
        share = self.popularity_weight / max(1, self.popularity.total())
        for item in [*scores, *(item for item in self._popular[:count] if item not in scores)]:
            scores[item] += share * self.popularity[item]
        best = sorted(scores, key=lambda item: (-scores[item], -self.popularity[item], item))[:count]
        return [(item, round(scores[item], 4)) for item in best]

    def _direction(self, encoding: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the direction from the mean of the visits that led to a cart to this encoding, with length 1."""
        return _unit(encoding - self._mean)

    def popular(self, count: int = 10) -> list[str]:
        """Return the items that are put in carts most often."""
        return self._popular[:count]


def fitted_ranking(visits: Sequence[EncodedVisit], *, count: int = 10) -> ItemRanking:
    """Return the ranking with the weight of popularity whose hit rate is best, over users left out in three folds.

    Of equal weights the larger one is taken.
    """
    folds = [[visit for visit in visits if zlib.crc32(visit.user.encode()) % _FOLDS == fold] for fold in range(_FOLDS)]
    hits = dict.fromkeys(POPULARITY_WEIGHTS, 0.0)
    for fold in folds:
        ranking = ItemRanking(visit for other in folds if other is not fold for visit in other)
        for weight in hits:
            ranking.popularity_weight = weight
            score = hit_rate(ranking, fold, count=count)
            hits[weight] += score["encodings"] * score["items"]
    best = max(hits, key=lambda weight: (hits[weight], weight))
    return ItemRanking(visits, popularity_weight=best)


def _outcome(visits: Sequence[EncodedVisit]) -> dict[str, float]:
    """Return the items carted in a visit and the ones after it in its session; nearer visits have more weight."""
    found: dict[str, float] = {}
    before_ms = visits[0].enter_ms
    for distance, visit in enumerate(visits):
        if visit.enter_ms - before_ms > _GAP_MS:
            break
        before_ms = visit.enter_ms
        for item in visit.carted:
            found.setdefault(item, 1 / (1 + distance))
    return found


def vector(encoding: bytes) -> NDArray[np.float32]:
    """Return an encoding as 32 numbers.

    Raises:
        ValueError: it does not have 128 bytes.
    """
    if len(encoding) != STATE_BYTES:
        raise ValueError(f"an encoding has {STATE_BYTES} bytes, this one {len(encoding)}")
    return np.frombuffer(encoding, "<f4")


def _unit(values: NDArray[np.floating]) -> NDArray[np.floating]:
    length = float(np.sqrt((values**2).sum()))
    return values / length if length else values


def hit_rate(
    ranking: ItemRanking, visits: Iterable[EncodedVisit], *, count: int = 10, latest: int = 3
) -> dict[str, float]:
    """Return the share of carted items of held-out visits among the best `count`: by encodings, and by popularity.

    Each item that a user puts in the cart is predicted from the user's `latest` visits before that one, in the same
    session. `items` is how many were predicted.
    """
    by_user: dict[str, list[EncodedVisit]] = {}
    for visit in visits:
        by_user.setdefault(visit.user, []).append(visit)
    hits = {"encodings": 0, "popularity": 0}
    items = 0
    popular = set(ranking.popular(count))
    for user, theirs in by_user.items():
        theirs.sort(key=lambda visit: visit.enter_ms)
        for number, visit in enumerate(theirs):
            latest_visits = theirs[max(0, number - latest) : number]
            before = [each for each in latest_visits if visit.enter_ms - each.enter_ms <= _GAP_MS]
            if not before or not visit.carted:
                continue
            ranked = {item for item, _ in ranking.rank(user, [each.encoding for each in before], count)}
            for item in visit.carted:
                items += 1
                hits["encodings"] += item in ranked
                hits["popularity"] += item in popular
    return {name: number / max(items, 1) for name, number in hits.items()} | {"items": items}
