"""The explanation of what a device gets against the table that answers it, and in its words."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.explanation import ReleaseExplanation, TaskExplanation, explain
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import ReleaseTable, plan_row
from walle.protocol import Profile

TASK = "shop/ipv"
SCHEMA = {"os": ColumnType.STRING, "memory_mb": ColumnType.INT}
RULE = "os == 'a' && (memory_mb >= 4096 || memory_mb == 1)"
POLICIES = [
    Policy(),
    Policy(">=10"),
    Policy(rule=RULE).typed(SCHEMA),
    Policy("<11", "!(os == 'a')").typed(SCHEMA),
    Policy(devices=("d0", "d1", "d2")),
]


def _release(number: int, policy: Policy, state: ReleaseState, step: int = 0) -> Release:
    return Release(
        id=f"r{number}",
        number=number,
        request=ReleaseRequest(scenario="shop", task="ipv", version=f"v{number}", policy=policy),
        created_s=0.0,
        updated_s=0.0,
        state=state,
        step=step,
        beta_devices=("d1", "d5"),
        manifest=f"{number:064x}",
        resumes=ReleaseState.GRAY if state is ReleaseState.PAUSED else None,
    )


def _table(releases: list[Release]) -> ReleaseTable:
    return ReleaseTable(1, [plan_row(TASK, releases, "/cdn").sign(lambda one: one, 1, 1 << 40)])


def _explained(releases: list[Release], profile: Profile) -> TaskExplanation:
    (found,) = explain(_table(releases), profile, releases)
    return found


_states = st.sampled_from([ReleaseState.FULL, ReleaseState.GRAY, ReleaseState.BETA, ReleaseState.PAUSED])
_releases = st.lists(st.tuples(st.sampled_from(POLICIES), _states, st.integers(0, 2)), max_size=6).map(
    lambda drawn: [_release(number, *one) for number, one in enumerate(drawn, 1)]
)
_profiles = st.builds(
    Profile,
    st.sampled_from([f"d{number}" for number in range(8)]),
    st.sampled_from(["9", "10.1", "11", "x"]),
    st.fixed_dictionaries({}, optional={"os": st.sampled_from(["a", "b", 3]), "memory_mb": st.sampled_from([1, 4096])}),
    st.sampled_from([{}, {TASK: "v1"}, {TASK: "v2"}, {TASK: "v9"}]),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(_releases, _profiles)
def test_what_is_explained_is_what_the_table_answers(releases: list[Release], profile: Profile) -> None:
    table, found = _table(releases), _explained(releases, profile)
    answer = table.answer(profile)
    assert found.gets == (answer[0].version if answer else found.has)
    assert sorted(one.release for one in found.releases) == sorted(release.id for release in releases)
    policies = {release.id: release.request.policy for release in releases}
    for one in found.releases:
        assert one.applies == policies[one.release].matches(profile) == all(term.holds for term in one.terms)
    getting = [one for one in found.releases if found.because.startswith(f"{one.release} is the first")]
    assert len(getting) == bool(found.gets)


def test_each_term_says_what_the_device_says() -> None:
    everyone = _release(1, Policy(), ReleaseState.FULL)
    group = _release(2, Policy(">=10", POLICIES[2].rule).typed(SCHEMA), ReleaseState.FULL)
    found = _explained([everyone, group], Profile("d", "9.2", {"memory_mb": "lots"}, {TASK: "v1"}))
    assert (found.has, found.gets) == ("v1", "v1")
    assert found.because == "r1 is the first release that is for it; it has the version already"
    first, second = found.releases
    assert (first.release, first.kind, second.release, second.kind) == ("r2", "customised", "r1", "uniform")
    assert [(one.term, one.holds, one.device) for one in first.terms] == [
        ("app version >=10", False, 'has "9.2"'),
        ('os == "a"', False, "it says no os, so that the term is unknown"),
        (
            "(memory_mb >= 4096) || (memory_mb == 1)",
            False,
            'memory_mb is "lots", which is not of type int, so that the term is unknown',
        ),
    ]
    assert first.result.startswith('not for this device: app version >=10 (has "9.2"); os == "a" (it says')
    assert second.result == "it is full, and for this device"


def _result(release: Release, device_id: str, version: str = "") -> ReleaseExplanation:
    full = _release(1, Policy(), ReleaseState.FULL)
    has = {TASK: version} if version else {}
    return _explained([full, release], Profile(device_id, "10", {}, has)).releases[0]


def test_a_release_under_way_says_whom_it_takes() -> None:
    gray = _release(2, Policy(), ReleaseState.GRAY)
    assert (
        _result(gray, "d0").result == "the release is rolled out to places below 0.25, and this device has place 0.7625"
    )
    assert _result(gray, "d1").result == "it is a beta device of the release"
    beta = dataclasses.replace(gray, state=ReleaseState.BETA)
    assert _result(beta, "d0").result == "the release is in beta, and this device is not one of its 2 devices"
    paused = _release(2, Policy(), ReleaseState.PAUSED)
    assert "only devices that have the version keep it" in _result(paused, "d1").result
    assert "it has the version and keeps it" in _result(paused, "d1", "v2").result


def test_releases_outside_the_table_are_explained_too() -> None:
    hidden, full = _release(1, Policy(), ReleaseState.FULL), _release(2, Policy(), ReleaseState.FULL)
    made = _release(3, Policy(), ReleaseState.CREATED)
    over = _release(4, Policy(), ReleaseState.ROLLED_BACK)
    found = _explained([hidden, full, made, over], Profile("d", "10"))
    assert [(one.release, one.result) for one in found.releases[1:]] == [
        ("r1", "a newer release for the same devices, or for all, is full"),
        ("r3", "it is not rolled out to any device yet"),
    ]
    (waiting,) = explain(ReleaseTable(), Profile("d", "10", {}, {TASK: "v7"}), [made])
    assert (waiting.gets, waiting.because) == ("v7", "no device gets the task yet; it keeps what it has")


def test_only_tasks_of_the_readers_scenarios_are_explained() -> None:
    releases = [_release(1, Policy(), ReleaseState.FULL)]
    assert explain(_table(releases), Profile("d", "10"), releases, frozenset({"bank"})) == []
    assert explain(_table(releases), Profile("d", "10"), releases, frozenset({"shop"}))
