"""Push of push-then-pull (§6): profile in, directives out. `WallePush` adds the push answer to any ASGI app."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walle.deploy.push.answerer import Answerer
    from walle.deploy.push.middleware import WallePush

_MODULE_OF = {"Answerer": "walle.deploy.push.answerer", "WallePush": "walle.deploy.push.middleware"}

__all__ = ["Answerer", "WallePush"]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'walle.deploy.push' has no attribute {name!r}")
