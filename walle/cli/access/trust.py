"""`walle trust`: keys and metadata that say what the devices of a fleet may run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli.access.signer import SignerOption, signing
from walle.cli.access.signer import public_key as read_public_key
from walle.cli.output import JsonFlag, emit
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.trust.folder import TrustFolder
    from walle.trust.metadata import Root
    from walle.trust.root_proposal import RootProposal

Folder = Annotated[
    Path, typer.Argument(help="A folder with offline-keys/, keys/ and trust/: your own, or the cloud's.")
]
RootThreshold = Annotated[
    int | None, typer.Option("--threshold", min=1, help="How many root keys must sign from then on.")
]
_ROLES = {"root": "root", "scenarios": "targets", "release": "snapshot", "timestamp": "timestamp"}


def init(
    folder: Folder,
    scenario: Annotated[list[str] | None, typer.Option(help="Scenario to make a key for; once for each.")] = None,
    fleet: Annotated[str, typer.Option(help="Id of the fleet; a random one if empty.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Make the keys and the first metadata of a fleet, away from its cloud.

    Copy keys/ and trust/ into the folder of the cloud before its first start; offline-keys/ stays where it is.
    """
    import secrets

    from walle.base.clock import SystemClock
    from walle.trust.folder import TrustFolder

    trust = TrustFolder(folder)
    trust.make(fleet or f"fleet-{secrets.token_hex(8)}", scenario or [], SystemClock())
    _say(trust, as_json=as_json)


