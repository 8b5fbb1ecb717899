"""A cloud on a Ray cluster, whose node with all services is killed while a release goes on and devices upload."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.cloud_walk import NO_ANSWER
from tests.sim.postgres_server import PostgresServer
from tests.sim.processes import MARKER, wait_until_gone
from tests.system.test_two_nodes import UNSHARE, why_no_namespace

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.system, pytest.mark.timeout(640)]


@pytest.mark.night
def test_a_cloud_whose_node_with_all_services_is_killed_continues_with_its_release_and_uploads(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    if reason := why_no_namespace():
        pytest.skip(reason)
    marker = f"walk-{os.getpid()}"
    database = postgres.make_database()
    postgres.folder.chmod(0o711)  # root of the namespace is like any user outside: it enters as others do
    run = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.sim.fault_walk", tmp_path, database],
        cwd=ROOT,
        env={**os.environ, MARKER: marker, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0
    found = json.loads(run.stdout.splitlines()[-1])
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    assert found["received"] == found["produced"] > 0
    assert found["twice"] == 0
    assert found["over_share"] == []
    assert set(found["drained"]["check_ins"]) == {"204"}
    # The killed node's edge ends with the connections that it had accepted; those of the other node answer.
    answers = found["killed"]["check_ins"]
    assert {name for name in answers if not name.startswith(NO_ANSWER)} == {"204"}
    assert sum(count for name, count in answers.items() if name != "204") <= 3
    assert wait_until_gone(marker) == []
