"""Words for the evidence of a gate: the tests, what each decides, and the counts of a step. Pure.

The API and the metrics keep the tests' names, such as `failed runs`.
"""

from collections.abc import Mapping
from typing import Any

_TESTS = {
    "failed runs": "evidence that it fails too often",
    "broken devices": "evidence that it fails on too many devices",
    "guards are broken": "evidence that it breaks a guard",
    "groups of devices": "evidence that it fails on one group of devices",
    "hindered devices": "evidence that too many devices cannot install it",
    "silent devices": "evidence that devices stop reporting",
    "runs are good": "evidence that it fails rarely enough",
    "few devices are broken": "evidence that it fails on few devices",
    "guards hold": "evidence that its guards hold",
}
_GROUP = "group "
_HINDERED = "hindered by "
_DECISIONS = {
    "rejects": "rolled back",
    "rolls back": "rolled back",
    "pauses": "paused",
    "groups": "paused",
    "hindered": "paused",
    "accepts": "accepted",
}


def name_text(name: str) -> str:
    """Return a test's name in words; one that is unknown, of a newer cloud, is returned unchanged."""
    if name.startswith(_GROUP):
        return f"evidence that it fails on devices with {name.removeprefix(_GROUP)}"
    if name.startswith(_HINDERED):
        return f"evidence that too many devices cannot install it, because of the {name.removeprefix(_HINDERED)}"
    return _TESTS.get(name, name)


def decision_text(value: float, limit: float, does: str) -> str:
    """Return a test's value and where it decides: `7.5 (rolled back at 6)`."""
    return f"{number_text(value)} ({_DECISIONS.get(does, does)} at {number_text(limit)})"


def line_text(test: Mapping[str, Any], does: str) -> str:
    """Return an entry of the evidence: `evidence that it fails too often: 7.5 (rolled back at 6)`."""
    return f"{name_text(test['test'])}: {decision_text(test['value'], test['boundary'], does)}"


def sample_text(sample: Mapping[str, Any], *, is_trial: bool = False) -> str:
    """Return the counts of a step: `20 runs on 3 devices, 5 failed`, and which devices do not count or are broken.

    In a trial each run counts like a device, so there is no evidence about broken devices.
    """
    runs, devices = count_text(sample["runs"], "run"), count_text(sample["devices"], "device")
    texts = [f"{runs} on {devices}, {sample['failed']:g} failed"]
    if not is_trial and sample["broken"]:
        texts.append(f"{count_text(sample['broken'], 'device')} broken")
    if sample["waiting"]:
        texts.append(f"{count_text(sample['waiting'], 'device')} with too few runs to count")
    if sample.get("hindered"):
        texts.append(f"{count_text(sample['hindered'], 'device')} unable to install it")
    return "; ".join(texts)


def count_text(count: float, what: str) -> str:
    """Return a count with its noun, such as `1 device` or `1,200 devices`."""
    return f"{count:,.10g} {what}{'' if count == 1 else 's'}"


def number_text(value: float) -> str:
    """Return a number with one decimal at most: `7.5`, `6`."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
