"""Places of keys in a TOML text, which the standard parser does not tell."""

import re
from collections.abc import Iterator

type KeyPath = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_HEADER = re.compile(rf"\s*\[\[?\s*({_PART}(?:\s*\.\s*{_PART})*)\s*\]")
# A comment, a string that ends in this line, a bracket, the start of a text of several lines, or a quote that nothing
# closes: without the last, a line of such quotes would be searched once for each of them.
_TOKEN = re.compile(r"""#|\"\"\"|'''|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[\[\]{}"']""")
_END_OF_TEXT = re.compile(r'''(?:[^"\\]|\\.|"(?!""))*+"""''')


def key_places(text: str) -> dict[KeyPath, tuple[int, int]]:
    """Return line and column, from 1, of each section and of each key outside of inline tables; the first if repeated.

    The text is one that `tomllib` reads; of others, the places before the fault are right.
    """
    places: dict[KeyPath, tuple[int, int]] = {}
    section: KeyPath = ()
    depth, quotes = 0, ""  # open brackets; quotes of an open text
    for number, line in enumerate(text.split("\n"), 1):
        rest = 0
        if not depth and not quotes:
            if header := _HEADER.match(line):
                section = tuple(_parts(header[1]))
                places.setdefault(section, (number, header.start(1) + 1))
                continue
            if key := _KEY.match(line):
                places.setdefault((*section, *_parts(key[1])), (number, key.start(1) + 1))
                rest = key.end()
        depth, quotes = _after(line, rest, depth, quotes)
    return places


def _parts(key: str) -> Iterator[str]:
    for part in re.findall(_PART, key):
        yield part[1:-1] if part[0] in "\"'" else part


def _after(line: str, start: int, depth: int, quotes: str) -> tuple[int, str]:
    """Return the open brackets and the quotes of an open text at the end of a line."""
    while True:
        if quotes:
            end = _end_of_text(line, start, quotes)
            if end < 0:
                return depth, quotes
            start, quotes = end, ""
        token = _TOKEN.search(line, start)
        if token is None or token[0] in ("#", '"', "'"):
            return depth, ""
        start = token.end()
        if token[0] in ('"""', "'''"):
            quotes = token[0]
        elif len(token[0]) == 1:
            depth += 1 if token[0] in "[{" else -1


def _end_of_text(line: str, start: int, quotes: str) -> int:
    """Return the place after the quotes that end a text of several lines, -1 where they are in a later line."""
    if quotes == '"""':
        found = _END_OF_TEXT.match(line, start)
        return -1 if found is None else found.end()
    end = line.find(quotes, start)
    return -1 if end < 0 else end + len(quotes)
