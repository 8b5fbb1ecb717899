import dataclasses
import json
import pickle
from collections.abc import Collection, Iterable, Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.release_world import signs, verify
from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.policy import Policy, Tier
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import MAX_GROUPS, ReleaseTable, TaskRow, plan_row, superseded
from walle.protocol import Attribute, Audience, Directive, Profile
from walle.trust.audience import exclusion, share
from walle.trust.signing import Signer

TASK = "shop/ipv"
URL = "https://cdn.example/cdn"
SIGNER = Signer.generate()


def _release(number: int, version: str, state: ReleaseState, *, policy: str = "", **changes: object) -> Release:
    request = ReleaseRequest(scenario="shop", task="ipv", version=version, policy=Policy(policy))
    manifest = f"{number:064x}"
    return Release(
        id=f"r{number}",
        number=number,
        request=request,
        created_s=0.0,
        updated_s=0.0,
        state=state,
        manifest=manifest,
        size_bytes=10,
        **changes,  # type: ignore[arg-type]
    )


class Cloud:
    """A task's releases as the service sees them: `table` signs with serials that only grow."""

    def __init__(self) -> None:
        self.serial = 1
        self.row: TaskRow | None = None

    def table(self, *full: Release, active: Release | None = None) -> ReleaseTable:
        plan = plan_row(TASK, [*full, *([active] if active else [])], URL)
        kept = plan.keeps(self.row, signs(SIGNER)) if self.row else None
        if kept is None:
            kept = plan.sign(signs(SIGNER), self.serial, 2_000_000_000)
            self.serial += plan.serials
        self.row = kept
        return ReleaseTable(self.serial, [kept])


class Device:
    """A device that obeys serials: it follows a directive only if its serial is above every one it followed."""

    def __init__(self, device_id: str, app_version: str = "10.0") -> None:
        self.device_id = device_id
        self.app_version = app_version
        self.attributes: Mapping[str, Attribute] = {}
        self.version = ""
        self.serial = 0
        self.followed: list[Directive] = []

    def profile(self) -> Profile:
        return Profile(self.device_id, self.app_version, self.attributes, {TASK: self.version} if self.version else {})

    def follow(self, directives: tuple[Directive, ...]) -> bool:
        """Return whether the device moved."""
        moved = False
        for directive in directives:
            verify(directive, SIGNER)
            if directive.serial > self.serial:
                self.serial, self.version = directive.serial, directive.version
                self.followed.append(directive)
                moved = True
        return moved

    def ask(self, table: ReleaseTable) -> str:
        self.follow(table.answer(self.profile()))
        return self.version


def _fleet(count: int = 40) -> list[Device]:
    return [Device(f"d{number}") for number in range(count)]


def test_an_empty_table_leaves_every_task_alone() -> None:
    assert ReleaseTable().answer(Profile("d", "1", {}, {"other/task": "v9"})) == ()
    assert Cloud().table().answer(Profile("d", "1", {}, {"other/task": "v9"})) == ()


def test_a_device_that_has_what_it_should_gets_nothing() -> None:
    table = Cloud().table(_release(1, "v1", ReleaseState.FULL))
    device = Device("d")
    (directive,) = table.answer(device.profile())
    assert (directive.version, directive.manifest, directive.release) == ("v1", f"{1:064x}", "r1")
    device.follow((directive,))
    assert table.answer(device.profile()) == ()


