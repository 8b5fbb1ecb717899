"""Ranking of items by encodings, against visits whose outcome is known."""

import numpy as np
import pytest

from apps.ipv import catalogue
from apps.ipv.demo.recommend import encoded_visit, recommend
from apps.ipv.ranking import POPULARITY_WEIGHTS, EncodedVisit, ItemRanking, fitted_ranking, hit_rate

MINUTE_MS = 60_000


def encoding(direction: int, seed: int = 0) -> bytes:
    values = np.random.default_rng([direction, seed]).normal(0, 0.1, 32)
    values[direction] += 1.0
    return values.astype("<f4").tobytes()


def tastes(users: int, *, first: int = 0) -> list[EncodedVisit]:
    """Users of three tastes: a visit that shows the taste, then one in which an item of that taste is carted."""
    visits = []
    for number in range(first, first + users):
        taste, user = number % 3, f"user-{number}"
        visits.append(EncodedVisit(user, 0, encoding(taste, number)))
        visits.append(EncodedVisit(user, MINUTE_MS, encoding(10, number), (f"item-{taste}",)))
        visits.append(EncodedVisit(user, 2 * MINUTE_MS, encoding(11, number), ("popular",) * (number % 2)))
    return visits


def test_like_visits_lead_to_their_items() -> None:
    ranking = ItemRanking(tastes(30))
    for taste in range(3):
        best = ranking.rank("someone", [encoding(taste, 999)], 3)
        assert best[0][0] == f"item-{taste}"
        assert best[0][1] > best[1][1]
    assert ranking.popular(1) == ["popular"]


def test_the_hit_rate_beats_popularity_where_there_is_taste_and_counts_what_it_predicts() -> None:
    score = hit_rate(ItemRanking(tastes(30)), tastes(9, first=100), count=1)
    assert score["items"] == 9 + 4
    assert score["encodings"] >= 9 / 13
    assert score["popularity"] == 4 / 13


def test_the_weight_of_popularity_is_fitted() -> None:
    with_taste = fitted_ranking(tastes(30), count=1)
    assert with_taste.popularity_weight < max(POPULARITY_WEIGHTS)
    rng = np.random.default_rng(1)
    without = [
        EncodedVisit(f"user-{n}", step, encoding(int(rng.integers(32)), n), (f"item-{int(rng.random() ** 3 * 40)}",))
        for n in range(60)
        for step in range(3)
    ]
    assert fitted_ranking(without).popularity_weight > 0
    ranking = ItemRanking(without, popularity_weight=max(POPULARITY_WEIGHTS))
    carted = [ranking.popularity[item] for item, _ in ranking.rank("someone", [encoding(3)])]
    assert carted == [ranking.popularity[item] for item in ranking.popular()]


def test_a_users_own_visits_are_no_neighbours() -> None:
    visits = [EncodedVisit("ann", 0, encoding(1)), EncodedVisit("ann", 1, encoding(2), ("own",))]
    visits += [EncodedVisit("bob", 0, encoding(5), ("other",))]
    ranked = dict(ItemRanking(visits).rank("ann", [encoding(2), encoding(5)]))
    assert ranked["other"] > 0
    assert ranked["own"] == 0
    assert dict(ItemRanking(visits).rank("someone", [encoding(2)]))["own"] > 0


def test_a_later_session_is_not_an_outcome() -> None:
    visits = [EncodedVisit("ann", 0, encoding(1)), EncodedVisit("ann", 90 * MINUTE_MS, encoding(2), ("x",))]
    assert len(ItemRanking(visits)) == 1  # the visit of the cart itself
    assert hit_rate(ItemRanking([]), visits)["items"] == 0


def test_without_carts_there_is_nothing_to_rank() -> None:
    assert ItemRanking([EncodedVisit("ann", 0, encoding(1))]).rank("ann", [encoding(1)]) == []


def test_a_short_encoding_is_refused() -> None:
    with pytest.raises(ValueError, match="128 bytes, this one 4"):
        ItemRanking([EncodedVisit("ann", 0, b"1234", ("x",))])


def test_uploads_are_joined_with_the_shops_carts() -> None:
    one, two = catalogue.item(1), catalogue.item(2)
    carts = {"ann": {one.item_id: 2}, "bob": {two.item_id: 1}, "cid": {}}
    outputs = [
        ("ann", {"page_id": "item_detail", "item_id": one.item_id, "enter_ms": 5, "encoding": encoding(1)}),
        ("bob", {"page_id": "item_detail", "item_id": two.item_id, "enter_ms": 5, "encoding": encoding(1, 1)}),
        ("bob", {"page_id": "home", "enter_ms": 9, "encoding": encoding(2)}),
        ("cid", {"page_id": "item_detail", "item_id": two.item_id, "enter_ms": 6, "encoding": encoding(1, 2)}),
    ]
    visits = [encoded_visit(user, output, carts[user]) for user, output in outputs]
    assert [visit.carted for visit in visits] == [(one.item_id,), (two.item_id,), (), ()]
    ann, bob, cid = recommend(visits, carts)
    assert [title for title, _ in ann.items] == [two.title]
    assert [title for title, _ in bob.items] == [one.title]
    assert {title for title, _ in cid.items} == {one.title, two.title}
    assert (ann.visits, bob.visits, ann.cart) == (1, 2, [one.title])
