"""Ranges of app versions and other versions (PEP 440), such as '>=10,<11'. Cloud and devices must agree on them.

`packaging` is imported where a range needs it: most fleets have none of app versions, and a device starts sooner.
"""

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

MAX_RANGE_CHARS = 500
_MAX_VERSION_CHARS = 100
_PLAIN = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18}){0,9}", re.ASCII)

type Numbers = tuple[int, ...]
"""Numbers of a plain version such as 10.4, without zeros at the end: ordered as the versions are."""

type Cut = tuple[Numbers, int]
"""A place in the order of plain versions: just before one (0), or just after it (1)."""


class VersionRangeError(ValueError):
    """A text that is not a range of versions."""


@functools.lru_cache(maxsize=1024)
def _specifiers(text: str) -> "SpecifierSet":
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(text)
    except InvalidSpecifier as error:
        raise VersionRangeError from error


@functools.lru_cache(maxsize=1024)
def _version(text: str) -> "Version | None":
    from packaging.version import InvalidVersion, Version

    if len(text) > _MAX_VERSION_CHARS:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def check_range(text: str) -> None:
    """Check a range.

    Raises:
        VersionRangeError: it is none.
    """
    if len(text) > MAX_RANGE_CHARS:
        raise VersionRangeError
    _specifiers(text)


def in_range(version: str, text: str) -> bool:
    """Return whether a version is in a range; one that is not a version at all is in none.

    A pre-release such as `10.1rc1` is in a range when its place in the order of versions is.
    """
    parsed = _version(version)
    return parsed is not None and _specifiers(text).contains(parsed, prereleases=True)


def plain_numbers(version: str) -> Numbers | None:
    """Return the numbers of a plain version; None for one with any other part, and for what is not a version."""
    if len(version) > _MAX_VERSION_CHARS or not _PLAIN.fullmatch(version):
        return None
    return _stripped(tuple(map(int, version.split("."))))


def _stripped(numbers: Numbers) -> Numbers:
    end = len(numbers)
    while end and not numbers[end - 1]:
        end -= 1
    return numbers[:end]


@functools.lru_cache(maxsize=1024)
def cuts_of(text: str) -> tuple[bool, tuple[Cut, ...]] | None:
    """Return where a range begins and ends among plain versions: whether the lowest is in it, and each change.

    None for a range that compares texts (`===`), which no order describes.

    Every clause changes only at its own version, or at the next one of its length (`==10.*`, `~=10.4`), so that one
    version at each of these, and one between each two, tell all.
    """
    from packaging.version import Version

    numbers: set[Numbers] = set()
    for clause in _specifiers(text):
        if clause.operator == "===":
            return None
        release = Version(clause.version.removesuffix(".*")).release
        for end in range(1, len(release) + 1):
            numbers.add(_stripped(release[:end]))
            numbers.add(_stripped((*release[: end - 1], release[end - 1] + 1)))
    numbers.discard(())
    bounds: list[Numbers] = [(), *sorted(numbers)]  # () is version 0, the lowest
    depth = max(map(len, bounds)) + 1
    cuts: list[Cut] = []
    starts_in = before = in_range("0", text)
    for bound in bounds:
        at = in_range(".".join(map(str, bound)) or "0", text)
        after = in_range(".".join(map(str, (*bound, *[0] * (depth - len(bound)), 1))), text)
        if at != before:
            cuts.append((bound, 0))
        if after != at:
            cuts.append((bound, 1))
        before = after
    return starts_in, tuple(cuts)