def test_a_whole_release_moves_exactly_the_admitted_and_its_rollback_moves_them_back() -> None:
    cloud, fleet = Cloud(), _fleet()
    v1 = _release(1, "v1", ReleaseState.FULL)
    v2 = _release(2, "v2", ReleaseState.BETA, beta_devices=("d3", "d7"))
    assert {device.ask(cloud.table(v1)) for device in fleet} == {"v1"}
    table = cloud.table(v1, active=v2)
    assert {device.device_id for device in fleet if device.ask(table) == "v2"} == {"d3", "d7"}
    expected: set[str] = {"d3", "d7"}
    for step, limit in enumerate((0.25, 0.5)):
        gray = dataclasses.replace(v2, state=ReleaseState.GRAY, step=step)
        table = cloud.table(v1, active=gray)
        expected |= {device.device_id for device in fleet if share("r2", device.device_id) < limit}
        assert {device.device_id for device in fleet if device.ask(table) == "v2"} == expected
    assert 10 < len(expected) < 35
    old = {device.device_id: device.followed[-1] for device in fleet if device.version == "v2"}

    table = cloud.table(v1)  # rolled back
    assert {device.ask(table) for device in fleet} == {"v1"}
    for device in fleet:
        if device.device_id in old:
            assert not device.follow((old[device.device_id],)), "a replayed candidate must move nothing"
    assert all(table.answer(device.profile()) == () for device in fleet)

    v3 = _release(3, "v3", ReleaseState.GRAY, step=2)  # the fix
    assert {device.ask(cloud.table(v1, active=v3)) for device in fleet} == {"v3"}
    full = dataclasses.replace(v3, state=ReleaseState.FULL)
    table = cloud.table(full, v1)
    assert {device.ask(table) for device in fleet} == {"v3"}
    assert Device("late").ask(table) == "v3"


def test_a_device_that_slept_through_a_rollback_and_a_new_release_leaves_the_bad_version() -> None:
    cloud, device = Cloud(), Device("d1")
    v1 = _release(1, "v1", ReleaseState.FULL)
    device.ask(cloud.table(v1))
    assert device.ask(cloud.table(v1, active=_release(2, "v2", ReleaseState.GRAY, step=2))) == "v2"
    cloud.table(v1)
    assert device.ask(cloud.table(v1, active=_release(3, "v3", ReleaseState.BETA, beta_devices=("other",)))) == "v1"


def test_a_first_release_that_is_rolled_back_is_removed_and_a_second_one_arrives() -> None:
    cloud, device = Cloud(), Device("d1")
    assert device.ask(cloud.table(active=_release(1, "v1", ReleaseState.GRAY, step=2))) == "v1"
    table = cloud.table()
    assert device.ask(table) == ""
    assert device.followed[-1].version == ""
    assert table.answer(device.profile()) == ()
    assert device.ask(cloud.table(active=_release(2, "v2", ReleaseState.GRAY, step=2))) == "v2"


def test_a_paused_release_reaches_no_further_device_and_takes_back_none() -> None:
    cloud, fleet = Cloud(), _fleet()
    v1, gray = _release(1, "v1", ReleaseState.FULL), _release(2, "v2", ReleaseState.GRAY, step=1)
    for device in fleet:
        device.ask(cloud.table(v1))
    first, late = fleet[:20], fleet[20:]
    had = {device.device_id for device in first if device.ask(cloud.table(v1, active=gray)) == "v2"}
    assert had
    paused = dataclasses.replace(gray, state=ReleaseState.PAUSED, resumes=ReleaseState.GRAY)
    table = cloud.table(v1, active=paused)
    assert {device.device_id for device in fleet if device.ask(table) == "v2"} == had
    table = cloud.table(v1, active=gray)
    assert {device.device_id for device in late if device.ask(table) == "v2"} == {
        device.device_id for device in late if share("r2", device.device_id) < 0.5
    }


def test_policies_divide_the_devices() -> None:
    cloud = Cloud()
    ten = _release(2, "v2", ReleaseState.FULL, policy=">=10,<11")
    table = cloud.table(ten, _release(1, "v1", ReleaseState.FULL))
    assert Device("a", "10.4").ask(table) == "v2"
    assert Device("b", "9.0").ask(table) == "v1"
    assert Device("c", "?").ask(table) == "v1"
    eleven = _release(3, "v3", ReleaseState.GRAY, policy=">=11", step=2)
    table = cloud.table(ten, _release(1, "v1", ReleaseState.FULL), active=eleven)
    assert [Device("x", app).ask(table) for app in ("9", "10", "11")] == ["v1", "v2", "v3"]


