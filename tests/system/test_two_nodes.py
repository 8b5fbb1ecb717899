"""Fallback inference with replicas on two nodes of a Ray cluster, one of which is killed while it runs requests.

Three replicas are wanted; the third one finds room on the node that comes after the killed one.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.processes import MARKER, wait_until_gone
from tests.sim.two_nodes import BIG_BYTES

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(320)]


def why_no_namespace() -> str:
    """Return why this machine gives no network namespace, empty where it does: Ray's nodes need one of their own."""
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is not installed"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=20, check=False)
    return "" if tried.returncode == 0 else f"no network namespace: {tried.stderr.strip()}"


@pytest.mark.night
def test_a_node_that_dies_with_its_replica_loses_no_request_and_another_takes_its_place(tmp_path: Path) -> None:
    if reason := why_no_namespace():
        pytest.skip(reason)
    marker = f"nodes-{os.getpid()}"
    run = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.sim.two_nodes", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, MARKER: marker, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["spread"]
    assert found["fetched_bytes"] > BIG_BYTES  # bytes that the node without the cloud's folder fetched
    ends = found["in_mid_request"]
    assert sum(ends.values()) == 24
    assert set(ends) <= {"answered", "refused: expired", "refused: busy"}
    assert ends["answered"] >= 12
    assert found["repeated"] >= 1  # some ran on the node that was killed
    assert found["alone"] == ["answered"]
    assert found["spread_again"]
    assert found["after"] == ["answered"] * 6
    assert found["inference"]["replicas"] == {"running": 3, "wanted": 3, "lost": 1}
    assert wait_until_gone(marker) == []
