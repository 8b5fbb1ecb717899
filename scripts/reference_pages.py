"""Writer of the pages in docs/reference that are made from the code (`PAGES`).

usage: python -m scripts.reference_pages    (docs/conf.py runs it for each build of the site; git ignores the pages)
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import typer.main
from fastapi import FastAPI

from scripts import cv_page, np_page
from walle.access.access import Role
from walle.cli import app
from walle.cli.cloud.config import up_parameters
from walle.cli.cloud.options import SECTIONS
from walle.cloud.api.attributes import attribute_router
from walle.cloud.api.devices import registry_router
from walle.cloud.api.exclusive import cen_router, exclusive_router
from walle.cloud.api.features import feature_router
from walle.cloud.api.identity import identity_router
from walle.cloud.api.outcomes import device_router
from walle.cloud.api.releases import release_router, watch_router
from walle.cloud.api.routes import BUSINESS, ROUTES, Caller
from walle.cloud.api.targeting import targeting_router
from walle.cloud.api.tokens import token_router
from walle.cloud.api.tuning import tuning_router
from walle.cloud.telemetry.status import status_router
from walle.deploy.push.answerer import Answerer
from walle.engine_ext.operators import markdown as operators_page
from walle.metrics.table import MAX_RELEASES, METRICS
from walle.protocol import (
    CloudPolicy,
    HistoryPolicy,
    Option,
    OutputPolicy,
    StatePolicy,
    TrainingPolicy,
    TriggerCondition,
    options_of,
)
from walle.task.check.finding import MEANINGS
from walle.task.format.config import LIMITS, POLICIES

FOLDER = Path(__file__).parents[1] / "docs/reference"
_HOW = "<!-- Written by python -m scripts.reference_pages; change the docstrings and texts that it reads. -->"

_CLI_HEAD = f"""{_HOW}

# Commands

Every command has `--help` and, where it prints results, `--json`. Exit statuses: 0 for success, 1 for an error or a
result that is not good, 2 for wrong usage, 130 for Ctrl-C. "env NAME" is the environment variable that gives an option.
"""

_HTTP_HEAD = f"""{_HOW}

# HTTP API

A running cloud shows this page with forms to try each route at `/docs`, and its OpenAPI document at `/openapi.json`;
both work without the internet. An error is answered as `{{"error": message, "type": name}}`. Who may call
what is on [the page of routes](routes.md).

Two more parts are not in the OpenAPI document: `/cdn/PERMISSION/SHA256`, the shared files, with `Range`
and `ETag`, whose addresses are signed and expire; and
`/git/SCENARIO.git`, the task repositories by git's smart HTTP.
"""

_ROUTES_HEAD = f"""{_HOW}

# Routes and roles

Who may call each route of a cloud. The gateway is checked by this very table: a route that is not in it is closed, and
a test asks each route as each kind of caller. A person or a program sends `Authorization: Bearer TOKEN`; git and the
pages of `/docs` take the token as a password (Basic). What a caller may not see is answered as what does not exist.

Each role may do what the one before it may: {", ".join(f"`{role}`" for role in Role if role)}. Roles are given by
scenario, or for all of them as `*`; `metrics` and `admin` for `*` only.
"""

_TOML_HEAD = f"""{_HOW}

# walle.toml

The options of `walle cloud up`, by section: `walle cloud up FOLDER --config walle.toml`. An option on the command line
goes first, then its variable of the environment, then the file; a key that does not exist is an error with its line.
Paths are relative to the file. `walle cloud config walle.toml` checks a file, and prints every key with its value.
"""


_FINDINGS_HEAD = f"""{_HOW}

# Findings of the task check

The codes that `walle task check` prints; [how to use it](../task-check.md).

| code | what is wrong |
| --- | --- |
"""

_METRICS_HEAD = f"""{_HOW}

# Metrics

`GET /metrics` of a cloud's gateway answers these in Prometheus' text format, to a token of the role `metrics` on `*`. A
test compares this table with what a running cloud answers. Alert rules and a Grafana dashboard on them are in
`packaging/monitoring/`; [how to operate](../how-to/operate.md) says how to use them.

