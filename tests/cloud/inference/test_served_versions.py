"""Versions that devices may get: a manifest that could not be read once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sim.inference_versions import home_in, released
from tests.sim.shop_cloud import until
from walle.cloud.inference.engine import ReleasedVersion
from walle.cloud.inference.served_versions import ServedVersions
from walle.cloud.inference.versions import Versions
from walle.deploy.shared_files.folder_store import FolderStore


class Engine:
    """An engine that takes note of what it is to load and to keep."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.kept: list[str] = []

    def is_loaded(self, version: ReleasedVersion) -> bool:
        return version.sha256 in self.loaded

    async def load(self, version: ReleasedVersion, *, may_unload: bool) -> None:
        self.loaded.append(version.sha256)

    def keep(self, versions: Sequence[ReleasedVersion]) -> None:
        self.kept = [version.sha256 for version in versions]


class Releases:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the releases is not needed to read a manifest")


@pytest.mark.asyncio
async def test_a_manifest_that_could_not_be_read_is_read_again_with_the_next_table(tmp_path: Path) -> None:
    home, engine = home_in(tmp_path), Engine()
    version = released(home, "def execute(ctx, x):\n    return x\n")
    path = FolderStore(home.folder / "files").path(version.sha256)
    served = ServedVersions(Versions(home, Releases()), engine)  # type: ignore[arg-type]
    path.rename(tmp_path / "elsewhere")
    await served.keep([version.sha256])
    assert not await served.cold([version.sha256])
    (tmp_path / "elsewhere").rename(path)
    assert await served.cold([version.sha256]) == {version.sha256}
    await served.keep([version.sha256])
    await until(lambda: engine.loaded == [version.sha256])
    assert engine.kept == [version.sha256]
    await served.close()
