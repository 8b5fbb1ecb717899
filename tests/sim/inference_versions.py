"""Released versions for tests of fallback inference, and an engine whose answers a test gives."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from walle.base import plain
from walle.base.clock import SystemClock
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference.engine import EngineState, ProcessState, ReleasedVersion
from walle.cloud.inference.request import PhaseRequest
from walle.protocol import CloudPolicy, Manifest, TriggerCondition
from walle.task.format.bundle import Bundle, TaskVersion, build_bundle
from walle.task.format.large_file import LargeFile
from walle.task.format.tree import TaskTree
from walle.trust.signing import Signer

CONFIG = '[task]\nname = "NAME"\n[trigger]\nsequence = ["page_exit"]\n[phases]\nexecute = "auto"\n'


def released(
    home: CloudHome,
    main: str,
    config: str = "",
    *,
    name: str = "rank",
    files: Mapping[str, bytes] | None = None,
    large: Mapping[str, LargeFile] | None = None,
) -> ReleasedVersion:
    """Return version v1 of shop/NAME as a release leaves it: its files are in the stores of `home`."""
    bundle = built(home, main, config, name=name, files=files, large=large)
    for file in bundle.large.values():
        assert file.path is not None
        home.files.put_file(file.path)
    for blob in (*bundle.blobs.values(), bundle.envelope):
        home.files.put(blob)
    for blob in bundle.cloud_blobs.values():
        home.cloud_files.put(blob)
    return ReleasedVersion.of(bundle.sha256, bundle.manifest)


def built(
    home: CloudHome,
    main: str,
    config: str = "",
    *,
    name: str = "rank",
    files: Mapping[str, bytes] | None = None,
    large: Mapping[str, LargeFile] | None = None,
) -> Bundle:
    text = CONFIG.replace("NAME", name) + config
    tree = {"main.py": main.encode(), "task.toml": text.encode(), **(files or {})}
    found = TaskTree(
        scenario="shop", task=name, version="v1", commit="0" * 40, files=tree, large=dict(large or {})
    )  # fmt: skip
    return build_bundle(TaskVersion.parse(found), scenario_signer(home))


def scenario_signer(home: CloudHome) -> Signer:
    """Return the signer of scenario `shop`, delegated if it was not."""
    home.trust.add_scenarios(["shop"], SystemClock())
    signer = home.trust.scenario_signer("shop")
    assert signer is not None
    return signer


def policy_version(policy: CloudPolicy) -> ReleasedVersion:
    """Return a version of shop/rank without files, for a scheduler whose engine does not run it."""
    manifest = Manifest(
        scenario="shop",
        task="rank",
        version="v1",
        commit="0" * 40,
        bytecode=(),
        trigger=TriggerCondition.of(["page_exit"]),
        phases={"execute": "auto"},
        limits={},
        files=(),
        cloud=policy,
    )
    return ReleasedVersion.of("0" * 64, manifest)


def request(payload: Any, *, phase: str = "execute", device: str = "d0", **changes: Any) -> PhaseRequest:
    """Return a request to shop/rank v1."""
    values = {"task": "shop/rank", "version": "v1", "phase": phase, "payload": memoryview(plain.encode(payload))}
    return PhaseRequest(**{**values, "device": {"id": device}, **changes})


def home_in(folder: Path) -> CloudHome:
    home = CloudHome(folder)
    home.prepare()
    return home


class HeldEngine:
    """An engine whose batches wait for the test: `batches` are those that run, with the future of their answers."""

    def __init__(self, capacity: int = 1) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.capacity = capacity
        self.batches: list[tuple[list[Any], asyncio.Future[list[bytes | Exception]]]] = []
        self.started: list[list[Any]] = []
        self.cancelled = 0

    async def run(self, version: ReleasedVersion, requests: Sequence[PhaseRequest]) -> list[bytes | Exception]:
        payloads = [one.value() for one in requests]
        answers: asyncio.Future[list[bytes | Exception]] = asyncio.get_running_loop().create_future()
        held = payloads, answers
        self.started.append(payloads)
        self.batches.append(held)
        try:
            return await answers
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.batches.remove(held)

    def end(self, number: int = 0) -> None:
        """End a batch that runs: the answer to each payload is its encoding."""
        payloads, answers = self.batches[number]
        answers.set_result([plain.encode(payload) for payload in payloads])

    def state(self) -> EngineState:
        return EngineState((ProcessState(self.capacity > 0, len(self.batches), ()),))

    def is_loaded(self, version: ReleasedVersion) -> bool:
        return True

    async def load(self, version: ReleasedVersion, *, may_unload: bool) -> None:
        pass

    def keep(self, versions: Sequence[ReleasedVersion]) -> None:
        pass

    async def close(self) -> None:
        pass
