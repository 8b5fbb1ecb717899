"""A release as a pure state machine (§6): simulation → beta → gray steps → full, or rolled back.

    created ─Start─► simulating ─SimulationPassed─► beta ─GateAccepted─► gray (a share a step) ─GateAccepted─► full
                          └─SimulationFailed─► failed        beta, gray ─Pause─► paused ─Resume─► where it was
    One call makes and starts a release; made without a start, it stays in `created` until a person starts it.
    A version that its scenario's keys have not signed waits for them in `simulating` (SignatureAwaited).
    GatePaused: beta and gray, to paused, with a reason; a person who resumes overrules it.
    A full release bakes for a stated time, if its gate says so: GateRejected rolls it back, GatePaused is told as its
    reason and stops nothing, GateAccepted ends the bake.
    Rollback by a person: from every state but the terminal ones, full included; GateRejected: beta, gray, paused.
    Retire by a person: full, once enough newer ones have taken its place; no rollback leads to it any more.
    SignedAgain, after the key was revoked that had signed the version: from beta on; the state stays.

`advance` returns the next release and the effects to run. An effect only names the part of the system that must be made
to match the release's state. Effects are therefore idempotent: a restarted cloud runs those that were left in the
journal (`walle.deploy.releases.journal`).
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Self

from walle.base.plain_fields import known_fields
from walle.deploy.fleet.device_group import GroupResult
from walle.deploy.gate.step import Step
from walle.deploy.releases.request import MAX_BETA_DEVICES, ReleaseRequest, ReleaseRequestError
from walle.deploy.releases.simulated_fault import SimulatedFault
from walle.deploy.releases.stage_text import stage_text, state_text
from walle.deploy.releases.variants import BuiltVariant, ReleaseVariant, with_envelopes
from walle.errors import DeployError
from walle.protocol import printable
from walle.trust.audience import share

MAX_REASON_CHARS = 500

_PARTICIPLES = {  # participles of the events that people cause
    "Start": "started",
    "Pause": "paused",
    "Resume": "resumed",
    "Rollback": "rolled back",
    "Retire": "retired",
    "Retry": "tried again",
}
_STARTED_TWICE = (
    "; a release starts when it is made: a program that starts it in a second call is of an older version than this"
    " cloud, upgrade the program"
)


class TransitionError(DeployError):
    """A step that the release's state does not allow."""

    def __init__(self, release_id: str, current: str, asked: str, allowed: tuple[str, ...]) -> None:
        super().__init__(release_id, current, asked, allowed)
        self.release_id = release_id
        self.current = current
        self.asked = asked
        self.allowed = allowed

    def __str__(self) -> str:
        now = state_text(self.current)
        if not self.allowed:
            return (
                f"release {self.release_id} {'has' if self.current == 'failed' else 'is'} already {now}; start a new"
                f" release, or the same one again with: walle release retry {self.release_id}"
            )
        asked = _PARTICIPLES.get(self.asked)
        if asked is None:
            refused = f"is in the state {now}, which does not allow {self.asked}"
        else:
            refused = f"is already {now}" if asked == now else f"is in the state {now} and cannot be {asked}"
        possible = [_PARTICIPLES[name] for name in self.allowed if name in _PARTICIPLES]
        again = _STARTED_TWICE if self.asked == "Start" else ""
        return f"release {self.release_id} {refused}; it can be {' or '.join(possible)}{again}"


class ReleaseState(enum.StrEnum):
    CREATED = "created"
    SIMULATING = "simulating"
    BETA = "beta"
    GRAY = "gray"
    PAUSED = "paused"
    FULL = "full"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    RETIRED = "retired"

    @property
    def under_way(self) -> bool:
        """Return whether another release of the task must wait for this one."""
        return self in {
            ReleaseState.CREATED,
            ReleaseState.SIMULATING,
            ReleaseState.BETA,
            ReleaseState.GRAY,
            ReleaseState.PAUSED,
        }

    @property
    def terminal(self) -> bool:
        return self in {ReleaseState.ROLLED_BACK, ReleaseState.FAILED, ReleaseState.RETIRED}


