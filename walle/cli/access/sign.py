"""`walle sign`: an author's signature of a version, made where the key is."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from walle.cli.access.signer import SignerOption, SignError, signing
from walle.cli.cloud_call import open_client
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.client.release_client import SigningJson
    from walle.protocol import FileEntry, Manifest


def sign(
    scenario: Annotated[str, typer.Argument(help="The task's repository.")],
    task: Annotated[str, typer.Argument(help="The task.")],
    version: Annotated[str, typer.Argument(help="The version, such as v3: the tag TASK/v3.")],
    url: UrlOption,
    token: TokenOption = "",
    key: Annotated[Path | None, typer.Option(help="The scenario's private key, a PEM file.")] = None,
    signer: SignerOption = "",
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="For a release that devices may get already, where the key that signed it was revoked."
        ),
    ] = False,
    repo: Annotated[Path, typer.Option(help="Your own checkout of the scenario.")] = Path(),
    python: Annotated[
        list[str] | None, typer.Option(help="As for `walle cloud up`: another Python to compile for; once for each.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Sign a version with your scenario's key, so that it may be released.

    The manifest is built here, from your own checkout at the tag. It must be the one that the cloud built.
    """
    asyncio.run(
        _sign(
            scenario,
            task,
            version,
            url,
            token,
            signing(key, signer),
            repo,
            tuple(python or ()),
            again=again,
            as_json=as_json,
        )
    )


async def _sign(
    scenario: str,
    task: str,
    version: str,
    url: str,
    token: str,
    make: Callable[[bytes], bytes],
    repo: Path,
    pythons: tuple[str, ...],
    *,
    again: bool,
    as_json: bool,
) -> None:
    from walle.client.release_client import ReleaseClient
    from walle.protocol import Manifest
    from walle.trust.signing import MANIFEST_DOMAIN

    built = await asyncio.to_thread(_build, repo, scenario, task, version, pythons)
    async with open_client(ReleaseClient, url, token) as client:
        asked = await client.manifest(scenario, task, version)
        payload = built.to_bytes()
        theirs = base64.b64decode(asked["payload"])
        if theirs != payload:
            different = differences(built, Manifest.from_bytes(theirs))
            raise SignError(
                f"the cloud built another manifest of {scenario}/{task} {version}: {', '.join(different)};"
                " nothing was signed. Use the walle and Python versions of the cloud, and fetch the tag again"
            )
        signature = await asyncio.to_thread(make, MANIFEST_DOMAIN + payload)
        name = _key_of(asked["keys"], signature, MANIFEST_DOMAIN + payload)
        state = await client.sign(scenario, task, version, {name: signature}, again=again)
    _say(state, f"{scenario}/{task} {version}", as_json=as_json)


def _say(state: "SigningJson", what: str, *, as_json: bool) -> None:
    changed = state.get("releases", [])
    shown = {"threshold": state["threshold"], "signed_by": state["signed_by"], "releases": changed}
    missing = state["threshold"] - len(state["signed_by"])
    rest = f"{missing} more signatures are needed" if missing > 0 else "it may be released"
    if changed:
        rest = f"{', '.join(changed)} continues with it"
    emit(shown, as_json=as_json, text=f"{escape(what)} is signed by {', '.join(state['signed_by'])}: {rest}")


def _build(repo: Path, scenario: str, task: str, version: str, pythons: tuple[str, ...]) -> "Manifest":
    """Return the manifest of a version in the author's own checkout."""
    from dulwich.errors import NotGitRepository
    from dulwich.refs import Ref
    from dulwich.repo import Repo

    from walle.deploy.git.repo import TAG_PREFIX, modules_in, read_tree
    from walle.task.format.bundle import TaskVersion, build_unsigned
    from walle.task.format.compilers import other_pythons

    try:
        checkout = Repo.discover(str(repo))
    except NotGitRepository as error:
        raise ConfigError(f"{repo}: not a git repository; name your checkout of {scenario} with --repo") from error
    with checkout:
        try:
            sha = checkout.refs[Ref(TAG_PREFIX + f"{task}/{version}".encode())]
        except KeyError as error:
            raise ConfigError(f"{repo}: has no tag {task}/{version}; fetch it with: git fetch --tags") from error
        tree = read_tree(checkout.object_store, sha, scenario, task, version)
        parsed = TaskVersion.parse(tree, modules_in(checkout, scenario))
    return build_unsigned(parsed, other_pythons(pythons)).manifest


def differences(mine: "Manifest", theirs: "Manifest") -> list[str]:
    """Return what differs between two manifests: fields, and the paths of files."""
    left, right = map(_files_of, (mine, theirs))
    files = sorted(path for path in {*left, *right} if left.get(path) != right.get(path))
    fields = [
        name
        for name in mine.__dataclass_fields__
        if name not in ("files", "cloud_files", "variants") and getattr(mine, name) != getattr(theirs, name)
    ]
    rules = [[(one.name, one.rule) for one in manifest.variants] for manifest in (mine, theirs)]
    fields += ["variants"] * (rules[0] != rules[1])
    shown = [f"file {path[:100]}" for path in files[:10]]
    return [*fields, *shown, *([f"and {len(files) - 10} more files"] if len(files) > 10 else [])] or ["its encoding"]


def _files_of(manifest: "Manifest") -> dict[str, "FileEntry"]:
    """Return the files of a manifest by their paths, those of variants with the name behind."""
    found = {one.path: one for one in (*manifest.files, *manifest.cloud_files)}
    return found | {f"{file.path} of variant {one.name}": file for one in manifest.variants for file in one.files}


def _key_of(keys: Mapping[str, str], signature: bytes, data: bytes) -> str:
    """Return the id of the key, among those of the scenario, that made a signature."""
    from walle.trust.metadata import RoleKeys

    for name, public in keys.items():
        role = RoleKeys.of([bytes.fromhex(public)])
        (own,) = role.keys
        if own == name and role.is_met({name: signature}, data):
            return name
    raise SignError(
        f"this key does not sign this scenario (keys that do: {', '.join(keys) or 'none'});"
        " delegate it with: walle trust delegate"
    )


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle sign shop visits v3 --key scenario-shop.pem --repo shop")(sign)
