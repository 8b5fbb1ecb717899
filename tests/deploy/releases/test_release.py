import dataclasses
import json
import pickle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from walle.deploy.fleet.device_group import GroupResult
from walle.deploy.gate.gate import Gate
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.release import (
    BetaResolved,
    Effect,
    GateAccepted,
    GatePaused,
    GateRejected,
    Pause,
    Release,
    ReleaseEvent,
    ReleaseState,
    Resume,
    Retire,
    Rollback,
    SignatureAwaited,
    SignedAgain,
    SimulationFailed,
    SimulationPassed,
    Start,
    TransitionError,
    advance,
    allowed,
)
from walle.deploy.releases.request import ReleaseRequest, ReleaseRequestError

MANIFEST = "ab" * 32
EVENTS: dict[str, ReleaseEvent] = {
    "Start": Start(1.0),
    "SignatureAwaited": SignatureAwaited(1.0, "sign it"),
    "SignedAgain": SignedAgain(1.0, "cd" * 32, 79),
    "SimulationPassed": SimulationPassed(1.0, MANIFEST, 77),
    "SimulationFailed": SimulationFailed(1.0, "it broke"),
    "BetaResolved": BetaResolved(1.0, ("d1", "d2")),
    "GateAccepted": GateAccepted(1.0),
    "GateRejected": GateRejected(1.0, "9 of 10 failed"),
    "GatePaused": GatePaused(1.0, "group os=12", "it fails on one group"),
    "Pause": Pause(1.0),
    "Resume": Resume(1.0),
    "Rollback": Rollback(1.0, "anna", "looks wrong"),
    "Retire": Retire(1.0, "anna", 5),
}
TELL = (Effect.PUBLISH, Effect.SET_GATE)


def _request(**changes: object) -> ReleaseRequest:
    return ReleaseRequest(**{"scenario": "shop", "task": "ipv", "version": "v2", **changes})  # type: ignore[arg-type]


def _release(**changes: object) -> Release:
    return Release(id="ipv-v2-1", number=1, request=_request(**changes), created_s=0.0, updated_s=0.0)


def _after(release: Release, *events: str) -> Release:
    for event in events:
        release, _ = advance(release, EVENTS[event])
    return release


# Every state that there is (as the events that lead to it) × every event: where it leads and what is to be done. What
# is not in the table is refused.
PATHS: dict[str, tuple[str, ...]] = {
    "created": (),
    "simulating": ("Start",),
    "failed": ("Start", "SimulationFailed"),
    "beta, unresolved": ("Start", "SimulationPassed"),
    "beta": ("Start", "SimulationPassed", "BetaResolved"),
    "gray 0.25": ("Start", "SimulationPassed", "BetaResolved", "GateAccepted"),
    "gray 0.5": ("Start", "SimulationPassed", "BetaResolved", "GateAccepted", "GateAccepted"),
    "gray 1.0": ("Start", "SimulationPassed", "BetaResolved", "GateAccepted", "GateAccepted", "GateAccepted"),
    "full": ("Start", "SimulationPassed", "BetaResolved", *["GateAccepted"] * 4),
    "retired": ("Start", "SimulationPassed", "BetaResolved", *["GateAccepted"] * 4, "Retire"),
    "paused in beta, unresolved": ("Start", "SimulationPassed", "Pause"),
    "paused in beta": ("Start", "SimulationPassed", "BetaResolved", "Pause"),
    "paused in gray 0.25": ("Start", "SimulationPassed", "BetaResolved", "GateAccepted", "Pause"),
    "rolled_back": ("Start", "Rollback"),
}
TABLE: dict[tuple[str, str], tuple[str, tuple[Effect, ...]]] = {
    ("created", "Start"): ("simulating", (Effect.RUN_SIMULATION,)),
    ("created", "Rollback"): ("rolled_back", TELL),
    ("simulating", "SignatureAwaited"): ("simulating", ()),
    ("simulating", "SimulationPassed"): ("beta, unresolved", (Effect.RESOLVE_BETA,)),
    ("simulating", "SimulationFailed"): ("failed", ()),
    ("simulating", "Rollback"): ("rolled_back", TELL),
    ("beta, unresolved", "BetaResolved"): ("beta", TELL),
    ("beta, unresolved", "Pause"): ("paused in beta, unresolved", TELL),
    ("beta, unresolved", "Rollback"): ("rolled_back", TELL),
    ("beta", "GateAccepted"): ("gray 0.25", TELL),
    ("beta", "GateRejected"): ("rolled_back", TELL),
    ("beta", "Pause"): ("paused in beta", TELL),
    ("beta", "GatePaused"): ("paused in beta", TELL),
    ("beta", "Rollback"): ("rolled_back", TELL),
    ("gray 0.25", "GateAccepted"): ("gray 0.5", TELL),
    ("gray 0.25", "GateRejected"): ("rolled_back", TELL),
    ("gray 0.25", "Pause"): ("paused in gray 0.25", TELL),
    ("gray 0.25", "GatePaused"): ("paused in gray 0.25", TELL),
    ("gray 0.25", "Rollback"): ("rolled_back", TELL),
    ("gray 0.5", "GateAccepted"): ("gray 1.0", TELL),
    ("gray 0.5", "GateRejected"): ("rolled_back", TELL),
    ("gray 0.5", "Pause"): ("paused in gray 0.5", TELL),
    ("gray 0.5", "GatePaused"): ("paused in gray 0.5", TELL),
    ("gray 0.5", "Rollback"): ("rolled_back", TELL),
    ("gray 1.0", "GateAccepted"): ("full", TELL),
    ("gray 1.0", "GateRejected"): ("rolled_back", TELL),
    ("gray 1.0", "Pause"): ("paused in gray 1.0", TELL),
    ("gray 1.0", "GatePaused"): ("paused in gray 1.0", TELL),
    ("gray 1.0", "Rollback"): ("rolled_back", TELL),
    ("full", "Rollback"): ("rolled_back", TELL),
    ("full", "Retire"): ("retired", ()),
    ("paused in beta, unresolved", "Resume"): ("beta, unresolved", (Effect.RESOLVE_BETA,)),
    ("paused in beta, unresolved", "Rollback"): ("rolled_back", TELL),
    ("paused in beta", "Resume"): ("beta", TELL),
    ("paused in beta", "GateRejected"): ("rolled_back", TELL),
    ("paused in beta", "Rollback"): ("rolled_back", TELL),
    ("paused in gray 0.25", "Resume"): ("gray 0.25", TELL),
    ("paused in gray 0.25", "GateRejected"): ("rolled_back", TELL),
    ("paused in gray 0.25", "Rollback"): ("rolled_back", TELL),
}
PUBLISHED = [place for place in PATHS if place.startswith(("beta", "gray", "full", "paused"))]
TABLE |= {(place, "SignedAgain"): (place, (Effect.PUBLISH,)) for place in PUBLISHED}


