"""The load test of releases: a short one, and wrong results that its check must find."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.deploy_check import Played, shares_of, wrong_results
from walle.trust.audience import share

_ROOT = Path(__file__).parents[2]
TASK = "load/ipv"
GOOD = Played(release_id="ipv-v1-1", version="v1", weights="g", shares=[(10.0, 0.5), (20.0, 1.0)])
BAD = Played(release_id="ipv-v2-2", version="v2", weights="b", shares=[(30.0, 1.0)], rolled_back_s=40.0)


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="locust of the extra dev is not installed")
def test_a_few_releases_under_load_leave_no_wrong_result(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.deploy", "--users=30", "--spawn-rate=30", "--seconds=0", "--json"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}"], cwd=_ROOT, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert (found["devices"], found["releases"], found["rolled_back"]) == (30, 3, 1)
    assert found["devices_that_had_a_bad_version"] > 0
    assert found["activations"] >= 30
    assert "0 wrong results" in (tmp_path / "deploy.html").read_text()


def record(
    activations: list[tuple[float, str, str, str]] | None = None,
    checkins: list[tuple[float, dict[str, str]]] | None = None,
) -> dict[str, Any]:
    return {"activations": activations or [], "checkins": checkins or [], "drops": 0}


def device_at(release_id: str, *, below: float, above: float = 0.0) -> str:
    return next(f"d{n}" for n in range(100) if above <= share(release_id, f"d{n}") < below)


def test_a_right_record_has_no_wrong_result() -> None:
    early = device_at("ipv-v1-1", below=0.5)
    right = record(
        [(11.0, TASK, "v1", "g"), (31.0, TASK, "v2", "b"), (41.0, TASK, "v1", "g")],
        [(39.0, {TASK: "v2"}), (40.9, {TASK: "v2"}), (41.1, {TASK: "v1"}), (42.0, {})],
    )
    assert list(wrong_results(TASK, [GOOD, BAD], {early: right})) == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (record([(12.0, TASK, "v9", "g")]), "activated load/ipv v9, which was not released"),
        (record([(12.0, "load/other", "v1", "g")]), "which was not released"),
        (record([(21.0, TASK, "v1", "other")]), "weights of v1 are not those that were pushed"),
        (record([(9.0, TASK, "v1", "g")]), r"activated v1 when the step covered 0\.0"),
        (record([(19.9, TASK, "v1", "g")]), r"has place 0\.\d+ and activated v1 when the step covered 0\.5"),
        (record(None, [(41.5, {TASK: "v2"})]), r"has v2 after a check-in 1\.5 s after its rollback"),
    ],
)
def test_each_kind_of_wrong_result_is_found(wrong: dict[str, Any], what: str) -> None:
    late = device_at("ipv-v1-1", below=1.0, above=0.5)
    (found,) = wrong_results(TASK, [GOOD, BAD], {late: wrong})
    assert found.startswith(f"{late}: ")
    assert re.search(what, found)


def test_shares_are_those_of_the_history() -> None:
    history = [
        {"at_s": 1.0, "event": "Create", "state": "created"},
        {"at_s": 2.0, "event": "SimulationPassed", "state": "gray"},
        {"at_s": 3.0, "event": "GateAccepted", "state": "gray"},
        {"at_s": 4.0, "event": "GateAccepted", "state": "full"},
        {"at_s": 5.0, "event": "Rollback", "state": "rolled_back"},
    ]
    release = {"request": {"steps": [0.25, 1.0]}, "history": history}
    assert shares_of(release) == [(2.0, 0.25), (3.0, 1.0), (4.0, 1.0)]
