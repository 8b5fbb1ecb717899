"""Keys and metadata of a fleet in a folder: made, rotated and delegated by their author, read by the cloud.

    offline-keys/         private keys that no running cloud needs; their owner moves them away
        root.pem          signs root metadata
        scenarios.pem     signs which keys sign each scenario's versions
        scenario-shop.pem signs the versions of scenario `shop`; one for each scenario
    keys/                 private keys of the running cloud
        release.pem       signs which device runs which version
        timestamp.pem     signs what is newest
    trust/                signed metadata, public: 1.root.json, 2.root.json, ... and 1.scenarios.json, ...

A cloud's own folder has this layout. Version N of metadata never changes once written; the newest counts. A rotation
changes several files: they are made in `offline-keys/rotation`, and put in their places from there, also by the next
command after a kill.
"""

import json
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from walle.base.clock import Clock
from walle.base.durable_file import make_folders, move_folder, remove_unfinished, sync_tree, write_file
from walle.errors import ConfigError
from walle.trust.metadata import (
    FLEET_FIELD,
    MAX_ROOT_BYTES,
    MAX_SCENARIOS_BYTES,
    RELEASE,
    ROLES,
    ROOT,
    SCENARIOS,
    TIMESTAMP,
    RoleKeys,
    Root,
    Scenarios,
    canonical_metadata,
    expires_text,
)
from walle.trust.signing import SignatureError, Signer, key_id

OFFLINE = "offline-keys"
ONLINE = "keys"
PUBLIC = "trust"
ROOT_LIFE_S = 10 * 365 * 86_400
SCENARIOS_LIFE_S = 3 * 365 * 86_400

_SPEC = "1.0.33"
_NAME = re.compile(r"([1-9][0-9]{0,8})\.(root|scenarios)\.json")


