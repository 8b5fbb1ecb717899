"""`walle cloud up` as a process, with a released task that answers requests."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

_ROOT = Path(__file__).parents[1]
_WALLE = [sys.executable, "-c", "from walle.cli import main; main()"]
_STOP_S = 30.0
_STAGE_S = 60.0  # time of a stage of a release
SCENARIO, TASK, VERSION = "load", "answer", "v1"
_TASK_FILES = {
    "task.toml": f'[task]\nname = "{TASK}"\n[trigger]\nsequence = ["page_exit"]\n[phases]\nexecute = "cloud"\n',
    "main.py": "def execute(ctx, x):\n    return {'device': ctx.device['id'], 'doubled': 2 * x}\n",
}


class CloudError(RuntimeError):
    """The cloud's process failed, or did not do what the load test needs."""


class CloudProcess:
    """A running cloud. Its files stay in `folder` after its end."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.folder = folder
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CloudError(f"the cloud ended with {process.wait()} before it was up; its reason is above")
        self._said: dict[str, Any] = json.loads(line)

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder: Path, *options: str) -> Iterator["CloudProcess"]:
        """Start a cloud with ports of the system's choice and more `options` of `walle cloud up`.

        It is killed at the end of the block if it still runs.
        """
        command = [
            *_WALLE,
            "cloud",
            "up",
            str(folder),
            "--http-port=0",
            "--tunnel-port=0",
            "--plain-http",
            "--join-devices=100000",  # the users of the test
            f"--scenario={SCENARIO}",
            *options,
        ]
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
            try:
                yield cls(process, folder)
            finally:
                process.kill()

    @property
    def join_file(self) -> Path:
        return Path(self._said["join_file"])

    @property
    def url(self) -> str:
        """Address of HTTP."""
        return str(self._said["url"])

    @property
    def uploads_db(self) -> Path:
        return self.folder / "uploads.db"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        host, _, port = self._said["url"].partition("://")[2].rpartition(":")
        return host, int(port)

    def release_task(self) -> str:
        """Push the task with git and start its release, so that the cloud answers requests for it; return its id.

        It is for devices that say no app version, as those of the tunnel; those that check in get other tasks.
        """
        self.push(TASK, VERSION, {name: text.encode() for name, text in _TASK_FILES.items()})
        return self.start_release(TASK, VERSION, beta=0, steps=[1.0], policy={"app_version": ">=1000"})

    def push(self, task: str, version: str, files: Mapping[str, bytes]) -> float:
        """Push a version of a task with git; return the seconds that the push itself took."""
        clone = self.folder / "clone"
        if not clone.exists():
            scheme, _, place = self._said["url"].partition("://")
            address = f"{scheme}://load:{self._token()}@{place}/git/{SCENARIO}.git"
            _git(self.folder, "clone", "--quiet", address, str(clone))
        _git(clone, "checkout", "--quiet", "-B", task)
        for name, data in files.items():
            path = clone / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        _git(clone, "add", "--all")
        _git(clone, "commit", "--quiet", "-m", f"{task} {version}")
        _git(clone, "tag", f"{task}/{version}")
        began_s = time.perf_counter()
        _git(clone, "push", "--quiet", "origin", task, f"{task}/{version}")
        return time.perf_counter() - began_s

    def start_release(self, task: str, version: str, **fields: Any) -> str:
        """Start the release of a version, with more `fields` of the request in JSON, such as `steps`; return its id."""
        body = {"scenario": SCENARIO, "task": task, "version": version, **fields}
        return str(self._http("POST", "/v1/releases", json=body).json()["id"])

    def release(self, release_id: str) -> dict[str, Any]:
        """Return a release as the API gives it."""
        found: dict[str, Any] = self._http("GET", f"/v1/releases/{release_id}").json()
        return found

    def wait_release(self, release_id: str, stages: Collection[str]) -> dict[str, Any]:
        """Return a release once it is at one of the stages.

        Raises:
            CloudError: it is not within a minute.
        """
        deadline_s = time.monotonic() + _STAGE_S
        while (found := self.release(release_id))["stage"] not in stages:
            if time.monotonic() > deadline_s:
                raise CloudError(
                    f"{release_id} is {found['stage']} after {_STAGE_S} s ({found['reason']}), not {stages}"
                )
            time.sleep(0.05)
        return found

    def _http(self, method: str, path: str, json: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token()}"}
        url = f"{self._said['url']}{path}"
        response = httpx.request(method, url, headers=headers, json=json, timeout=30.0)
        if not response.is_success:
            raise CloudError(f"{method} {path} was answered with {response.status_code}: {response.text[:300]}")
        return response

    def _token(self) -> str:
        return Path(self._said["admin_token_file"]).read_text().strip()

    def metrics(self) -> dict[str, float]:
        """Return the tunnel's metrics by name, labels left out."""
        found = dict[str, float]()
        for line in self._http("GET", "/metrics").text.splitlines():
            if line.startswith("walle_tunnel_"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] = float(value)
        return found

    def status(self) -> dict[str, Any]:
        """Return nodes and processes as the API gives them."""
        found: dict[str, Any] = self._http("GET", "/v1/cloud").json()
        return found

    def roles(self) -> dict[int, str]:
        """Return the name of each of the cloud's processes that run, by its id."""
        return {one["pid"]: one["name"] for one in self.status()["processes"] if one["pid"]}

    def peak_mib(self) -> float:
        """Return the process's peak of resident memory."""
        return self._status("VmHWM")

    def resident_mib(self) -> float:
        """Return the process's resident memory now."""
        return self._status("VmRSS")

    def _status(self, key: str) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{key}:")) / 1024

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used, without its children's."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Stop in order, as an operator does.

        Raises:
            CloudError: it did not end in time, or not with status 0.
        """
        self._process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if self._process.returncode != 0:
            raise CloudError(f"the cloud ended with {self._process.returncode} within {_STOP_S} s of SIGTERM; want 0")


def _git(folder: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        **{f"GIT_{who}_{what}": "load@walle.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    _checked(["git", *arguments], folder, environment)


def _checked(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CloudError(f"{' '.join(command)} failed with {done.returncode}: {done.stdout}{done.stderr}")