def test_a_device_that_leaves_a_policy_goes_back() -> None:
    cloud = Cloud()
    ten, one = _release(2, "v2", ReleaseState.FULL, policy=">=10"), _release(1, "v1", ReleaseState.FULL)
    candidate = _release(3, "v3", ReleaseState.GRAY, policy=">=11", step=2)
    table = cloud.table(ten, one, active=candidate)
    device = Device("a", "11.0")
    assert device.ask(table) == "v3"
    device.app_version = "10.0"
    assert device.ask(table) == "v2"
    assert device.followed[-1].release == "", "going back must not count as a success of a release"
    device.app_version = "9.0"
    table = cloud.table(ten, one)
    assert device.ask(table) == "v1"


def test_a_device_outside_every_policy_loses_the_task() -> None:
    table = Cloud().table(_release(1, "v1", ReleaseState.FULL, policy=">=10"))
    device = Device("a", "10")
    assert device.ask(table) == "v1"
    device.app_version = "9"
    assert device.ask(table) == ""


RULE = "os == 'a'"
SCHEMA = {"os": ColumnType.STRING}
POLICIES = [
    Policy(),
    Policy(">=10"),
    Policy(">=11"),
    Policy(rule=RULE).typed(SCHEMA),
    Policy(">=11", RULE).typed(SCHEMA),
    Policy(devices=("d0", "d1", "d2")),
]
_states = st.sampled_from([ReleaseState.FULL, ReleaseState.GRAY, ReleaseState.BETA, ReleaseState.ROLLED_BACK])
_many = st.lists(st.tuples(st.sampled_from(POLICIES), _states, st.integers(0, 2)), max_size=8)


def _releases(drawn: list[tuple[Policy, ReleaseState, int]]) -> list[Release]:
    made = []
    for number, (policy, state, step) in enumerate(drawn, 1):
        release = _release(number, f"v{number}", state, step=step, beta_devices=("d1", "d5"))
        made.append(dataclasses.replace(release, request=dataclasses.replace(release.request, policy=policy)))
    return made


