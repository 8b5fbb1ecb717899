"""Sources from which a damaged or missing stored file is made again: what comes is proven by its sha256.

Coded forms of the file, another store that has a copy, and the task repository, from which a version is built again.
"""

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from walle.base.file_coding import DCZ, HEADER_BYTES, XOR, ZSTD, dcz_header, xor_decoded, xor_header
from walle.deploy.releases.release import Release
from walle.deploy.shared_files.store import CHUNK_BYTES, FileStore, FileStoreError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LOG = logging.getLogger(__name__)
_MAX_WINDOW_LOG = 27
_MAX_BYTES = 8 << 30  # size that a form may decode to: nobody knows yet if it is damaged too
_MAX_BASE_BYTES = 256 << 20  # bytes held in memory


class Copy(NamedTuple):
    """A possible copy of a file; `chunks` may raise DeployError, OSError or EOFError where it is not one."""

    origin: str
    chunks: Iterator[bytes]


class RepairSource(Protocol):
    """Source of copies; `releases` are those that reach the file."""

    def copies(self, sha256: str, releases: Sequence[Release]) -> Iterator[Copy]: ...


class CodedForms:
    """The smaller forms in the folder of `walle.deploy.shared_files.coded_files`."""

    def __init__(self, folder: Path, store: FileStore) -> None:
        self._folder = folder
        self._store = store

    def copies(self, sha256: str, releases: Sequence[Release]) -> Iterator[Copy]:  # noqa: ARG002 - of no use here
        for path in sorted((self._folder / sha256[:2]).glob(f"{sha256}.*")):
            if path.name == f"{sha256}.{ZSTD}":
                yield Copy(f"its form {path.name}", self._decoded(path))
            elif path.suffix == f".{DCZ}":
                base = path.name.removeprefix(f"{sha256}.").removesuffix(f".{DCZ}")
                yield Copy(f"its form {path.name}", self._difference(path, base))
            elif path.suffix == f".{XOR}":
                base = path.name.removeprefix(f"{sha256}.").removesuffix(f".{XOR}")
                yield Copy(f"its form {path.name}", self._unmixed(path, base))

    def _decoded(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from _frames(file, None)

    def _difference(self, path: Path, base: str) -> Iterator[bytes]:
        with path.open("rb") as file:
            if file.read(HEADER_BYTES) != dcz_header(base) or self._store.stat(base).size_bytes > _MAX_BASE_BYTES:
                raise FileStoreError(base, "cannot be the dictionary of a form")
            prefix = zstd.ZstdDict(self._store.read(base), is_raw=True).as_prefix
            yield from _frames(file, prefix)

    def _unmixed(self, path: Path, base: str) -> Iterator[bytes]:
        with path.open("rb") as file, self._store.open(base) as old:
            if file.read(HEADER_BYTES) != xor_header(base):
                raise FileStoreError(base, "is not the base of a form")
            for block in _frames(file, None):
                yield xor_decoded(block, old.read(len(block)))


class OtherStore:
    """A store that may have the file too, such as the folder from which a cloud's files moved to a bucket."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def copies(self, sha256: str, releases: Sequence[Release]) -> Iterator[Copy]:  # noqa: ARG002 - of no use here
        try:
            is_there = self._store.has(sha256)
        except OSError as error:
            _LOG.warning("%s cannot be read for a repair: %s", self._store.place, error)
            return
        if is_there:
            yield Copy(f"the copy in {self._store.place}", self._store.chunks(sha256))


class PushedVersions:
    """The versions in the task repositories: `build` returns the files of a release's version by their sha256.

    A version that is built again by another walle or Python has other files; then this helps with resources alone.
    """

    def __init__(self, build: Callable[[Release], Mapping[str, bytes]]) -> None:
        self._build = build

    def copies(self, sha256: str, releases: Sequence[Release]) -> Iterator[Copy]:
        for release in releases:
            try:
                files = self._build(release)
            except Exception as error:  # noqa: BLE001 - the repository lies on the same disk, and git raises of its own
                _LOG.warning("%s cannot be built again for a repair: %r", release.request.tag, error)
                continue
            if sha256 in files:
                yield Copy(
                    f"{release.request.name} {release.request.version} of the task repository", iter([files[sha256]])
                )


def _frames(file: BinaryIO, prefix: tuple[zstd.ZstdDict, int] | None) -> Iterator[bytes]:
    """Yield what is compressed in pieces of CHUNK_BYTES, the blocks of `walle-xor`; the last may be shorter."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
    with zstd.ZstdFile(file, zstd_dict=prefix, options=options) as decoded:
        try:
            for number in itertools.count(1):
                chunk = decoded.read(CHUNK_BYTES)
                if not chunk:
                    return
                if number * CHUNK_BYTES > _MAX_BYTES:
                    raise OSError("a coded form decodes to too much")
                yield chunk
        except zstd.ZstdError as error:
            raise OSError(f"a coded form is damaged: {error}") from error
