"""A cloud's exclusive files in memory, as an `ExclusiveSource` that can be made to lie, and a device's part of them."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.sim.cloud_files import CloudFiles, manifest_of
from walle.base.clock import ManualClock
from walle.deploy.agent.exclusive import ExclusiveFiles
from walle.deploy.agent.fetch import FetchError, WrongLengthError
from walle.deploy.agent.trust import DeviceTrust
from walle.protocol import ExclusiveFile, ExclusiveList, Manifest, SealedFile, Timestamp, seal_info
from walle.trust.sealing import open_sealed, seal
from walle.trust.signing import Signer

TASK = "shop/ipv"
DEVICE = "phone 1"
NOW_S = 1_699_000_000


def task(*files: ExclusiveFile, version: str = "v1", name: str = TASK) -> Manifest:
    return dataclasses.replace(manifest_of(name, version, {}), exclusive=files)


class ExclusiveCloud:
    """State of the cloud for one device. `asked` has the paths of all questions; `offline` refuses them.

    `answers` has bytes to give in place of the right ones, by path.
    """

    def __init__(self) -> None:
        self.cloud = CloudFiles()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.generation = 1
        self.serial = 0
        self.files: dict[tuple[str, str], bytes] = {}  # sealed
        self.offline = False
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []

    def put(self, name: str, data: bytes, *, of: str = TASK, sealed: bytes | None = None) -> bytes:
        """Give the device a file, and return its sealed bytes."""
        public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        made = sealed or seal(data, public, seal_info(DEVICE, self.generation, of, name))
        self.files[of, name] = made
        self.serial += 1
        return made

    def remove(self, name: str) -> None:
        del self.files[TASK, name]
        self.serial += 1

    def entries(self) -> tuple[SealedFile, ...]:
        return tuple(
            SealedFile(task=of, name=name, sha256=hashlib.sha256(sealed).hexdigest(), size_bytes=len(sealed))
            for (of, name), sealed in sorted(self.files.items())
        )

    def list(self, *, signer: Signer | None = None, fleet: str = "", **changes: Any) -> bytes:
        """Return the signed list, with `changes`."""
        fields: dict[str, Any] = {
            "device_id": DEVICE,
            "generation": self.generation,
            "serial": self.serial,
            "epoch": self.cloud.epoch,
            "expires_s": NOW_S + 3600,
            "files": self.entries(),
        }
        made = ExclusiveList(**{**fields, **changes})
        return (signer or self.cloud.roles["snapshot"]).sign_exclusive(made, fleet or self.cloud.fleet).to_bytes()

    async def fetch(self, path: str, *, max_bytes: int) -> bytes:
        self.asked.append(path)
        by_hash = {hashlib.sha256(sealed).hexdigest(): sealed for sealed in self.files.values()}
        data = self.answers.get(path)
        if data is None:
            data = self.list() if path == "/cen/files" else by_hash.get(path.removeprefix("/cen/files/"))
        if self.offline or data is None:
            raise FetchError(path, "the server answered 404, or there is no network")
        if len(data) > max_bytes:
            raise WrongLengthError(path, f"more than {max_bytes} bytes")
        return data

    def trust(self) -> DeviceTrust:
        """Return the trust of a device that has a fresh timestamp of this cloud."""
        trust = DeviceTrust(self.cloud.pinned, ManualClock(float(NOW_S)), device_id="d1", app_version="10.0")
        stamp = Timestamp.from_header(self.cloud.timestamp(NOW_S))
        assert trust.check(stamp)
        trust.accept(stamp, self.cloud.trust["1.scenarios.json"])
        return trust

    async def device(self, folder: Path, *active: Manifest, trust: DeviceTrust | None = None) -> ExclusiveFiles:
        """Return a device's part, started on a folder."""
        made = ExclusiveFiles(
            folder,
            DEVICE,
            trust or self.trust(),
            self,
            lambda sealed, info: open_sealed(sealed, self.key, info),
            active=lambda: active,
        )
        await made.start()
        return made
