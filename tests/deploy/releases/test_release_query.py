"""Pages of releases: every release once, newest first, of what the caller may read."""

import dataclasses
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.releases.query import ReleaseQuery
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest

STATES = st.sampled_from(list(ReleaseState))
SCENARIOS = st.sampled_from(["shop", "bank"])


def release(number: int, scenario: str, state: ReleaseState) -> Release:
    request = ReleaseRequest(scenario=scenario, task="count", version="v1")
    return Release(id=f"count-v1-{number}", number=number, request=request, created_s=0, updated_s=0, state=state)


@st.composite
def some_releases(draw: st.DrawFn) -> list[Release]:
    count = draw(st.integers(0, 30))
    found = [release(number, draw(SCENARIOS), draw(STATES)) for number in range(1, count + 1)]
    return draw(st.permutations(found))


def walk(query: ReleaseQuery, releases: Sequence[Release]) -> list[Release]:
    found: list[Release] = []
    while True:
        page = query.page(releases)
        assert len(page.releases) <= query.limit
        found += page.releases
        if not page.before:
            assert page.total == len(found)
            return found
        query = dataclasses.replace(query, before=page.before)


@given(some_releases(), st.integers(1, 7), st.frozensets(STATES), st.none() | st.frozensets(SCENARIOS))
def test_the_pages_together_are_the_choice(
    releases: list[Release], limit: int, states: frozenset[ReleaseState], scenarios: frozenset[str] | None
) -> None:
    query = ReleaseQuery(scenarios=scenarios, limit=limit, states=frozenset(state.value for state in states))
    readable = [one for one in releases if scenarios is None or one.request.scenario in scenarios]
    chosen = [one for one in readable if not states or one.state in states]
    assert walk(query, releases) == sorted(chosen, key=lambda one: -one.number)
    counts = query.page(releases).by_state
    assert counts == {state.value: n for state in ReleaseState if (n := sum(one.state is state for one in readable))}


def test_a_search_is_for_a_part_of_id_task_or_version() -> None:
    releases = [release(1, "shop", ReleaseState.FULL), release(12, "bank", ReleaseState.GRAY)]
    for text, numbers in (("V1-12", [12]), ("shop/", [1]), ("count", [12, 1]), ("v2", [])):
        assert [one.number for one in ReleaseQuery(search=text).page(releases).releases] == numbers
    assert [one.number for one in ReleaseQuery(task="bank/count").page(releases).releases] == [12]
