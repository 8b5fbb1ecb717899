"""Plain data as JSON, for people and programs that do not read walle's encoding.

JSON lacks some plain data, which becomes an object of one key: bytes are {"$bytes": base64 text}, floats that are not
finite {"$float": "nan"}, "inf" or "-inf". An array is a list of lists. Texts that are not Unicode have U+FFFD for their
lone surrogates.
"""

import base64
import json
import math
import re
from typing import Any

BYTES_KEY = "$bytes"
FLOAT_KEY = "$float"
_LINE_BREAK = re.compile("[\x85\u2028\u2029]")  # JSON escapes the others itself
_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode  # json.dumps makes one a call
MAX_ELEMENTS = 1 << 19  # elements of an array
MAX_DEPTH = 200  # lists and tables in each other; the writers of JSON recurse


def to_json(value: Any, depth: int = 0) -> Any:
    """Return a decoded plain value as one that `json.dumps(..., allow_nan=False)` takes; arrays are memoryviews.

    Raises:
        TypeError: it is not plain data, is nested deeper than MAX_DEPTH, or has an array of more than MAX_ELEMENTS.
            `depth` counts the levels around it.
    """
    if depth > MAX_DEPTH:
        raise TypeError(f"it is nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else {FLOAT_KEY: str(value)}
        case str():
            return _unicode(value)
        case bytes():
            return {BYTES_KEY: base64.b64encode(value).decode()}
        case memoryview():
            if value.nbytes // value.itemsize > MAX_ELEMENTS:
                raise TypeError(f"an array has more than {MAX_ELEMENTS} elements")
            return to_json(value.tolist(), depth)
        case dict():
            return {_unicode(str(key)): to_json(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [to_json(item, depth + 1) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} is not plain data")


def dumps(value: Any) -> str:
    """Return one line of JSON of what `to_json` returned, for readers too that end lines at Unicode's line breaks."""
    text = _encode(value)
    if text.isascii():
        return text
    return _LINE_BREAK.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    return text
