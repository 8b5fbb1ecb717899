"""Extent of a release: the devices that it has reached so far, also after its end. Pure.

Some of what a policy asks for the cloud knows itself: lists of devices, the share of a step, uploaded attributes. The
rest, app version and attributes of a profile, a device says of itself.
"""

from walle.base.version_range import in_range
from walle.deploy.policies.attribute_schema import APP_VERSION, UPLOADED
from walle.deploy.policies.cel_tree import Node
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import RuleError, compile_rule, joined, names_in
from walle.deploy.releases.draws import covers
from walle.deploy.releases.release import Admission, Release, ReleaseState
from walle.protocol import Profile


def reaches(release: Release, profile: Profile, *, has_version: bool) -> bool:
    """Return whether a device with this joined profile has been given the release's version by it, or is now.

    A part that depends on what the profile lacks is taken as true, unless it was uploaded. `has_version` says that the
    device has reported the version: then what it says of itself may have changed since. Of a release that was rolled
    back in its beta or first step, the devices of that step count where they have reported the version.
    """
    if not release.manifest or not _is_drawn(release, profile.device_id, has_version=has_version):
        return False
    policy = release.request.policy
    if policy.devices and profile.device_id not in policy.devices:
        return False
    try:
        return _is_of_policy(policy, profile, only_known=has_version)
    except RuleError:  # a rule that is not valid any more takes no device
        return False


def may_have_reached(release: Release, device_id: str) -> bool:
    """Return whether a device may have been given the release's version by it, whatever it reported then.

    Lists of devices and the furthest step decide; uploaded attributes may have changed since.
    """
    devices = release.request.policy.devices
    is_named = not devices or device_id in devices
    return bool(release.manifest) and is_named and _is_drawn(release, device_id, has_version=True)


def _is_drawn(release: Release, device_id: str, *, has_version: bool) -> bool:
    """Return whether the device is among those of the furthest step of the release."""
    state = release.resumes or release.state
    if state in (ReleaseState.FULL, ReleaseState.RETIRED):
        return True
    if state not in (ReleaseState.BETA, ReleaseState.GRAY, ReleaseState.ROLLED_BACK):
        return False
    share = release.request.steps[release.step] if state is not ReleaseState.BETA else 0.0
    if state is ReleaseState.ROLLED_BACK and release.step == 0 and not has_version:
        share = 0.0
    return covers(Admission(share, frozenset(release.beta_devices), open=True), release.id, device_id)


def _is_of_policy(policy: Policy, profile: Profile, *, only_known: bool) -> bool:
    """Return whether the policy may take the device: with `only_known`, by what the cloud knows itself."""
    is_said = policy.app_version and profile.app_version and not only_known
    if is_said and not in_range(profile.app_version, policy.app_version):
        return False
    if not policy.rule:
        return True
    terms: dict[bool, list[Node]] = {True: [], False: []}
    for term in policy.compiled().terms:
        terms[_is_uploaded(term)].append(term)
    uploaded, said = (compile_rule(joined(terms[one]), policy.columns) if terms[one] else None for one in (True, False))
    if uploaded is not None and not uploaded.matches(profile):
        return False
    return said is None or only_known or not said.denies(profile)


def _is_uploaded(term: Node) -> bool:
    names = names_in(term)
    return bool(names) and APP_VERSION not in names and all(name.startswith(UPLOADED) for name in names)
