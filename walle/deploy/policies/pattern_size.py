"""Size of a regular expression's program in RE2, estimated from its text before it is compiled.

RE2 matches in time that is linear in the text, times the size of the program. A repetition multiplies that size:
`(.{100}){10}` has twelve characters and eight thousand instructions. The estimate is never below RE2's own
`ProgramSize`; `docs/adr/0008-targeting.md` says how that was checked.
"""

import re

_ANY = 13  # `.` and what else is every character but some: the ranges of bytes of UTF-8
_RANGE = 26  # a range of characters beyond ASCII, whose ends may split into several ranges of bytes
_UNICODE = 3_000  # a class of Unicode such as \pL
_CLASSES = {"d": 3, "w": 10, "s": 8, "D": _ANY + 4, "W": _ANY + 10, "S": _ANY + 8}
_REPEAT = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{0,4}))?\}", re.ASCII)
_FLAGS = re.compile(r"\?[a-zA-Z]*(?:-[a-zA-Z]*)?[:)]")
_NAME = re.compile(r"\?P?<[^>]*>")
_HEX = re.compile(r"x(?:\{[0-9A-Fa-f]*\}|[0-9A-Fa-f]{0,2})")
_ASCII_CLASS = re.compile(r"\[:\^?[a-z]*:\]")


class _Group:
    """An open bracket: instructions of what ended in it, and of its last part, which a repetition multiplies."""

    def __init__(self) -> None:
        self.ended = 0
        self.last = 0

    def add(self, size: int) -> None:
        self.ended += self.last
        self.last = size


def pattern_size(pattern: str) -> int:
    """Return an upper bound of the instructions of a pattern's program; in time linear in the pattern.

    Of what is not a valid pattern it is some number: RE2 refuses that.
    """
    folds = "i" in pattern and any("i" in flags[0] for flags in _FLAGS.finditer(pattern))
    groups = [_Group()]
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        group = groups[-1]
        if letter == "(":
            at = _after_flags(pattern, at + 1)
            groups.append(_Group())
            continue
        if letter == ")" and len(groups) > 1:
            groups.pop()
            groups[-1].add(group.ended + group.last + 2)  # 2: begin and end of a capture
        elif letter == "|":
            group.add(2)
            group.add(0)
        elif letter in "*+?":
            group.last += 3
        elif letter == "{" and (repeat := _REPEAT.match(pattern, at)):
            least, more, most = int(repeat[1]), repeat[2], int(repeat[3] or 0)
            group.last = max(1, least + (1 if more else 0), most) * (group.last + 2)
            at = repeat.end()
            continue
        elif letter == "[":
            size, at = _class_size(pattern, at, folds=folds)
            group.add(size)
            continue
        elif letter == "\\":
            size, at = _escape_size(pattern, at, folds=folds)
            group.add(size)
            continue
        else:
            group.add(_ANY if letter == "." else _letter_size(letter, folds=folds))
        at += 1
    return sum(group.ended + group.last + 2 for group in groups) + 6  # the search for a beginning, and the end


def _after_flags(pattern: str, at: int) -> int:
    found = _NAME.match(pattern, at) or _FLAGS.match(pattern, at)
    if found is None:
        return at
    return found.end() - 1 if found[0].endswith(")") else found.end()  # flags without a part of their own


def _letter_size(letter: str, *, folds: bool) -> int:
    if folds:
        return 10 if letter.isalpha() else 4
    return len(letter.encode(errors="replace"))


def _escape_size(pattern: str, at: int, *, folds: bool) -> tuple[int, int]:
    """Return the size of the escape that begins at `at`, and the place after it."""
    kind = pattern[at + 1 : at + 2]
    if kind in ("p", "P"):
        end = pattern.find("}", at) + 1 if pattern[at + 2 : at + 3] == "{" else at + 3
        return _UNICODE, end or len(pattern)
    if kind == "Q":
        end = pattern.find("\\E", at)
        text = pattern[at + 2 : end if end >= 0 else len(pattern)]
        return sum(_letter_size(letter, folds=folds) for letter in text), end + 2 if end >= 0 else len(pattern)
    if kind == "x" and (found := _HEX.match(pattern, at + 1)):
        return 10 if folds else 4, found.end()
    if kind in _CLASSES:
        return _CLASSES[kind] + (8 if folds else 0), at + 2
    return _letter_size(kind, folds=folds) if kind else 0, at + 2


def _class_size(pattern: str, at: int, *, folds: bool) -> tuple[int, int]:
    """Return the size of the class `[...]` that begins at `at`, and the place after it."""
    size = 2
    at += 1
    if pattern[at : at + 1] == "^":
        size += _ANY
        at += 1
    begin = at
    while at < len(pattern) and (pattern[at] != "]" or at == begin):
        if found := _ASCII_CLASS.match(pattern, at):
            size += _ANY + 10
            at = found.end()
        elif pattern[at] == "\\":
            kind = pattern[at + 1 : at + 2]
            more, at = _escape_size(pattern, at, folds=folds)
            size += more if kind in _CLASSES or kind in ("p", "P") else _RANGE
        else:
            size += (_RANGE if folds and pattern[at] in "-kKsS" else 2) if pattern[at].isascii() else _RANGE
            at += 1
    return size, at + 1
