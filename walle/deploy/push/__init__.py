"""Push of push-then-pull (§6): profile in, directives out. `WallePush` adds the push answer to any ASGI app."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walle.deploy.push.answerer import Answerer, WallePush

__all__ = ["Answerer", "WallePush"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("walle.deploy.push.answerer"), name)
    raise AttributeError(f"module 'walle.deploy.push' has no attribute {name!r}")
