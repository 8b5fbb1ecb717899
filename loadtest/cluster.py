"""Load test of a cloud on a cluster: uploads and releases at once, against actors on Ray nodes of this machine.

    python -m loadtest.cluster [--nodes 1] [--seconds 60] [--users 60] [--costs 0] [--out out/loadtest] [--json]

The nodes are processes of this machine in a network namespace of their own (`unshare`, of util-linux), and the cloud is
`walle cloud up --ray` that joins them, with its state and the uploads in a PostgreSQL server that is made for the test
where PostgreSQL is installed. Half of the users are those of `loadtest.tunnel`, half those of `loadtest.deploy`, with
the same checks: the exit status is 1 after any wrong result or failed call. `--costs` then keeps the cloud busy with
one kind of request at a time, that many seconds each, and shows the CPU time of each process by 1,000 requests.
`--option=--gateways=1` gives the cloud another option.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if importlib.util.find_spec("locust") is None:
    sys.exit("the load test needs locust, which is not installed; it is in the extra dev: make setup")

from locust.env import Environment  # locust is checked first

from loadtest import deploy, report, tunnel
from loadtest.cloud_process import SCENARIO, CloudError, CloudProcess
from loadtest.cluster_costs import Costs
from loadtest.cost_table import cost_lines
from loadtest.cpu_times import CpuTimes
from loadtest.deploy_check import wrong_results
from loadtest.device_process import DeviceProcess, call_rows, call_table
from tests.sim.postgres_programs import postgres_folder
from tests.sim.two_nodes import loopback_up

_ROOT = Path(__file__).parents[1]
_UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]
_INSIDE = "--inside"


@contextlib.contextmanager
def nodes(count: int) -> Iterator[str]:
    """Give the address of a Ray cluster of `count` nodes, which ends with the block.

    Raises:
        CloudError: it cannot be started.
    """
    command = [sys.executable, "-m", "loadtest.cluster_nodes", str(count)]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)["address"]
                    return
            raise CloudError(f"the nodes of Ray ended with {process.wait()}; their reason is above")
        finally:
            process.stdin.close()


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return calls, releases, CPU time by process, and everything that went wrong."""
    for name in ("uploads", "devices"):
        (folder / name).mkdir()
    with contextlib.ExitStack() as undo:
        address = undo.enter_context(nodes(options.nodes))
        given = ["--ray", f"--address={address}", *options.option]
        given += [f"--database={options.database}"] if options.database else []
        cloud = undo.enter_context(CloudProcess.start(folder / "cloud", *given))
        release_id = cloud.release_task()
        tunnel.wait_until_released(cloud, folder)
        engineer = deploy.Engineer(cloud, options.seed)
        first = engineer.start()
        before = cloud.metrics()
        uploading = undo.enter_context(DeviceProcess.start(tunnel.MODULE, cloud.join_file, folder / "uploads"))
        deploying = undo.enter_context(DeviceProcess.start(deploy.MODULE, cloud.join_file, folder / "devices"))
        times = CpuTimes.read(cloud.roles(), options.postgres)
        environment = Environment(user_classes=[tunnel.TunnelUser, deploy.DeployUser], stop_timeout=60)
        environment.tunnel_devices, environment.deploy_devices = uploading, deploying
        runner = environment.create_local_runner()
        runner.start(options.users, spawn_rate=options.spawn_rate)
        try:
            engineer.work(first, options.seconds)
        finally:
            runner.quit()
            runner.greenlet.join(timeout=90)
        spent = CpuTimes.read(cloud.roles(), options.postgres).since(times)
        costs = Costs(cloud, uploading, deploying, release_id, options.postgres)
        rows = costs.measure(options.costs) if options.costs else []
        ended = {name: devices.call("finish") for name, devices in (("uploads", uploading), ("devices", deploying))}
        if errors := [one["error"] for one in ended.values() if one["error"]]:
            raise CloudError(f"the devices did not end: {errors[0]}")
        made, records = ended["uploads"]["result"], ended["devices"]["result"]
        after = cloud.metrics()
        status = cloud.status()
        cloud.stop()
    metrics = {key: value - before.get(key, 0) for key, value in after.items()}
    failed = [f"{error.name}: {error.error} ({error.occurrences} times)" for error in environment.stats.errors.values()]
    wrong = [
        *failed,
        *costs.wrong,
        *tunnel.wrong_counts(metrics, made),
        *tunnel.wrong_uploads(options.database or cloud.uploads_db, made),
        *wrong_results(f"{SCENARIO}/{deploy.TASK}", engineer.played, records),
    ]
    return {
        "nodes": options.nodes,
        "database": "PostgreSQL" if options.database else "files",
        "options": options.option,
        "users": options.users,
        "processes": {one["name"]: one["node"][:8] for one in status["processes"]},
        "uploads": sum(one["made"] for one in made.values()),
        "answers": sum(one["answered"] for one in made.values()),
        "releases": len(engineer.played),
        "rolled_back": sum(one.rolled_back_s is not None for one in engineer.played),
        "activations": sum(len(record["activations"]) for record in records.values()),
        "checkins": sum(len(record["checkins"]) for record in records.values()),
        "drops": sum(record["drops"] for record in records.values()),
        "cpu_s": {role: round(cpu_s, 2) for role, cpu_s in sorted(spent.items())},
        "calls": call_rows(environment),
        "costs": rows,
        "wrong": wrong,
    }


