"""Declaration of an option: a dataclass's field with what a command and a configuration file show of it.

`walle cloud up` makes its options, and the keys of `walle.toml`, from the fields that are declared here.
"""

import dataclasses
from typing import Any

_KEY = "walle.option"  # key in the metadata of a field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Option that a field declares. `section` and `key` are its place in `walle.toml`, `flag` is that of the command.

    `at_command` is the command's default, None where it is the field's. `least` and `most` bound a number.
    """

    section: str
    key: str
    help: str
    flag: str = ""
    at_command: Any = None
    least: float | None = None
    most: float | None = None
    envvar: str | None = None
    metavar: str | None = None


def option[T](
    default: T,
    place: str,
    help_text: str,
    *,
    flag: str = "",
    at_command: T | None = None,
    least: float | None = None,
    most: float | None = None,
    envvar: str | None = None,
    metavar: str | None = None,
) -> T:
    """Return a dataclass's field with an option. `place` is SECTION.KEY; without a `flag` it is the field's name."""
    section, _, key = place.partition(".")
    shown = Option(
        section=section,
        key=key,
        help=help_text,
        flag=flag,
        at_command=at_command,
        least=least,
        most=most,
        envvar=envvar,
        metavar=metavar,
    )
    field: T = dataclasses.field(default=default, metadata={_KEY: shown})
    return field


def options_of(kind: type) -> list[tuple[dataclasses.Field[Any], Option]]:
    """Return the fields of a dataclass that are options, in their order."""
    return [(field, field.metadata[_KEY]) for field in dataclasses.fields(kind) if _KEY in field.metadata]
