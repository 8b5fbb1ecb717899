"""The task's configuration, resources/settings.json, read once."""

import json

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context

_settings: "dict[str, Any]" = {}


def settings(ctx: "Context") -> "dict[str, Any]":
    """Return the settings by name.

    Raises:
        ValueError: the file is not a JSON object.
    """
    if not _settings:
        loaded = json.loads(bytes(ctx.resource("settings.json")))
        if not isinstance(loaded, dict) or not loaded:
            raise ValueError("resources/settings.json must be a JSON object with the task's settings")
        _settings.update(loaded)
    return _settings