def _place(release: Release) -> str:
    unresolved = ", unresolved" if release.stage == "beta" and not release.beta_devices else ""
    return f"{'paused in ' if release.state is ReleaseState.PAUSED else ''}{release.stage}{unresolved}"


@pytest.mark.parametrize("place", PATHS)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state(place: str, event: str) -> None:
    release = _after(_release(), *PATHS[place])
    assert _place(release) == place
    expected = TABLE.get((place, event))
    assert (event in allowed(release)) is (expected is not None)
    if expected is None:
        with pytest.raises(TransitionError) as caught:
            advance(release, EVENTS[event])
        assert (caught.value.current, caught.value.asked) == (release.state, event)
        assert caught.value.allowed == allowed(release)
        return
    after, effects = advance(release, EVENTS[event])
    assert (_place(after), effects) == expected
    assert after.revision == release.revision + 1
    assert after.updated_s == 1.0


def test_a_refusal_says_what_is_allowed_and_crosses_processes() -> None:
    with pytest.raises(TransitionError) as caught:
        advance(_release(), Pause(0.0))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (
        str(again) == "release ipv-v2-1 is in the state created and cannot be paused; it can be started or rolled back"
    )
    with pytest.raises(TransitionError, match="is already rolled back; start a new release"):
        advance(_after(_release(), "Rollback"), Start(0.0))


def test_explicit_beta_devices_need_no_search_and_no_beta_goes_straight_to_gray() -> None:
    release = _after(_release(beta=("a", "b")), "Start")
    after, effects = advance(release, EVENTS["SimulationPassed"])
    assert (after.stage, after.beta_devices, effects) == ("beta", ("a", "b"), TELL)
    assert (after.manifest, after.size_bytes) == (MANIFEST, 77)
    assert _after(_release(beta=0), "Start", "SimulationPassed").stage == "gray 0.25"


def test_a_beta_without_devices_is_refused() -> None:
    release = _after(_release(), "Start", "SimulationPassed")
    with pytest.raises(ReleaseRequestError, match="0 devices"):
        advance(release, BetaResolved(0.0, ()))


