"""Help texts of the commands as plain text: brackets in them, such as walle[parquet], are no markup."""

import copy
from typing import Any

import typer
import typer.core
from rich.markup import escape


class _Command(typer.core.TyperCommand):
    """A command whose help is shown as it is written."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(_Command, _escaped(self)).format_help(ctx, formatter)


class _Group(typer.core.TyperGroup):
    """A group of commands whose help, and that of its commands, is shown as it is written."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(_Group, _escaped(self)).format_help(ctx, formatter)


def show_help_as_written(app: typer.Typer) -> None:
    """Have all commands below `app` show their help without reading markup in it; call it after the last is added."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        group.cls = _Group
        if group.typer_instance is not None:
            show_help_as_written(group.typer_instance)


def _escaped[C: typer.core.TyperCommand | typer.core.TyperGroup](command: C) -> C:
    """Return a copy with escaped texts, for one help page; the command's own texts are unchanged."""
    shown = copy.copy(command)
    for name in ("help", "epilog", "short_help"):
        if text := getattr(command, name):
            setattr(shown, name, escape(text))
    shown.params = [_escaped_parameter(one) for one in command.params]
    if isinstance(shown, typer.core.TyperGroup):
        shown.commands = {name: _escaped(one) for name, one in shown.commands.items()}  # type: ignore[type-var]
    return shown


def _escaped_parameter(parameter: Any) -> Any:
    shown = copy.copy(parameter)
    if text := getattr(parameter, "help", None):
        shown.help = escape(text)
    return shown
