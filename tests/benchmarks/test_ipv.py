"""The cloud-only baseline of the IPV figure: right without delays, wrong only where events come late."""

import dataclasses
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from apps.ipv.logs import generated_visits
from benchmarks.ipv_pipelines.cloud import LONGEST_PAUSE_MS, PLANS, Plan, overlapping, run_cloud, sdk_batches
from benchmarks.ipv_pipelines.device import by_user
from walle.pipeline.events.event import Event

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def events() -> dict[str, list[Event]]:
    return overlapping(by_user(generated_visits(3, 6, 10)), random.Random(1))


def test_users_overlap_and_keep_their_events(events: dict[str, list[Event]]) -> None:
    originals = by_user(generated_visits(3, 6, 10))
    assert events.keys() == originals.keys()
    for user, theirs in events.items():
        assert [event.contents for event in theirs] == [event.contents for event in originals[user]]
        gaps = [after.ts_ms - before.ts_ms for before, after in itertools.pairwise(theirs)]
        assert theirs[0].ts_ms < LONGEST_PAUSE_MS
        assert 0 <= min(gaps) <= max(gaps) <= LONGEST_PAUSE_MS


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_an_sdk_sends_each_event_once_and_in_time(events: dict[str, list[Event]], plan: Plan) -> None:
    for theirs in events.values():
        batches = list(sdk_batches(theirs, plan))
        assert [event for _, _, batch in batches for event in batch] == theirs
        for sent_ms, first, batch in batches:
            assert batch[0] is theirs[first]
            assert batch[-1].ts_ms <= sent_ms <= batch[0].ts_ms + plan.flush_s * 1000


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_without_late_batches_and_with_patience_every_feature_is_right(
    events: dict[str, list[Event]], plan: Plan, tmp_path: Path
) -> None:
    punctual = dataclasses.replace(plan, late_share=0.0, lateness_s=60)
    run = run_cloud(events, punctual, tmp_path, 1)
    assert (run.visits, run.missing, run.wrong, len(run.feature_ms)) == (60, 0, 0, 60)
    assert min(run.feature_ms) > 60_000


def test_late_batches_make_wrong_features_where_the_cloud_does_not_wait(
    events: dict[str, list[Event]], tmp_path: Path
) -> None:
    late = dataclasses.replace(PLANS[0], late_share=0.3)
    run = run_cloud(events, late, tmp_path, 1)
    assert run.visits == 60
    assert run.missing + run.wrong >= 5
    assert len(run.feature_ms) == 60 - run.missing


@pytest.mark.night
@pytest.mark.timeout(120)
def test_the_benchmark_prints_its_figures(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/ipv.py", "--visits", "100", "--json"]
    folders = ["--logs", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *folders], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    part = json.loads(done.stdout)["sets"]["generated"]
    assert part["visits"] == 100
    assert part["device"]["errors"] == 0
    assert part["encoding_bytes"] < part["device"]["wire_bytes"] < part["feature_bytes"] < part["raw_bytes"]
    assert part["device"]["wire_bytes"] * 5 < part["raw_wire_bytes"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"ipv.json", "ipv.png", "ipv.html"}
