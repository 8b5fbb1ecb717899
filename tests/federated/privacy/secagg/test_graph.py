"""Graph of neighbours: symmetric, random, and with thresholds that leave no room for a server that lies."""

from __future__ import annotations

import hashlib
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.errors import ConfigError
from walle.federated.privacy.secagg.graph import Degree, degree, neighbours_on, ring_order, roster_digest


def leaves_of(count: int) -> list[bytes]:
    return sorted(hashlib.sha256(str(number).encode()).digest() for number in range(count))


@given(st.integers(3, 60), st.data())
def test_neighbours_are_mutual_and_as_many_as_the_degree(count: int, data: st.DataObject) -> None:
    near = data.draw(st.integers(1, max(1, (count - 2) // 2)).map(lambda half: 2 * half) | st.just(count - 1))
    leaves = leaves_of(count)
    ring = ring_order(roster_digest(b"plan", leaves), leaves)
    assert sorted(ring) == list(range(count))
    table = {index: neighbours_on(ring, position, near) for position, index in enumerate(ring)}
    for index, neighbours in table.items():
        assert len(set(neighbours)) == near
        assert neighbours == sorted(neighbours)
        assert index not in neighbours
        assert all(index in table[other] for other in neighbours)


def test_another_plan_or_client_gives_another_ring() -> None:
    leaves = leaves_of(30)
    rings = [ring_order(roster_digest(plan, chosen), chosen) for plan, chosen in ((b"a", leaves), (b"b", leaves))] + [
        ring_order(roster_digest(b"a", leaves[1:]), leaves[1:])
    ]
    assert rings[0] != rings[1]
    assert rings[0][:10] != rings[2][:10]


def at_least(population: int, marked: int, drawn: int, found: int) -> Fraction:
    """Return the exact probability that `found` marked ones or more are drawn."""
    ways = sum(math.comb(marked, one) * math.comb(population - marked, drawn - one) for one in range(found, drawn + 1))
    return Fraction(ways, math.comb(population, drawn))


@pytest.mark.parametrize(("dropout", "corrupt"), [(0.3, 0.05), (0.1, 0.2), (0.0, 0.0)])
@pytest.mark.parametrize("clients", [3, 5, 10, 40, 100, 300, 1000])
def test_a_lying_server_opens_no_two_seeds_and_an_honest_one_opens_all(
    clients: int, dropout: float, corrupt: float
) -> None:
    """Honest neighbours answer once and corrupt ones twice: twice the threshold is more than both together."""
    chosen = degree(clients, dropout, corrupt)
    near, bad, lost = chosen.neighbours, math.floor(corrupt * clients), math.floor(dropout * clients)
    assert clients * at_least(clients - 1, bad, near, 2 * chosen.threshold - near) <= Fraction(2) ** -40
    assert clients * at_least(clients - 1, lost, near, near - chosen.threshold + 1) <= Fraction(2) ** -20
    if near < clients - 1:
        assert clients * (dropout + corrupt) ** (near // 2) <= 2.0**-40  # no run of the ring is cut out


def test_degrees_grow_slower_than_the_number_of_clients() -> None:
    degrees = [degree(clients, 0.3, 0.05).neighbours for clients in (100, 1000, 10_000)]
    assert degrees[0] < 100
    assert degrees[1] < 5 * degrees[0]
    assert degrees[2] < 2 * degrees[1]


def test_a_random_ring_keeps_the_bounds_of_its_degree() -> None:
    """With the assumed parts lost and corrupt, 200 rings each open every seed, and open none twice."""
    clients, numbers = 200, random.Random(4)
    chosen = degree(clients, 0.3, 0.05)
    assert chosen.neighbours < clients - 1
    for _ in range(200):
        ring = list(range(clients))
        numbers.shuffle(ring)
        marked = numbers.sample(range(clients), 70)
        corrupt, lost = set(marked[:10]), set(marked[10:])
        for position in range(clients):
            near = set(neighbours_on(ring, position, chosen.neighbours))
            assert len(near - lost) >= chosen.threshold
            assert len(near) + len(near & corrupt) < 2 * chosen.threshold


def test_small_rounds_have_complete_graphs() -> None:
    assert degree(3, 0.3, 0.05) == Degree(2, 2)
    assert degree(10, 0.3, 0.05) == Degree(9, 5)
    assert degree(10, 0.3, 0.2) == Degree(9, 6)


@pytest.mark.parametrize(
    ("clients", "dropout", "corrupt", "message"),
    [
        (2, 0.3, 0.05, "takes 3 to"),
        (10, 1.0, 0.0, "two parts"),
        (10, 0.3, -0.1, "two parts"),
        (20, 0.6, 0.0, "assume fewer"),
        (20, 0.3, 0.5, "assume fewer"),
    ],
)
def test_graphs_that_cannot_hold_are_refused(clients: int, dropout: float, corrupt: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        degree(clients, dropout, corrupt)