def delegate(
    folder: Folder,
    scenario: Annotated[str, typer.Argument(help="The scenario.")],
    public_key: Annotated[
        list[str] | None,
        typer.Option(help="A public key that signs its versions: hex digits or a PEM file; once for each."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Make a key in offline-keys/.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the keys that it has, beside these.")] = False,
    threshold: Annotated[int, typer.Option(min=1, help="How many of its keys must sign a version.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Say which keys sign the versions of a scenario, in place of those before. Needs offline-keys/scenarios.pem."""
    from walle.base.clock import SystemClock
    from walle.trust.folder import TrustFolder
    from walle.trust.metadata import RoleKeys
    from walle.trust.signing import Signer

    trust = TrustFolder(folder)
    keys = [read_public_key(text) for text in public_key or ()]
    if not keys and not new:
        raise typer.BadParameter("give a --public-key, or --new; walle trust revoke takes keys away")
    held = trust.scenarios().delegations.get(scenario)
    if keep and held is not None:
        keys.extend(held.keys.values())
    if new:
        signer = Signer.generate()
        path = trust.offline / f"scenario-{scenario}.pem"
        if path.exists():
            path.rename(path.with_name(f"scenario-{scenario}.{Signer.load(path).key_id}.pem"))
        signer.save(path)
        keys.append(signer.public_key)
    trust.delegate(scenario, RoleKeys.of(keys).keys, threshold, SystemClock())
    _say(trust, as_json=as_json)


def revoke(
    folder: Folder,
    scenario: Annotated[str, typer.Argument(help="The scenario.")],
    key_id: Annotated[str, typer.Argument(help="The id of the key, as walle trust show gives it.")],
    as_json: JsonFlag = False,
) -> None:
    """Take a key from a scenario: devices install nothing more that it signed. Needs offline-keys/scenarios.pem."""
    from walle.base.clock import SystemClock
    from walle.trust.folder import TrustFolder

    trust = TrustFolder(folder)
    held = trust.scenarios().delegations.get(scenario)
    if held is None or key_id not in held.keys:
        raise ConfigError(f"key {key_id!r} does not sign scenario {scenario}; see: walle trust show {folder}")
    keys = {name: key for name, key in held.keys.items() if name != key_id}
    if 0 < len(keys) < held.threshold:
        what = f"{held.threshold} keys must sign scenario {scenario}, and {len(keys)} would be left"
        raise ConfigError(
            f"{what}; say which keys sign, and how many: walle trust delegate {folder} {scenario} --threshold N"
        )
    trust.delegate(scenario, keys, held.threshold, SystemClock())
    _say(trust, as_json=as_json)


def rotate(
    folder: Folder,
    role: Annotated[
        list[str] | None,
        typer.Option(help="root, scenarios, release or timestamp; once for each. None: a later expiry."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Give roles new keys in place of the old ones. Needs offline-keys/root.pem, or the signatures of several owners.

    Copy keys/ and trust/ to the cloud together, and start it again where release or timestamp have a new key. Where
    root.pem is not here, or several must sign, this makes a proposal: see walle trust sign-root.
    """
    from walle.base.clock import SystemClock
    from walle.trust.folder import TrustFolder
    from walle.trust.root_proposal import RootProposal

    if unknown := [name for name in role or () if name not in _ROLES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(_ROLES)}", param_hint="--role")
    trust = TrustFolder(folder)
    proposal = RootProposal(trust)
    roles = [_ROLES[name] for name in role or ()]
    if proposal.state() is None and trust.signs_root_alone():
        trust.rotate(roles, SystemClock())
    else:
        proposal.rotate(roles, SystemClock())
    _say(trust, as_json=as_json)


def add_key(
    folder: Folder,
    public_key: Annotated[list[str], typer.Argument(help="Public keys of owners: hex digits, or PEM files.")],
    threshold: RootThreshold = None,
    as_json: JsonFlag = False,
) -> None:
    """Propose more root keys. It takes effect once enough owners have signed: walle trust sign-root, then publish."""
    _change_root_keys(folder, [read_public_key(text) for text in public_key], [], threshold, as_json=as_json)


def remove_key(
    folder: Folder,
    key_id: Annotated[list[str], typer.Argument(help="Ids of root keys, as walle trust show gives them.")],
    threshold: RootThreshold = None,
    as_json: JsonFlag = False,
) -> None:
    """Propose to take root keys away, such as a lost one; as keys add."""
    _change_root_keys(folder, [], key_id, threshold, as_json=as_json)


def _change_root_keys(
    folder: Path, add: list[bytes], remove: list[str], threshold: int | None, *, as_json: bool
) -> None:
    from walle.base.clock import SystemClock
    from walle.trust.folder import TrustFolder
    from walle.trust.root_proposal import RootProposal

    trust = TrustFolder(folder)
    RootProposal(trust).change_root_keys(SystemClock(), add=add, remove=remove, threshold=threshold)
    _say(trust, as_json=as_json)


def sign_root(
    folder: Folder,
    key: Annotated[Path | None, typer.Option(help="Your root key, a PEM file.")] = None,
    signer: SignerOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Sign the proposed root metadata, pending/N.root.json. Needs trust/ beside it, and no other key.

    The file then goes to the next owner, or back to where it was proposed.
    """
    from walle.trust.folder import TrustFolder
    from walle.trust.root_proposal import RootProposal

    trust = TrustFolder(folder)
    RootProposal(trust).sign(signing(key, signer))
    _say(trust, as_json=as_json)


def publish(folder: Folder, as_json: JsonFlag = False) -> None:
    """Put proposed root metadata that enough owners have signed into trust/, with the keys that were made for them."""
    from walle.base.clock import SystemClock
    from walle.trust.folder import TrustFolder
    from walle.trust.root_proposal import RootProposal

    trust = TrustFolder(folder)
    RootProposal(trust).publish(SystemClock())
    _say(trust, as_json=as_json)


def show(folder: Folder, as_json: JsonFlag = False) -> None:
    """Show who may sign what."""
    from walle.trust.folder import TrustFolder

    _say(TrustFolder(folder), as_json=as_json)


def _say(trust: "TrustFolder", *, as_json: bool) -> None:
    from walle.trust.metadata import expires_text
    from walle.trust.root_proposal import RootProposal

    proposal = RootProposal(trust)
    root = trust.root()
    scenarios = trust.scenarios(root)
    names = {theirs: ours for ours, theirs in _ROLES.items()}
    shown: dict[str, Any] = {
        "fleet": root.fleet,
        "root_version": root.version,
        "root_expires": expires_text(root.expires_s),
        "roles": {
            names[role]: {"keys": sorted(keys.keys), "threshold": keys.threshold} for role, keys in root.roles.items()
        },
        "scenarios_version": scenarios.version,
        "scenarios_expires": expires_text(scenarios.expires_s),
        "scenarios": {
            name: {"keys": {one: key.hex() for one, key in sorted(keys.keys.items())}, "threshold": keys.threshold}
            for name, keys in sorted(scenarios.delegations.items())
        },
        "offline_keys_here": sorted(path.name for path in trust.offline.glob("*.pem")),
        "proposal": _shown_proposal(proposal, root, names),
    }
    newest = f"scenarios version {scenarios.version} until {shown['scenarios_expires']}"
    lines = [f"fleet {root.fleet}: root version {root.version} until {shown['root_expires']}, {newest}"]
    for name, one in shown["roles"].items():
        needed = f" ({one['threshold']} of {len(one['keys'])} must sign)" if len(one["keys"]) > 1 else ""
        lines.append(f"  role {name}{needed}: {', '.join(one['keys'])}")
    for name, one in shown["scenarios"].items():
        needed = f" ({one['threshold']} must sign)" if one["threshold"] > 1 else ""
        lines += [f"  scenario {name}{needed}:", *(f"    {key} {public}" for key, public in one["keys"].items())]
    if waits := shown["proposal"]:
        lines += [
            f"{waits['file']}: proposed root version {root.version + 1}",
            *(f"  {one}" for one in waits["changes"]),
        ]
        lines.append(f"  signed by {', '.join(waits['signed_by']) or 'nobody'}: {waits['next']}")
    emit(shown, as_json=as_json, text=escape("\n".join(lines)))


def _shown_proposal(proposal: "RootProposal", root: "Root", names: dict[str, str]) -> dict[str, Any] | None:
    from walle.trust.metadata import expires_text
    from walle.trust.root_proposal import missing

    state = proposal.state()
    if state is None:
        return None
    changes = [f"valid until {expires_text(state.root.expires_s)}"]
    for role, name in names.items():
        before, after = root.roles[role], state.root.roles[role]
        changes += [f"role {name} loses key {key}" for key in sorted(before.keys.keys() - after.keys.keys())]
        changes += [f"role {name} gets key {key}" for key in sorted(after.keys.keys() - before.keys.keys())]
        if before.threshold != after.threshold:
            changes.append(f"of role {name} {after.threshold} must sign, before {before.threshold}")
    needed = missing(state)
    then = f"{needed}, with walle trust sign-root" if needed else "publish it with walle trust publish"
    return {"file": str(proposal.path), "changes": changes, "signed_by": sorted(state.signed_by), "next": then}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Keys and metadata that say what devices may run.", no_args_is_help=True)

    @group.callback()
    def trust() -> None:
        """Keys and metadata that say what devices may run."""

    group.command(epilog="Example: walle trust init shop-keys --scenario shop")(init)
    group.command(epilog="Example: walle trust show shop-keys")(show)
    group.command(epilog="Example: walle trust delegate shop-keys shop --new")(delegate)
    group.command(epilog="Example: walle trust revoke shop-keys shop 9f86d081884c7d65")(revoke)
    group.command(epilog="Example: walle trust rotate shop-keys --role release --role timestamp")(rotate)
    group.command("sign-root", epilog="Example: walle trust sign-root shop-keys --key anna.pem")(sign_root)
    group.command(epilog="Example: walle trust publish shop-keys")(publish)
    keys = typer.Typer(help="Root keys of several owners.", no_args_is_help=True)

    @keys.callback()
    def root_keys() -> None:
        """Root keys of several owners."""

    keys.command("add", epilog="Example: walle trust keys add shop-keys ben.pub carla.pub --threshold 2")(add_key)
    keys.command("remove", epilog="Example: walle trust keys remove shop-keys 9f86d081884c7d65")(remove_key)
    group.add_typer(keys, name="keys")
    app.add_typer(group, name="trust")
