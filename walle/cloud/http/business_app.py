"""The business's own ASGI app, which a gateway serves with the push answer."""

import importlib
from pathlib import Path

from walle.base.asgi import ASGIApp
from walle.errors import ConfigError


def load_app(spec: str) -> ASGIApp:
    """Return what the factory `package.module:function` makes."""
    module_name, _, function = spec.partition(":")
    try:
        app: ASGIApp = getattr(importlib.import_module(module_name), function)()
    except Exception as error:  # foreign code may raise anything
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.split(".")[0] == error.name:
            what = f"module {error.name} is neither in {Path.cwd()} nor installed"
        raise ConfigError(f"business app {spec!r} cannot be made (want package.module:function): {what}") from error
    if not callable(app):
        raise ConfigError(f"business app {spec!r} is not an ASGI app: the factory returned a {type(app).__name__}")
    return app
