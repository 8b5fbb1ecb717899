"""`import walle.cv as cv`: see `walle.engine_ext.cv`, whose names these are; parts are loaded on first use."""

import walle.engine_ext.cv as _cv

TYPE_CHECKING = False  # not from typing, whose import would be a third of a task VM's start
if TYPE_CHECKING:
    from walle.engine_ext.cv import *  # noqa: F403


def __getattr__(name: str) -> object:
    value: object = getattr(_cv, name)
    if not name.startswith("_"):
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return dir(_cv)