def test_a_person_who_resumes_after_a_pause_by_the_gate_overrules_its_cause() -> None:
    paused = _after(_release(), *PATHS["gray 0.25"], "GatePaused")
    assert (paused.reason, paused.cause, paused.overruled) == ("25 % step: it fails on one group", "group os=12", ())
    assert Release.from_plain(json.loads(json.dumps(paused.to_plain()))) == paused
    resumed = _after(paused, "Resume")
    assert (resumed.reason, resumed.cause, resumed.overruled) == ("", "", ("group os=12",))
    assert resumed.judged_step({"v0"}).overruled == ("group os=12",)
    assert _after(resumed, "Pause", "Resume").overruled == ("group os=12",)


def test_a_step_names_the_devices_that_it_admits_first() -> None:
    beta = _after(_release(), *PATHS["beta"]).judged_step(())
    assert (sorted(beta.devices), sorted(beta.earlier_devices)) == (["d1", "d2"], [])
    assert (beta.share_to, beta.steps) == (0.0, 4)
    second = _after(_release(), *PATHS["gray 0.5"]).judged_step({"v0"})
    assert (sorted(second.devices), sorted(second.earlier_devices)) == ([], ["d1", "d2"])
    assert (second.share_from, second.share_to, second.stage) == (0.25, 0.5, "gray 0.5")


def test_a_request_of_an_older_journal_gets_the_defaults_of_new_fields() -> None:
    plain = _request(beta=("d1",)).to_plain()
    del plain["steps"]
    assert ReleaseRequest.from_plain({**plain, "unknown": 1}) == _request(beta=("d1",))


def test_a_release_of_an_older_journal_gets_the_defaults_of_new_fields() -> None:
    plain = _after(_release(), *PATHS["gray 0.5"]).to_plain()
    for name in ("cause", "overruled", "groups", "other_groups", "other_names", "created_by"):
        del plain[name]
    for name in ("device_runs", "settle_s", "silence_s", "trial_runs"):
        del plain["request"]["gate"][name]
    release = Release.from_plain(json.loads(json.dumps(plain)))
    assert (release.cause, release.overruled, release.request.gate) == ("", (), Gate())
    assert (release.groups, release.other_groups, release.other_names) == ((), 0, ())
    assert release.created_by == ""


def test_a_release_of_a_newer_journal_is_read_without_its_new_fields() -> None:
    release = _after(_release(), *PATHS["gray 0.5"])
    release = dataclasses.replace(release, groups=(GroupResult("10.1", "ios", 7, 12, 0),))
    plain = json.loads(json.dumps(release.to_plain()))
    plain["groups"][0]["unknown"] = plain["unknown"] = 1
    assert Release.from_plain(plain) == release


def test_a_release_keeps_the_groups_that_it_was_simulated_for() -> None:
    groups = (GroupResult("10.1", "ios", 7, 12, 0), GroupResult("9.0", "", 1, played=False))
    passed = SimulationPassed(
        1.0, MANIFEST, 77, groups=groups, other_groups=3, other_names=("app 2.0 on ios (1 device)",)
    )
    release, _ = advance(_after(_release(), "Start"), passed)
    assert (release.groups, release.other_groups, release.other_names) == (groups, 3, passed.other_names)
    assert Release.from_plain(json.loads(json.dumps(release.to_plain()))) == release


