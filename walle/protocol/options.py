"""Options of the tables of task.toml: each is declared once, as a field of a dataclass, with its check and meaning.

A task.toml, a manifest, the checks of both and the reference page are made from the declaration. The functions here
make such fields: `number`, `flag`, `choice` and `option`.
"""

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, ClassVar, Self, cast

from walle.protocol.fields import ProtocolError, shorten

_METADATA = "option"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One key of a table: its field and default, its range and meaning for the reference page, and its conversions.

    `check` returns what is wrong with a value of the field, "" if nothing is. `parse` makes the value from that of a
    table, where it can, and `to_json` is the inverse. An option that differs from its default is written to a
    manifest, so that an older walle reads all others; one that is `always_written` is, too.
    """

    key: str
    field: str
    default: Any
    meaning: str
    values: str  # for the page: the least and the most, or the choices
    shown_default: str
    check: Callable[[Any], str]
    parse: Callable[[Any], Any]
    to_json: Callable[[Any], Any]
    always_written: bool


def number(
    default: int,
    least: int,
    most: int,
    meaning: str,
    *,
    kind: str = "",
    key: str = "",
    shown_default: str = "",
    always_written: bool = False,
) -> Any:
    """Return a field of a whole number; `kind` names the right values in errors, from `least` to `most` without it."""
    kind = kind or f"a whole number from {least} to {most}"

    def check(value: object) -> str:
        is_right = type(value) is int and least <= value <= most
        return "" if is_right else f"must be {kind}, is {shorten(value)}"

    values = f"{least:,}, {most:,}"
    return option(
        default,
        meaning,
        check,
        key=key,
        values=values,
        shown_default=shown_default,
        always_written=always_written,
    )


def flag(default: bool, meaning: str) -> Any:
    """Return a field that is true or false."""
    return option(default, meaning, lambda value: "" if type(value) is bool else _must("be true or false,", value))


def choice(
    default: str | None,
    choices: Collection[str],
    meaning: str,
    *,
    shown_default: str = "",
    always_written: bool = False,
) -> Any:
    """Return a field that is one of `choices`, of which an enumeration makes a member; with None it is not given."""

    def check(value: object) -> str:
        is_right = isinstance(value, str) and value in [*choices]
        return "" if is_right or value is default is None else _must(f"be one of {', '.join(choices)};", value)

    def parse(value: object) -> object:
        is_member = isinstance(choices, type) and issubclass(choices, enum.Enum) and value in [*choices]
        return choices(value) if is_member else value  # type: ignore[operator] # a type, as was asked

    values = ", ".join(f'`"{one}"`' for one in choices)
    return option(
        default,
        meaning,
        check,
        values=values,
        shown_default=shown_default,
        always_written=always_written,
        parse=parse,
        to_json=lambda value: value if value is None else str(value),
    )


def option(
    default: Any,
    meaning: str,
    check: Callable[[Any], str] = lambda _: "",
    *,
    key: str = "",
    values: str = "",
    shown_default: str = "",
    always_written: bool = False,
    parse: Callable[[Any], Any] = lambda value: value,
    to_json: Callable[[Any], Any] = lambda value: value,
    default_factory: Callable[[], Any] | None = None,
) -> Any:
    """Return a field of any kind; without `check`, `__post_init__` checks it."""
    declared = {
        "key": key,
        "meaning": meaning,
        "values": values,
        "shown_default": shown_default,
        "check": check,
        "parse": parse,
        "to_json": to_json,
        "always_written": always_written,
    }
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata={_METADATA: declared})
    return dataclasses.field(default=default, metadata={_METADATA: declared})


def options_of(table: type) -> Mapping[str, Option]:
    """Return the options of a table's class by their keys, in the order of the fields."""
    return _options(cast("Any", table))


@cache
def _options(table: Any) -> Mapping[str, Option]:
    found = {}
    for field in dataclasses.fields(table):
        declared = field.metadata.get(_METADATA)
        if declared is None:
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        made = {**declared, "key": declared["key"] or field.name}
        made["shown_default"] = made["shown_default"] or _shown(made["to_json"](default))
        found[made["key"]] = Option(field=field.name, default=default, **made)
    return found


class _Keys:
    """The keys of the table that a class describes."""

    def __get__(self, _: object, owner: "type[OptionTable]") -> tuple[str, ...]:
        return (*owner.OTHERS, *options_of(owner))


class OptionTable:
    """A dataclass whose fields are options: the table SECTION of task.toml, and the same of a manifest.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `cloud.queue`.
    """

    __slots__ = ()
    SECTION: ClassVar[str]
    OTHERS: ClassVar[tuple[str, ...]] = ()  # keys that are not options: the class reads them
    KEYS: ClassVar = _Keys()

    def __post_init__(self) -> None:
        for key, one in options_of(type(self)).items():
            if what := one.check(getattr(self, one.field)):
                raise ProtocolError(f"{self.SECTION}.{key}", what)

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return what a table describes; `to_json` is the inverse. An unknown key is refused."""
        return cls(**cls._parsed(table))

    @classmethod
    def _parsed(cls, table: object) -> dict[str, Any]:
        """Return the options that a table gives, by the names of their fields."""
        if not isinstance(table, Mapping):
            raise ProtocolError(cls.SECTION, f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError(cls.SECTION, f"has an unknown key {shorten(key)}; known are {', '.join(cls.KEYS)}")
        return {one.field: one.parse(table[key]) for key, one in options_of(cls).items() if key in table}

    def to_json(self) -> dict[str, Any]:
        """Return the table."""
        return {one.key: one.to_json(value) for one, value in self._written()}

    def _written(self) -> list[tuple[Option, Any]]:
        """Return the options that differ from their defaults, or are always written, with their values."""
        pairs = [(one, getattr(self, one.field)) for one in options_of(type(self)).values()]
        return [(one, value) for one, value in pairs if one.always_written or value != one.default]


def _must(what: str, value: object) -> str:
    return f"must {what} is {shorten(value)}"


def _shown(default: Any) -> str:
    """Return a default as the reference page shows it."""
    match default:
        case bool():
            return str(default).lower()
        case int():
            return f"{default:,}"
        case "" | None | [] | ():
            return "none"
        case str():
            return f'`"{default}"`'
        case _:
            return "none"
