"""Words for the tests of a gate and the counts of a step."""

import math

import pytest

from walle.deploy.gate.evidence_text import decision_text, line_text, name_text, sample_text
from walle.metrics.table import TEST_NAMES

SAMPLE = {"devices": 3, "broken": 5, "runs": 20, "failed": 5.0, "waiting": 0, "hindered": 0}


@pytest.mark.parametrize("name", [*TEST_NAMES, "group os=ios", "hindered by network"])
def test_a_test_is_shown_as_evidence_of_something(name: str) -> None:
    assert name_text(name).startswith("evidence that ")


def test_a_test_of_a_newer_cloud_keeps_its_name() -> None:
    assert name_text("battery") == "battery"


def test_a_line_says_how_much_evidence_there_is_and_what_it_decides() -> None:
    test = {"test": "failed runs", "value": 7.5, "boundary": 6.0}
    assert line_text(test, "rejects") == "evidence that it fails too often: 7.5 (rolled back at 6)"
    assert decision_text(-0.01, 4.61, "accepts") == "0 (accepted at 4.6)"
    assert decision_text(-math.inf, 6.0, "pauses") == "-inf (paused at 6)"


def test_a_sample_is_shown_by_runs_and_devices() -> None:
    assert sample_text(SAMPLE, is_trial=True) == "20 runs on 3 devices, 5 failed"
    more = {**SAMPLE, "devices": 1, "broken": 1, "waiting": 2, "hindered": 1}
    assert sample_text(more) == (
        "20 runs on 1 device, 5 failed; 1 device broken; 2 devices with too few runs to count;"
        " 1 device unable to install it"
    )
