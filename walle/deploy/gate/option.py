"""Options of the gate: key, meaning, default and range of each, and the parser of their values. Pure.

An option is declared once, as a field of a dataclass with `gate_option` as its default. Help texts, schemas and error
messages are made from what `gate_options` returns.
"""

import contextlib
import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from walle.errors import DeployError
from walle.protocol import printable

_MAX_SHOWN_CHARS = 80  # limit of a refused key or value in an error message


class GateError(DeployError):
    """An unknown option of the gate, or a value that is out of range. `field` is the option's key."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(field, what)
        self.field = field
        self.what = what

    def __str__(self) -> str:
        return f"gate.{self.field}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Range:
    """Bounds of a number, or of the length of a list. They are allowed values themselves unless the range is open."""

    least: float
    most: float
    is_open: bool = False

    def __contains__(self, value: float) -> bool:
        return self.least < value < self.most if self.is_open else self.least <= value <= self.most

    def __str__(self) -> str:
        if self.is_open:
            return f"above {self.least:g} and below {self.most:g}"
        return f"from {self.least:.0f} to {self.most:.0f}"


def gate_option[T](default: T, allowed: Range, meaning: str, *, unit: str = "") -> T:
    """Declare a dataclass field as an option: a float, an int or a tuple of texts. `meaning` is one line of help."""
    return dataclasses.field(default=default, metadata={"allowed": allowed, "meaning": meaning, "unit": unit})


@dataclasses.dataclass(frozen=True)
class GateOption:
    """An option that a field declares. `kind` is float, int or tuple (a list of texts)."""

    key: str
    kind: type
    default: Any
    allowed: Range
    meaning: str
    unit: str

    @property
    def form(self) -> str:
        """The values that the option accepts, such as `a whole number from 1 to 100`."""
        if self.kind is tuple:
            return f"a list of up to {self.allowed.most:.0f} {self.unit}"
        noun = "a whole number" if self.kind is int else "a number"
        return f"{noun} of {self.unit} {self.allowed}" if self.unit else f"{noun} {self.allowed}"

    @property
    def help(self) -> str:
        """Meaning, form and default in one line."""
        default = "none" if self.kind is tuple else f"{self.default:g}"
        return f"{self.meaning}; {self.form}, default {default}"

    def value(self, plain: Any) -> Any:
        """Return a plain value, as JSON has it, as one of the option's kind. Raises GateError."""
        if self.kind is tuple:
            is_list = isinstance(plain, (list, tuple)) and all(isinstance(one, str) for one in plain)
            is_allowed = is_list and len(plain) in self.allowed
        else:
            is_number = isinstance(plain, (int, float)) and not isinstance(plain, bool)
            is_allowed = is_number and plain in self.allowed and (self.kind is float or plain == int(plain))
        if not is_allowed:
            raise GateError(self.key, f"{printable(repr(plain)[:_MAX_SHOWN_CHARS])} is not {self.form}")
        return self.kind(plain)

    def parse(self, text: str) -> Any:
        """Return the value of a text; a list has this text alone. Raises GateError."""
        if self.kind is tuple:
            return self.value((text,))
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return self.value(kind(text))
        return self.value(text)


def gate_options(declared: type) -> dict[str, GateOption]:
    """Return the options that the fields of a dataclass declare, by key, in their order."""
    hints = typing.get_type_hints(declared)
    return {
        one.name: GateOption(
            one.name, typing.get_origin(hints[one.name]) or hints[one.name], one.default, **one.metadata
        )
        for one in dataclasses.fields(declared)
    }


def find_option(options: Mapping[str, GateOption], key: str) -> GateOption:
    """Return the option with this key. Raises GateError, which names the similar keys, or all of them."""
    found = options.get(key)
    if found is None:
        shown = printable(key[:_MAX_SHOWN_CHARS])
        near = difflib.get_close_matches(shown, options)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(options)}"
        raise GateError(shown, f"is not an option of the gate; {hint}")
    return found


def parse_options(options: Mapping[str, GateOption], texts: Iterable[str]) -> dict[str, Any]:
    """Return the values of texts KEY=VALUE, by key. The values of a list are collected; another key is given once.

    Raises:
        GateError: a key is unknown or given twice, or a value is out of its range.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, sign, given = text.partition("=")
        one = find_option(options, key.strip())
        if not sign:
            raise GateError(one.key, f"write {one.key}=VALUE, where VALUE is {one.form}")
        value = one.parse(given.strip())
        if one.key not in values:
            values[one.key] = value
        elif one.kind is tuple:
            values[one.key] = one.value(values[one.key] + value)
        else:
            raise GateError(one.key, "is given twice")
    return values
