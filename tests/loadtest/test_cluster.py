"""The load test of a cluster: a short one on two nodes, and the CPU time of processes by their role."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.cost_table import cost_lines, net_ms
from loadtest.cpu_times import LOAD, CpuTimes, ProcessTimes, processes_of_namespace, roles_of
from tests.system.test_two_nodes import why_no_namespace

_ROOT = Path(__file__).parents[2]


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="locust of the extra dev is not installed")
def test_uploads_and_releases_on_two_nodes_leave_no_wrong_result(tmp_path: Path) -> None:
    if reason := why_no_namespace():
        pytest.skip(reason)
    command = [sys.executable, "-m", "loadtest.cluster", "--nodes=2", "--users=60", "--spawn-rate=30", "--seconds=0"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}", "--json"], cwd=_ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert (found["nodes"], found["releases"], found["rolled_back"]) == (2, 3, 1)
    assert found["uploads"] >= 30
    assert found["activations"] >= 30
    assert found["cpu_s"].keys() >= {"gateway", "releases", "monitor", "identities", "ray", "driver"}
    record = json.loads((tmp_path / "cluster-2.json").read_text())
    assert record["wrong"] == 0
    assert re.search("2 nodes, 60 users", (tmp_path / record["page"]).read_text())


def test_a_process_has_the_role_of_its_nearest_ancestor_with_one() -> None:
    commands = {
        1: (0, "init"), 2: (1, "python -m loadtest.cluster"), 3: (2, "python -c main cloud up F --ray"),
        4: (1, "/venv/ray/core/gcs_server"), 5: (1, "ray::GatewayActor"), 6: (5, "python -m host"), 7: (2, "git clone"),
        8: (1, "ray::IDLE"), 9: (77, "python"),
    }  # fmt: skip
    processes = {pid: ProcessTimes(pid, parent, command, 0.0) for pid, (parent, command) in commands.items()}
    assert roles_of(processes, {5: "gateway"}, 2) == {
        1: "other", 2: LOAD, 3: "driver", 4: "ray", 5: "gateway", 6: "gateway", 7: LOAD, 8: "ray", 9: "other",
    }  # fmt: skip


def test_times_are_of_the_roles_and_those_of_new_processes_count_from_zero() -> None:
    before = CpuTimes({("a", 1): 5.0, ("b", 2): 1.0, ("gone", 3): 9.0})
    assert CpuTimes({("a", 1): 7.0, ("a", 4): 0.5, ("b", 2): 1.0}).since(before) == {"a": 2.5, "b": 0.0}


def test_a_cost_is_without_what_is_spent_when_nothing_is_asked() -> None:
    idle = {"kind": "idle", "count": 1, "seconds": 10.0, "cpu_s": {"gateway": 0.1}}
    row = {"kind": "x", "count": 1000, "seconds": 20.0, "cpu_s": {"gateway": 2.2, "new": 0.5}}
    assert net_ms(row, idle) == pytest.approx({"gateway": 2.0, "new": 0.5})
    assert cost_lines([]) == []
    _, _, head, line, last = cost_lines([idle, row])
    assert head.split() == ["count", "gateway", "new"]
    assert line.split() == ["x", "1000", "2.00", "0.50"]
    assert last.split() == ["idle", "10.00", "0.00"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_own_processes_are_found_with_their_cpu_time() -> None:
    used_s = sum(os.times()[:2])
    own = processes_of_namespace()[os.getpid()]
    assert own.parent == os.getppid()
    assert own.cpu_s >= used_s - 0.05
