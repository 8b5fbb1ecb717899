"""What a field of an event's contents may be taken for. Fields of real logs are missing, or of another type."""

import zlib

KINDS = ("page_enter", "page_scroll", "exposure", "click", "page_exit")  # the five basic kinds of §5.1
_TEXT_CHARS = 64
_MOST = 2**53  # larger numbers are no measurement; nor is what is not a number


def number(value, default):
    """Return `value` as a float where it is a number of at most 2^53 in size, else `default`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST <= value <= _MOST:
        return default
    return float(value)


def text(value):
    """Return `value` where it is a text, cut to 64 characters, or an int of at most 2^53 in size in digits; else ""."""
    if isinstance(value, str):
        return value[:_TEXT_CHARS]
    if isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value <= _MOST:
        return str(value)
    return ""


def text_hash(value):
    """Return 32 bits that a text is known by, the same on every device: the CRC of its first 64 characters."""
    return zlib.crc32(value[:_TEXT_CHARS].encode("utf-8", "replace"))
