"""Public name of `walle.engine_ext.nn`: `import walle.nn as nn`."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.nn import *  # noqa: F403 -- the same names under the public module
    from walle.engine_ext.nn import functional as functional  # noqa: PLC0414 -- names of this module too
    from walle.engine_ext.nn import init as init  # noqa: PLC0414 -- names of this module too
else:
    from walle.engine_ext import nn as _nn
    from walle.engine_ext.nn import __all__

    def __getattr__(name: str) -> object:
        if name.startswith("__") or name not in _nn.__dir__():  # names that the package itself uses are not public
            raise AttributeError(f"walle.nn has no {name!r}")
        found = globals()[name] = getattr(_nn, name)
        return found

    def __dir__() -> list[str]:
        return __all__
