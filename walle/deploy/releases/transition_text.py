"""Words for the transitions in a release's history, as people read them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from walle.deploy.releases.stage_text import state_text

_SHOWN_DEVICES = 10  # devices shown of a beta; the API has all of them
_EVENTS = {
    "": "Created",
    "Create": "Created",
    "Start": "Started",
    "SignatureAwaited": "Waiting for signatures",
    "SimulationPassed": "Simulation passed",
    "SignedAgain": "Signed again",
    "SimulationFailed": "Simulation failed",
    "GateAccepted": "Step accepted",
    "GateRejected": "Step rejected",
    "GatePaused": "Step paused",
    "Pause": "Paused",
    "Resume": "Resumed",
    "Rollback": "Rolled back",
    "Retire": "Retired",
}


def event_text(event: str, details: Mapping[str, Any]) -> str:
    """Return what happened and who did it: `Rolled back by anna`, `Beta devices chosen: d1, d2`."""
    if event == "BetaResolved":
        return f"Beta devices chosen: {_devices(details.get('devices', ()))}"
    text = _EVENTS.get(event, event)
    return f"{text} by {details['by']}" if details.get("by") else text


def transition_text(event: str, state: str, details: Mapping[str, Any]) -> str:
    """Return what happened and the state since then: `Step accepted, now percentage rollout`.

    The reason is not in it: it is shown apart.
    """
    now = state_text(state)
    is_said = event == "BetaResolved" or _EVENTS.get(event, event).lower() == now
    return event_text(event, details) if is_said else f"{event_text(event, details)}, now {now}"


def _devices(devices: Sequence[str]) -> str:
    shown = ", ".join(map(str, devices[:_SHOWN_DEVICES]))
    others = len(devices) - _SHOWN_DEVICES
    return f"{shown} and {others} more" if others > 0 else shown
