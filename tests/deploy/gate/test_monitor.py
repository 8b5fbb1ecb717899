import dataclasses
import json
import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.agent.outcomes import device_groups
from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.gate.monitor import MAX_HELD, Monitor
from walle.deploy.gate.option import GateError
from walle.deploy.gate.step import Step
from walle.deploy.policies.attribute_schema import ColumnType, JoinedProfile
from walle.deploy.policies.policy import Policy
from walle.protocol import Attribute, FailureClass, Metric, Outcome, OutcomeKind, Profile
from walle.trust.audience import share

TASK = "shop/ipv"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("p_good", {"p_good": 0.0}),
        ("p_bad", {"p_bad": 1.0}),
        ("p_bad", {"p_good": 0.02, "p_bad": 0.02}),
        ("alpha", {"alpha": 0.5}),
        ("beta", {"beta": 0.0}),
        ("min_devices", {"min_devices": 0}),
        ("device_runs", {"device_runs": 0}),
        ("settle_s", {"settle_s": 0.0}),
        ("silence_s", {"silence_s": 0.0}),
        ("trial_runs", {"trial_runs": -1}),
    ],
)
def test_a_gate_names_the_parameter_that_is_wrong(field: str, changes: dict[str, float]) -> None:
    with pytest.raises(GateError) as caught:
        Gate(**changes)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert f"gate.{field}" in str(caught.value)


def _step(gate: Gate | None = None, **changes: object) -> Step:
    """Return a gray step for all devices."""
    values = {"stage": "gray 1.0", "steps": 4, "share_to": 1.0, **changes}
    return Step(release="r2", task=TASK, version="v2", gate=gate or Gate(), **values)  # type: ignore[arg-type]


def _outcome(kind: OutcomeKind, ok: int = 0, failed: int = 0, *, old: bool = False) -> Outcome:
    version, release = ("v1", "r1") if old else ("v2", "r2")
    return Outcome(task=TASK, version=version, release=release, kind=kind, ok=ok, failed=failed)


def _report(
    monitor: Monitor,
    device_id: str,
    ok: int,
    failed: int,
    *,
    groups: Mapping[str, str] | None = None,
    old: bool = False,
    installs: bool = True,
    now_s: float = 0.0,
) -> Verdict:
    outcomes = [_outcome(OutcomeKind.RUN, ok, failed, old=old)]
    if installs and not old:
        outcomes.append(_outcome(OutcomeKind.INSTALLED))
    monitor.take(device_id, outcomes, groups or {}, now_s)
    return monitor.verdict


def test_a_device_counts_once_however_much_it_reports() -> None:
    monitor = Monitor(_step())
    for _ in range(1_000):
        assert _report(monitor, "a", 0, 1_000) is Verdict.CONTINUE
    assert (monitor.devices, monitor.broken_devices) == (1, 1)
    good = Monitor(_step())
    assert _report(good, "a", 1_000_000, 0) is Verdict.CONTINUE
    assert good.evidence()["new"] == {"devices": 1, "broken": 0, "runs": 10, "failed": 0.0, "waiting": 0, "hindered": 0}


def test_a_device_waits_for_its_first_runs_and_then_settles() -> None:
    monitor = Monitor(_step())
    _report(monitor, "a", 3, 0, now_s=100.0)
    assert (monitor.devices, monitor.evidence()["new"]["waiting"]) == (0, 1)
    monitor.tick(399.0)
    assert monitor.devices == 0
    monitor.tick(400.0)
    assert (monitor.devices, monitor.evidence()["new"]["runs"]) == (1, 3)
    _report(monitor, "a", 0, 100, now_s=500.0)
    assert (monitor.devices, monitor.broken_devices) == (1, 0)


