"""Devices of the load test of releases: the real agent on a folder, over real HTTP, with a record of what it did.

    python -m loadtest.deploy_devices SOCKET_FD JOIN_FILE FOLDER

locust's users command it: `loadtest.device_process`. A device enrols, checks in, pulls and verifies as `walle.device`
does; it runs no task code, but counts runs, which fail where the version's weights begin with "bad".
"""

import asyncio
import contextlib
import hashlib
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from loadtest.commands import Commands, serve
from loadtest.deploy_check import BAD, WEIGHTS
from walle.base.clock import SystemClock
from walle.cli import event_loop
from walle.cli.join import Join
from walle.deploy.agent.agent import Agent
from walle.deploy.agent.agent_errors import DirectiveRefusedError
from walle.deploy.agent.fetch import FetchError, HttpFetcher
from walle.deploy.agent.outcomes import OutcomeReport
from walle.deploy.agent.trust import DeviceTrust
from walle.device.cloud_requests import device_http
from walle.device.credentials import DeviceCredentials
from walle.errors import WalleError
from walle.protocol import (
    DEVICE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    TRUST_HEADER,
    Failure,
    Manifest,
    Profile,
    directives_from_header,
)

_APP_VERSION = "10.1"
_RUNS = 20  # runs between two check-ins


class WrongAnswerError(WalleError):
    """The cloud did something else than it must."""


class DeployDevice:
    """One device. `finish` returns its record: activations, versions that it pulled, and check-ins with a version."""

    def __init__(self, device_id: str, join: Join, folder: Path, http: httpx.AsyncClient) -> None:
        self.calls = asyncio.Lock()
        self._device_id = device_id
        self._join = join
        self._folder = folder / device_id
        self._http = http
        self._rng = random.Random(device_id)
        self._credentials = DeviceCredentials(
            device_id,
            self._folder / "keys",
            http,
            SystemClock(),
            self._rng,
            token=join.enrolment_token,
            on_certificate=lambda *_: None,  # there is no tunnel
        )
        self._outcomes = OutcomeReport(device_id, {"app_version": _APP_VERSION})
        self._bad: dict[str, bool] = {}  # by task
        self._activations: list[tuple[float, str, str, str]] = []  # when, task, version, sha256 of its weights
        self._checkins: list[tuple[float, dict[str, str]]] = []  # begin of each check-in, and what it left active
        self._drops = 0
        self._waits = 0
        self._agent: Agent

    @property
    def commands(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        return {"join": self.join, "checkin": self.checkin, "report": self.report, "drop": self.drop}

    async def join(self) -> None:
        self._folder.mkdir()
        await self._credentials.start()
        await self._start()

    async def _start(self) -> None:
        """Start the agent on what is installed, as after a crash."""
        trust = DeviceTrust(self._join.trusted_keys, SystemClock(), device_id=self._device_id, app_version=_APP_VERSION)
        self._agent = Agent(
            self._folder / "tasks",
            trust,
            HttpFetcher(self._http),
            self._check,
            SystemClock(),
            outcomes=self._outcomes,
            on_activate=self._on_activate,
            on_suspend=self._on_end,
            on_remove=self._on_end,
            random_source=self._rng,
        )
        await self._agent.start()

    async def _check(self, files: Path, manifest: Manifest) -> None:
        """Raise where a file of the version is not there."""
        for entry in manifest.files:
            if not (files / entry.path).is_file():
                raise WrongAnswerError(f"{manifest.name} {manifest.version} has no {entry.path}")

    async def _on_activate(self, task: str, files: Path, manifest: Manifest, /, *, may_postpone: bool) -> None:
        del may_postpone
        weights = (files / WEIGHTS).read_bytes()
        self._bad[task] = weights.startswith(BAD)
        self._activations.append((time.time(), task, manifest.version, hashlib.sha256(weights).hexdigest()))

    async def _on_end(self, task: str) -> None:
        self._bad.pop(task, None)

    async def checkin(self) -> None:
        """Send a check-in, carry out its answer, and run the tasks a few times.

        Raises:
            WrongAnswerError: the answer is not one of a check-in.
        """
        await self._carry_out(cut_s=None)
        for task, version in self._agent.tasks.items():
            for _ in range(_RUNS):
                self._agent.count_run(task, version, Failure(error_type="E", error="bad") if self._bad[task] else None)

    async def drop(self) -> None:
        """Check in, lose the connection and the process somewhere in the pull, and return: what is there goes on."""
        await self._carry_out(cut_s=self._rng.uniform(0.0, 0.03))
        await self._agent.close()
        before = self._agent.tasks
        await self._start()
        self._drops += 1
        if self._agent.tasks != before:
            raise WrongAnswerError(f"{self._device_id} had {before} and has {self._agent.tasks} after its return")

    async def _carry_out(self, cut_s: float | None) -> None:
        session = await self._credentials.session()
        profile = Profile(self._device_id, _APP_VERSION, {}, self._agent.tasks).to_header()
        began_s = time.time()
        response = await self._http.post("/v1/checkin", headers={DEVICE_HEADER: session, PROFILE_HEADER: profile})
        if response.status_code != httpx.codes.NO_CONTENT:
            raise WrongAnswerError(f"a check-in was answered with {response.status_code}: {response.text[:200]}")
        directives = directives_from_header(response.headers.get(TASKS_HEADER, "[]"))
        handling = asyncio.create_task(self._agent.handle(directives, response.headers.get(TRUST_HEADER)))
        if cut_s is not None:
            await asyncio.wait([handling], timeout=cut_s)
            if not handling.done():
                handling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await handling
                return
        for error in await handling:
            if isinstance(error, DirectiveRefusedError) and self._went_back(error.task):
                self._waits += 1  # waits for the next signing of its task's directives (docs/adr/0004-trust.md)
            elif not isinstance(error, FetchError):  # the next check-in tries it again
                raise error
        self._checkins.append((began_s, self._agent.tasks))

    def _went_back(self, task: str) -> bool:
        """Return whether the device had a later version than its active one."""
        active = self._agent.tasks.get(task, "v0")
        return any(name == task and int(had[1:]) > int(active[1:]) for _, name, had, _ in self._activations)

    async def report(self) -> None:
        """Send all outcomes.

        Raises:
            WrongAnswerError: the cloud does not take them.
        """
        while (batch := self._outcomes.take_batch()) is not None:
            headers = {DEVICE_HEADER: await self._credentials.session()}
            response = await self._http.post("/v1/outcomes", headers=headers, json=batch.to_json())
            if response.status_code != httpx.codes.NO_CONTENT:
                raise WrongAnswerError(f"a report was answered with {response.status_code}: {response.text[:200]}")
            self._outcomes.confirm(batch.batch_id)

    async def finish(self) -> dict[str, Any]:
        async with self.calls:
            await self._agent.close()
        return {
            "activations": self._activations,
            "checkins": self._checkins,
            "drops": self._drops,
            "waits": self._waits,
        }


def main(descriptor: int, join_file: Path, folder: Path) -> None:
    join = Join.load(join_file)
    http = device_http(join.url, join.ca_pem, timeout_s=30.0)
    commands = Commands(lambda device_id: DeployDevice(device_id, join, folder, http))
    event_loop.run(serve(socket.socket(fileno=descriptor), commands))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
