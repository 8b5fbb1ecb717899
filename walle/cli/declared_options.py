"""Parameters of commands that are made from declarations: fields with `walle.base.option`, and flags of requests."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from walle.base.option import Option


def with_options[**P, R](parameters: Sequence[inspect.Parameter]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a command that takes `**given` show these in its signature, from which typer makes its own parameters."""

    def shown(command: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(command)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        first = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        merged = [*first, *parameters, *own[len(first) :]]
        command.__signature__ = signature.replace(parameters=merged)  # type: ignore[attr-defined]
        return command

    return shown


def parameter(name: str, kind: Any, default: Any, flag: str, **about: Any) -> inspect.Parameter:
    """Return a parameter with an option; `about` is what `typer.Option` takes."""
    annotation = Annotated[kind, typer.Option(flag, **about)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_parameter(field: dataclasses.Field[Any], shown: Option, default: Any) -> inspect.Parameter:
    """Return the parameter of a declared option; a tuple of texts is one that is given once for each."""
    is_list = field.type == tuple[str, ...]
    return parameter(
        field.name,
        list[str] | None if is_list else field.type,
        None if is_list else default,
        shown.flag or f"--{field.name.replace('_', '-')}",
        help=shown.help,
        min=shown.least,
        max=shown.most,
        envvar=shown.envvar,
        metavar=shown.metavar,
    )


def option_value(field: dataclasses.Field[Any], given: Any) -> Any:
    """Return the field's value for that of its parameter: a list as a tuple, a path from the root."""
    if field.type == tuple[str, ...]:
        return tuple(given or ())
    return given.resolve() if isinstance(given, Path) else given
