"""`walle login`, `walle logout`, and `walle git-credential`, which gives git the token of a cloud."""

import asyncio
import getpass
import os
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from walle.cli.cloud_call import open_client
from walle.cli.credentials import Credentials, check_token, fingerprint_of, is_loopback, origin_of, read_token
from walle.cli.output import JsonFlag, emit
from walle.client.admin_client import AdminClient, TokenJson
from walle.client.cloud_client import CloudCertificateError, CloudRefusedError, fetch_authority
from walle.errors import ConfigError

_MAX_CHARS = 65_536  # length kept of git's description of a credential
_USER = "walle"  # a cloud takes any name
_GIT_CA_FILE = "GIT_SSL_CAINFO"  # goes before what git is told of an address

UrlArgument = Annotated[str, typer.Argument(help="The cloud, as `walle cloud up` prints it.")]
GitFlag = Annotated[bool, typer.Option("--git/--no-git", help="Let git ask walle for the token of this cloud.")]


class GitAction(StrEnum):
    """Actions of git's protocol of credential helpers."""

    GET = "get"
    STORE = "store"
    ERASE = "erase"


def login(
    url: UrlArgument,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; if not given, it is asked for, or read from a pipe.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificate of the cloud's CA, such as its ca.pem.")] = None,
    fingerprint: Annotated[
        str, typer.Option(help="Fingerprint of the cloud's CA, as `walle cloud up` shows it, instead of the file.")
    ] = "",
    git: GitFlag = True,
    as_json: JsonFlag = False,
) -> None:
    """Keep your token of a cloud, for commands and for git: no command line, address or environment needs it.

    It is kept in ~/.config/walle/credentials.toml, which only you can read, after the cloud has named its owner. The
    CA of a cloud that has its own is pinned: from a file, by its fingerprint, or after you have compared it.
    """
    credentials = Credentials.load()
    ca_pem = _authority(url, credentials, ca_file, fingerprint)
    token = read_token(token_file) if token_file else _ask()
    identity = asyncio.run(_whoami(url, token, ca_pem))
    credentials.put(url, token, ca_pem)
    if git:
        _tell_git(url, credentials.get(url).ca_file)
    said = {"url": origin_of(url), "name": identity["name"], "roles": identity["roles"], "git": git}
    roles = ", ".join(f"{role} in {scenario}" for scenario, role in identity["roles"].items()) or "no role"
    lines = [f"you are {identity['name']} at {origin_of(url)}: {roles}", f"the token is in {credentials.path}"]
    emit(said, as_json=as_json, text=escape("\n".join(lines)))


def _authority(url: str, credentials: Credentials, ca_file: Path | None, fingerprint: str) -> str:
    """Return the CA by which to trust the cloud, as PEM, "" for those of the system."""
    if not url.startswith("https://"):
        if not is_loopback(urllib.parse.urlsplit(url).hostname or ""):
            print(f"warning: {url} has no TLS: the token can be read on the way", file=sys.stderr)
        return ""
    if ca_file is not None:
        try:
            ca_pem = ca_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--ca-file {ca_file} cannot be read ({error})") from error
        fingerprint_of(ca_pem)
        return ca_pem
    if not fingerprint:
        known = credentials.ca_pem(url)
        if asyncio.run(_is_trusted(url, known)):
            return known
    ca_pem = asyncio.run(fetch_authority(url))
    found = fingerprint_of(ca_pem)
    if fingerprint:
        if found != fingerprint.replace(":", "").lower():
            raise ConfigError(f"the CA of {url} has another fingerprint, {found}; you may be on a wrong host")
        return ca_pem
    what = f"the certificate of {url} is of an unknown CA, with the fingerprint {found}"
    if not sys.stdin.isatty():
        raise ConfigError(f"{what}; if `walle cloud up` shows the same, give it as --fingerprint, or give --ca-file")
    print(f"{what}.", file=sys.stderr)
    if not typer.confirm("Does `walle cloud up` show the same?", err=True):
        raise typer.Exit(1)
    return ca_pem


async def _is_trusted(url: str, ca_pem: str) -> bool:
    try:
        await _whoami(url, "", ca_pem)
    except CloudCertificateError:
        return False
    except CloudRefusedError:
        return True
    return True


def logout(url: UrlArgument, as_json: JsonFlag = False) -> None:
    """Forget the token of a cloud; the cloud still takes it until it is revoked."""
    is_known = Credentials.load().remove(url)
    if shutil.which("git"):
        for section in ("credential", "http"):
            _git_config("--remove-section", f"{section}.{origin_of(url)}")
    text = f"the token of {origin_of(url)} is forgotten" if is_known else f"there was no token of {origin_of(url)}"
    emit({"url": origin_of(url), "forgotten": is_known}, as_json=as_json, text=escape(text))


def git_credential(
    action: Annotated[GitAction, typer.Argument(help="What git asks for; its details come on standard input.")],
) -> None:
    """Give git the token of a cloud: a credential helper, which `walle login` sets up."""
    said = _read_fields(sys.stdin.read(_MAX_CHARS))
    url = f"{said.get('protocol', '')}://{said.get('host', '')}"
    credentials = Credentials.load()
    match action:
        case GitAction.GET:
            is_named = origin_of(os.environ.get("WALLE_URL", "")) == origin_of(url)
            token = (os.environ.get("WALLE_TOKEN", "") if is_named else "") or credentials.get(url).token
            if token:
                print(f"username={_USER}\npassword={check_token(token)}")
        case GitAction.STORE:
            password = said.get("password", "")
            if password and not credentials.get(url).token:
                credentials.put(url, check_token(password))
        case GitAction.ERASE:  # the cloud refused it
            if said.get("password", "") == credentials.get(url).token:
                credentials.remove(url)


def _read_fields(text: str) -> dict[str, str]:
    """Return the lines `key=value` that git writes."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _ask() -> str:
    if sys.stdin.isatty():
        return check_token(getpass.getpass("token: "))
    return check_token(sys.stdin.read(_MAX_CHARS))


async def _whoami(url: str, token: str, ca_pem: str) -> TokenJson:
    async with open_client(AdminClient, url, token, ca_pem=ca_pem, option="URL") as client:
        return await client.whoami()


def _tell_git(url: str, ca_file: str) -> None:
    """Make walle the only credential helper for the cloud, as another one would keep the token; pin the CA."""
    if shutil.which("git") is None:
        return
    program = shutil.which("walle")
    python = f"{shlex.quote(sys.executable)} -c 'from walle.cli import main; main()'"
    helper = f"!{shlex.quote(program) if program else python} git-credential"
    key = f"credential.{origin_of(url)}.helper"
    settings = [("--replace-all", key, ""), ("--add", key, helper)]
    if ca_file:
        settings.append(("--replace-all", f"http.{origin_of(url)}.sslCAInfo", ca_file))
    if ca_file and os.environ.get(_GIT_CA_FILE):
        what = f"git trusts the authorities of {_GIT_CA_FILE} alone, not that of {origin_of(url)}"
        print(f"warning: {what}; run: unset {_GIT_CA_FILE}, or add {ca_file} to that file", file=sys.stderr)
    for words in settings:
        done = _git_config(*words)
        if done.returncode:
            raise ConfigError(
                f"git's configuration cannot be changed ({done.stderr.strip()}); use --no-git to leave it out"
            )


def _git_config(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", "config", "--global", *words], capture_output=True, text=True, check=False)


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle login https://127.0.0.1:8470")(login)
    app.command(epilog="Example: walle logout https://127.0.0.1:8470")(logout)
    app.command("git-credential", epilog="Example: walle git-credential get")(git_credential)
