"""Public name of `walle.engine_ext.optim`: `import walle.optim as optim`."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.optim import *  # noqa: F403 -- the same names under the public module
else:
    from walle.engine_ext import optim as _optim
    from walle.engine_ext.optim import __all__

    def __getattr__(name: str) -> object:
        if name.startswith("__") or name not in _optim.__dir__():  # names that the package itself uses are not public
            raise AttributeError(f"walle.optim has no {name!r}")
        found = globals()[name] = getattr(_optim, name)
        return found

    def __dir__() -> list[str]:
        return __all__
