"""Profiles that a gateway knows: in bounded memory, which counts the decisions on them."""

from tests.sim.release_world import table_of
from walle.deploy.push.known_profiles import KnownProfile, KnownProfiles
from walle.deploy.releases.decision import NOTHING, Decision
from walle.protocol import Profile

TABLE = table_of(1, **{f"task{number}": "v1" for number in range(100)})
LARGE = Decision.of(TABLE.steps(TABLE.index.by_attributes("10", {}), 1)[0], {}, {})


def _profile(number: int) -> KnownProfile:
    return KnownProfile.read(Profile(f"d{number}", "10").to_header().encode(), TABLE.index)


def test_the_oldest_profiles_go_where_they_take_too_much() -> None:
    known = KnownProfiles(10_000)
    sent = [_profile(number) for number in range(100)]
    for one in sent:
        known.add(one)
    assert known.size_bytes == sum(one.size_bytes for one in known.values()) <= 10_000
    assert 3 < len(known) < 10
    assert list(known.values()) == sent[-len(known) :]
    assert known.get(sent[0].raw) is None
    assert known.get(sent[-1].raw) is sent[-1]


def test_a_decision_counts_with_its_directives_and_removes_others() -> None:
    known = KnownProfiles(20_000)
    sent = [_profile(number) for number in range(10)]
    for one in sent:
        known.add(one)
    assert LARGE.size == 100
    known.settle(sent[0], 1, LARGE)
    assert sent[0].size_bytes > 100 * 100
    assert known.size_bytes == sum(one.size_bytes for one in known.values()) <= 20_000
    assert list(known.values())[-1] is sent[0]
    assert known.get(sent[1].raw) is None
    known.settle(sent[0], 1, NOTHING)
    assert sent[0].size_bytes < 2_000


def test_a_profile_that_is_not_known_any_more_is_settled_without_being_counted() -> None:
    known = KnownProfiles(10_000)
    one = _profile(0)
    known.settle(one, 1, LARGE, "d0")
    assert (one.policies, one.decision, one.sender) == (1, LARGE, "d0")
    assert (len(known), known.size_bytes) == (0, 0)


def test_a_profile_of_the_same_header_takes_the_place_of_the_one_before() -> None:
    known = KnownProfiles(100_000)
    first, second = _profile(0), _profile(0)
    known.add(first)
    known.settle(first, 1, LARGE)
    known.add(second)
    assert (len(known), known.size_bytes) == (1, second.size_bytes)
    known.clear()
    assert (len(known), known.size_bytes) == (0, 0)