class Effect(enum.StrEnum):
    """Part of the world that must match the release's state when the effect runs."""

    RUN_SIMULATION = "run_simulation"  # build the bundle, store its files, run it in the cloud
    RESOLVE_BETA = "resolve_beta"  # find the beta devices
    PUBLISH = "publish"  # the task's row of the release table
    SET_GATE = "set_gate"  # start or stop the monitor's judgement of the release


# --- events -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Start:
    at_s: float


@dataclasses.dataclass(frozen=True)
class SignatureAwaited:
    """The version is built, and too few keys of its scenario have signed it. `reason` says what to do."""

    at_s: float
    reason: str


@dataclasses.dataclass(frozen=True)
class SimulationPassed:
    """`manifest` and `size_bytes` are those of the bundle's envelope, as in `Directive`."""

    at_s: float
    manifest: str
    size_bytes: int
    reads: tuple[str, ...] = ()  # topics of other tasks
    groups: tuple[GroupResult, ...] = ()  # groups of devices on which it was simulated
    other_groups: int = 0  # groups on which it was not simulated
    other_names: tuple[str, ...] = ()  # names of the largest of these
    state_bytes: int = 0  # the largest that the task's state was on a simulated device; 0 without state or events
    state_max_bytes: int = 0  # bound of the state
    variants: tuple[BuiltVariant, ...] = ()


@dataclasses.dataclass(frozen=True)
class SignedAgain:
    """The same manifest has another envelope, with signatures of the keys that count now; fields as above."""

    at_s: float
    manifest: str
    size_bytes: int
    variants: tuple[BuiltVariant, ...] = ()


@dataclasses.dataclass(frozen=True)
class SimulationFailed:
    at_s: float
    reason: str
    faults: tuple[SimulatedFault, ...] = ()  # MAX_KEPT that came first; the history keeps them

    def __post_init__(self) -> None:
        _bound_reason(self)


@dataclasses.dataclass(frozen=True)
class BetaResolved:
    at_s: float
    devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GateAccepted:
    at_s: float


@dataclasses.dataclass(frozen=True)
class GateRejected:
    at_s: float
    reason: str

    def __post_init__(self) -> None:
        _bound_reason(self)


@dataclasses.dataclass(frozen=True)
class GatePaused:
    """The gate can neither accept nor reject: a person must look. `cause` is the key of what it found."""

    at_s: float
    cause: str
    reason: str

    def __post_init__(self) -> None:
        _bound_reason(self)


@dataclasses.dataclass(frozen=True)
class Pause:
    at_s: float


@dataclasses.dataclass(frozen=True)
class Resume:
    at_s: float


@dataclasses.dataclass(frozen=True)
class Rollback:
    at_s: float
    by: str
    reason: str

    def __post_init__(self) -> None:
        _bound_reason(self)


@dataclasses.dataclass(frozen=True)
class Retire:
    """No device is led to the release, nor would be after `rollbacks` - 1 rollbacks; its files may go."""

    at_s: float
    by: str
    rollbacks: int


def _bound_reason(event: "SimulationFailed | GateRejected | GatePaused | Rollback") -> None:
    """Cut and escape a reason: tasks, devices and people write it, and terminals, logs and pages show it."""
    object.__setattr__(event, "reason", printable(event.reason[:MAX_REASON_CHARS])[:MAX_REASON_CHARS])


type ReleaseEvent = (
    Start
    | SignatureAwaited
    | SimulationPassed
    | SignedAgain
    | SimulationFailed
    | BetaResolved
    | GateAccepted
    | GateRejected
    | GatePaused
    | Pause
    | Resume
    | Rollback
    | Retire
)