Units are Prometheus' base units. The unit "timestamp" is a time in seconds since the Unix epoch: `time() - NAME` is how
long ago that was. The values of labels are bounded, and no label has a device's id. A release has its own series
while it is under way or bakes, or is the latest full one of its task, for at most {MAX_RELEASES} releases.
"""

_OPTION_TABLE = re.compile(r"^\{\{(\w+): (.+)\}\}$", re.MULTILINE)  # section, and columns beside the key
_OPTION_TABLES = {
    kind.SECTION: kind
    for kind in (TriggerCondition, HistoryPolicy, StatePolicy, TrainingPolicy, OutputPolicy, CloudPolicy)
}
_OPTION_COLUMNS: dict[str, Callable[[Option], str]] = {
    "default": lambda one: one.shown_default,
    "values": lambda one: one.values,
    "meaning": lambda one: one.meaning,
}


def cli_page() -> str:
    """Return docs/reference/cli.md."""
    root = typer.main.get_command(app)
    return "\n".join([_CLI_HEAD, *_command_lines(root, "walle")]).rstrip() + "\n"


def _command_lines(command: Any, path: str) -> Iterator[str]:
    for name, child in sorted(getattr(command, "commands", {}).items()):
        full = f"{path} {name}"
        is_group = bool(getattr(child, "commands", None))
        if not is_group or child.invoke_without_command:
            yield from _own_lines(child, full)
        if is_group:
            yield from _command_lines(child, full)


def _own_lines(command: Any, path: str) -> Iterator[str]:
    arguments = [one for one in command.params if not _is_option(one)]
    usage = " ".join([path, *(_argument(one) for one in arguments), "[OPTIONS]"])
    yield f"## {path}\n\n{_paragraphs(command.help)}\n\n```text\n{usage}\n```\n"
    rows = [_row(one) for one in command.params if not one.hidden and one.name != "help"]
    if rows:
        yield "| argument or option | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    if command.epilog:
        yield f"{command.epilog.partition(':')[0]}: `{command.epilog.partition(': ')[2]}`\n"


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper().strip("[]")
    shown = f"{name}..." if parameter.nargs == -1 else name
    return shown if parameter.required else f"[{shown}]"


def _row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts] if _is_option(parameter) else [_argument(parameter)]
    notes = []
    if parameter.required and _is_option(parameter):
        notes.append("required")
    if parameter.envvar:
        notes.append(f"env {parameter.envvar}")
    default = parameter.default
    if default is not None and default != "" and default is not False and not callable(default):
        notes.append(f"default {default}")
    more = f" ({'; '.join(notes)})" if notes else ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {_cell(parameter.help or '')}{more} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str | None) -> str:
    parts = (text or "").split("\n\n")
    return "\n\n".join(part if part.startswith("- ") else " ".join(part.split()) for part in parts)


def findings_page() -> str:
    """Return docs/reference/findings.md."""
    return _FINDINGS_HEAD + "".join(f"| `{code}` | {_cell(meaning)} |\n" for code, meaning in MEANINGS.items())


def http_page() -> str:
    """Return docs/reference/http.md."""
    document = _api().openapi()
    lines = [_HTTP_HEAD]
    part = ""
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            if (tag := route["tags"][0]) != part:
                part = tag
                lines.append(f"## {tag.capitalize()}\n")
            lines.append(f"### {method.upper()} {path}\n\n{_paragraphs(route.get('description', ''))}\n")
            lines += _body_lines(route, document["components"]["schemas"])
    return "\n".join(lines).rstrip() + "\n"


def _api() -> FastAPI:
    """Return the API's routes; what they call is never called."""
    nothing = cast("Any", None)
    api = FastAPI()
    for router in (
        release_router(nothing, nothing, nothing),
        targeting_router(nothing, nothing),
        device_router(nothing, nothing),
        tuning_router(nothing, nothing, nothing, nothing),
        cen_router(nothing, nothing, nothing, nothing, nothing, nothing),
        identity_router(nothing, nothing),
        registry_router(nothing, nothing, nothing),
        exclusive_router(
            nothing, nothing, nothing, nothing, nothing, typed_policy=nothing, space=nothing, audit=nothing
        ),
        attribute_router(nothing, nothing, nothing, on_change=nothing, space=nothing, audit=nothing, clock=nothing),
        feature_router(nothing, nothing),
        token_router(nothing, ""),
        watch_router(nothing, nothing, Answerer(), nothing),
        status_router(nothing, nothing),
    ):
        api.include_router(router)
    return api


