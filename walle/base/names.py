"""Rules of the names of scenarios, tasks, sets of modules, groups and versions."""

import re

NAME_RULE = "lower-case letters, digits, - and _, at most 64, the first a letter or digit"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VERSION = re.compile(r"v[1-9][0-9]{0,8}")


def is_name(text: str) -> bool:
    """Return whether `text` may name a scenario or a task: it is a folder, a branch and part of a URL."""
    return _NAME.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Return whether `text` is a version of a task or of a set of modules: v1, v2, ..."""
    return _VERSION.fullmatch(text) is not None
