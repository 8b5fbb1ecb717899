"""Tolerant readers of the fields in an event's contents. In real logs fields are missing or have another type."""

import zlib

KINDS = ("page_enter", "page_scroll", "exposure", "click", "page_exit")  # the five basic kinds of §5.1
TEXT_CHARS = 64
MAX_NUMBER = 2**53  # a larger number is not a measurement


def number(value: object, default: float) -> float:
    """Return `value` as a float if it is a number of at most 2^53 in size, else `default`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        return default
    return float(value)


def text(value: object) -> str:
    """Return a text cut to 64 characters, an int of at most 2^53 in size as digits, "" for any other `value`."""
    if isinstance(value, str):
        return value[:TEXT_CHARS]
    if isinstance(value, int) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER:
        return str(value)
    return ""


def text_hash(value: str) -> int:
    """Return a 32-bit hash of a text, the same on every device: the CRC of its first 64 characters."""
    return zlib.crc32(value[:TEXT_CHARS].encode("utf-8", "replace"))
