"""A cluster takes another version of Walle while devices work: `python -m tests.sim.upgrades [--gateways N ...]`.

It needs PostgreSQL and a network namespace. Prints what was counted, for 1 and 2 edge gateways on each node or those
that are given, and exits with 1 if anything went wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.sim.cloud_commands import NEW_VERSION
from tests.sim.postgres_server import PostgresServer, postgres_server
from tests.sim.processes import MARKER, wait_until_gone

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]
_LIMIT_S = 880


def run(
    folder: Path, postgres: PostgresServer, gateways: int, *, nodes: int = 2, is_short: bool = False
) -> dict[str, Any]:
    """Return what `tests.sim.cloud_commands` counts, and the `processes_left` of its own after it."""
    marker = f"upgrade-{os.getpid()}"
    database = postgres.make_database()
    postgres.folder.chmod(0o711)  # root of the namespace is like any user outside: it enters as others do
    options = [f"--gateways={gateways}", f"--nodes={nodes}", *(["--short"] if is_short else [])]
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.sim.cloud_commands", folder, database, *options],
        cwd=ROOT,
        env={**os.environ, MARKER: marker, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    left = wait_until_gone(marker)
    if done.returncode:
        return {"exit_status": done.returncode, "processes_left": left}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "processes_left": left}


def faults(found: dict[str, Any], gateways: int, *, nodes: int = 2) -> list[str]:
    """Return what went wrong."""
    if "exit_status" in found:
        return [f"it ended with {found['exit_status']}; processes left: {found['processes_left']}"]
    wrong = []
    for part in ("before", "restart", "after"):
        answers = found[part]["check_ins"]
        if failed := {kind: count for kind, count in answers.items() if not kind.endswith(": 204")}:
            wrong.append(f"check-ins failed ({part}): {failed}")
        if len(answers) < 2:
            wrong.append(f"check-ins on new or kept connections are missing ({part}): {answers}")
    services = {"gateway", "releases", "monitor", "identities", "inference-0", "nodes"}
    members = set(found["processes"]) - services
    is_whole = services < set(found["processes"]) and len(members) == nodes * (1 + gateways)
    expected: dict[str, bool] = {
        "the processes after the restart are not those before": is_whole and found["states"] == ["running"],
        "processes were not started again": found["same_pids"] == [],
        "the versions are not the old one, then the new one": found["versions"][1] == [NEW_VERSION]
        and len(found["versions"][0]) == 1
        and found["versions"][0] != found["versions"][1],
        "uploads were lost or stored twice": found["received"] == found["produced"] > 0 and found["twice"] == 0,
        "a second up did not say that the cloud runs": found["second_up"] == [0, True],
        "down did not end every process": found["down"] == [0, len(found["processes"])],
        "down left something": not any(found["left"].values()) and found["processes_left"] == [],
        "a second down did not say that no cloud runs": found["second_down"][0] == 1
        and found["second_down"][1]["type"] == "NotRunningError",
        "the cloud was another one after down and up": found.get("state_again", "full") == "full"
        and found.get("versions_again", [NEW_VERSION]) == [NEW_VERSION],
    }
    return wrong + [what for what, is_right in expected.items() if not is_right]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=int, nargs="*", default=[1, 2])
    options = parser.parse_args()
    has_failed = False
    with postgres_server() as postgres:
        for gateways in options.gateways:
            with tempfile.TemporaryDirectory(prefix="walle-upgrade-") as folder:
                found = run(Path(folder), postgres, gateways)
            wrong = faults(found, gateways)
            has_failed = has_failed or bool(wrong)
            sys.stdout.write(json.dumps({"gateways": gateways, **found, "wrong": wrong}, indent=1) + "\n")
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
