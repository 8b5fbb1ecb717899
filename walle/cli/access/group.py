"""`walle group`: the groups of a cloud's scenarios."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.admin_client import AdminClient, MovedJson

GroupArgument = Annotated[str, typer.Argument(help="The group, such as a team.")]
ScenariosArgument = Annotated[list[str], typer.Argument(help="The scenarios, which are task repositories.")]


def list_scenarios(url: UrlOption, token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """List the scenarios that you may read, by group, with your role and git address of each."""
    found = call_cloud(AdminClient, url, token, lambda client: client.groups())
    rows: list[dict[str, Any]] = []
    for one in found:
        path = f"{one['group']}/{one['scenario']}" if one["group"] else one["scenario"]
        rows.append({**one, "git": f"{url.rstrip('/')}/git/{path}.git"})
    emit_rows(rows, as_json=as_json)


def add(
    group: GroupArgument,
    scenario: ScenariosArgument,
    url: UrlOption,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Put scenarios into a group, each out of the one that it is in. This needs the role admin.

    Who has a role for the group has it in them within a second; who has one for the group of before loses it. A
    scenario keeps its name, its releases and its address without a group.
    """

    async def move(client: AdminClient) -> list[MovedJson]:
        return [await client.add_to_group(group, one) for one in scenario]

    moved = call_cloud(AdminClient, url, token, move)
    lines = []
    for one in moved:
        was = f", and no longer in {one['was']}" if one["was"] not in ("", group) else ""
        lines.append(escape(f"{one['scenario']} is in the group {group}{was}"))
    emit(moved, as_json=as_json, text="\n".join(lines))


def remove(
    group: GroupArgument,
    scenario: ScenariosArgument,
    url: UrlOption,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Take scenarios out of a group; nothing else of them changes. This needs the role admin."""

    async def take(client: AdminClient) -> None:
        for one in scenario:
            await client.remove_from_group(group, one)

    call_cloud(AdminClient, url, token, take)
    removed = [{"group": group, "scenario": one} for one in scenario]
    text = "\n".join(escape(f"{one} is no longer in the group {group}") for one in scenario)
    emit(removed, as_json=as_json, text=text)


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help="Show and change the groups of scenarios.", no_args_is_help=True)
    commands.command("list", epilog="Example: walle group list --url https://127.0.0.1:8470")(list_scenarios)
    commands.command(epilog="Example: walle group add shop cart search")(add)
    commands.command(epilog="Example: walle group remove shop search")(remove)
    app.add_typer(commands, name="group")
