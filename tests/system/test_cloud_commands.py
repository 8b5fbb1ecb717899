"""A cloud on a Ray cluster by its commands: up, a restart that takes another version, and down, while devices work.

One node of two has the services. `make test-upgrade` runs more of it: both have, also with two edge gateways on each,
and the cloud is started again after its end.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer
from tests.sim.upgrades import faults, run
from tests.system.test_two_nodes import why_no_namespace

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.mark.night
def test_a_cluster_takes_another_version_without_a_failed_check_in_and_down_leaves_nothing(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    if reason := why_no_namespace():
        pytest.skip(reason)
    found = run(tmp_path, postgres, 1, nodes=1, is_short=True)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    assert faults(found, 1, nodes=1) == []