# --- the release ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Admission:
    """Devices of the policy that may have the release's version: those of `devices`, and those placed below `share`.

    Unless `open`, only devices that already have it keep it.
    """

    share: float
    devices: frozenset[str]
    open: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """A version on its way to its devices. `number` orders releases; `revision` counts its transitions."""

    id: str
    number: int
    request: ReleaseRequest
    created_s: float
    updated_s: float
    state: ReleaseState = ReleaseState.CREATED
    step: int = 0  # index into request.steps, once gray
    beta_devices: tuple[str, ...] = ()
    manifest: str = ""  # sha256 of the bundle's envelope, once it is built
    size_bytes: int = 0
    variants: tuple[ReleaseVariant, ...] = ()  # those of the version; the first that takes a device counts
    reads: tuple[str, ...] = ()  # full names of the topics of other tasks that the version reads
    groups: tuple[GroupResult, ...] = ()  # groups of devices that the release is for, on which it was simulated
    other_groups: int = 0  # too small or too many for that
    other_names: tuple[str, ...] = ()  # names of the largest of these; none in a journal of an older walle
    state_max_bytes: int | None = None  # bound of the task's state, 0 without one; None before it is built
    resumes: ReleaseState | None = None  # the state that a paused release returns to
    bakes: bool = False  # full, and still judged
    retries: str = ""  # id of the release that it is another attempt of
    created_by: str = ""  # name of the person; "" in a journal of an older walle
    reason: str = ""  # why it was rolled back, paused or failed, what its simulation waits for, or what its bake found
    cause: str = ""  # cause of a pause by the gate
    overruled: tuple[str, ...] = ()  # causes of pauses that a person has overruled by resuming
    revision: int = 0

    @property
    def stage(self) -> str:
        """Return the stage that is judged, such as `beta` or `gray 0.25`, or else the name of the state."""
        state = self.resumes or self.state
        return f"gray {self.request.steps[self.step]}" if state is ReleaseState.GRAY else state.value

    @property
    def judged(self) -> bool:
        """Return whether reports are evidence on it: gray, beta or paused, once devices can have it, or baking."""
        state = self.resumes or self.state
        if state is ReleaseState.FULL:
            return self.bakes
        return state is ReleaseState.GRAY or (state is ReleaseState.BETA and bool(self.beta_devices))

    @property
    def awaits_beta(self) -> bool:
        """Return whether it is in beta, and enough devices for that are not found yet."""
        return self.state is ReleaseState.BETA and not self.beta_devices

    def waits_for(self, beta_found: int) -> str:
        """Return what has to come from outside before anything is judged, empty if nothing.

        `beta_found` is the number of devices that are found for a beta that waits for more.
        """
        if not self.awaits_beta:
            return ""
        count = self.request.beta_count or 0
        missing = max(1, count - beta_found)
        more = "1 more beta device" if missing == 1 else f"{missing} more beta devices"
        return (
            f"waiting for {more} to check in ({beta_found} of {count} found), each one that this release is for"
            " and no more specific release is; to skip the beta or to name its devices, roll this release back and"
            " start it with --beta 0 or --beta-device ID"
        )

    @property
    def admission(self) -> Admission | None:
        """Return the devices that may have the version; None while none gets it by this release, or all (full)."""
        if not self.judged or self.state is ReleaseState.FULL:
            return None
        share = self.request.steps[self.step] if (self.resumes or self.state) is ReleaseState.GRAY else 0.0
        return Admission(share, frozenset(self.beta_devices), self.state is not ReleaseState.PAUSED)

    def judged_step(self, control_versions: Iterable[str]) -> Step:
        """Return the step that is judged. `control_versions` are those that its devices have before it."""
        in_gray = (self.resumes or self.state) in (ReleaseState.GRAY, ReleaseState.FULL)
        steps = self.request.steps
        share_from = steps[self.step - 1] if in_gray and self.step else 0.0
        share_to = steps[self.step] if in_gray else 0.0
        beta = frozenset(self.beta_devices)
        named = {one for one in self.request.policy.devices if share_from <= share(self.id, one) < share_to}
        return Step(
            release=self.id,
            task=self.request.name,
            version=self.request.version,
            stage=self.stage,
            gate=self.request.gate,
            steps=len(steps) + (self.request.beta != 0) + (self.request.gate.bake_s > 0),
            bakes=self.bakes,
            devices=frozenset(named - beta) if in_gray else beta,
            earlier_devices=beta if in_gray else frozenset(),
            share_from=share_from,
            share_to=share_to,
            policy=self.request.policy,
            control_versions=frozenset(control_versions) - {self.request.version},
            is_paused=self.state is ReleaseState.PAUSED,
            overruled=self.overruled,
            state_max_bytes=self.state_max_bytes,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the release as JSON-ready values."""
        plain = dataclasses.asdict(self)
        plain["request"] = self.request.to_plain()
        plain["beta_devices"] = list(self.beta_devices)
        plain["reads"] = list(self.reads)
        plain["groups"] = list(plain["groups"])
        plain["other_names"] = list(self.other_names)
        plain["overruled"] = list(self.overruled)
        plain["variants"] = [one.to_plain() for one in self.variants]
        plain["state"] = self.state.value
        plain["resumes"] = self.resumes.value if self.resumes else None
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        values = known_fields(cls, plain)
        values["request"] = ReleaseRequest.from_plain(values["request"])
        values["state"] = ReleaseState(values["state"])
        values["resumes"] = ReleaseState(values["resumes"]) if values["resumes"] else None
        values["beta_devices"] = tuple(values["beta_devices"])
        values["reads"] = tuple(values.get("reads", ()))  # a journal of an older walle has none
        values["groups"] = tuple(GroupResult(**known_fields(GroupResult, one)) for one in values.get("groups", ()))
        values["other_names"] = tuple(values.get("other_names", ()))
        values["variants"] = tuple(ReleaseVariant.from_plain(one) for one in values.get("variants", ()))
        values["overruled"] = tuple(values.get("overruled", ()))
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class ReleaseOverview:
    """The number of releases in each state, and those in use: under way, baking, or the latest full one of its task."""

    counts: Mapping[ReleaseState, int]
    in_use: tuple[Release, ...]  # those under way and baking first, then the newest

    @classmethod
    def of(cls, releases: Iterable[Release], limit: int) -> Self:
        """Return the overview of these, with `limit` in use at most."""
        counts = dict.fromkeys(ReleaseState, 0)
        judged: list[Release] = []
        latest: dict[str, Release] = {}  # full releases by task
        for release in releases:
            counts[release.state] += 1
            if release.state is ReleaseState.FULL:
                if release.bakes:
                    judged.append(release)
                    continue
                before = latest.get(name := release.request.name)
                if before is None or before.number < release.number:
                    latest[name] = release
            elif release.state.under_way:
                judged.append(release)
        by_age = [sorted(some, key=lambda one: -one.number) for some in (judged, latest.values())]
        return cls(counts, tuple([*by_age[0], *by_age[1]][:limit]))


def allowed(release: Release) -> tuple[str, ...]:
    """Return the names of the events that `advance` accepts in this state."""
    match release.state:
        case ReleaseState.CREATED:
            names = ["Start", "Rollback"]
        case ReleaseState.SIMULATING:
            names = ["SignatureAwaited", "SimulationPassed", "SimulationFailed", "Rollback"]
        case ReleaseState.BETA if not release.beta_devices:
            names = ["BetaResolved", "Pause", "Rollback"]
        case ReleaseState.BETA | ReleaseState.GRAY:
            names = ["GateAccepted", "GateRejected", "GatePaused", "Pause", "Rollback"]
        case ReleaseState.PAUSED:
            names = [*(["GateRejected"] if release.judged else []), "Resume", "Rollback"]
        case ReleaseState.FULL:
            names = ["GateAccepted", "GateRejected", "GatePaused"] if release.bakes else ["Retire"]
            names.append("Rollback")
        case ReleaseState.ROLLED_BACK | ReleaseState.FAILED | ReleaseState.RETIRED:
            names = []
    if release.manifest and not release.state.terminal:
        names.append("SignedAgain")
    return tuple(names)


def advance(release: Release, event: ReleaseEvent) -> tuple[Release, tuple[Effect, ...]]:
    """Return the release after the event, and the effects to run once that is journalled.

    Raises:
        TransitionError: the release's state does not allow the event.
    """
    if type(event).__name__ not in allowed(release):
        raise TransitionError(release.id, release.state, type(event).__name__, allowed(release))
    changes, effects = _changes(release, event)
    return dataclasses.replace(release, **changes, updated_s=event.at_s, revision=release.revision + 1), effects


def _changes(release: Release, event: ReleaseEvent) -> tuple[dict[str, Any], tuple[Effect, ...]]:
    reaches_devices = (Effect.PUBLISH, Effect.SET_GATE)
    match event:
        case Start():
            return {"state": ReleaseState.SIMULATING}, (Effect.RUN_SIMULATION,)
        case SignatureAwaited():
            return {"reason": event.reason[:MAX_REASON_CHARS]}, ()
        case SimulationPassed():
            found = _envelopes(release, event) | {"reads": event.reads, "reason": ""}
            found |= {"groups": event.groups, "other_groups": event.other_groups, "other_names": event.other_names}
            found |= {"state_max_bytes": event.state_max_bytes}
            if release.request.beta == 0:
                return found | {"state": ReleaseState.GRAY}, reaches_devices
            if isinstance(release.request.beta, int):
                return found | {"state": ReleaseState.BETA}, (Effect.RESOLVE_BETA,)
            return found | {"state": ReleaseState.BETA, "beta_devices": release.request.beta}, reaches_devices
        case SignedAgain():
            return _envelopes(release, event), (Effect.PUBLISH,)
        case SimulationFailed():
            return {"state": ReleaseState.FAILED, "reason": event.reason}, ()
        case BetaResolved():
            if not event.devices or len(event.devices) > MAX_BETA_DEVICES:
                raise ReleaseRequestError("beta", f"{len(event.devices)} devices were found for it")
            return {"beta_devices": event.devices}, reaches_devices
        case GateAccepted():
            if release.state is ReleaseState.BETA:
                return {"state": ReleaseState.GRAY}, reaches_devices
            if release.step + 1 < len(release.request.steps):
                return {"step": release.step + 1}, reaches_devices
            if release.state is ReleaseState.FULL:
                return {"bakes": False}, (Effect.SET_GATE,)
            return {"state": ReleaseState.FULL, "bakes": release.request.gate.bake_s > 0}, reaches_devices
        case GatePaused() if release.state is ReleaseState.FULL:
            noted = {"reason": f"{stage_text(release.stage)}: {event.reason}"[:MAX_REASON_CHARS]}
            return noted | {"overruled": (*release.overruled, event.cause)}, (Effect.SET_GATE,)
        case GateRejected():
            reason = f"{stage_text(release.stage)}: {event.reason}"
            return _over(reason), reaches_devices
        case GatePaused():
            paused = {"state": ReleaseState.PAUSED, "resumes": release.state, "cause": event.cause}
            return paused | {
                "reason": f"{stage_text(release.stage)}: {event.reason}"[:MAX_REASON_CHARS]
            }, reaches_devices
        case Pause():
            return {"state": ReleaseState.PAUSED, "resumes": release.state}, reaches_devices
        case Resume():
            effects = reaches_devices if release.judged else (Effect.RESOLVE_BETA,)
            resumed: dict[str, Any] = {"state": release.resumes, "resumes": None}
            if release.cause:
                resumed |= {"reason": "", "cause": "", "overruled": (*release.overruled, release.cause)}
            return resumed, effects
        case Rollback():
            reason = f"by {event.by}: {event.reason}" if event.reason else f"by {event.by}"
            return _over(reason), reaches_devices
        case Retire():
            reason = f"by {event.by}: {event.rollbacks} newer versions have taken its place"
            return {"state": ReleaseState.RETIRED, "reason": reason[:MAX_REASON_CHARS]}, ()


def _envelopes(release: Release, event: SimulationPassed | SignedAgain) -> dict[str, Any]:
    """Return what a release knows of its built version."""
    return {
        "manifest": event.manifest,
        "size_bytes": event.size_bytes,
        "variants": with_envelopes(release.variants, event.variants),
    }


def _over(reason: str) -> dict[str, Any]:
    return {"state": ReleaseState.ROLLED_BACK, "bakes": False, "resumes": None, "reason": reason[:MAX_REASON_CHARS]}