class TrustFolderError(ConfigError):
    """Keys or metadata of a folder that are missing or wrong. `path` is the file or folder."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class TrustFolder:
    """The folder of a fleet's keys and metadata; its layout is in the module's docstring. Blocks on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.offline = folder / OFFLINE
        self.online = folder / ONLINE
        self.public = folder / PUBLIC

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Return whether the folder has root metadata."""
        return (self.public / "1.root.json").exists()

    def root(self) -> Root:
        """Return the newest root metadata, verified along its chain from version 1.

        Raises:
            TrustFolderError: a version is missing or wrong.
        """
        root = None
        for number in range(1, self._newest("root") + 1):
            path = self._path("root", number)
            try:
                data = path.read_bytes()
                root = Root.trusted(data) if root is None else root.next(data)
            except (OSError, SignatureError) as error:
                raise TrustFolderError(path, str(error)) from error
        if root is None:
            raise TrustFolderError(self.public, "has no root metadata; make them with: walle trust init FOLDER")
        return root

    def scenarios(self, root: Root | None = None) -> Scenarios:
        """Return the newest scenarios metadata, verified. Raises TrustFolderError."""
        path = self._path("scenarios", self._newest("scenarios"))
        try:
            found = Scenarios.verified(path.read_bytes(), root or self.root())
        except (OSError, SignatureError) as error:
            raise TrustFolderError(path, str(error)) from error
        if found.version != self._newest("scenarios"):
            raise TrustFolderError(path, f"holds version {found.version}")
        return found

    def names(self) -> frozenset[str]:
        """Return the names of the metadata files: equal as long as nothing was added."""
        return frozenset(path.name for path in self.public.glob("*.json"))

    def file(self, name: str) -> Path | None:
        """Return the path of a metadata file by its name, None where it does not exist."""
        path = self.public / name
        return path if _NAME.fullmatch(name) and path.is_file() else None

    def online_signer(self, role: str) -> Signer:
        """Return the signer of the release or the timestamp role. Raises ConfigError."""
        return Signer.load(self.online / ("release.pem" if role == RELEASE else "timestamp.pem"))

    def scenario_signer(self, scenario: str) -> Signer | None:
        """Return the signer of a scenario's versions, None where its key is kept elsewhere."""
        path = self._scenario_key(scenario)
        return Signer.load(path) if path.exists() else None

    # --- making -------------------------------------------------------------------------------------------------------

    def make(self, fleet: str, scenarios: Sequence[str], clock: Clock, *, scenario_key: Signer | None = None) -> None:
        """Make keys and first metadata. Keys that exist are kept; `scenario_key` signs these scenarios, new if None.

        Raises:
            TrustFolderError: there are metadata already.
        """
        if self.exists:
            raise TrustFolderError(self.public, "has root metadata already; change them with walle trust rotate")
        for folder in (self.offline, self.online):
            make_folders(folder, mode=0o700)
        make_folders(self.public)
        online = {RELEASE: self.online / "release.pem", TIMESTAMP: self.online / "timestamp.pem"}
        offline = {ROOT: self.offline / "root.pem", SCENARIOS: self.offline / "scenarios.pem"}
        signers = {role: _made(path) for role, path in (offline | online).items()}
        # The root is written last: where it exists, all that it names does.
        self._delegate(
            {name: RoleKeys(1, _public(self._made_scenario(name, scenario_key))) for name in scenarios},
            1,
            [signers[SCENARIOS]],
            clock,
        )
        body = root_body(1, fleet, {role: RoleKeys(1, _public(signers[role])) for role in ROLES}, clock)
        self._write("root", 1, body, [signers[ROOT]])

    def add_scenarios(self, names: Iterable[str], clock: Clock) -> list[str]:
        """Delegate each scenario that has no key yet to a new one; return those. Needs the offline keys.

        Raises:
            TrustFolderError: the key of the scenarios role is not here.
        """
        current = self.scenarios()
        new = [name for name in dict.fromkeys(names) if name not in current.delegations]
        if new:
            signer = self._offline_signer("scenarios")
            for name in new:
                self._put_away_revoked(name)
            added = {name: RoleKeys(1, _public(self._made_scenario(name, None))) for name in new}
            self._delegate({**current.delegations, **added}, current.version + 1, [signer], clock)
        return new

    def delegate(self, scenario: str, keys: Mapping[str, bytes], threshold: int, clock: Clock) -> Scenarios:
        """Make `keys` (key id → raw public key) those of a scenario, in place of all before; none: revoke them.

        Raises:
            TrustFolderError: the threshold cannot be met, or the key of the scenarios role is not here.
        """
        self.finish_rotation()
        if keys and not 1 <= threshold <= len(keys):
            raise TrustFolderError(self.public, f"a threshold of {threshold} cannot be met by {len(keys)} keys")
        current = self.scenarios()
        delegations = {name: role for name, role in current.delegations.items() if name != scenario}
        if keys:
            delegations[scenario] = RoleKeys(threshold, dict(keys))
        self._delegate(delegations, current.version + 1, [self._offline_signer("scenarios")], clock)
        return self.scenarios()

    def rotate(self, roles: Collection[str], clock: Clock) -> Root:
        """Give each of these roles a new key in place of its old ones, and sign the next root metadata with both.

        Where one key signs root metadata and is here; else see `walle.trust.root_proposal`.

        With no roles, the root metadata are signed again with a later expiry. The old key of the root role is kept
        as `root.N.pem`; a new release or timestamp key is taken into use when the cloud starts again.

        Raises:
            TrustFolderError: the key of the root role is not here, or more than one signature is needed.
        """
        self.finish_rotation()
        current = self.root()
        old = self._offline_signer("root")
        if current.roles[ROOT].threshold != 1:
            raise TrustFolderError(self.public, "root metadata need several signatures: propose them")
        if ROOT in roles and len(current.roles[ROOT].keys) > 1:
            raise TrustFolderError(
                self.public, "has several root keys; change them with walle trust keys add and remove"
            )
        new = {role: Signer.generate() for role in roles}
        held = {role: RoleKeys(1, _public(new[role])) if role in new else current.roles[role] for role in ROLES}
        number = current.version + 1
        body = root_body(number, current.fleet, held, clock)
        data = self._signed("root", body, [old, *[new[role] for role in new if role == ROOT]])
        try:
            root = current.next(data)
        except SignatureError as error:
            raise TrustFolderError(self.offline / "root.pem", f"cannot sign the next root metadata: {error}") from error
        metadata = {self._path("root", number): data}
        if SCENARIOS in new:
            scenarios = self.scenarios(current)
            body = scenarios_body(scenarios.version + 1, scenarios.delegations, clock)
            metadata[self._path("scenarios", scenarios.version + 1)] = self._signed("scenarios", body, [new[SCENARIOS]])
        keys = {
            ROOT: self.offline / "root.pem",
            SCENARIOS: self.offline / "scenarios.pem",
            RELEASE: self.online / "release.pem",
            TIMESTAMP: self.online / "timestamp.pem",
        }
        signers = {keys[role]: signer for role, signer in new.items()}
        if ROOT in new:
            signers[self.offline / f"root.{current.version}.pem"] = old
        self._replace(signers, metadata)
        return root

    def signs_root_alone(self) -> bool:
        """Return whether offline-keys/root.pem is here and is all that root metadata need."""
        role = self.root().roles[ROOT]
        path = self.offline / "root.pem"
        return role.threshold == 1 and path.exists() and Signer.load(path).key_id in role.keys

    def put_in_place(self, made: Path) -> None:
        """Put the files of a folder with the layout of this one in their places: all, also after a kill, or none."""
        sync_tree(made)
        move_folder(made, self._rotation)
        self.finish_rotation()

    def finish_rotation(self) -> None:
        """Put the files of a rotation in their places, if one was made and ended before it had done that."""
        made, done = self._rotation, self.offline / ".rotation.done"
        shutil.rmtree(done, ignore_errors=True)
        if not made.exists():
            return
        for path in sorted(made.rglob("*")):
            if path.is_file():
                target = self.folder / path.relative_to(made)
                make_folders(target.parent, mode=0o700)
                write_file(target, path.read_bytes(), mode=0o644 if target.suffix == ".json" else 0o600)
        made.rename(done)
        shutil.rmtree(done)

    @property
    def _rotation(self) -> Path:
        return self.offline / "rotation"

    def _replace(self, signers: Mapping[Path, Signer], metadata: Mapping[Path, bytes]) -> None:
        """Write keys and metadata that are only valid together: all of them, or none."""
        staging = self.offline / ".rotation.new"
        shutil.rmtree(staging, ignore_errors=True)  # a killed command may have left it
        for path in (*signers, *metadata):
            make_folders(staging / path.relative_to(self.folder).parent, mode=0o700)
        staging.chmod(0o700)
        for path, signer in signers.items():
            signer.save(staging / path.relative_to(self.folder))
        for path, data in metadata.items():
            write_file(staging / path.relative_to(self.folder), data)
        self.put_in_place(staging)

    # --- files --------------------------------------------------------------------------------------------------------

    def _delegate(
        self, delegations: Mapping[str, RoleKeys], version: int, signers: Sequence[Signer], clock: Clock
    ) -> None:
        self._write("scenarios", version, scenarios_body(version, delegations, clock), signers)

    def _write(self, kind: str, number: int, body: Mapping[str, Any], signers: Sequence[Signer]) -> None:
        write_file(self._path(kind, number), self._signed(kind, body, signers), mode=0o644)

    def _signed(self, kind: str, body: Mapping[str, Any], signers: Sequence[Signer]) -> bytes:
        data = sign_metadata(body, signers)
        if len(data) > (MAX_ROOT_BYTES if kind == "root" else MAX_SCENARIOS_BYTES):
            raise TrustFolderError(self.public, f"{kind} metadata of {len(data)} bytes, more than a device accepts")
        return data

    def _newest(self, kind: str) -> int:
        found = [_NAME.fullmatch(path.name) for path in self.public.glob(f"*.{kind}.json")]
        return max((int(match[1]) for match in found if match), default=0)

    def _path(self, kind: str, number: int) -> Path:
        return self.public / f"{number}.{kind}.json"

    def _scenario_key(self, scenario: str) -> Path:
        return self.offline / f"scenario-{scenario}.pem"

    def _made_scenario(self, scenario: str, signer: Signer | None) -> Signer:
        path = self._scenario_key(scenario)
        if signer is not None and not path.exists():
            signer.save(path)
        return _made(path)

    def _put_away_revoked(self, scenario: str) -> None:
        """Rename the key of a scenario that metadata once named and no longer do: it is never delegated again."""
        path = self._scenario_key(scenario)
        if not path.exists():
            return
        signer = Signer.load(path)
        public = signer.public_key.hex().encode()
        if any(public in earlier.read_bytes() for earlier in self.public.glob("*.scenarios.json")):
            path.rename(path.with_name(f"scenario-{scenario}.{signer.key_id}.pem"))

    def _offline_signer(self, name: str) -> Signer:
        path = self.offline / f"{name}.pem"
        if not path.exists():
            raise TrustFolderError(path, "is not here; run this where the offline keys are kept, and copy trust/ back")
        return Signer.load(path)


