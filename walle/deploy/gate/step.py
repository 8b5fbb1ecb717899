"""A step of a release that is judged: which devices are its own, and which are the control (§6). Pure."""

import dataclasses
import re
from collections.abc import Callable, Mapping

from walle.deploy.gate.gate import Gate
from walle.deploy.policies.attribute_schema import APP_VERSION, ColumnType
from walle.deploy.policies.policy import Policy
from walle.protocol import Attribute, OutcomeBatch, Profile
from walle.trust.audience import share

_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)

type Join = Callable[[Profile], Profile]


def as_reported(profile: Profile) -> Profile:
    """Return a profile of which nothing was uploaded."""
    return profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a release that is judged: its devices, and what is needed to tell them from the control.

    Its devices are those of `devices`, and those whose place in the release is in [`share_from`, `share_to`); in a
    trial, from 0. `steps` is how many steps the release has in all. `policy` are the devices that the release is for;
    where it names them, `devices` are all that the step is the first to admit. `control_versions` are those that they
    have before it. `overruled` are the causes of pauses after which a person resumed the release. With `bakes`, the
    release is full, and the step is the time after that. `state_max_bytes` is the bound of the task's state, 0
    without a state, None where it is not known: of releases and evidence of before.
    """

    release: str
    task: str
    version: str
    stage: str
    gate: Gate
    steps: int
    devices: frozenset[str] = frozenset()
    earlier_devices: frozenset[str] = frozenset()
    share_from: float = 0.0
    share_to: float = 0.0
    policy: Policy = dataclasses.field(default_factory=Policy)
    control_versions: frozenset[str] = frozenset()
    is_paused: bool = False
    overruled: tuple[str, ...] = ()
    bakes: bool = False
    state_max_bytes: int | None = None

    @property
    def has_control(self) -> bool:
        return bool(self.control_versions)

    def is_new(self, device_id: str) -> bool:
        """Return whether this step is the first to admit the device; in a trial, whether it is admitted at all."""
        if device_id in self.devices:
            return True
        trial = self.gate.trial_runs > 0
        if device_id in self.earlier_devices:
            return trial
        low = 0.0 if trial else self.share_from
        return low <= share(self.release, device_id) < self.share_to

    def is_control(self, device_id: str, version: str, groups: Mapping[str, str], join: Join = as_reported) -> bool:
        """Return whether a device that reports runs of `version` is one that the release is for and has not admitted.

        Devices of other policies differ in more than the version. A device that does not report an attribute on which
        the policy depends is not a control. `join` returns a profile with what was uploaded of it.
        """
        known = device_id in self.devices or device_id in self.earlier_devices
        if known or version not in self.control_versions or share(self.release, device_id) < self.share_to:
            return False
        return self.policy.takes_all or self.policy.matches(join(_reported_profile(device_id, groups, self.policy)))

    @property
    def is_census(self) -> bool:
        """Return whether the step is decided by all of its devices: a list of them, outside of a trial."""
        return (self.share_to == 0 or bool(self.policy.devices)) and not self.gate.trial_runs and not self.bakes


def _reported_profile(device_id: str, groups: Mapping[str, str], policy: Policy) -> Profile:
    """Return what a report says of a device's profile: `walle.deploy.agent.outcomes.device_groups` made the texts."""
    # Others than the policy's columns may be the user's id, by which attributes were uploaded.
    most = OutcomeBatch.MAX_GROUP_CHARS
    attributes: dict[str, Attribute] = {name: text for name, text in groups.items() if len(text) < most}
    for name, kind in policy.columns:
        attributes.pop(name, None)
        text = groups.get(name)
        if text is None or len(text) >= most:  # long texts may be cut
            continue
        if kind is ColumnType.STRING:
            attributes[name] = text
        elif kind is ColumnType.BOOL:
            if text in ("True", "False"):
                attributes[name] = text == "True"
        elif _WHOLE.fullmatch(text):
            attributes[name] = int(text)
    return Profile(device_id, groups.get(APP_VERSION, ""), attributes)