def summary(found: dict[str, Any]) -> str:
    """Return one line of what was done."""
    return (
        f"{found['nodes']} nodes, {found['users']} users, {found['uploads']} uploads, {found['answers']} answers,"
        f" {found['checkins']} check-ins, {found['activations']} activations, {found['releases']} releases"
        f" ({found['rolled_back']} rolled back), {found['drops']} lost processes of devices"
    )


def table(found: dict[str, Any]) -> str:
    lines = [*call_table(found["calls"]), f"{summary(found)}; state in {found['database']}"]
    lines.append("CPU seconds: " + ", ".join(f"{role} {cpu_s:.1f}" for role, cpu_s in found["cpu_s"].items()))
    lines.append("processes and nodes: " + ", ".join(f"{name} {node}" for name, node in found["processes"].items()))
    lines += cost_lines(found["costs"])
    wrong = found["wrong"]
    return "\n".join([*lines, *(f"WRONG: {line}" for line in wrong), f"{len(wrong)} wrong results"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, help="Ray nodes, all on this machine (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of load at least (default: %(default)s)")
    parser.add_argument("--users", type=int, default=60, help="devices (default: %(default)s)")
    parser.add_argument(
        "--spawn-rate", type=float, default=20, help="devices that join a second (default: %(default)s)"
    )
    parser.add_argument("--costs", type=float, default=0, help="seconds of each kind of request; 0: none of these")
    parser.add_argument("--option", action="append", default=[], help="one more option of walle cloud up; repeatable")
    parser.add_argument("--files", action="store_true", help="state in files, even where PostgreSQL is installed")
    parser.add_argument("--seed", type=int, default=1, help="of the versions' bytes")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="where the page goes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--database", default="", help=argparse.SUPPRESS)
    parser.add_argument("--postgres", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def enter_namespace(options: argparse.Namespace) -> int:
    """Run this program again in a network namespace, beside a PostgreSQL server; return its exit status."""
    if shutil.which("unshare") is None:
        sys.exit("load test: each node needs a separate network namespace; install unshare (util-linux)")
    command = [*_UNSHARE, sys.executable, "-m", "loadtest.cluster", *sys.argv[1:], _INSIDE]
    with contextlib.ExitStack() as undo:
        if not options.files and postgres_folder() and importlib.util.find_spec("asyncpg"):
            from tests.sim.postgres_server import postgres_server

            server = undo.enter_context(postgres_server())
            server.folder.chmod(0o711)  # the namespace uses the server's socket, and the owner has no number there
            command += [f"--database={server.make_database()}", f"--postgres={server.pid()}"]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        return subprocess.run(command, env=environment, check=False).returncode


def main() -> None:
    options = parse()
    if not options.inside:
        sys.exit(enter_namespace(options))
    loopback_up()
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        try:
            found = run(options, Path(folder))
        except CloudError as error:
            sys.exit(f"load test: {error}")
    report.write_report(
        options.out,
        f"cluster-{options.nodes}",
        title=f"Load test of a cluster of {options.nodes} nodes on one machine",
        command=f"python -m loadtest.cluster --nodes {options.nodes} --seconds {options.seconds:g}",
        text=table(found),
        summary=summary(found),
        wrong=found["wrong"],
    )
    sys.stdout.write((json.dumps(found) if options.json else table(found)) + "\n")
    if found["wrong"] or not found["uploads"] or not found["activations"] or not found["rolled_back"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
