"""Public name of `walle.engine_ext.np`: `import walle.np as np`."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.np import *  # noqa: F403 -- the same names under the public module
    from walle.engine_ext.np import exceptions as exceptions  # noqa: PLC0414
    from walle.engine_ext.np import fft as fft  # noqa: PLC0414 -- names of this module too
    from walle.engine_ext.np import lib as lib  # noqa: PLC0414
    from walle.engine_ext.np import linalg as linalg  # noqa: PLC0414
    from walle.engine_ext.np import random as random  # noqa: PLC0414
else:
    from walle.engine_ext import np as _np
    from walle.engine_ext.np import __all__

    def __getattr__(name: str) -> object:
        if name.startswith("__") or name not in _np.__dir__():  # names that the package itself uses are not public
            raise AttributeError(f"walle.np has no {name!r}")
        found = globals()[name] = getattr(_np, name)
        return found

    def __dir__() -> list[str]:
        return __all__
