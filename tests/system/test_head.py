"""A cloud on machines with addresses of their own, while the head of their Ray cluster is cut off, and restarted."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.sim.cloud_walk import NO_ANSWER
from tests.sim.head_walk import run_apart
from tests.sim.machines import why_no_machines
from tests.sim.postgres_server import PostgresServer
from tests.sim.processes import MARKER, wait_until_gone
from tests.sim.redis_server import why_no_redis

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.mark.night
def test_a_cloud_continues_while_the_head_is_cut_off_for_30_s_and_restarted_from_redis(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    if reason := why_no_machines() or why_no_redis():
        pytest.skip(reason)
    marker = f"head-{os.getpid()}"
    database = postgres.make_database()
    postgres.folder.chmod(0o711)  # root of the namespace is like any user outside: it enters as others do
    run = run_apart(
        ["--faults", "cut-head", "restart-head"],
        database,
        tmp_path,
        cwd=ROOT,
        env={**os.environ, MARKER: marker},
        timeout=880,
    )
    assert run.returncode == 0
    found = json.loads(run.stdout.splitlines()[-1])
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    assert found["received"] == found["produced"] > 0
    assert found["twice"] == 0
    assert found["over_share"] == []
    cut, restarted = found["cut-head"], found["restart-head"]
    assert len(cut["kept"]) == 10  # six services, and an edge and a tunnel server on each node
    assert (cut["restarted_nodes"], restarted["restarted_nodes"]) == (0, 0)
    assert cut["stored_meanwhile"] > 0
    assert cut["steps_meanwhile"] > 0
    assert cut["status"]["answered"] == cut["status"]["asked"]
    assert set(restarted["kept"]) == set(cut["kept"]) - {"releases"}  # the releases' process was started again
    for seen in (cut, restarted):
        answers = seen["check_ins"]
        assert {name for name in answers if not name.startswith(NO_ANSWER)} == {"204"}
        assert sum(count for name, count in answers.items() if name != "204") <= 1
        assert seen["status"]["answered"] > 0
    assert wait_until_gone(marker) == []
