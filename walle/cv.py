"""Public name of `walle.engine_ext.cv`: `import walle.cv as cv`; parts are loaded on first use."""

import walle.engine_ext.cv as _cv

TYPE_CHECKING = False  # importing `typing` would take a third of a task VM's start-up
if TYPE_CHECKING:
    from walle.engine_ext.cv import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name.startswith("_") or isinstance(
        vars(_cv).get(name), type(_cv)
    ):  # names that the package itself uses are not public
        raise AttributeError(f"module 'walle.cv' has no attribute {name!r}")
    value: object = getattr(_cv, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return dir(_cv)