def test_reasons_are_kept_and_bounded() -> None:
    assert _after(_release(), "Start", "Rollback").reason == "by anna: looks wrong"
    rejected, _ = advance(_after(_release(), *PATHS["gray 0.25"]), GateRejected(0.0, "x" * 9000))
    assert rejected.reason.startswith("25 % step: xxx")
    assert len(rejected.reason) == 500


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("scenario", {"scenario": "a/b"}),
        ("task", {"task": ""}),
        ("task", {"task": "../x"}),
        ("version", {"version": "2"}),
        ("version", {"version": "v٢"}),
        ("beta", {"beta": -1}),
        ("beta", {"beta": ()}),
        ("beta", {"beta": ("a", "")}),
        ("steps", {"steps": ()}),
        ("steps", {"steps": (0.5,)}),
        ("steps", {"steps": (0.5, 0.25, 1.0)}),
        ("steps", {"steps": (0.0, 1.0)}),
        ("steps", {"steps": (float("nan"), 1.0)}),
        ("steps", {"steps": (0.5, 2.0)}),
    ],
)
def test_a_request_names_the_part_that_is_wrong(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(ReleaseRequestError) as caught:
        _request(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize("place", PATHS)
def test_a_release_goes_through_json(place: str) -> None:
    release = _after(_release(policy=Policy(">=10"), gate=Gate(min_devices=4)), *PATHS[place])
    assert Release.from_plain(json.loads(json.dumps(release.to_plain()))) == release


class ReleaseMachine(RuleBasedStateMachine):
    """Any events in any order: what a release covers never exceeds its step, and never grows once it is rolled back."""

    @initialize(
        beta=st.one_of(st.integers(0, 5), st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3).map(tuple)),
        steps=st.lists(st.integers(1, 99), max_size=4, unique=True),
    )
    def make(self, beta: int | tuple[str, ...], steps: list[int]) -> None:
        self.release = _release(beta=beta, steps=(*(step / 100 for step in sorted(steps)), 1.0))
        self.over: Release | None = None
        self.highest = 0.0

    @rule(event=st.sampled_from(sorted(EVENTS)))
    def any_event(self, event: str) -> None:
        self._feed(event)

    @precondition(lambda self: bool(allowed(self.release)))
    @rule(data=st.data())
    def an_allowed_event(self, data: st.DataObject) -> None:
        forward = [name for name in allowed(self.release) if name not in {"Rollback", "GateRejected"}]
        self._feed(data.draw(st.sampled_from(forward or list(allowed(self.release)))))

    def _feed(self, event: str) -> None:
        before = self.release
        try:
            self.release, _ = advance(before, EVENTS[event])
        except TransitionError:
            assert event not in allowed(before)
            return
        assert event in allowed(before)
        assert not before.state.terminal
        if event == "GateAccepted" and before.state is ReleaseState.GRAY and self.release.state is ReleaseState.GRAY:
            assert self.release.step == before.step + 1

    @invariant()
    def covers_no_more_than_its_step(self) -> None:
        admission = self.release.admission
        if self.release.state in {
            ReleaseState.CREATED,
            ReleaseState.SIMULATING,
            ReleaseState.FAILED,
            ReleaseState.ROLLED_BACK,
            ReleaseState.RETIRED,
        }:
            assert admission is None
            return
        if self.release.state is ReleaseState.FULL:
            assert self.release.step == len(self.release.request.steps) - 1
            return
        if admission is None:
            assert not self.release.judged
            return
        stage = self.release.resumes or self.release.state
        allowed_share = self.release.request.steps[self.release.step] if stage is ReleaseState.GRAY else 0.0
        assert admission.share == allowed_share
        assert admission.devices == frozenset(self.release.beta_devices)
        assert admission.open is (self.release.state is not ReleaseState.PAUSED)
        assert admission.share >= self.highest  # nobody leaves before a rollback
        self.highest = admission.share

    @invariant()
    def stays_over(self) -> None:
        if self.over is not None:
            assert self.release == self.over
        if self.release.state.terminal:
            self.over = self.release


ReleaseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestReleaseMachine = ReleaseMachine.TestCase


def test_a_release_of_an_older_journal_reads_nothing_of_other_tasks() -> None:
    release = Release(id="r", number=1, request=_request(), created_s=0.0, updated_s=0.0, reads=("shop/rank",))
    plain = release.to_plain()
    assert plain["reads"] == ["shop/rank"]
    assert Release.from_plain(plain) == release
    del plain["reads"]
    assert Release.from_plain(plain).reads == ()


def _full(**gate: float) -> Release:
    release = _release(beta=0, steps=(1.0,), gate=Gate(**gate))  # type: ignore[arg-type]
    for name in ("Start", "SimulationPassed", "GateAccepted"):
        release, effects = advance(release, EVENTS[name])
    assert effects == TELL
    return release


def test_a_full_release_bakes_if_its_gate_says_so() -> None:
    plain = _full()
    assert (plain.state, plain.bakes, plain.judged) == (ReleaseState.FULL, False, False)
    assert allowed(plain) == ("Retire", "Rollback", "SignedAgain")
    baking = _full(bake_s=3_600.0)
    assert (baking.state, baking.judged, baking.admission) == (ReleaseState.FULL, True, None)
    step = baking.judged_step(["v1"])
    assert (step.stage, step.bakes, step.share_to, step.steps) == ("full", True, 1.0, 2)
    assert Release.from_plain(json.loads(json.dumps(baking.to_plain()))) == baking
    noted, effects = advance(baking, EVENTS["GatePaused"])
    assert (noted.state, noted.bakes, effects) == (ReleaseState.FULL, True, (Effect.SET_GATE,))
    assert (noted.reason, noted.overruled) == ("full: it fails on one group", ("group os=12",))
    ended, effects = advance(noted, EVENTS["GateAccepted"])
    assert (ended.state, ended.judged, effects) == (ReleaseState.FULL, False, (Effect.SET_GATE,))
    back, effects = advance(noted, EVENTS["GateRejected"])
    assert (back.state, back.judged, effects) == (ReleaseState.ROLLED_BACK, False, TELL)
    old = baking.to_plain()
    del old["bakes"], old["retries"]
    for name in ("hold_s", "bake_s"):
        del old["request"]["gate"][name]
    assert not Release.from_plain(old).bakes
