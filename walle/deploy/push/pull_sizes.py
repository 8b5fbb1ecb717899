"""Bytes of versions, as far as a gateway's pull budget counts them: the sums in their manifests."""

import asyncio
import logging
from collections.abc import Collection, Mapping

from walle.deploy.shared_files.store import FileStore
from walle.errors import DeployError
from walle.protocol import Directive, Envelope, ProtocolError

_LOG = logging.getLogger(__name__)


class PullSizes:
    """Sizes of the versions of the present table. A device may pull less: coded files, and those that it has."""

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._sizes: dict[str, int] = {}

    def of(self, directive: Directive) -> int:
        """Return the bytes of a directive's version, those of its manifest where they are not known."""
        return self._sizes.get(directive.manifest, directive.size_bytes)

    @property
    def known(self) -> Mapping[str, int]:
        """Return the bytes of versions by their manifests."""
        return self._sizes

    async def learn(self, manifests: Collection[str]) -> bool:
        """Read the sizes of these versions, and forget all others. Return whether there were any to read."""
        known = {manifest: self._sizes[manifest] for manifest in manifests if manifest in self._sizes}
        missing = [manifest for manifest in manifests if manifest not in known]
        if missing:
            known |= await asyncio.to_thread(self._read, missing)
        self._sizes = known
        return bool(missing)

    def _read(self, manifests: Collection[str]) -> dict[str, int]:
        sizes = {}
        for sha256 in manifests:
            try:
                with self._files.open(sha256) as file:
                    data = file.read()
                manifest = Envelope.from_bytes(data).manifest
            except (DeployError, ProtocolError, OSError) as error:
                _LOG.warning("the size of version %s is not known, its pulls count as small ones: %s", sha256, error)
                continue
            sizes[sha256] = len(data) + sum(entry.size_bytes for entry in manifest.files)
        return sizes
