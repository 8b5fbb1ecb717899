"""`walle token`: the tokens of people and programs in a cloud, for its admins."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.base.durable_file import write_file
from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.admin_client import AdminClient, TokenJson

NameArgument = Annotated[str, typer.Argument(help="Its owner: a person, or a program such as ci.")]


def add(
    name: NameArgument,
    url: UrlOption,
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="SCENARIO=ROLE, once for each: reader, author, author:BRANCH,BRANCH-* or releaser; *=ROLE for every"
            " scenario, also metrics and admin."
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="GROUP=ROLE, once for each: the role in each scenario of the group, now and later."),
    ] = None,
    token: TokenOption = "",
    days: Annotated[float, typer.Option(help="Days until it expires; 0: never.", min=0)] = 90.0,
    save_to: Annotated[
        Path | None, typer.Option("--save-to", help="Write it to this file, for its owner only, and do not print it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token and show it, this once: the cloud keeps only a hash of it."""
    roles, branches = _parse_roles(role or [], group or [])
    made = call_cloud(
        AdminClient, url, token, lambda client: client.add_token(name, roles, branches=branches, days=days or None)
    )
    until = _time(made["expires_s"])
    if save_to is None:
        text = f"{made['token']}\nthe token of {escape(name)}, shown this once; it expires: {until}"
        emit(made, as_json=as_json, text=text)
        return
    write_file(save_to, f"{made['token']}\n", mode=0o600)
    said = {"name": name, "file": str(save_to), "expires_s": made["expires_s"]}
    emit(said, as_json=as_json, text=f"the token of {escape(name)} is in {escape(str(save_to))}; it expires: {until}")


def list_tokens(url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """List the tokens: roles, who made them, when they were last used (to a minute), and when they expire."""
    found = call_cloud(AdminClient, url, token, lambda client: client.tokens())
    emit_rows(found if as_json else [_row(one) for one in found], as_json=as_json)


def revoke(name: NameArgument, url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Revoke a token: within 5 s nobody can use it."""
    call_cloud(AdminClient, url, token, lambda client: client.revoke_token(name))
    emit({"revoked": name}, as_json=as_json, text=f"the token of {escape(name)} is revoked")


def _parse_roles(for_scenarios: list[str], for_groups: list[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return role and branches by scenario, `*` or GROUP/*."""
    if not for_scenarios and not for_groups:
        raise typer.BadParameter("give a role, such as --role cart=author or --group shop=author", param_hint="--role")
    roles, branches = {}, {}
    texts = [(text, "--role", "SCENARIO", "") for text in for_scenarios]
    texts += [(text, "--group", "GROUP", "/*") for text in for_groups]
    for text, option, what, end in texts:
        name, equals, role = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not {what}=ROLE, such as shop=author", param_hint=option)
        role, colon, patterns = role.partition(":")
        if colon and role != "author":
            raise typer.BadParameter(f"{text!r}: only an author has branches", param_hint=option)
        roles[name + end] = role
        if colon:
            branches[name + end] = patterns.split(",")
    return roles, branches


def _row(token: TokenJson) -> dict[str, Any]:
    roles = []
    for scenario, role in token["roles"].items():
        patterns = token["branches"].get(scenario, [])
        roles.append(f"{scenario}={role}" + (f":{','.join(patterns)}" if patterns else ""))
    return {
        "name": token["name"],
        "roles": " ".join(roles),
        "made by": token["made_by"] or "unknown",
        "last used": _time(token.get("used_s")),
        "expires": _time(token["expires_s"]),
    }


def _time(at_s: float | None) -> str:
    return "never" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M}"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make, list and revoke tokens of people and programs.", no_args_is_help=True)
    group.command(epilog="Example: walle token add ci --role shop=releaser --days 30 --save-to ci.token")(add)
    group.command("list", epilog="Example: walle token list --url https://127.0.0.1:8470")(list_tokens)
    group.command(epilog="Example: walle token revoke ci")(revoke)
    app.add_typer(group, name="token")
