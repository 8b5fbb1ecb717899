"""Texts that PostgreSQL stores: without NUL characters and halves of characters, or as JSON."""

import json
from typing import Any

_REPLACEMENT = "\ufffd"


def storable_text(text: str) -> str:
    """Return text with a replacement for each character that PostgreSQL does not store."""
    return text.replace("\0", _REPLACEMENT).encode(errors="replace").decode()


def storable_json(text: str) -> str:
    """Return JSON whose texts are as `storable_text` returns them: an escape may be a character that is not stored."""
    return json.dumps(_storable(json.loads(text))) if "\\u" in text else storable_text(text)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(key): _storable(one) for key, one in value.items()}
    return [_storable(one) for one in value] if isinstance(value, list) else value


def is_storable(*texts: str) -> bool:
    """Return whether PostgreSQL stores all these texts unchanged."""
    return all(text == storable_text(text) for text in texts)


class PlainTexts:
    """Base of databases that store each text that is whole. Other texts are as on a server, to which they may move."""

    def packed(self, text: str) -> str:
        """Return the value of a column of kind `any` for a text."""
        return text

    def unpacked(self, value: str) -> str:
        """Return the text of a value of a column of kind `any`."""
        return value

    def storable(self, text: str) -> str:
        """Return a text as the database stores it in other columns: without NUL and halves of characters."""
        return storable_text(text)


class JsonTexts:
    """Base of databases that do not: there a column of kind `any` has texts as JSON."""

    def packed(self, text: str) -> str:
        return json.dumps(text)

    def unpacked(self, value: str) -> str:
        text: str = json.loads(value)
        return text

    def storable(self, text: str) -> str:
        return storable_text(text)
