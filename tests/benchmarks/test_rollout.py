"""The figure of a release over a fleet: the simulation decides as the product does, and as real devices do."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fig13.cloud import NAME, NEW, OLD, SimulatedCloud
from benchmarks.fig13.fleet import Fleet, Pattern, device_id
from benchmarks.fig13.real_release import coverage_gap, play, simulated_plan
from benchmarks.fig13.simulation import DifferentAnswerError, Plan, Simulation, requests_each_s
from benchmarks.rollout import main
from walle.deploy.gate.gate import Gate
from walle.deploy.releases.release import ReleaseState
from walle.trust.audience import share


@pytest.fixture(autouse=True)
def _fewer_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.fig13.simulation._HEARD", 3_000)


@pytest.mark.parametrize("release_id", ["r", "ipv-v2-2", "x" * 200])
def test_places_are_those_of_the_product(release_id: str) -> None:
    places = Fleet(300, 1).places(release_id)
    assert [share(release_id, device_id(number)) for number in range(300)] == places.tolist()


def test_places_do_not_depend_on_how_the_fleet_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.fig13.fleet._ALONE", 70)
    fleet = Fleet(200, 1)
    assert fleet.places("r").tolist() == [share("r", device_id(number)) for number in range(200)]


def test_requests_come_while_a_device_is_online_and_one_begins_each_session() -> None:
    fleet = Fleet(50, 3)
    devices = np.arange(50)
    at_s = np.zeros(50)
    for _ in range(40):
        before_s, at_s = at_s, fleet.next_request(devices, at_s)
        assert (at_s > before_s).all()
        since = (at_s + 1e-3 + fleet.phase_s) % fleet.period_s
        assert (since < fleet.session_s + 2e-3).all()
        waited = at_s - before_s
        assert (waited <= fleet.period_s - fleet.session_s + fleet.request_s + 1e-2).all()
        assert (waited[since > fleet.request_s] <= fleet.request_s[since > fleet.request_s] + 1e-2).all()
    assert fleet.is_online(slice(None), 100.0).mean() == pytest.approx(6 / 22, abs=0.2)


def test_runs_are_made_online_only() -> None:
    fleet = Fleet(20, 1, Pattern(run_s=10.0))
    one = np.array([4])
    times = np.arange(0.0, 3000.0, 1.0)
    runs = np.array([int(fleet.runs_until(one, at_s)[0]) for at_s in times])
    grows = np.flatnonzero(np.diff(runs))
    assert (np.diff(runs) <= 1).all()
    assert len(grows) > 20
    assert all(fleet.is_online(one, times[at + 1])[0] for at in grows)


def test_failures_are_the_same_one_by_one_and_at_their_rate() -> None:
    fleet = Fleet(500, 9)
    devices = np.arange(500)
    first, last = np.full(500, 3), np.full(500, 43)
    found = fleet.failures(devices, first, last, 0.02)
    assert found.sum() == pytest.approx(500 * 40 * 0.02, rel=0.15)
    assert found.tolist() == [sum(fleet.fails(number, run, 0.02) for run in range(3, 43)) for number in range(500)]


@pytest.mark.night
def test_a_good_version_covers_the_fleet_in_the_steps_of_the_product() -> None:
    fleet = Fleet(20_000, 2)
    simulation = Simulation(fleet, Plan(steps=(0.1, 0.3, 1.0)))
    outcome = simulation.run()
    assert [step.stage for step in outcome.steps] == ["beta", "gray 0.1", "gray 0.3", "gray 1.0", "full"]
    assert outcome.state is ReleaseState.FULL
    assert all(step.gate_devices >= 107 for step in outcome.steps[2:])
    for step, covered in zip(outcome.steps[1:], (0.1, 0.3, 1.0), strict=False):
        before_next = outcome.installed_s < step.at_s
        before_next[simulation.beta] = False
        assert (simulation.places[before_next] < covered).all()
    installed_s = np.sort(outcome.installed_s)
    assert np.isfinite(installed_s).mean() > 0.99
    full_s = outcome.steps[-1].at_s
    assert np.searchsorted(installed_s, full_s + 60) > 0.25 * fleet.count  # all that are online


@pytest.mark.parametrize(("rate", "most"), [(0.02, 0.02), (1.0, 0.015)])
def test_a_bad_version_is_stopped_at_its_first_step_and_leaves_every_device(rate: float, most: float) -> None:
    fleet = Fleet(60_000, 2)
    outcome = Simulation(fleet, Plan(new_rate=rate, beta=0, horizon_s=2_400.0)).run()
    assert outcome.state is ReleaseState.ROLLED_BACK
    had_it = np.isfinite(outcome.installed_s)
    assert 0 < had_it.mean() < most
    stopped_s = outcome.steps[-1].at_s
    assert np.isfinite(outcome.left_s[had_it]).all()
    online = had_it & fleet.is_online(slice(None), stopped_s) & fleet.is_online(slice(None), stopped_s + 31)
    online &= outcome.installed_s <= stopped_s
    assert (outcome.left_s[online] <= stopped_s + 31).all()  # devices leave it at their next request


def test_a_device_that_is_answered_otherwise_than_its_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimulatedCloud.version_for

    def version_for(cloud: SimulatedCloud, name: str, have: str) -> str:
        return NEW if name.endswith("7") else real(cloud, name, have)

    monkeypatch.setattr(SimulatedCloud, "version_for", version_for)
    with pytest.raises(DifferentAnswerError, match=r"d0\d+7? with v1"):
        Simulation(Fleet(1_000, 1), Plan()).run()


def test_the_table_answers_as_the_release_goes() -> None:
    cloud = SimulatedCloud("r2", beta=["d00000001"], steps=(0.5, 1.0), gate=Gate())
    assert cloud.version_for("d00000001", "") == OLD
    cloud.simulated(1.0)
    assert cloud.version_for("d00000001", OLD) == NEW
    assert cloud.version_for("d00000002", OLD) == OLD
    assert cloud.release.request.name == NAME


def test_load_is_that_of_the_devices_that_are_online() -> None:
    fleet = Fleet(4_000, 1)
    asked = requests_each_s(fleet, 300.0)
    online = 4_000 * 6 / 22
    assert asked.mean() == pytest.approx(online / 20, rel=0.2)  # the mean of 1 / interval is above 1 / mean
    assert requests_each_s(fleet, 300.0, sample=400).mean() == pytest.approx(asked.mean(), rel=0.2)


@pytest.mark.night
def test_the_figure_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--devices=30000", "--minutes=20", f"--out={tmp_path}", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["fleet"]["devices"] == 30_000
    assert [case["state"] for case in found["cases"]] == ["full", "rolled_back", "rolled_back", "paused", "rolled_back"]
    assert {path.name for path in tmp_path.iterdir()} == {"rollout.png", "rollout.html", "rollout.json"}
    assert "bad version" in (tmp_path / "rollout.html").read_text()


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(200)
def test_real_devices_and_simulated_ones_cover_the_same(tmp_path: Path) -> None:
    """A beta, and the first step, 60 times as fast. The tolerance is for a machine that is busy with other tests."""
    fleet = Fleet(150, 1, Pattern(run_s=12.0))
    plan = Plan(steps=(0.7, 1.0), horizon_s=300.0)
    run = play(fleet, plan, 60.0, tmp_path / "cloud")
    assert run.traffic.wrong == []
    outcome = Simulation(fleet, simulated_plan(plan, run, 60.0)).run()
    assert [stage for stage, _ in run.stages] == [step.stage for step in outcome.steps]
    of_real, of_simulated = (np.flatnonzero(np.isfinite(one)) for one in (run.installed_s, outcome.installed_s))
    assert len(of_real) > 20
    assert len(np.setxor1d(of_real, of_simulated)) <= 0.1 * fleet.count
    assert coverage_gap(run.installed_s, outcome.installed_s, plan.horizon_s) < 0.25  # the machine may be loaded
