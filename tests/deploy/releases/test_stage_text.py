"""Words for states, stages and transitions of a release."""

import pytest

from walle.deploy.releases.release import ReleaseState
from walle.deploy.releases.stage_text import stage_text, state_text
from walle.deploy.releases.transition_text import event_text, transition_text


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("gray 0.25", "25 % step"),
        ("gray 1.0", "100 % step"),
        ("gray 0.001", "0.1 % step"),
        ("gray", "percentage rollout"),
        ("gray x", "gray x"),
        ("beta", "beta"),
        ("rolled_back", "rolled back"),
    ],
)
def test_a_stage_is_shown_by_its_share_of_the_devices(stage: str, text: str) -> None:
    assert stage_text(stage) == text


def test_no_state_is_shown_by_a_word_of_the_code() -> None:
    texts = [state_text(state) for state in ReleaseState]
    assert not any("_" in text or "gray" in text for text in texts)
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("event", "state", "details", "text"),
    [
        ("Create", "created", {}, "Created"),
        ("Create", "simulating", {}, "Created, now simulating"),
        ("Start", "simulating", {}, "Started, now simulating"),
        ("BetaResolved", "beta", {"devices": ["d1", "d2"]}, "Beta devices chosen: d1, d2"),
        ("GateAccepted", "gray", {}, "Step accepted, now percentage rollout"),
        ("Rollback", "rolled_back", {"by": "anna", "reason": "slow"}, "Rolled back by anna"),
        ("Pause", "paused", {}, "Paused"),
        ("Newer", "full", {}, "Newer, now full"),
    ],
)
def test_a_transition_says_what_happened_and_the_state_since_then(
    event: str, state: str, details: dict[str, object], text: str
) -> None:
    assert transition_text(event, state, details) == text


def test_a_transition_names_at_most_ten_beta_devices() -> None:
    text = event_text("BetaResolved", {"devices": [f"d{number}" for number in range(12)]})
    assert text.endswith(", d8, d9 and 2 more")
