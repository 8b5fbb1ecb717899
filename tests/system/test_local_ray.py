"""The Ray of `walle cloud up --ray`: where it listens, who can read its token, and what is left after a kill."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.listeners import is_loopback, listeners
from tests.sim.processes import MARKER, alive, descendants, pids_with, wait_until_gone
from tests.sim.run_folder import PREFIX

ROOT = Path(__file__).parents[2]
LIMIT_S = 10.0
UP = ["--http-port", "0", "--tunnel-port", "0", "--json"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for everything that a cloud writes: HOME, TMPDIR and its own folder."""
    made = Path(tempfile.mkdtemp(prefix="w"))
    (made / "tmp").mkdir()
    yield made
    shutil.rmtree(made)


def cloud_up(folder: Path, marker: str, *options: str, **variables: str) -> subprocess.Popen[str]:
    env = {**os.environ, MARKER: marker, "HOME": str(folder), "TMPDIR": str(folder / "tmp"), **variables}
    command = [sys.executable, "-c", "from walle.cli import main; main()", "cloud", "up", str(folder / "cloud"), *UP]
    return subprocess.Popen(
        [*command, "--ray", *options],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def running(folder: Path, marker: str, *options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A cloud that is up; nothing of it outlives the block."""
    process = cloud_up(folder, marker, *options, **variables)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        assert "url" in json.loads(line)
        yield process
    finally:
        for pid in descendants([process.pid, *pids_with(marker)]) if process.poll() is None else pids_with(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def shared_memory() -> set[Path]:
    """Return the files in shared memory but for those of servers and browsers of tests that run beside these."""
    return {one for one in Path("/dev/shm").iterdir() if not one.name.startswith((PREFIX, ".org.chromium"))}


@pytest.mark.night
def test_a_cloud_on_loopback_listens_nowhere_else_and_after_a_kill_nothing_of_it_is_left(folder: Path) -> None:
    marker = f"local-ray-{os.getpid()}"
    options = ["--host", "127.0.0.1", "--gateways", "1", "--tunnel-servers", "1", "--scenario", "shop"]
    before = shared_memory()
    with running(folder, marker, *options) as process:
        pids = descendants([process.pid])
        found = listeners(pids)
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in found.values()}
        assert {"gcs_server", "raylet", "ray::EdgeActor", "ray::GatewayAct"} <= names, names
        assert [one for one in found if not is_loopback(one)] == []
        token = folder / ".ray" / "auth_token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.stat().st_size >= 32
        made = list((folder / "tmp").iterdir())
        assert {one.stat().st_uid for one in made} == {os.getuid()}
        assert {stat.S_IMODE(one.stat().st_mode) for one in made} == {0o700}  # Ray's folders within are 0777

        process.kill()
        deadline_s = time.monotonic() + LIMIT_S
        while (left := alive(pids | set(pids_with(marker)))) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert left == []
        assert [one.name for one in (folder / "tmp").iterdir()] == []
        assert shared_memory() <= before


@pytest.mark.night
def test_a_cloud_that_is_stopped_leaves_nothing(folder: Path) -> None:
    marker = f"stopped-ray-{os.getpid()}"
    with running(folder, marker, "--host", "127.0.0.1") as process:
        pids = descendants([process.pid])
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert alive(pids) == []
        assert wait_until_gone(marker, 0.0) == []
        assert [one.name for one in (folder / "tmp").iterdir()] == []


@pytest.mark.night
def test_a_cloud_for_all_interfaces_is_refused_where_ray_has_no_token(folder: Path) -> None:
    options = ["--host", "0.0.0.0", "--name", "cloud.example"]
    process = cloud_up(folder, f"open-ray-{os.getpid()}", *options, RAY_AUTH_MODE="disabled")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "RAY_AUTH_MODE=disabled" in errors
    assert "unset RAY_AUTH_MODE" in " ".join(errors.split())
    assert not (folder / ".ray").exists()
    assert list((folder / "tmp").iterdir()) == []


OPEN_CLUSTER = """
import logging, sys
import ray
from walle.actors import local_ray
local_ray.prepare_token = lambda *_: None  # its operator has turned tokens off
cluster = local_ray.LocalRay.start("", logging_level=logging.ERROR)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
cluster.close()
"""
JOINS = """
import logging, sys
from ray._private import ray_constants
logging.basicConfig()
ray_constants.ENABLE_RAY_CLUSTER = False  # on the loopback interface, as the cluster is
from walle.actors.wiring import close_ray, start_ray
start_ray(sys.argv[1])
close_ray()
"""


@pytest.mark.night
def test_a_cluster_that_asks_for_no_token_is_a_warning_also_for_who_has_one(folder: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}  # another test's Ray's
    env |= {"HOME": str(folder), "TMPDIR": str(folder / "tmp")}
    with subprocess.Popen(
        [sys.executable, "-c", OPEN_CLUSTER],
        cwd=ROOT,
        env={**env, "RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        for own in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}):
            command = [sys.executable, "-c", JOINS, address]
            joined = subprocess.run(
                command, cwd=ROOT, env={**env, **own}, capture_output=True, text=True, timeout=80, check=False
            )
            assert joined.returncode == 0, joined.stderr
            assert f"the Ray cluster at {address} asks for no token" in joined.stderr
        cluster.communicate()
    assert cluster.returncode == 0