def _body_lines(route: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    parameters = [one for one in route.get("parameters", ()) if one["in"] == "query"]
    if parameters:
        yield "| query parameter | type | default | meaning |\n| --- | --- | --- | --- |"
        for one in parameters:
            schema = one["schema"]
            default = f"`{schema['default']}`" if schema.get("default") not in (None, "") else ""
            yield f"| `{one['name']}` | {_type(schema, schemas)} | {default} | {_cell(one.get('description', ''))} |"
        yield ""
    content = route.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return
    schema = content["schema"]
    schema = next((one for one in schema.get("anyOf", ()) if "$ref" in one), schema)
    yield from _schema_lines(schema, schemas, "body")


def _schema_lines(schema: Mapping[str, Any], schemas: Mapping[str, Any], title: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    yield f"| key of the {title} | type | default | meaning |\n| --- | --- | --- | --- |"
    nested = []
    for key, one in schema["properties"].items():
        if "$ref" in one or "properties" in one:
            nested.append((one, key))
        required = "required" if key in schema.get("required", ()) else ""
        default = f"`{one['default']}`" if "default" in one and "$ref" not in one and one["default"] != "" else required
        yield f"| `{key}` | {_type(one, schemas)} | {default} | {_cell(one.get('description', ''))} |"
    yield ""
    for inner, key in nested:
        yield from _schema_lines(inner, schemas, f"object `{key}`")


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        named = schemas[schema["$ref"].rpartition("/")[2]]
        return ", ".join(f"`{value}`" for value in named["enum"]) if "enum" in named else "object"
    if "anyOf" in schema:
        return " or ".join(_type(one, schemas) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], schemas)}"
    return str(schema.get("type", "any"))


def routes_page() -> str:
    """Return docs/reference/routes.md."""
    lines = [_ROUTES_HEAD, "| method | path | caller | role | where | note |\n| --- | --- | --- | --- | --- | --- |"]
    for rule in (*ROUTES, BUSINESS):
        is_person = rule.caller in (Caller.PERSON, Caller.SESSION)
        role = (f"`{rule.role}`" if rule.role else "any") if is_person else ""
        where = rule.where.value if is_person and rule.role else ""
        path = rule.path.replace(":path}", "}")
        cells = (rule.methods, f"`{path}`", rule.caller.value, role, where, rule.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def walle_toml_page() -> str:
    """Return docs/reference/walle-toml.md."""
    parameters = up_parameters()
    lines = [_TOML_HEAD]
    for section, keys in SECTIONS.items():
        lines.append(f"## [{section}]\n\n| key | type | meaning |\n| --- | --- | --- |")
        for key, name in keys.items():
            parameter = parameters[name]
            default = parameter.default
            kind = "list of texts" if parameter.multiple else _toml_type(default)
            shown = "" if default in (None, "", False) or parameter.multiple else f" (default {default})"
            lines.append(f"| `{key}` | {kind} | {_cell(parameter.help or '')}{shown} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _toml_type(default: Any) -> str:
    kinds = {bool: "true or false", int: "whole number", float: "number"}
    return kinds.get(type(default), "text")


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    lines = [_METRICS_HEAD]
    part = ""
    for metric in METRICS.values():
        if metric.part != part:
            lines += [""] if part else []
            part = metric.part
            lines.append(f"## {part}\n\n| name | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |")
        labels = "; ".join(f"`{name}`: {_cell(values)}" for name, values in metric.labels.items())
        cells = (f"`{metric.name}`", metric.type.value, metric.unit, labels, f"{_cell(metric.help)}.")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def task_toml_page() -> str:
    """Return docs/reference/task-toml.md: its text is written by hand, the tables of options are made here."""
    text = (FOLDER / "task-toml.md.in").read_text()
    return f"{_HOW}\n\n{_OPTION_TABLE.sub(_option_rows, text).replace('{{limits}}', _limit_rows())}"


def _option_rows(found: re.Match[str]) -> str:
    options = options_of(_OPTION_TABLES[found[1]]).values()
    columns = [_OPTION_COLUMNS[name] for name in found[2].split(", ")]
    return "\n".join(f"| {' | '.join([f'`{one.key}`', *(column(one) for column in columns)])} |" for one in options)


def _limit_rows() -> str:
    numbers = [f"| `{key}` | {default:,} | {least:,}, {most:,} |" for key, (default, least, most) in LIMITS.items()]
    choices = {key: ", ".join(f'`"{one}"`' for one in found) for key, (_, found) in POLICIES.items()}
    return "\n".join([*numbers, *(f'| `{key}` | `"{POLICIES[key][0]}"` | {choices[key]} |' for key in POLICIES)])


PAGES = {
    "cli.md": cli_page,
    "cv.md": cv_page.page,
    "findings.md": findings_page,
    "http.md": http_page,
    "metrics.md": metrics_page,
    "np.md": np_page.page,
    "operators.md": operators_page,
    "routes.md": routes_page,
    "task-toml.md": task_toml_page,
    "walle-toml.md": walle_toml_page,
}


def main() -> None:
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.exists() or path.read_text() != text:  # Sphinx reads what changed
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(text)
            new.replace(path)  # atomic: another build may read the page now


if __name__ == "__main__":
    main()
