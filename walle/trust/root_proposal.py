"""Next root metadata of a fleet that wait for the signatures of several owners, in the folder of its keys.

    pending/2.root.json             public: goes from one owner to the next, each of whom adds a signature
    offline-keys/pending/DIGEST/    the new private keys that it names, where it was made; DIGEST is of what is signed

Nothing has changed before `publish`. A command that is killed leaves the proposal before it or its own.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from walle.base.clock import Clock
from walle.base.durable_file import make_folders, move_folder, sync_tree, write_file
from walle.trust.folder import (
    OFFLINE,
    ONLINE,
    TrustFolder,
    TrustFolderError,
    root_body,
    scenarios_body,
    sign_metadata,
)
from walle.trust.metadata import RELEASE, ROLES, ROOT, SCENARIOS, TIMESTAMP, ProposedRoot, RoleKeys, Root
from walle.trust.signing import SignatureError, Signer

_KEY_FILES = {
    SCENARIOS: Path(OFFLINE, "scenarios.pem"),
    RELEASE: Path(ONLINE, "release.pem"),
    TIMESTAMP: Path(ONLINE, "timestamp.pem"),
}


class RootProposal:
    """The next root metadata of a folder; see the module's docstring. Blocks on the disk."""

    def __init__(self, trust: TrustFolder) -> None:
        self._trust = trust
        trust.finish_rotation()
        self._current = trust.root()
        self._stages = trust.offline / "pending"
        self.path = trust.folder / "pending" / f"{self._current.version + 1}.root.json"
        # One that was published, also by a command that was killed just then.
        self.path.with_name(f"{self._current.version}.root.json").unlink(missing_ok=True)

    def state(self) -> ProposedRoot | None:
        """Return the proposal, None where there is none. Raises TrustFolderError where it cannot be read."""
        try:
            return self._current.proposed(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, SignatureError) as error:
            raise TrustFolderError(self.path, f"{error}; get it again, or remove it to begin again") from error

    # --- making -------------------------------------------------------------------------------------------------------

    def change_root_keys(
        self, clock: Clock, *, add: Iterable[bytes] = (), remove: Iterable[str] = (), threshold: int | None = None
    ) -> ProposedRoot:
        """Propose other root keys: raw public keys to `add`, ids to `remove`; the threshold stays if None.

        Raises:
            TrustFolderError: a key to be removed has no role, or the threshold cannot be met.
        """
        held = self._roles()[ROOT]
        keys = dict(held.keys)
        for name in remove:
            if keys.pop(name, None) is None:
                raise TrustFolderError(self.path, f"{name[:80]!r} is not a root key (they are {', '.join(held.keys)})")
        keys |= RoleKeys.of(add).keys
        needed = held.threshold if threshold is None else threshold
        if not 1 <= needed <= len(keys):
            what = f"{needed} root keys must sign, and there would be {len(keys)}"
            raise TrustFolderError(self.path, f"{what}; give another --threshold, or add a key first")
        return self._propose({ROOT: RoleKeys(needed, keys)}, {}, clock)

    def rotate(self, roles: Iterable[str], clock: Clock) -> ProposedRoot:
        """Propose new keys for these roles, made here; with no roles a later expiry.

        Raises:
            TrustFolderError: root is among them.
        """
        new = {role: Signer.generate() for role in roles}
        if ROOT in new:
            raise TrustFolderError(self.path, "several owners change root keys with walle trust keys add and remove")
        held = {role: RoleKeys.of([signer.public_key]) for role, signer in new.items()}
        return self._propose(held, {_KEY_FILES[role]: signer for role, signer in new.items()}, clock)

    def _roles(self) -> Mapping[str, RoleKeys]:
        state = self.state()
        return (state.root if state else self._current).roles

    def _propose(self, changed: Mapping[str, RoleKeys], keys: Mapping[Path, Signer], clock: Clock) -> ProposedRoot:
        """Write a proposal with these roles in place of those of the present one, without signatures."""
        before = self.state()
        roles = {role: changed.get(role, held) for role, held in self._roles().items()}
        body = root_body(self._current.version + 1, self._current.fleet, roles, clock)
        data = sign_metadata(body, [])
        stage = self._stage(self._current.proposed(data))
        staging = self._trust.offline / ".pending.new"
        shutil.rmtree(staging, ignore_errors=True)  # a killed command may have left it
        make_folders(staging, mode=0o700)
        if before is not None and self._stage(before).exists():
            shutil.copytree(self._stage(before), staging, dirs_exist_ok=True)
        for path, signer in keys.items():
            make_folders((staging / path).parent, mode=0o700)
            signer.save(staging / path)
        sync_tree(staging)
        make_folders(self._stages, mode=0o700)
        shutil.rmtree(stage, ignore_errors=True)
        move_folder(staging, stage)
        self._write(data)
        for other in self._stages.iterdir():
            if other != stage:
                shutil.rmtree(other)
        state = self.state()
        assert state is not None
        return state

    def _stage(self, state: ProposedRoot) -> Path:
        return self._stages / hashlib.sha256(state.signed_bytes).hexdigest()[:16]

    def _write(self, data: bytes) -> None:
        make_folders(self.path.parent)
        write_file(self.path, data, mode=0o644)

    # --- signing ------------------------------------------------------------------------------------------------------

    def sign(self, make: Callable[[bytes], bytes]) -> ProposedRoot:
        """Add the signature that `make(bytes)` returns, and return the state after.

        Raises:
            TrustFolderError: there is no proposal, or no root key, before or after it, made the signature.
        """
        state = self._present()
        signature = make(state.signed_bytes)
        labels = {
            label
            for role in (self._current.roles[ROOT], state.root.roles[ROOT])
            for label, name in role.labels.items()
            if RoleKeys(1, {name: role.keys[name]}).is_met({name: signature}, state.signed_bytes)
        }
        if not labels:
            names = ", ".join(sorted({*self._current.roles[ROOT].keys, *state.root.roles[ROOT].keys}))
            raise TrustFolderError(self.path, f"this key is not one of the root keys {names}; nothing was signed")
        value = json.loads(self.path.read_bytes())
        others = [one for one in value["signatures"] if one["keyid"] not in labels]
        value["signatures"] = [*others, *({"keyid": label, "sig": signature.hex()} for label in sorted(labels))]
        self._write(json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")
        return self._present()

    def _present(self) -> ProposedRoot:
        state = self.state()
        if state is None:
            raise TrustFolderError(
                self.path, "nothing waits for signatures; propose a change with walle trust keys or rotate"
            )
        return state

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, clock: Clock) -> Root:
        """Put the proposal into trust/, and the private keys that it names in their places: all of them, or none.

        Raises:
            TrustFolderError: signatures are missing, or the new private keys are not in this folder.
        """
        state = self._present()
        if state.missing_old or state.missing_new:
            raise TrustFolderError(self.path, missing(state))
        root = self._current.next(self.path.read_bytes())
        stage = self._stage(state)
        changed = [role for role in ROLES if role != ROOT and root.roles[role].keys != self._current.roles[role].keys]
        if absent := [_KEY_FILES[role] for role in changed if not (stage / _KEY_FILES[role]).exists()]:
            where = "they are in the folder where this was proposed; publish it there"
            raise TrustFolderError(self.path, f"the new {', '.join(path.name for path in absent)} is not here: {where}")
        public = stage / self._trust.public.name
        make_folders(public, mode=0o700)
        write_file(public / self.path.name, self.path.read_bytes(), mode=0o644)
        if SCENARIOS in changed:  # made now: a scenario may have been delegated since it was proposed
            held = self._trust.scenarios(self._current)
            body = scenarios_body(held.version + 1, held.delegations, clock)
            signed = sign_metadata(body, [Signer.load(stage / _KEY_FILES[SCENARIOS])])
            write_file(public / f"{held.version + 1}.scenarios.json", signed, mode=0o644)
        self._trust.put_in_place(stage)
        shutil.rmtree(self._stages, ignore_errors=True)  # earlier proposals are replaced
        self.path.unlink()
        return root


def missing(state: ProposedRoot) -> str:
    """Return how many signatures a proposal needs before it can be published, empty for none."""
    parts = [
        f"{count} more of the {which} root keys must sign"
        for count, which in ((state.missing_old, "present"), (state.missing_new, "proposed"))
        if count
    ]
    return " and ".join(parts)
