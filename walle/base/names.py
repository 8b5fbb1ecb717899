"""Rule of the names of scenarios, tasks and groups."""

import re

NAME_RULE = "lower-case letters, digits, - and _, at most 64, the first a letter or digit"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def is_name(text: str) -> bool:
    """Return whether `text` may name a scenario or a task: it is a folder, a branch and part of a URL."""
    return _NAME.fullmatch(text) is not None
