"""Signatures of task versions on the cloud: made where the scenario's key is, verified and kept here.

A version may be released once a threshold of its scenario's keys has signed its manifest. The cloud signs only with
keys that lie in its own folder; the others come with `walle sign`. What is kept is public, and verified again when
it is used.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from walle.base.durable_file import make_folders, write_file
from walle.errors import DeployError
from walle.protocol import Envelope, Manifest, ProtocolError
from walle.trust.folder import TrustFolder
from walle.trust.metadata import RoleKeys
from walle.trust.signing import MANIFEST_DOMAIN, SignatureError

_MAX_KEPT = 64  # signatures of one version
_LOG = logging.getLogger(__name__)


class SignatureAwaitedError(DeployError):
    """A version that too few keys have signed. `reason` says what to do."""

    def __init__(self, name: str, version: str, reason: str) -> None:
        super().__init__(f"{name} {version} waits for a signature: {reason}")
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class SigningState:
    """A version's manifest as this cloud built it, the keys that may sign it (id → raw), and the ids that did."""

    payload: bytes
    threshold: int
    keys: Mapping[str, bytes]
    signed_by: tuple[str, ...]

    def is_news(self, signatures: Mapping[str, bytes]) -> bool:
        """Return whether all of these signatures count, and one is not kept yet."""
        valid = _valid(self.keys, self.payload, signatures)
        return len(valid) == len(signatures) and not signatures.keys() <= set(self.signed_by)


class Signatures:
    """The signatures of versions, in a folder. Blocks on the disk; single writer."""

    def __init__(self, folder: Path, trust: TrustFolder) -> None:
        self._folder = folder
        self._trust = trust

    def envelope(self, manifest: Manifest) -> Envelope:
        """Return the signed manifest of a version.

        Raises:
            SignatureAwaitedError: too few keys of the scenario have signed it.
            ConfigError: the cloud's metadata or keys cannot be read.
        """
        role = self._role(manifest)
        payload = manifest.to_bytes()
        signatures = _valid(role.keys, payload, self._kept(payload))
        signer = self._trust.scenario_signer(manifest.scenario)
        if signer is not None and signer.key_id in role.keys:
            signatures |= signer.sign_manifest(manifest).signatures
        if len(signatures) < role.threshold:
            count = "" if role.threshold == 1 else f" ({len(signatures)} of {role.threshold} signatures are stored)"
            what = f"walle sign {manifest.scenario} {manifest.task} {manifest.version} --key FILE"
            raise SignatureAwaitedError(manifest.name, manifest.version, f"sign it with: {what}{count}")
        # As many as are needed, by the order of the keys' ids: the same signatures give the same envelope.
        return Envelope(payload, {name: signatures[name] for name in sorted(signatures)[: role.threshold]})

    def state(self, manifest: Manifest) -> SigningState:
        """Return what there is to sign, and who has. Raises SignatureAwaitedError where no key is delegated."""
        role = self._role(manifest)
        payload = manifest.to_bytes()
        return SigningState(payload, role.threshold, role.keys, tuple(_valid(role.keys, payload, self._kept(payload))))

    def add(self, manifest: Manifest, signatures: Mapping[str, bytes]) -> SigningState:
        """Keep these signatures (key id → signature) of a version, and return the state after.

        Raises:
            SignatureError: one is not of a key of the scenario, or is not over this manifest; none is kept.
            SignatureAwaitedError: no key is delegated to the scenario.
        """
        role = self._role(manifest)
        payload = manifest.to_bytes()
        what = f"signature of {manifest.name} {manifest.version}"
        for name in signatures:
            if name not in role.keys:
                raise SignatureError(what, f"key {name[:40]!r} is not delegated to scenario {manifest.scenario!r}")
        valid = _valid(role.keys, payload, signatures)
        if len(valid) < len(signatures) or not signatures:
            raise SignatureError(
                what, "it is not over the manifest that this cloud built; sign with the same walle and Python versions"
            )
        kept = _valid(role.keys, payload, self._kept(payload)) | valid
        if len(kept) > _MAX_KEPT:
            raise SignatureError(what, f"{_MAX_KEPT} signatures are kept already")
        make_folders(self._folder)
        write_file(self._path(payload), Envelope(payload, kept).to_bytes(), mode=0o644)
        return self.state(manifest)

    def _role(self, manifest: Manifest) -> RoleKeys:
        role = self._trust.scenarios().delegations.get(manifest.scenario)
        if role is None:
            what = f"no key is delegated to scenario {manifest.scenario}; run: walle trust delegate FOLDER"
            raise SignatureAwaitedError(manifest.name, manifest.version, f"{what} {manifest.scenario} --new")
        return role

    def _kept(self, payload: bytes) -> Mapping[str, bytes]:
        try:
            return Envelope.from_bytes(self._path(payload).read_bytes()).signatures
        except FileNotFoundError:
            return {}
        except ProtocolError as error:
            _LOG.warning("the signatures in %s are ignored, sign the version again: %s", self._path(payload), error)
            return {}

    def _path(self, payload: bytes) -> Path:
        return self._folder / f"{hashlib.sha256(payload).hexdigest()}.json"


def _valid(keys: Mapping[str, bytes], payload: bytes, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
    data = MANIFEST_DOMAIN + payload
    one = {name: RoleKeys.of([key]) for name, key in keys.items()}
    return {name: text for name, text in signatures.items() if name in one and one[name].is_met({name: text}, data)}
