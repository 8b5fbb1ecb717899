"""Fixtures of the livestream app's tests: the task folders with real models, and their phases in real VMs."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import walle.task.run.runner  # noqa: F401 -- it registers the modules that a VM in a host runs
from apps.livestream.task_files import OPTIONAL, add_modules, lacking_models, write_task
from walle.model_files import ModelFolder, default_folder
from walle.task.format.config import TaskConfig
from walle.vm import VM, VmHost

DATA = Path(__file__).parents[3].parent / "shared/data"


class TaskVm:
    """A task in a VM; `state` is what its last run left, `exclusive` has the device's exclusive files."""

    def __init__(self, vm: VM, name: str) -> None:
        self._vm = vm
        self._name = name
        self.state: dict[str, Any] | None = {} if name in ("voice", "highlight") else None
        self.exclusive: dict[str, bytes] = {}

    async def run(self, **contents: Any) -> dict[str, Any]:
        """Return the output for an event with these contents; a run that fails leaves the state unchanged."""
        event_id = "sound" if self._name == "voice" else "frame"
        event = {"event_id": event_id, "page_id": "", "ts_ms": 1, "contents": contents}
        trigger = {"event": event, "position": 1, "visit": "none"}
        arguments: tuple[Any, ...] = (f"live/{self._name}", trigger, [], {}, {}, self.state)
        callbacks = {"exclusive.read": self._read_exclusive}
        result = await self._vm.call(
            "walle.pipeline.stream.context:run", *arguments, deadline=60.0, callbacks=callbacks
        )
        self.state = result.get("state")
        self.log = result["log"]
        output: dict[str, Any] = result["output"]
        return output

    def _read_exclusive(self, name: str, known: str) -> tuple[str, bytes | None]:
        data = self.exclusive.get(name)
        sha256 = "" if data is None else hashlib.sha256(data).hexdigest()
        return sha256, None if sha256 == known else data


@pytest.fixture(scope="session")
def models() -> ModelFolder:
    if not (DATA / "models").is_dir():
        pytest.skip("the real models are not beside this checkout")
    return ModelFolder(DATA / "models")


@pytest.fixture(scope="session")
def article_models() -> ModelFolder:
    """Return the folder with the optional tasks' models, which are in packages and not among the shared data."""
    folder = ModelFolder(default_folder())
    if lacking := lacking_models(folder):
        pytest.skip(f"{folder.path} lacks {', '.join(lacking)}; `walle model get` fetches them")
    return folder


@pytest.fixture(scope="session")
def images() -> Path:
    if not (DATA / "images").is_dir():
        pytest.skip("the real images are not beside this checkout")
    return DATA / "images"


@pytest.fixture(scope="session")
def sounds() -> Path:
    if not (DATA / "audio").is_dir():
        pytest.skip("the real sounds are not beside this checkout")
    return DATA / "audio"


@pytest.fixture(scope="session")
def task_folder(models: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that returns a task's folder with its models; each variant is written once."""
    written: dict[str, Path] = {}

    def folder(name: str, **changed: Any) -> Path:
        key = f"{name} {sorted(changed.items())}"
        if name in OPTIONAL and lacking_models(folder := ModelFolder(default_folder())):
            pytest.skip(f"{folder.path} lacks the models of {name}; `walle model get` fetches them")
        if key not in written:
            chosen = ModelFolder(default_folder()) if name in OPTIONAL else models
            written[key] = write_task(name, tmp_path_factory.mktemp(name), chosen, **changed)
        return written[key]

    return folder


@contextlib.asynccontextmanager
async def running(folder: Path, name: str, host: VmHost | None = None, **limits: int) -> AsyncIterator[TaskVm]:
    """Give the task in a VM with the limits of its task.toml, but for those given."""
    config = TaskConfig.parse((folder / "task.toml").read_bytes(), "task.toml")
    vm = VM(add_modules(folder), name=name, limits={**config.limits, **limits}, host=host)
    try:
        yield TaskVm(vm, name)
    finally:
        vm.close()
        assert await vm.wait_closed()