def prepare_trust(trust: TrustFolder, scenarios: Sequence[str], clock: Clock) -> None:
    """Make what a cloud's folder lacks: keys and metadata at its first start, and the keys of new scenarios.

    A folder from before there were metadata keeps its keys: what its bundle key signed stays installed. Where the
    offline keys were moved away, a new scenario stays without a key until its owner delegates one.
    """
    for folder in (trust.folder / ONLINE, trust.offline, trust.public):
        remove_unfinished(folder)
    trust.finish_rotation()
    if not trust.exists:
        bundle_key = trust.online / "bundle.pem"
        old = Signer.load(bundle_key) if bundle_key.exists() else None
        trust.make(f"fleet-{secrets.token_hex(8)}", scenarios, clock, scenario_key=old)
        bundle_key.unlink(missing_ok=True)
    elif (trust.offline / "scenarios.pem").exists():
        trust.add_scenarios(scenarios, clock)


def sign_metadata(body: Mapping[str, Any], signers: Sequence[Signer]) -> bytes:
    """Return metadata as TUF files them: `body` with the signatures of `signers` over its canonical form."""
    data = canonical_metadata(body)
    signatures = [{"keyid": signer.key_id, "sig": signer.sign(data).hex()} for signer in signers]
    return json.dumps({"signatures": signatures, "signed": body}, indent=1, sort_keys=True).encode() + b"\n"


