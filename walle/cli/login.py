"""`walle login`, `walle logout`, and `walle git-credential`, which gives git the token of a cloud."""

import asyncio
import getpass
import os
import shlex
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from walle.cli.credentials import Credentials, check_token, origin_of, read_token
from walle.cli.output import JsonFlag, emit
from walle.deploy.cloud_client import CloudAddressError
from walle.deploy.token_client import TokenClient, TokenJson
from walle.errors import ConfigError

_MAX_CHARS = 65_536  # of what git says about a credential
_USER = "walle"  # a cloud takes any name

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
        Path | None, typer.Option(help="File that has the token; if not given, it is asked for, or read from a pipe.")
    ] = None,
    git: GitFlag = True,
    as_json: JsonFlag = False,
) -> None:
    """Keep your token of a cloud, for commands and for git: no command line, address or environment needs it.

    It is kept in ~/.config/walle/credentials.toml, which only you can read, after the cloud has said whose it is.
    """
    token = read_token(token_file) if token_file else _ask()
    identity = asyncio.run(_whoami(url, token))
    credentials = Credentials.load()
    credentials.put(url, token)
    if git:
        _tell_git(url)
    said = {"url": origin_of(url), "name": identity["name"], "roles": identity["roles"], "git": git}
    roles = ", ".join(f"{role} in {scenario}" for scenario, role in identity["roles"].items()) or "no role"
    lines = [f"you are {identity['name']} at {origin_of(url)}: {roles}", f"the token is in {credentials.path}"]
    emit(said, as_json=as_json, text=escape("\n".join(lines)))


def logout(url: UrlArgument, as_json: JsonFlag = False) -> None:
    """Forget the token of a cloud; the cloud still takes it until it is revoked."""
    is_known = Credentials.load().remove(url)
    if shutil.which("git"):
        _git_config("--remove-section", f"credential.{origin_of(url)}")
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
            token = (os.environ.get("WALLE_TOKEN", "") if is_named else "") or credentials.token(url)
            if token:
                print(f"username={_USER}\npassword={check_token(token)}")
        case GitAction.STORE:
            password = said.get("password", "")
            if password and not credentials.token(url):
                credentials.put(url, check_token(password))
        case GitAction.ERASE:  # the cloud refused it
            if said.get("password", "") == credentials.token(url):
                credentials.remove(url)


def _read_fields(text: str) -> dict[str, str]:
    """Return the lines `key=value` that git writes."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _ask() -> str:
    if sys.stdin.isatty():
        return check_token(getpass.getpass("token: "))
    return check_token(sys.stdin.read(_MAX_CHARS))


async def _whoami(url: str, token: str) -> TokenJson:
    try:
        client = TokenClient(url, token)
    except CloudAddressError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from error
    async with client:
        return await client.whoami()


def _tell_git(url: str) -> None:
    """Make walle the only credential helper for the cloud: another one would keep the token in its own way."""
    if shutil.which("git") is None:
        return
    program = shutil.which("walle")
    python = f"{shlex.quote(sys.executable)} -c 'from walle.cli import main; main()'"
    helper = f"!{shlex.quote(program) if program else python} git-credential"
    key = f"credential.{origin_of(url)}.helper"
    for words in (("--replace-all", key, ""), ("--add", key, helper)):
        done = _git_config(*words)
        if done.returncode:
            raise ConfigError(f"git cannot be told of the token ({done.stderr.strip()}); use --no-git to leave it out")


def _git_config(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", "config", "--global", *words], capture_output=True, text=True, check=False)


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle login http://127.0.0.1:8470")(login)
    app.command(epilog="Example: walle logout http://127.0.0.1:8470")(logout)
    app.command("git-credential", epilog="Example: walle git-credential get")(git_credential)
