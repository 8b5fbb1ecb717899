"""A real cloud in a process of its own, on which attacks are tried."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.engineer import Engineer
from tests.sim.program import LIMIT_S, Program, Programs, walle
from walle.client.release_client import ReleaseJson

SCENARIOS = ("shop", "bank")
CONFIG = """\
[task]
name = "{task}"
[trigger]
sequence = ["page_exit"]
without_visit = true
[simulation]
events = "simulation/events.jsonl"
"""
EVENT = '{"event_id": "page_exit", "page_id": "item", "ts_ms": 1000, "contents": {}}\n'


class AttackedCloud:
    """A running `walle cloud up` with the scenarios shop and bank, whose folder holds real keys and tokens."""

    def __init__(self, start: Programs, folder: Path, *options: str) -> None:
        scenarios = (part for name in SCENARIOS for part in ("--scenario", name))
        ports = ("--http-port", "0", "--tunnel-port", "0", "--plain-http")
        self.folder = folder / "cloud"
        self.program: Program = start("cloud", "up", str(self.folder), *ports, *scenarios, *options, "--json")
        self.said = self.program.wait_for(lambda line: "url" in line)
        self.url: str = self.said["url"]
        self.token = (self.folder / "admin.token").read_text().strip()
        self._work = folder

    @property
    def secrets(self) -> dict[str, str]:
        """The contents of the files that no task may read, by name: whole lines that a report could carry."""
        paths = {
            path.relative_to(self.folder).as_posix(): path
            for pattern in ("*keys/*.pem", "identity/*.pem", "*.token", "access.toml", "authority/*.pem")
            for path in self.folder.glob(pattern)
        }
        lines = {name: path.read_text().strip().splitlines() for name, path in paths.items()}
        return {name: text[1 if name.endswith(".pem") else -1] for name, text in lines.items()}

    def secrets_in(self, shown: object) -> list[str]:
        """Return the names of the secrets that a command or an answer shows."""
        text = json.dumps(shown)
        return [name for name, secret in self.secrets.items() if secret in text]

    def walle(self, *arguments: str, token: str = "") -> object:
        return walle(*arguments, "--json", WALLE_URL=self.url, WALLE_TOKEN=token or self.token)

    def release(self, task: str, main: str, *, scenario: str = "shop", config: str = "") -> ReleaseJson:
        """Push a version whose code is `main`, release it without a beta, and return it once it has left simulation."""
        files = {
            "task.toml": (config or CONFIG).format(task=task),
            "main.py": main,
            "simulation/events.jsonl": EVENT,
        }
        work = self._work / f"work-{task}"
        work.mkdir()
        Engineer(work, self.url, scenario, self.token).push(task, "v1", files)
        found: Any = self.walle("release", "start", scenario, task, "v1", "--beta", "0")
        deadline_s = time.monotonic() + LIMIT_S
        while found["state"] in ("created", "simulating"):
            assert time.monotonic() < deadline_s, found
            time.sleep(0.05)
            found = self.walle("release", "status", found["id"])
        release: ReleaseJson = found
        return release


@pytest.fixture(scope="module")
def attacked_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedCloud]:
    if sys.platform != "linux":
        pytest.skip("the kernel's layers are Linux's")
    with Programs() as start:
        yield AttackedCloud(start, tmp_path_factory.mktemp("attacked"), "--untrusted-authors")