def test_devices_count_where_more_of_them_take_turns_than_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fleet of millions thousands of devices report between two reports of one."""
    monkeypatch.setattr("walle.deploy.gate.monitor.MAX_DEVICES", 200)
    monitor = Monitor(_step(control_versions=frozenset({"v0"}), share_to=0.5))
    fleet = [f"device-{number}" for number in range(3_000)]
    new = [device_id for device_id in fleet if monitor.step.is_new(device_id)]
    for round_s in range(0, 80, 20):
        for device_id in fleet:
            if device_id in new:
                _report(monitor, device_id, 3, 0, now_s=round_s)
            else:
                old = dataclasses.replace(_outcome(OutcomeKind.RUN, 3, old=True), version="v0")
                monitor.take(device_id, [old], {}, round_s)
    assert monitor.verdict is Verdict.ACCEPT
    assert monitor.control_devices == 200
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    assert again.to_plain() == monitor.to_plain()


def test_devices_that_report_no_run_hold_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walle.deploy.gate.monitor.MAX_DEVICES", 5)
    monitor = Monitor(_step())
    for number in range(20):
        monitor.take(f"silent-{number}", [_outcome(OutcomeKind.INSTALLED)], {}, 0.0)
    for number in range(5):
        _report(monitor, f"running-{number}", 3, 0)
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    for one in (monitor, again):
        one.take("silent", [_outcome(OutcomeKind.INSTALLED)], {}, 0.0)
        for number in range(5):
            _report(one, f"running-{number}", 7, 0)
        assert one.devices == 5


def test_a_device_that_left_the_version_holds_no_place_among_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walle.deploy.gate.monitor.MAX_DEVICES", 2)
    monitor = Monitor(_step())
    monitor.take("left", [_outcome(OutcomeKind.INSTALLED)], {}, 0.0)
    _hindered(monitor, "left", FailureClass.DEVICE, OutcomeKind.REVERTED)
    for number in range(4):
        monitor.take(f"silent-{number}", [_outcome(OutcomeKind.INSTALLED)], {}, 0.0)
    _report(monitor, "running", 10, 0)
    assert (monitor.devices, monitor.evidence()["new"]["waiting"]) == (1, 1)


def test_only_a_device_that_confirmed_the_installation_counts() -> None:
    monitor = Monitor(_step())
    _report(monitor, "a", 0, 100, installs=False)
    assert monitor.devices == 0
    _report(monitor, "a", 0, 100)
    assert monitor.devices == 1


def test_only_devices_that_the_step_admits_first_count() -> None:
    places = {name: share("r2", name) for name in map(str, range(200))}
    step = _step(
        share_from=0.25,
        share_to=0.5,
        devices=frozenset(),
        earlier_devices=frozenset({"beta"}),
        control_versions=frozenset({"v1"}),
    )
    monitor = Monitor(step)
    for name in [*places, "beta"]:
        _report(monitor, name, 10, 0)
        _report(monitor, name, 10, 0, old=True)
    assert monitor.devices == sum(0.25 <= place < 0.5 for place in places.values())
    assert monitor.control_devices == sum(place >= 0.5 for place in places.values())


@pytest.mark.parametrize("kind", [OutcomeKind.REJECTED, OutcomeKind.REVERTED])
def test_a_device_that_refuses_or_leaves_the_version_is_broken(kind: OutcomeKind) -> None:
    monitor = Monitor(_step())
    _report(monitor, "a", 9, 0)
    for _ in range(3):
        monitor.take("a", [_outcome(kind)], {}, 0.0)
        monitor.take("b", [_outcome(kind)], {}, 0.0)
    assert (monitor.devices, monitor.broken_devices) == (2, 2)


def test_a_version_that_fails_everywhere_is_rejected_after_a_few_devices() -> None:
    monitor = Monitor(_step())
    for number in range(3):
        _report(monitor, str(number), 0, 10)
    assert monitor.verdict is Verdict.REJECT
    assert monitor.reason == "30 of 30 runs failed, on 3 devices"
    for number in range(1_000):
        assert _report(monitor, f"good {number}", 10, 0) is Verdict.REJECT


def test_an_accepted_step_can_still_be_rejected() -> None:
    monitor = Monitor(_step())
    verdicts = [_report(monitor, str(number), 10, 0) for number in range(200)]
    assert verdicts[-1] is Verdict.ACCEPT
    verdicts = [_report(monitor, f"bad {number}", 0, 10) for number in range(200)]
    assert verdicts[-1] is Verdict.REJECT


def test_evidence_of_every_step_is_kept_against_the_version() -> None:
    def devices_until_rejected(monitor: Monitor) -> int:
        while monitor.verdict is not Verdict.REJECT:
            number = monitor.devices
            failed = int(number % 4 == 3)
            _report(monitor, f"{monitor.step.stage} {number}", 10 - failed, failed)
        return monitor.devices

    fresh = devices_until_rejected(Monitor(_step()))
    monitor = Monitor(_step())
    for number in range(fresh // 2):
        _report(monitor, str(number), 10 - int(number % 4 == 3), int(number % 4 == 3))
    assert monitor.verdict is Verdict.CONTINUE
    monitor.begin(_step(stage="another"))
    assert monitor.devices == 0
    assert devices_until_rejected(monitor) < fresh - 10


def _failures(source: random.Random, rate: float) -> int:
    return sum(source.random() < rate for _ in range(10))


def _run(seed: int, new: float, old: float, devices: int) -> tuple[Verdict, int]:
    """Return the verdict of a step in which devices of the old version report beside three times as many."""
    source = random.Random(seed)
    monitor = Monitor(_step(share_to=0.25, control_versions=frozenset({"v1"})))
    while monitor.devices < devices and monitor.verdict is Verdict.CONTINUE:
        device_id = f"{source.getrandbits(64)}"
        is_new = share("r2", device_id) < 0.25
        failed = _failures(source, new if is_new else old)
        _report(monitor, device_id, 10 - failed, failed, old=not is_new)
    return monitor.verdict, monitor.devices


def test_a_bad_version_is_found_after_the_evidence_of_320_devices() -> None:
    runs = [_run(seed, 0.02, 0.005, 600) for seed in range(15)]
    assert sum(verdict is Verdict.ACCEPT for verdict, _ in runs) == 0
    found = sorted(devices for _, devices in runs)
    assert found[7] <= 160
    assert found[13] <= 320


@pytest.mark.parametrize("rate", [0.005, 0.01])
def test_a_version_that_fails_as_seldom_as_the_one_before_is_accepted(rate: float) -> None:
    runs = [_run(seed, rate, rate, 800) for seed in range(15)]
    assert sum(verdict is Verdict.ACCEPT for verdict, _ in runs) >= 13
    assert not any(verdict in (Verdict.REJECT, Verdict.PAUSE) for verdict, _ in runs)


def test_a_group_on_which_the_version_always_fails_pauses_the_release_until_a_person_overrules() -> None:
    step = _step(share_to=0.25, control_versions=frozenset({"v1"}))
    monitor = Monitor(step)
    source = random.Random(0)
    while monitor.verdict is Verdict.CONTINUE:
        device_id = f"{source.getrandbits(64)}"
        is_new = share("r2", device_id) < 0.25
        model = "x" if source.random() < 0.02 else f"m{source.randrange(9)}"
        failed = 10 if is_new and model == "x" else 0
        _report(monitor, device_id, 10 - failed, failed, groups={"model": model}, old=not is_new)
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, "group model=x")
    assert "it fails on devices of one group, model=x" in monitor.reason
    monitor.begin(step)
    assert monitor.verdict is Verdict.PAUSE
    monitor.begin(dataclasses.replace(step, overruled=(monitor.cause,)))
    assert monitor.verdict is not Verdict.PAUSE


SILENCE = "silence at gray 1.0"


def test_a_step_without_reports_is_paused_after_the_stated_time() -> None:
    monitor = Monitor(_step(Gate(silence_s=600.0)))
    monitor.tick(0.0)
    monitor.tick(500.0)
    _report(monitor, "a", 10, 0, now_s=550.0)
    for now_s in (551.0, 1_150.0):
        monitor.tick(now_s)
        assert monitor.verdict is Verdict.CONTINUE
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    again.tick(1_151.0)
    assert (again.verdict, again.cause) == (Verdict.PAUSE, SILENCE)
    assert again.reason.startswith("no further device has reported for 0.167 h; 1 devices count, too few for a verdict")
    assert "Resume to wait 0.167 h more" in again.reason


@pytest.mark.parametrize(
    ("failed", "verdict"), [(None, Verdict.PAUSE), (0, Verdict.ACCEPT), (4, Verdict.PAUSE), (10, Verdict.PAUSE)]
)
def test_an_overruled_silence_ends_with_the_devices_that_count_and_never_lasts_without_limit(
    failed: int | None, verdict: Verdict
) -> None:
    monitor = Monitor(_step(Gate(silence_s=600.0)))
    if failed is not None:
        _report(monitor, "a", 10 - failed, failed)
    monitor.tick(0.0)
    monitor.tick(600.0)
    assert monitor.cause == SILENCE
    for overruled in ((SILENCE,), (SILENCE, SILENCE)):
        monitor.begin(dataclasses.replace(monitor.step, overruled=overruled))
        monitor.tick(700.0)
        monitor.tick(1_299.0)
        assert monitor.verdict.value == "continue"
        monitor.tick(1_300.0)
        assert monitor.verdict is verdict
        if verdict == "accept":
            break


def test_a_paused_release_is_not_silent_and_resumes_without_a_pause() -> None:
    step = _step(Gate(silence_s=600.0))
    monitor = Monitor(step)
    _report(monitor, "a", 10, 0)
    monitor.tick(0.0)
    monitor.begin(dataclasses.replace(step, is_paused=True))
    for now_s in (10.0, 5_000.0):
        monitor.tick(now_s)
        assert monitor.verdict is Verdict.CONTINUE
    monitor.begin(step)
    monitor.tick(5_001.0)
    monitor.tick(5_600.0)
    assert (monitor.verdict, monitor.devices) == (Verdict.CONTINUE, 1)
    monitor.tick(5_601.0)
    assert monitor.cause == SILENCE


def test_devices_of_a_policy_over_uploaded_attributes_are_its_control() -> None:
    columns = (("os", ColumnType.STRING), ("uploaded.age", ColumnType.INT))
    policy = Policy(rule='os == "ios" && uploaded.age >= 18', columns=columns)
    device = next(name for name in map(str, range(100)) if share("r2", name) >= 0.5)

    def join(profile: Profile) -> Profile:  # joined by the id of the user, which is not a column of the policy
        age = 30 if profile.attributes.get("user") == "anna" else 10
        return JoinedProfile(**vars(profile), uploaded={"uploaded.age": age})

    for user, claimed, expected in (("anna", 10, 1), ("bert", 30, 0)):
        monitor = Monitor(_step(share_to=0.5, control_versions=frozenset({"v1"}), policy=policy))
        groups = device_groups("10.2", {"os": "ios", "user": user, "uploaded.age": claimed})
        _report(monitor, device, 10, 0, groups=groups, old=True)
        assert monitor.control_devices == 0  # nothing was uploaded, whatever is claimed
        monitor.join = join
        _report(monitor, device, 10, 0, groups=groups, old=True)
        assert monitor.control_devices == expected


def test_the_control_are_devices_of_the_policy_with_the_version_that_the_release_takes_the_place_of() -> None:
    columns = (("memory_mb", ColumnType.INT), ("os", ColumnType.STRING), ("pro", ColumnType.BOOL))
    policy = Policy(">=10", 'os == "ios" && memory_mb >= 4096 && pro', columns)
    monitor = Monitor(_step(share_to=0.5, control_versions=frozenset({"v1"}), policy=policy))
    device = next(name for name in map(str, range(100)) if share("r2", name) >= 0.5)
    attributes: dict[str, Attribute] = {"os": "ios", "memory_mb": 4096, "pro": True}
    others: list[tuple[str, dict[str, Attribute]]] = [
        ("9", attributes),
        ("10", {**attributes, "os": "android"}),
        ("10", {**attributes, "memory_mb": 1}),
        ("10", {**attributes, "pro": False}),
        ("10", {"os": "ios", "pro": True}),
    ]
    for app_version, other in others:
        _report(monitor, device, 0, 10, groups=device_groups(app_version, other), old=True)
    groups = device_groups("10.2", attributes)
    candidate = Outcome(task=TASK, version="v3", release="r3", kind=OutcomeKind.RUN, failed=10)
    monitor.take(device, [candidate], groups, 0.0)  # an outcome of another release that is under way
    assert monitor.control_devices == 0
    _report(monitor, device, 10, 0, groups=groups, old=True)
    assert monitor.control_devices == 1
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    assert again.step == monitor.step
    monitor.begin(dataclasses.replace(monitor.step, control_versions=frozenset({"v0"})))
    assert monitor.control_devices == 0  # v1 was taken back, and counts no longer


def test_evidence_that_was_journalled_before_steps_had_policies_is_read() -> None:
    plain = json.loads(json.dumps(Monitor(_step()).to_plain()))
    for name in ("policy", "control_versions", "is_paused"):
        del plain["step"][name]
    plain["step"]["has_control"] = True
    monitor = Monitor.from_plain(plain)
    assert monitor is not None
    assert monitor.step == _step()


def test_a_step_of_named_devices_is_decided_by_all_that_it_is_the_first_to_admit() -> None:
    policy = Policy(devices=tuple("abcd"))
    step = _step(share_to=1.0, devices=frozenset("cd"), earlier_devices=frozenset("ab"), policy=policy)
    monitor = Monitor(step)
    assert _report(monitor, "c", 10, 0) is Verdict.CONTINUE
    assert _report(monitor, "d", 10, 0) is Verdict.ACCEPT
    broken = Monitor(step)
    _report(broken, "c", 0, 10)
    assert _report(broken, "d", 10, 0) is Verdict.PAUSE
    empty = Monitor(dataclasses.replace(step, devices=frozenset()))
    empty.begin(empty.step)
    assert empty.verdict is Verdict.ACCEPT


def test_a_beta_is_decided_by_all_of_its_devices() -> None:
    step = _step(share_to=0.0, devices=frozenset("abc"))
    monitor = Monitor(step)
    assert _report(monitor, "a", 10, 0) is Verdict.CONTINUE
    assert _report(monitor, "stranger", 10, 0) is Verdict.CONTINUE
    assert _report(monitor, "b", 0, 10) is Verdict.CONTINUE
    assert _report(monitor, "c", 10, 0) is Verdict.ACCEPT
    alone = Monitor(_step(share_to=0.0, devices=frozenset("a")))
    assert _report(alone, "a", 0, 10) is Verdict.PAUSE
    assert alone.cause == "inconclusive gray 1.0"
    alone.begin(dataclasses.replace(alone.step, overruled=(alone.cause,)))
    assert alone.verdict is Verdict.ACCEPT


def test_in_a_trial_each_run_counts_like_a_device() -> None:
    gate = Gate(p_good=0.05, p_bad=0.5, alpha=0.05, beta=0.05, trial_runs=100)
    good = Monitor(_step(gate, steps=2))
    assert _report(good, "a", 20, 0) is Verdict.ACCEPT
    bad = Monitor(_step(gate, steps=2))
    assert _report(bad, "a", 0, 5) is Verdict.REJECT
    limited = Monitor(_step(dataclasses.replace(gate, trial_runs=1), steps=2))
    assert _report(limited, "a", 0, 1_000) is Verdict.CONTINUE
    assert limited.evidence()["new"]["runs"] == 1


def test_a_device_that_leaves_the_version_in_the_same_report_is_broken_and_in_a_trial_its_runs_count_too() -> None:
    outcomes = [_outcome(OutcomeKind.REVERTED), _outcome(OutcomeKind.RUN, 500, 10), _outcome(OutcomeKind.INSTALLED)]
    monitor = Monitor(_step())
    monitor.take("a", outcomes, {}, 0.0)
    assert (monitor.devices, monitor.broken_devices) == (1, 1)
    trial = Monitor(_step(Gate(p_good=0.05, p_bad=0.5, alpha=0.05, trial_runs=1_000), steps=2))
    trial.take("a", [outcomes[0], _outcome(OutcomeKind.RUN, 0, 10), outcomes[2]], {}, 0.0)
    assert trial.verdict is Verdict.REJECT
    assert trial.reason == "11 of 11 runs failed, on 1 devices"


def test_a_trial_can_wait_for_several_devices() -> None:
    gate = Gate(p_good=0.05, p_bad=0.5, min_devices=2, trial_runs=100)
    monitor = Monitor(_step(gate))
    assert _report(monitor, "a", 50, 0) is Verdict.CONTINUE
    assert _report(monitor, "b", 1, 0) is Verdict.ACCEPT


def test_older_evidence_is_not_read_as_evidence_of_devices() -> None:
    before = {"gate": {}, "ok": 3, "failed": 1, "verdict": "continue", "devices": ["a"], "ratio": 0.1}
    assert Monitor.from_plain(before) is None


REPORTS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.integers(0, 12),
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from(["x", "y"]),
    ),
    max_size=30,
)


@given(REPORTS)
@settings(max_examples=60, deadline=None)
def test_a_monitor_goes_through_plain_values_at_any_time(reports: list[tuple[str, int, int, bool, str]]) -> None:
    monitor = Monitor(_step(share_to=0.5, control_versions=frozenset({"v1"})))
    for device_id, ok, failed, old, group in reports:
        again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
        assert again is not None
        assert again.to_plain() == monitor.to_plain()
        _report(monitor, device_id, ok, failed, old=old, groups={"os": group})
        _report(again, device_id, ok, failed, old=old, groups={"os": group})
        assert again.evidence() == monitor.evidence()
        assert again.verdict is monitor.verdict


@given(st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 10), st.booleans()), max_size=30), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_evidence_does_not_depend_on_the_order_of_devices(
    reports: dict[int, tuple[int, bool]], source: random.Random
) -> None:
    def evidence(order: list[int]) -> object:
        monitor = Monitor(_step(share_to=0.5, control_versions=frozenset({"v1"})))
        for name in order:
            failed, twice = reports[name]
            for _ in range(1 + twice):
                _report(monitor, str(name), 10 - failed, failed, old=share("r2", str(name)) >= 0.5)
        return {key: value for key, value in monitor.evidence().items() if key not in ("cause", "groups")}

    order = list(reports)
    shuffled = source.sample(order, len(order))
    assert evidence(order) == evidence(shuffled)


@given(st.lists(st.integers(0, 10), min_size=1, max_size=20), st.data())
@settings(max_examples=60, deadline=None)
def test_a_device_that_fails_more_is_never_better_evidence(failures: list[int], data: st.DataObject) -> None:
    def values(counts: list[int]) -> tuple[list[float], list[float]]:
        monitor = Monitor(_step())
        for number, failed in enumerate(counts):
            _report(monitor, str(number), 10 - failed, failed)
        shown = monitor.evidence()
        return [one["value"] for one in shown["rejects"]], [one["value"] for one in shown["accepts"]]

    place = data.draw(st.integers(0, len(failures) - 1))
    worse = [*failures]
    worse[place] = data.draw(st.integers(failures[place], 10))
    rejects, accepts = values(failures)
    worse_rejects, worse_accepts = values(worse)
    assert all(after >= before - 1e-9 for before, after in zip(rejects, worse_rejects, strict=True))
    assert all(after <= before + 1e-9 for before, after in zip(accepts, worse_accepts, strict=True))


def _hindered(monitor: Monitor, device_id: str, what: FailureClass, kind: OutcomeKind = OutcomeKind.REJECTED) -> None:
    outcome = dataclasses.replace(_outcome(kind), error=f"error of {device_id}", failure_class=what)
    monitor.take(device_id, [outcome], {}, 0.0)


@pytest.mark.parametrize("what", [FailureClass.DEVICE, FailureClass.NETWORK, FailureClass.CLOUD])
def test_a_fault_of_devices_or_cloud_that_hinders_many_pauses_and_never_rejects(what: FailureClass) -> None:
    monitor = Monitor(_step())
    for number in range(200):
        _hindered(monitor, f"h{number}", what)
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, f"{what} at gray 1.0")
    assert "devices cannot install it; at fault is" in monitor.reason
    assert "The last reported: error of h" in monitor.reason
    assert (monitor.devices, monitor.broken_devices, monitor.blames_version) == (0, 0, False)
    overruled = dataclasses.replace(monitor.step, overruled=(monitor.cause,))
    monitor.begin(overruled)
    for number in range(200):  # devices that install it after all, and count as ever
        assert monitor.verdict is not Verdict.PAUSE
        _report(monitor, f"h{number}", 10, 0)
    assert (monitor.verdict, monitor.devices) == (Verdict.ACCEPT, 200)


@pytest.mark.parametrize(("what", "share_"), [("device", 0.05), ("network", 0.05), ("cloud", 0.01)])
def test_a_few_hindered_devices_hold_up_no_release(what: str, share_: float) -> None:
    for seed in range(20):
        source, monitor = random.Random(seed), Monitor(_step())
        for number in range(300):
            if source.random() < share_:
                _hindered(monitor, f"{number}", FailureClass(what))
            else:
                _report(monitor, f"{number}", 10, 0)
        assert monitor.verdict is Verdict.ACCEPT


def test_a_version_that_hides_behind_another_class_is_paused_and_not_shipped() -> None:
    monitor = Monitor(_step())
    source = random.Random(1)
    while monitor.verdict is Verdict.CONTINUE:
        device_id = f"{source.getrandbits(64)}"
        if source.random() < 0.4:
            _report(monitor, device_id, 1, 0)
            _hindered(monitor, device_id, FailureClass.DEVICE, OutcomeKind.REVERTED)
        else:
            _report(monitor, device_id, 10, 0)
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, "device at gray 1.0")


def test_a_beta_is_paused_once_all_that_it_waits_for_are_hindered() -> None:
    monitor = Monitor(_step(stage="beta", share_to=0.0, devices=frozenset("ab")))
    assert _report(monitor, "a", 10, 0) is Verdict.CONTINUE
    _hindered(monitor, "b", FailureClass.CLOUD)
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, "cloud at beta")
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    assert again.evidence() == monitor.evidence()
    again.begin(dataclasses.replace(again.step, overruled=(again.cause,)))
    assert _report(again, "b", 10, 0) is Verdict.ACCEPT


def test_evidence_from_before_there_were_classes_of_failure_is_read() -> None:
    plain = json.loads(json.dumps(Monitor(_step()).to_plain()))
    del plain["hindrances"]
    for sample in (*plain["new"], plain["old"]):
        del sample["hindered"]
    monitor = Monitor.from_plain(plain)
    assert monitor is not None
    assert monitor.evidence() == Monitor(_step()).evidence()


def test_a_step_lasts_as_long_as_it_must_and_is_accepted_then_without_a_further_report() -> None:
    monitor = Monitor(_step(Gate(hold_s=3_600.0, silence_s=60.0)))
    monitor.tick(1_000.0)
    for number in range(200):
        assert _report(monitor, f"{number}", 10, 0, now_s=1_001.0) is Verdict.CONTINUE
    assert monitor.evidence()["is_held"]
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    again.tick(4_599.0)  # a held step is not silent
    assert again.verdict.value == "continue"
    again.tick(4_600.0)
    assert again.verdict.value == "accept"


def test_a_step_that_is_not_to_be_accepted_any_more_is_not_held_and_ends_by_silence() -> None:
    monitor = Monitor(_step(Gate(hold_s=3_600.0, silence_s=60.0)))
    for number in range(108):
        _report(monitor, f"{number}", 10, 0, now_s=1.0)
    assert monitor.evidence()["is_held"]
    for number in range(5):
        _report(monitor, f"bad-{number}", 5, 5, now_s=2.0)
    assert monitor.verdict is Verdict.CONTINUE
    assert not monitor.evidence()["is_held"]
    for now_s in range(3, 8_000, 30):
        monitor.tick(float(now_s))
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, "silence at gray 1.0")


def test_a_held_step_is_rejected_at_once() -> None:
    monitor = Monitor(_step(Gate(hold_s=3_600.0)))
    for number in range(200):
        _report(monitor, f"{number}", 0, 10, now_s=1.0)
    assert monitor.verdict is Verdict.REJECT


def _baking(gate: Gate, *, fails_after_s: float = math.inf, rate: float = 0.005) -> tuple[Verdict, float, Monitor]:
    """Return verdict and time of a bake of 1,000 s, in which 600 devices report ten runs every 20 s."""
    source = random.Random(3)
    step = _step(gate, share_to=0.5, control_versions=frozenset({"v1"}))
    monitor = Monitor(step)
    for number in range(2_000):
        failed = _failures(source, rate)
        _report(monitor, f"c{number}", 10 - failed, failed, old=True)
    baking = _step(gate, stage="full", bakes=True)
    monitor.begin(baking)
    for now_s in range(0, 2_000, 20):
        monitor.tick(float(now_s))
        for number in range(600) if monitor.verdict is Verdict.CONTINUE else ():
            failed = _failures(source, 0.1 if now_s >= fails_after_s else rate)
            _report(monitor, f"d{number}", 10 - failed, failed, installs=False, now_s=float(now_s))
        if monitor.verdict is not Verdict.CONTINUE:
            return monitor.verdict, float(now_s), monitor
    raise AssertionError("it does not end")


def test_a_version_that_fails_hours_after_it_is_full_is_rejected_in_its_bake() -> None:
    gate = Gate(bake_s=1_000.0)
    verdict, at_s, monitor = _baking(gate, fails_after_s=500)
    assert verdict is Verdict.REJECT
    assert 500 <= at_s < 700
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    assert again.evidence() == monitor.evidence()


def test_a_bake_of_a_good_version_ends_with_its_time() -> None:
    for rate in (0.005, 0.01):
        verdict, at_s, monitor = _baking(Gate(bake_s=1_000.0), rate=rate)
        assert (verdict, at_s) == (Verdict.ACCEPT, 1_000.0)
        assert monitor.devices > 500  # each counts once more, and no earlier than its own time


# --- guards, silent devices, suspicions -------------------------------------------------------------------------------


def _metric_report(
    monitor: Monitor, device_id: str, latency_ms: float, *, old: bool = False, name: str = "latency_ms"
) -> Verdict:
    ran = dataclasses.replace(_outcome(OutcomeKind.RUN, 10, old=old), metrics=(Metric(name, 10, latency_ms),))
    outcomes = [ran] if old else [_outcome(OutcomeKind.INSTALLED), ran]
    monitor.take(device_id, outcomes, {"model": "m"}, 0.0)
    return monitor.verdict


def _guarded(monitor: Monitor, *, times: float, devices: int = 400, name: str = "latency_ms") -> Verdict:
    """Let a fleet report, a quarter of it with the new version, until there is a verdict."""
    rng = random.Random(3)
    for number in range(4 * devices):
        device_id = f"device-{number}"
        is_new = monitor.step.is_new(device_id)
        value = rng.lognormvariate(3, 0.3) * (times if is_new else 1)
        verdict = _metric_report(monitor, device_id, value, old=not is_new, name=name)
        if verdict is not Verdict.CONTINUE:
            return verdict
    return Verdict.CONTINUE


GUARDED = Gate(guards=("latency_ms < 1.2x",))


def test_a_version_that_is_slower_than_its_guard_allows_is_rejected_and_the_reason_names_the_guard() -> None:
    monitor = Monitor(_step(GUARDED, share_to=0.25, control_versions=frozenset({"v1"})))
    assert _guarded(monitor, times=1.6) is Verdict.REJECT
    assert monitor.reason.startswith("guard latency_ms < 1.2x: it is above that on most of ")
    assert "with the version before" in monitor.reason
    assert not monitor.blames_version  # the last error of a run is not the reason
    (guard,) = monitor.evidence()["guards"]
    assert guard["state"] == "bad"
    assert guard["new"] > 1.2 * guard["control"]


def test_a_version_that_is_as_fast_is_accepted_and_the_state_outlives_a_restart() -> None:
    monitor = Monitor(_step(GUARDED, share_to=0.25, control_versions=frozenset({"v1"})))
    assert _guarded(monitor, times=1.0) is Verdict.ACCEPT
    assert monitor.evidence()["guards"][0]["state"] == "good"
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    assert again.to_plain() == monitor.to_plain()
    assert again.evidence() == monitor.evidence()


def test_an_open_guard_holds_the_step_without_which_it_would_be_accepted() -> None:
    without = Monitor(_step(share_to=0.25, control_versions=frozenset({"v1"})))
    assert _guarded(without, times=1.22, devices=120) is Verdict.ACCEPT
    assert without.evidence()["metrics"][0]["metric"] == "latency_ms"  # the metric is known without a guard
    monitor = Monitor(_step(GUARDED, share_to=0.25, control_versions=frozenset({"v1"})))
    assert _guarded(monitor, times=1.22, devices=120) is Verdict.CONTINUE
    assert monitor.evidence()["guards"][0]["state"] == "open"


def test_without_a_version_before_only_absolute_guards_are_judged_with_a_note() -> None:
    gate = Gate(guards=("latency_ms < 1.2x", "latency_ms < 1000"))
    monitor = Monitor(_step(gate))
    assert _guarded(monitor, times=5.0) is Verdict.ACCEPT
    relative, absolute = monitor.evidence()["guards"]
    assert (relative["state"], relative["why"]) == ("not judged", "there is no version before")
    assert (absolute["state"], absolute["why"]) == ("good", "")
    slow = Monitor(_step(Gate(guards=("latency_ms < 10",))))
    assert _guarded(slow, times=1.0) is Verdict.REJECT


def test_a_guard_on_a_metric_that_the_version_before_lacks_is_not_judged() -> None:
    monitor = Monitor(_step(Gate(guards=("confidence > 0.9x",)), share_to=0.25, control_versions=frozenset({"v1"})))
    for number in range(1_000):
        device_id = f"device-{number}"
        is_new = monitor.step.is_new(device_id)
        name = "confidence" if is_new else "latency_ms"
        if _metric_report(monitor, device_id, 1.0, old=not is_new, name=name) is not Verdict.CONTINUE:
            break
    assert monitor.verdict is Verdict.ACCEPT
    (guard,) = monitor.evidence()["guards"]
    assert guard["why"] == "devices with the version before do not report the metric"


def test_a_few_hostile_devices_that_report_a_metric_which_the_version_before_lacks_stop_no_release() -> None:
    monitor = Monitor(_step(Gate(guards=("confidence > 0.9x",)), share_to=0.25, control_versions=frozenset({"v1"})))
    before = 0
    for number in range(2_000):
        device_id = f"device-{number}"
        is_new = monitor.step.is_new(device_id)
        before += not is_new
        is_hostile = not is_new and before % 100 == 1  # one device in a hundred, from the first one of the control on
        name = "confidence" if is_new or is_hostile else "latency_ms"
        if _metric_report(monitor, device_id, 1.0, old=not is_new, name=name) is not Verdict.CONTINUE:
            break
    assert monitor.verdict is Verdict.ACCEPT
    assert monitor.evidence()["guards"][0]["why"] == "devices with the version before do not report the metric"


def test_a_guard_on_an_unreported_metric_pauses_until_a_person_overrules() -> None:
    step = _step(Gate(guards=("confidnce > 0.9",)))
    monitor = Monitor(step)
    assert _guarded(monitor, times=1.0) is Verdict.PAUSE
    assert monitor.cause == "unreported guard confidnce > 0.9"
    assert "no device has reported confidnce" in monitor.reason
    monitor.begin(dataclasses.replace(step, overruled=(monitor.cause,)))
    assert monitor.verdict is Verdict.ACCEPT
    assert monitor.evidence()["guards"][0]["state"] == "not judged"


@pytest.mark.parametrize("value", [1.0, -1e308])
def test_a_few_hostile_devices_that_report_a_misspelt_metric_neither_pass_nor_reject(value: float) -> None:
    monitor = Monitor(_step(Gate(guards=("confidnce > 0.9",))))
    for number in range(400):
        name = "confidnce" if number % 20 == 0 else "confidence"
        _metric_report(monitor, f"device-{number}", value, name=name)
        if number == 150:
            assert monitor.verdict is Verdict.PAUSE
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, "unreported guard confidnce > 0.9")
    assert " devices have reported confidnce" in monitor.reason


def test_a_guard_is_judged_where_one_in_five_devices_reports_its_metric() -> None:
    monitor = Monitor(_step(Gate(guards=("clicks > 0.9",))))
    for number in range(600):
        _metric_report(monitor, f"device-{number}", 1.0, name="clicks" if number % 5 == 0 else "others")
        if monitor.verdict is not Verdict.CONTINUE:
            break
    assert monitor.verdict is Verdict.ACCEPT


def test_the_last_step_waits_for_no_guard_that_has_no_version_before_left() -> None:
    monitor = Monitor(_step(GUARDED, share_to=1.0, control_versions=frozenset({"v1"})))
    assert _guarded(monitor, times=1.1) is Verdict.ACCEPT
    assert monitor.evidence()["guards"][0]["why"] == "no devices with the version before are left"


def test_evidence_from_before_there_were_guards_is_read() -> None:
    monitor = Monitor(_step(control_versions=frozenset({"v1"}), share_to=0.25))
    for number in range(40):
        _report(monitor, f"device-{number}", 3, 0, installs=False, old=True)
    monitor.take("a", [_outcome(OutcomeKind.REJECTED)], {}, 0.0)
    plain = json.loads(json.dumps(monitor.to_plain()))
    for key in ("guards", "silent_devices"):
        del plain[key]
    for key in ("guards", "device_silence_s"):
        del plain["step"]["gate"][key]
    for sample in (*plain["new"], plain["old"]):
        sample["waiting"] = {one: device[:5] for one, device in sample["waiting"].items()}
    again = Monitor.from_plain(plain)
    assert again is not None
    assert again.to_plain() == monitor.to_plain()


def test_devices_that_fall_silent_after_they_installed_the_version_pause_the_release() -> None:
    gate = Gate(device_silence_s=100.0, hold_s=1_000.0)
    step = _step(gate, share_to=0.25, control_versions=frozenset({"v1"}))
    monitor = Monitor(step)
    for number in range(600):
        device_id = f"device-{number}"
        _report(monitor, device_id, 10, 0, old=not step.is_new(device_id), now_s=0.0)
    heard = {f"device-{number}": b"" for number in range(600) if not step.is_new(f"device-{number}")}
    assert monitor.hear(heard, 50.0)
    monitor.tick(99.0)
    assert monitor.verdict is Verdict.CONTINUE
    monitor.tick(100.0)
    assert (monitor.verdict, monitor.cause) == (Verdict.PAUSE, "silent devices at gray 1.0")
    assert "within 0.0278 h after they installed it" in monitor.reason
    assert not monitor.blames_version
    again = Monitor.from_plain(json.loads(json.dumps(monitor.to_plain())))
    assert again is not None
    assert again.to_plain() == monitor.to_plain()
    assert again.evidence()["silent"]["silent"] == again.evidence()["silent"]["pairs"]
    again.begin(dataclasses.replace(step, overruled=(monitor.cause,)))
    again.tick(2_000.0)
    assert again.verdict is Verdict.ACCEPT


def test_a_night_in_which_all_devices_are_silent_pauses_nothing() -> None:
    monitor = Monitor(
        _step(Gate(device_silence_s=100.0, hold_s=1_000.0), share_to=0.5, control_versions=frozenset({"v1"}))
    )
    for number in range(400):
        device_id = f"device-{number}"
        _report(monitor, device_id, 10, 0, old=not monitor.step.is_new(device_id), now_s=0.0)
    monitor.tick(500.0)
    assert monitor.verdict is Verdict.CONTINUE
    assert monitor.evidence()["silent"]["pairs"] > 150


def test_a_step_waits_for_more_devices_of_a_group_of_which_the_first_are_broken() -> None:
    monitor = Monitor(_step(control_versions=frozenset({"v1"}), share_to=0.25))
    for number in range(800):
        device_id = f"sound-{number}"
        old = not monitor.step.is_new(device_id)
        assert _report(monitor, device_id, 10, 0, groups={"model": "a"}, old=old) is Verdict.CONTINUE
        if monitor.devices == 100:
            break
    bad = iter(f"bad-{number}" for number in range(1_000))
    first = [one for one in bad if monitor.step.is_new(one)][:8]
    for device_id in first[:2]:
        assert _report(monitor, device_id, 0, 10, groups={"model": "b"}) is Verdict.CONTINUE
    verdict = Verdict.CONTINUE
    for number in range(800, 3_000):
        device_id = f"sound-{number}"
        if monitor.step.is_new(device_id) and monitor.devices < 900:
            verdict = _report(monitor, device_id, 10, 0, groups={"model": "a"})
    assert verdict is Verdict.CONTINUE  # devices enough for the other tests
    for device_id in first[2:]:
        verdict = _report(monitor, device_id, 0, 10, groups={"model": "b"})
    assert (verdict, monitor.cause) == (Verdict.PAUSE, "group model=b")


@pytest.mark.night
def test_a_suspicion_that_comes_to_nothing_holds_no_step_without_limit() -> None:
    monitor = Monitor(_step(control_versions=frozenset({"v1"})))
    for number in range(2):
        _report(monitor, f"bad-{number}", 0, 10, groups={"model": "b"})
    number = 0
    while monitor.verdict is Verdict.CONTINUE:
        _report(monitor, f"sound-{number}", 10, 0, groups={"model": "a"})
        number += 1
    assert (monitor.verdict, monitor.devices) == (Verdict.ACCEPT, MAX_HELD)


def test_a_device_that_left_the_version_and_installed_it_again_in_one_report_has_it() -> None:
    left = dataclasses.replace(_outcome(OutcomeKind.REVERTED), failure_class=FailureClass.DEVICE)
    monitor = Monitor(_step())
    monitor.take("a", [_outcome(OutcomeKind.INSTALLED)], {}, 0.0)
    monitor.take("a", [left, _outcome(OutcomeKind.INSTALLED), _outcome(OutcomeKind.RUN, 10)], {}, 1.0)
    assert (monitor.devices, monitor.evidence()["new"]["hindered"]) == (1, 0)
    monitor.take("b", [_outcome(OutcomeKind.INSTALLED), left], {}, 2.0)
    assert (monitor.devices, monitor.evidence()["new"]["hindered"]) == (1, 1)
