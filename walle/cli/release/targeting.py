"""`walle release explain|preview`: why a device gets what it gets, and how many devices a rule reaches."""

from collections.abc import Callable, Coroutine
from typing import Annotated

import typer
from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.release_client import ExplainedTaskJson, ExplanationJson, PreviewJson, ReleaseClient
from walle.deploy.releases.request import start_flags
from walle.deploy.releases.stage_text import stage_text

_DAY_S = 86_400.0

_HELP = {flag.key: flag.help for flag in start_flags()["policy"]}


def run_client[T](url: str, token: str, work: Callable[[ReleaseClient], Coroutine[None, None, T]]) -> T:
    """Return what `work` returns for the cloud at `url`."""
    return call_cloud(ReleaseClient, url, token, work)


def explain(
    url: UrlOption,
    device: Annotated[str, typer.Option(help="The device's id, as `walle device list` shows it.")],
    task: Annotated[str, typer.Option(help="Only this task, as scenario/task.")] = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Say why a device gets what it gets: each release of each task in its order, and each term of its policy."""
    found = run_client(url, token, lambda client: client.explain(device, task))
    if as_json:
        emit(found, as_json=True)
        return
    for line in explanation_lines(found):
        emit(found, as_json=False, text=escape(line))


def explanation_lines(found: ExplanationJson) -> list[str]:
    """Return an explanation for people."""
    lines = [f"{found['device_id']}, app version {found['app_version'] or 'unknown'}"]
    for task in found["tasks"]:
        lines += ["", *_task_lines(task)]
    return lines if found["tasks"] else [*lines, "no task has a release"]


def _task_lines(task: ExplainedTaskJson) -> list[str]:
    lines = [f"{task['task']}: has {task['has'] or 'nothing'}, gets {task['gets'] or 'nothing'}: {task['because']}"]
    for number, release in enumerate(task["releases"], 1):
        stage = stage_text(release["stage"])
        lines.append(f"  {number}. {release['release']} ({release['version']}, {stage}, {release['kind']})")
        lines += [
            f"       {'yes' if one['holds'] else 'no ':3}  {one['term']}  ({one['device']})" for one in release["terms"]
        ]
        lines.append(f"       {release['result']}")
    return lines


def preview(
    scenario: Annotated[str, typer.Argument(help="The task's repository.")],
    url: UrlOption,
    rule: Annotated[str, typer.Argument(help="The rule, such as: os == 'android' && memory_mb >= 4096")] = "",
    task: Annotated[str, typer.Option(help="Only releases of this task of the scenario.")] = "",
    app_version: Annotated[str, typer.Option(help=_HELP["app_version"])] = "",
    days: Annotated[float, typer.Option(help="Count devices seen in these last days.", min=0.001, max=1000)] = 7.0,
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Say how many devices a rule reaches, of those seen in the last week, and which releases it meets.

    A rule that is not valid is refused with the place. Nothing is released.
    """

    async def ask(client: ReleaseClient) -> PreviewJson:
        return await client.preview(scenario, task, rule=rule, app_version=app_version, seen_within_s=days * _DAY_S)

    found = run_client(url, token, ask)
    if as_json:
        emit(found, as_json=True)
        return
    part = f" ({found['reached'] / found['seen']:.1%})" if found["seen"] else ""
    emit(
        found, as_json=False, text=f"{found['reached']} of {found['seen']} devices{part}; the policy is {found['kind']}"
    )
    if found["is_full"]:
        emit(found, as_json=False, text="there are more: these are the devices that the cloud keeps, seen last")
    if found.get("is_partial"):  # an older cloud does not say
        emit(found, as_json=False, text="the count reached its time limit: more devices were not counted")
    if len(found["terms"]) > 1:
        emit_rows([{"term": one["term"], "devices": one["reached"]} for one in found["terms"]], as_json=False)
    meets = [
        {
            "meets": one["release"],
            "task": one["task"],
            "stage": stage_text(one["stage"]),
            "devices of both": one["devices"],
            "first goes": "the new one" if one["goes_first"] else one["release"],
        }
        for one in found["meets"]
    ]
    emit_rows(meets, as_json=False)


def add_commands(group: typer.Typer) -> None:
    """Add the commands to `walle release`."""
    group.command(epilog="Example: walle release explain --device phone-7 --task shop/ipv")(explain)
    group.command(epilog="""Example: walle release preview shop "os == 'android' && memory_mb >= 4096" """)(preview)
