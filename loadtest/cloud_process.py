"""`walle cloud up` as a process, with a released task that answers requests."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

_ROOT = Path(__file__).parents[1]
_WALLE = [sys.executable, "-c", "from walle.cli import main; main()"]
_STOP_S = 30.0
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
    def start(cls, folder: Path) -> Iterator["CloudProcess"]:
        """Start a cloud with ports of the system's choice; kill it at the end of the block if it still runs."""
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
    def uploads_db(self) -> Path:
        return self.folder / "uploads.db"

    def release_task(self) -> None:
        """Push the task with git and start its release, so that the cloud answers requests for it."""
        url, token = self._said["url"], self._token()
        clone = self.folder / "clone"
        scheme, _, place = url.partition("://")
        _git(self.folder, "clone", "--quiet", f"{scheme}://load:{token}@{place}/git/{SCENARIO}.git", str(clone))
        _git(clone, "checkout", "--quiet", "-B", TASK)
        for name, text in _TASK_FILES.items():
            (clone / name).write_text(text)
        _git(clone, "add", "--all")
        _git(clone, "commit", "--quiet", "-m", f"{TASK} {VERSION}")
        _git(clone, "tag", f"{TASK}/{VERSION}")
        _git(clone, "push", "--quiet", "origin", TASK, f"{TASK}/{VERSION}")
        command = [*_WALLE, "release", "start", SCENARIO, TASK, VERSION, "--beta-device=none", "--json"]
        _checked(command, _ROOT, {**os.environ, "WALLE_URL": url, "WALLE_TOKEN": token})

    def _token(self) -> str:
        return Path(self._said["admin_token_file"]).read_text().strip()

    def metrics(self) -> dict[str, float]:
        """Return the tunnel's metrics by name, labels left out."""
        found = dict[str, float]()
        headers = {"Authorization": f"Bearer {self._token()}"}
        answer = httpx.get(f"{self._said['url']}/metrics", headers=headers, timeout=30.0).raise_for_status()
        for line in answer.text.splitlines():
            if line.startswith("walle_tunnel_"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] = float(value)
        return found

    def peak_mib(self) -> float:
        """Return the process's peak of resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

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