def _devices() -> list[Profile]:
    return [Profile(f"d{n}", str(9 + n % 3), {"os": "ab"[n // 3 % 2]}) for n in range(12)]


def _gets(releases: Iterable[Release], device: Profile) -> str:
    """Return the version that a device without the task gets from a new cloud with these releases."""
    table = ReleaseTable(1, [plan_row(TASK, releases, URL).sign(lambda one: one, 1, 2_000_000_000)])
    answer = table.answer(device)
    assert len(answer) <= 1
    return answer[0].version if answer else ""


@settings(deadline=None)
@given(_many, st.randoms(use_true_random=False))
def test_each_device_gets_one_version_in_the_stated_order(
    drawn: list[tuple[Policy, ReleaseState, int]], random: Random
) -> None:
    """Device-specific, customised, uniform; of each the newer first: the first that is for it and admits it."""
    releases = _releases(drawn)
    shuffled = list(releases)
    random.shuffle(shuffled)
    for device in _devices():
        expected = ""
        for tier in reversed(Tier):
            for release in reversed(releases):
                policy, admission = release.request.policy, release.admission
                if policy.tier is not tier or not policy.matches(device) or expected:
                    continue
                is_in = admission is not None and (
                    device.device_id in admission.devices or share(release.id, device.device_id) < admission.share
                )
                if release.state is ReleaseState.FULL or is_in:
                    expected = release.request.version
        assert _gets(releases, device) == expected
        assert _gets(shuffled, device) == expected


@settings(deadline=None)
@given(_many)
def test_a_step_removes_no_device_from_its_release(drawn: list[tuple[Policy, ReleaseState, int]]) -> None:
    """The shares of each of several releases at once stay nested."""
    releases = _releases(drawn)
    for place, release in enumerate(releases):
        if release.state is ReleaseState.GRAY and release.step < 2:
            before = {one.device_id for one in _devices() if _gets(releases, one) == release.request.version}
            grown = [*releases[:place], dataclasses.replace(release, step=release.step + 1), *releases[place + 1 :]]
            after = {one.device_id for one in _devices() if _gets(grown, one) == release.request.version}
            assert before <= after


def _rolled_back(releases: Iterable[Release], ids: Collection[str]) -> list[Release]:
    over = ReleaseState.ROLLED_BACK
    return [dataclasses.replace(one, state=over) if one.id in ids else one for one in releases]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(POLICIES[:4]), _states, st.integers(0, 2)), max_size=8),
    st.integers(1, 3),
    st.data(),
)
def test_superseded_releases_are_not_needed_before_that_many_rollbacks(
    drawn: list[tuple[Policy, ReleaseState, int]], keep_versions: int, data: st.DataObject
) -> None:
    releases = _releases(drawn)
    gone = superseded(releases, keep_versions)
    left = [
        dataclasses.replace(one, state=ReleaseState.RETIRED) if one.id in gone else one for one in releases
    ]  # fmt: skip
    assert plan_row(TASK, left, URL) == plan_row(TASK, releases, URL)
    live = [one.id for one in left if not one.state.terminal]
    some = data.draw(st.lists(st.sampled_from(live), max_size=keep_versions - 1, unique=True)) if live else []
    for device in _devices():
        assert _gets(_rolled_back(left, some), device) == _gets(_rolled_back(releases, some), device)


def test_the_last_versions_of_each_group_are_not_superseded() -> None:
    full = [_release(number, f"v{number}", ReleaseState.FULL) for number in range(1, 5)]
    group = [_release(number, f"v{number}", ReleaseState.FULL, policy=">=10") for number in range(5, 8)]
    assert superseded([*full, *group], 2) == {"r1": 3, "r2": 2, "r5": 2}
    again = [*full, _release(5, "v4", ReleaseState.FULL)]  # a version twice is one to go back to
    assert superseded(again, 3) == {"r1": 3}
    baking = [dataclasses.replace(full[0], bakes=True), *full[1:]]
    assert superseded(baking, 1) == {"r2": 2, "r3": 1}
    under_way = [*full[:2], _release(3, "v3", ReleaseState.GRAY), _release(4, "v4", ReleaseState.PAUSED)]
    assert superseded(under_way, 2) == {}


def test_groups_have_their_own_versions_at_the_same_time() -> None:
    cloud = Cloud()
    everyone, group, named = _releases(
        [(POLICIES[0], ReleaseState.FULL, 0), (POLICIES[3], ReleaseState.FULL, 0), (POLICIES[5], ReleaseState.GRAY, 2)]
    )
    table = cloud.table(everyone, group, active=named)
    a, b, first = Device("x"), Device("y"), Device("d0")
    a.attributes = first.attributes = {"os": "a"}
    assert [device.ask(table) for device in (a, b, first)] == ["v2", "v1", "v3"]
    newer = _release(4, "v4", ReleaseState.FULL)  # for everyone: the group keeps its own
    table = cloud.table(everyone, group, newer, active=named)
    assert [device.ask(table) for device in (a, b, first)] == ["v2", "v4", "v3"]
    assert [device.ask(cloud.table(everyone, newer)) for device in (a, b, first)] == ["v4", "v4", "v4"]


def test_a_device_that_leaves_a_group_comes_back_to_a_release_under_way() -> None:
    """The candidate is after the group's version in the row, so it needs a directive for the way back too."""
    cloud, device = Cloud(), Device("x")
    group, candidate = _releases([(POLICIES[3], ReleaseState.FULL, 0), (POLICIES[0], ReleaseState.GRAY, 2)])
    table = cloud.table(group, active=candidate)
    device.attributes = {"os": "a"}
    assert device.ask(table) == "v1"
    device.attributes = {}
    assert device.ask(table) == "v2"
    assert device.followed[-1].release == "r2", "its runs are evidence on the release"


def test_a_device_goes_back_further_and_further() -> None:
    cloud, device = Cloud(), Device("x", "11")
    table = cloud.table(
        *(_release(n, f"v{n}", ReleaseState.FULL, policy=p) for n, p in ((1, ""), (2, ">=10"), (3, ">=11")))
    )
    assert device.ask(table) == "v3"
    device.app_version = "10"
    assert device.ask(table) == "v2"
    device.app_version = "9"
    assert device.ask(table) == "v1"


def test_a_row_of_an_older_walle_stays_valid() -> None:
    """A journal has rows of a walle that knew one candidate, which went first."""
    one, two = _release(1, "v1", ReleaseState.FULL), _release(2, "v2", ReleaseState.GRAY, policy=">=10", step=1)
    row = plan_row(TASK, [one, two], URL).sign(signs(SIGNER), 5, 2_000_000_000)
    candidate, full = row.entries
    assert candidate.admission is not None
    old = {
        "task": TASK,
        "lanes": [{key: full.to_plain()[key] for key in ("policy", "directive", "back")}],
        "candidate": {
            **{key: candidate.to_plain()[key] for key in ("policy", "directive")},
            "share": 0.5,
            "devices": [],
            "open": True,
        },
        "removal": row.removal.to_json(),
    }
    again = TaskRow.from_plain(json.loads(json.dumps(old)))
    assert [entry.directive for entry in again.entries] == [candidate.directive, full.directive]
    assert again.entries[0].admission == candidate.admission
    assert plan_row(TASK, [one, two], URL).keeps(again, signs()) == again  # nothing has to be signed again


def test_full_releases_hide_what_no_device_can_get() -> None:
    releases = [
        _release(5, "v5", ReleaseState.FULL, policy=">=10"),
        _release(4, "v4", ReleaseState.FULL, policy=">=10"),
        _release(3, "v3", ReleaseState.FULL),
        _release(2, "v2", ReleaseState.FULL, policy=">=12"),
        _release(1, "v1", ReleaseState.FULL),
    ]
    plan = plan_row(TASK, releases, URL)
    assert [entry.directive.version for entry in plan.entries] == ["v5", "v3"]


def test_steps_change_the_audience_and_no_serial() -> None:
    cloud = Cloud()
    gray = _release(2, "v2", ReleaseState.GRAY)
    (first,) = cloud.table(active=gray).rows[TASK].candidates
    (second,) = cloud.table(active=dataclasses.replace(gray, step=1)).rows[TASK].candidates
    assert first.admission is not None
    assert second.admission is not None
    for entry, admission in ((first, first.admission), (second, second.admission)):
        for directive, before in ((entry.directive, first.directive), (entry.back, first.back)):
            verify(directive, SIGNER)
            assert directive.audience == Audience(below=int(admission.share * Audience.PLACES))
            assert dataclasses.replace(directive, audience=Audience(), signature="") == dataclasses.replace(
                before, audience=Audience(), signature=""
            ), "a pull goes on, and a device that rejected the version does not try it again"
    assert (first.admission.share, second.admission.share) == (0.25, 0.5)


@given(st.lists(st.tuples(st.sampled_from(["", ">=10", ">=11"]), st.booleans()), max_size=5))
def test_every_serial_is_used_once_and_all_are_signed(releases: list[tuple[str, bool]]) -> None:
    full = [_release(9 - i, f"v{9 - i}", ReleaseState.FULL, policy=policy) for i, (policy, _) in enumerate(releases)]
    active = _release(10, "v10", ReleaseState.GRAY) if any(flag for _, flag in releases) else None
    plan = plan_row(TASK, [*full, *([active] if active else [])], URL)
    row = plan.sign(signs(SIGNER), 100, 50)
    ordered = [entry.directive for entry in reversed(row.entries)]
    ordered += [entry.back for entry in row.entries] + [row.removal]
    serials = [directive.serial for directive in ordered]
    assert serials == sorted(set(serials))
    assert serials[0] >= 100
    assert serials[-1] == 100 + plan.serials - 1
    for directive in ordered:
        verify(directive, SIGNER)
        assert directive.expires_s == 50


_RANGES = st.sampled_from(["", ">=10", ">=11", "<10", "==10.*"])
_POLICIES = st.builds(
    lambda app_version, rule, devices: Policy(
        app_version, rule, (("os", ColumnType.STRING),) if rule else (), tuple(f"d{number}" for number in devices)
    ),
    _RANGES,
    st.sampled_from(["", 'os == "android"']),
    st.just(()) | st.sets(st.integers(0, 9), min_size=1, max_size=4).map(sorted),
)
_STAGES = st.sampled_from(
    [(ReleaseState.FULL, 0), (ReleaseState.BETA, 0), *((ReleaseState.GRAY, step) for step in range(3))]
)


@given(
    st.lists(st.tuples(_POLICIES, _STAGES, st.sets(st.integers(0, 9)), st.booleans()), max_size=5),
    st.sampled_from(["9", "10.3", "11", "?"]),
    st.sampled_from(["", "v1", "v3", "v5", "v77"]),
    st.sampled_from([{}, {"os": "android"}, {"os": "ios"}]),
)
def test_every_answer_is_for_the_device_that_it_is_given_to(
    wanted: list[tuple[Policy, tuple[ReleaseState, int], set[int], bool]],
    app_version: str,
    have: str,
    attributes: dict[str, Attribute],
) -> None:
    """The cloud's choice and the device's check are one rule: no honest answer is refused."""
    releases = []
    for number, (policy, (state, step), named, is_open) in enumerate(wanted, 1):
        is_paused = state is not ReleaseState.FULL and not is_open
        release = _release(
            number,
            f"v{number}",
            ReleaseState.PAUSED if is_paused else state,
            step=step,
            resumes=state if is_paused else None,
            beta_devices=tuple(f"d{one}" for one in sorted(named)) or ("nobody",),
        )
        request = dataclasses.replace(release.request, policy=policy)
        releases.append(dataclasses.replace(release, request=request))
    table = Cloud().table(*releases)
    row = table.rows[TASK]
    for number in range(10):
        profile = Profile(f"d{number}", app_version, attributes, {TASK: have} if have else {})
        for directive in table.answer(profile):
            assert exclusion(directive, profile.device_id, app_version) == ""
            for entry in row.candidates:
                if entry.policy.rule or directive not in (entry.directive, entry.back):
                    continue
                for other in range(10):
                    stranger = dataclasses.replace(profile, device_id=f"d{other}")
                    admits = entry.admits(f"d{other}", "") and entry.policy.matches(stranger)
                    if not admits:
                        assert exclusion(directive, f"d{other}", app_version), "for no other device"


def test_a_table_goes_through_json_and_pickle() -> None:
    candidate = _release(2, "v2", ReleaseState.PAUSED, resumes=ReleaseState.BETA, beta_devices=("a",), policy=">=10")
    table = Cloud().table(_release(1, "v1", ReleaseState.FULL), active=candidate)
    table.answer(Profile("d", "10"))
    for again in (
        ReleaseTable.from_plain(json.loads(json.dumps(table.to_plain()))),
        pickle.loads(pickle.dumps(table)),
    ):
        assert (again.generation, again.rows) == (table.generation, table.rows)


def test_made_up_groups_do_not_fill_the_memory() -> None:
    schema = {f"b{bit}": ColumnType.BOOL for bit in range(10)}
    releases = []
    for number, name in enumerate(schema, 1):  # each device below is in a group of its own
        release = _release(number, f"v{number}", ReleaseState.GRAY, step=2)
        request = dataclasses.replace(release.request, policy=Policy(rule=name).typed(schema))
        releases.append(dataclasses.replace(release, request=request))
    table = Cloud().table(*releases)
    for number in range(1, 3 * MAX_GROUPS):
        attributes = {f"b{bit}": bool(number >> bit & 1) for bit in range(10)}
        (directive,) = table.answer(Profile("d", f"10.{number}", attributes))
        assert directive.version == f"v{number.bit_length()}"
    assert 0 < len(table._plans) <= MAX_GROUPS
    assert all(0 < len(steps.known) <= MAX_GROUPS for steps in table._row_steps)


@pytest.mark.parametrize("have", ["v2", "v999999", "weird", "v", "v²"])
def test_any_other_version_is_led_to_the_current_one(have: str) -> None:
    table = Cloud().table(_release(1, "v1", ReleaseState.FULL))
    (directive,) = table.answer(Profile("d", "10", {}, {TASK: have}))
    assert directive.version == "v1"
