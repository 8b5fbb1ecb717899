import hashlib
from pathlib import Path

import pytest

from tests.sim.inference_versions import released
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference import version_files
from walle.cloud.inference.version_files import VersionFiles
from walle.cloud.inference.version_source import HomeSource
from walle.task.format.bundle_error import BundleError

CONFIG = '[files]\n"resources/big.bin" = "shared"\n"resources/mine.bin" = "cloud"\n'
FILES = {"resources/big.bin": bytes(5000), "resources/mine.bin": b"m" * 6000}


class ReadSource(HomeSource):
    """A cloud's files, and which of them were read whole."""

    def __init__(self, home: CloudHome) -> None:
        super().__init__(home)
        self.read_whole: list[str] = []

    async def read(self, sha256: str) -> bytes:
        self.read_whole.append(sha256)
        return await super().read(sha256)


@pytest.mark.asyncio
async def test_large_files_are_copied_by_pieces_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_files, "_LARGE_BYTES", 5000)
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("shop",))
    version = released(home, "def execute(ctx, x):\n    return x\n", CONFIG, files=FILES)
    source = ReadSource(home)
    files = VersionFiles(source, tmp_path / "versions", max_idle_bytes=0)
    files.prepare()
    async with files.use(version.sha256, version.manifest) as folder:
        assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    names = {hashlib.sha256(data).hexdigest() for data in FILES.values()}
    assert source.read_whole
    assert not names & {*source.read_whole}

    await files.close()
    for name in names & {entry.sha256 for entry in version.manifest.cloud_files}:
        path = home.cloud_files.local_path(name)
        assert path is not None
        path.write_bytes(b"x" * 6000)
    again = VersionFiles(source, tmp_path / "again", max_idle_bytes=0)
    again.prepare()
    with pytest.raises(BundleError, match="is damaged"):
        async with again.use(version.sha256, version.manifest):
            pass