def scenarios_body(version: int, delegations: Mapping[str, RoleKeys], clock: Clock) -> dict[str, Any]:
    """Return unsigned scenarios metadata: TUF targets metadata without targets, which delegate each scenario."""
    keys = {name: key for role in delegations.values() for name, key in role.keys.items()}
    roles = [
        {
            "name": scenario,
            "keyids": sorted(role.keys),
            "threshold": role.threshold,
            "terminating": True,
            "paths": [f"{scenario}/*"],
        }
        for scenario, role in sorted(delegations.items())
    ]
    return {
        "_type": SCENARIOS,
        "spec_version": _SPEC,
        "version": version,
        "expires": expires_text(clock.time() + SCENARIOS_LIFE_S),
        "targets": {},
        "delegations": {"keys": _listed(keys), "roles": roles},
    }


def root_body(version: int, fleet: str, roles: Mapping[str, RoleKeys], clock: Clock) -> dict[str, Any]:
    """Return unsigned root metadata."""
    keys = {name: key for role in roles.values() for name, key in role.keys.items()}
    return {
        "_type": ROOT,
        "spec_version": _SPEC,
        "version": version,
        "expires": expires_text(clock.time() + ROOT_LIFE_S),
        "consistent_snapshot": True,
        "keys": _listed(keys),
        "roles": {name: {"keyids": sorted(role.keys), "threshold": role.threshold} for name, role in roles.items()},
        FLEET_FIELD: fleet,
    }


def _listed(keys: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        name: {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": key.hex()}} for name, key in keys.items()
    }


def _public(signer: Signer) -> dict[str, bytes]:
    return {key_id(signer.public_key): signer.public_key}


def _made(path: Path) -> Signer:
    """Return the signer of a key file, which is made if it does not exist."""
    if not path.exists():
        Signer.generate().save(path)
    return Signer.load(path)
