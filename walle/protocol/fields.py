"""Readers of the fields of JSON messages, and the error of a message that is wrong."""

import json
from collections.abc import Mapping
from typing import Any

MAX_ID_CHARS = 256  # length of the ids of devices and reports: the cloud remembers thousands of them


class ProtocolError(ValueError):
    """A message with a part that is missing or wrong. `where` is the path to that part."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


def canonical_json(value: Any) -> bytes:
    """Return the one JSON encoding of `value` that is signed and hashed: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(where, f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
    return value


def take[T](source: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    if key not in source:
        raise ProtocolError(f"{where}.{key}", "is missing")
    value = source[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"{where}.{key}", f"must be {kind.__name__}, is {type(value).__name__}")
    if isinstance(value, str) and not value.isascii() and value != whole_characters(value):
        raise ProtocolError(f"{where}.{key}", "holds half a character (a lone surrogate), which UTF-8 cannot encode")
    return value


def take_optional(source: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under `key`, empty where an older device sent none."""
    return take(source, key, str, where) if key in source else ""


def whole_characters(text: str) -> str:
    """Return `text` with ? for each lone surrogate, which JSON can escape and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """Return `text` with each character that is not printable (controls, escapes, line breaks) as its escape.

    For text of a task or of a device before a terminal or a log file gets it.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def take_id(source: Mapping[str, Any], key: str, where: str) -> str:
    text = take(source, key, str, where)
    if len(text) > MAX_ID_CHARS:
        raise ProtocolError(f"{where}.{key}", f"{len(text)} characters, more than {MAX_ID_CHARS}")
    return text


def take_map(source: Mapping[str, Any], key: str, kinds: tuple[type, ...], where: str) -> dict[str, Any]:
    mapping = take(source, key, dict, where)
    for name, value in mapping.items():
        if not isinstance(value, kinds):
            raise ProtocolError(f"{where}.{key}.{name}", f"must be {kinds[0].__name__}, is {type(value).__name__}")
    return mapping


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_sha256(text: str, where: str) -> str:
    """Return `text` if it is a sha256 in lower-case hex."""
    if len(text) != 64 or any(letter not in "0123456789abcdef" for letter in text):
        raise ProtocolError(where, f"{text[:80]!r} is not a sha256 in lower-case hex")
    return text
