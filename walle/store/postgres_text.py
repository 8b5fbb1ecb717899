"""Texts that PostgreSQL stores: without NUL characters and halves of characters."""

_REPLACEMENT = "\ufffd"


def storable_text(text: str) -> str:
    """Return text with a replacement for each character that PostgreSQL does not store."""
    return text.replace("\0", _REPLACEMENT).encode(errors="replace").decode()


def is_storable(*texts: str) -> bool:
    """Return whether PostgreSQL stores all these texts unchanged."""
    return all(text == storable_text(text) for text in texts)
